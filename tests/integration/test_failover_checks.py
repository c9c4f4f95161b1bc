"""The checks of failovers find what they are there for."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.model import Acquire, Ask, Verdict
from penstock.stores.memory.store import MemoryStore
from tests.integration.failover_fleet import Spending
from tests.integration.failover_load import LIMITS, SHARES, ask, is_wrong, key_of

ASKS = [ask("g", kind, share) for kind in LIMITS for share in range(SHARES)]


def answer_to(asked: Ask) -> Verdict:
    (verdict,) = MemoryStore().run([Acquire((asked,))])
    assert isinstance(verdict, Verdict)
    return verdict


def test_an_answer_to_another_question_shows() -> None:
    answers = [answer_to(asked) for asked in ASKS]
    assert not any(map(is_wrong, answers))
    for mine, (answer, at, *_) in permutations(answers, 2):
        assert is_wrong(Verdict((answer, at, *mine[2:])))


def test_counters_are_spread_over_the_slots() -> None:
    assert len({asked.key for asked in ASKS}) == len({asked.quota for asked in ASKS}) == len(ASKS)


@pytest.mark.parametrize(
    ("answers", "exact"), [((3, 1), True), ((3, 2), False), ((2, 1), False)], ids=["exactly", "more", "less"]
)
def test_a_limit_is_enforced_by_all_together_or_not_at_all(answers: tuple[int, int], exact: bool) -> None:
    key = key_of("g", "proof-1", 0)
    assert Spending.of([{key: (admitted, 0)} for admitted in answers]).is_exact is exact
    unknown = Spending.of([{key: (admitted, 1)} for admitted in answers])
    assert unknown.is_exact is (sum(answers) <= 4), "what is not known may have been"

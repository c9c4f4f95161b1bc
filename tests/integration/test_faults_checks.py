"""The checks of faults find what they are there for, in trials that are made up.

That they do so in real ones is shown by `test_faults_server`, with limiters that are broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.clock import SECOND
from tests.faults.checks import (
    Trial,
    admits_within_bound,
    answers_fit,
    enforces_again,
    every_call_is_answered,
    no_errors,
    story_holds,
    wrong,
)
from tests.faults.load import QUOTAS, Answer, key_of, quota_of
from tests.faults.report import COLUMNS, row, totals

FIXED = key_of("g", "fixed", 0)
LIMIT = quota_of(FIXED).limit


def answer(at: int = 0, **other: Any) -> Answer:
    usual = Answer("node0", "local", FIXED, at * SECOND, at * SECOND + 1_000, True, "store")
    return usual._replace(**other)


def refusal(node: str) -> Answer:
    return answer(100, node=node, allowed=False)


def trial(*answers: Answer, **more: Any) -> Trial:
    """Two hosts, and a fault from 10 s to 20 s."""
    good: dict[str, Any] = {"hosts": 2, "began": 10 * SECOND, "ended": 20 * SECOND}
    return Trial("made up", "nowhere", answers=[*answers, refusal("node0"), refusal("node1")], **(good | more))


def test_all_is_well_when_it_is() -> None:
    well = trial(*[answer(second) for second in range(LIMIT)], answer(15, source="local"))
    assert wrong(well) == []
    assert (well.recovery, well.longest, well.worst) == (0, 1_000, (1, LIMIT))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (trial(hung=1), every_call_is_answered),
        (trial(answer(15, returned=60 * SECOND)), every_call_is_answered),
        (trial(answer(15, error="StoreError")), no_errors),
        (trial(faults=["KeyError"]), no_errors),
        (trial(answer(15, source="closed", behaviour="closed")), answers_fit),
        (trial(answer(15, source="open", behaviour="open", allowed=False)), answers_fit),
        (trial(answer(15, source="open")), answers_fit),
        (trial(*[answer(15, source="local")] * (2 * LIMIT + 3)), admits_within_bound),
        (trial(steady=False), enforces_again),
        (trial(hosts=3), enforces_again),
        (trial(broken=["too many connections"]), story_holds),
    ],
)
def test_each_check_fires(broken: Trial, check: Callable[[Trial], Iterator[str]]) -> None:
    findings = wrong(broken)
    assert findings
    assert {finding.partition(":")[0] for finding in findings} == {check.__name__}
    assert "WRONG" in row(broken)[-1]


def test_the_bound_is_one_more_budget_and_a_unit_per_host() -> None:
    assert wrong(trial(*[answer(15, source="local")] * (2 * LIMIT + 2))) == []


@pytest.mark.parametrize("kind", QUOTAS)
def test_the_bound_of_every_kind_but_the_wide_ones_can_be_broken(kind: str) -> None:
    key = key_of("g", kind, 0)
    many = trial(*[answer(15, key=key, source="local")] * 200)
    assert bool(list(admits_within_bound(many))) is (kind != "wide")


def test_what_the_store_does_not_know_of_is_lost() -> None:
    wide = key_of("g", "wide", 0)
    half = trial(*[answer(key=wide)] * 10, answer(key=wide, allowed=False), used={wide: 6})
    assert (half.lost, half.counted) == (4, 10)
    assert totals([half])[-1].startswith("counts lost: 40.0 %, 4 of 10")


def test_a_row_says_something_in_every_column() -> None:
    assert len(row(trial())) == len(COLUMNS)

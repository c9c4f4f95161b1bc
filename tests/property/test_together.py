"""The memory store's short way for a request of several keys answers as its ordinary way, field for field."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock import Decision, ManualClock, Quota, Verdict
from penstock.model import Acquire, Ask
from penstock.quota import CONCURRENCY
from penstock.stores.memory.store import MemoryStore

QUOTAS = tuple(
    part
    for text in (
        "3/second",
        "4/minute fixed_window",
        "5/10 seconds rolling_window",
        "3/second burst 6",
        "2/second gcra",
        "3/second leaky_bucket queue 2",
        "2 concurrent ttl 3s",
        "4/minute min_interval 300ms",
        "3/minute penalty 5s name penalised",
        "2/second count denied name counted",
        "50/day calendar",
    )
    for part in Quota.parse(text).parts
)
KEYS = ("a", "b", ("rule", "a"), ("rule", "a", "b"), "rule a=1")


COUNTERS = [(key, quota) for key in KEYS for quota in QUOTAS]


def _plain(decision: Decision) -> tuple[object, ...]:
    """All fields but the decisions within; and the number of a place is another in every store."""
    answer = decision[0][:6] if decision.quota.algorithm == CONCURRENCY else decision[0]
    return answer, *decision[1:5], bool(decision[5])


@given(st.integers(0, 2**64 - 1))
def test_the_short_way_answers_as_the_ordinary_one(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    short, ordinary = MemoryStore(clock=clock), MemoryStore(clock=clock)
    counters = random.sample(COUNTERS, k=5)  # few, so that most are known after some rounds
    for _ in range(12):
        asks = tuple(
            Ask(key, quota, 1 if quota.flat else random.randint(1, 2), random.random() < 0.2)
            for key, quota in random.sample(counters, k=random.randint(1, 4))
        )
        (wanted,) = ordinary.run([Acquire(asks)])
        found = short.decide(asks, clock.micros, Verdict)
        assert isinstance(wanted, Verdict)
        assert _plain(found) == _plain(wanted)
        assert [_plain(one) for one in found.decisions] == [_plain(one) for one in wanted.decisions]
        clock.set(clock.micros / 1_000_000 + random.choice([0, 0, 0.1, 0.5, 2, -0.2]))
    assert short.counters == ordinary.counters

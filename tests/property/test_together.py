"""The two bodies of the memory store decide alike, and as the smallest store does, field for field."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock import Decision, Limiter, ManualClock, Quota, Verdict
from penstock.model import Acquire, Ask
from penstock.quota import CONCURRENCY
from penstock.stores.memory.store import MemoryStore
from penstock.stores.memory.stripes import MASK
from tests.conformance.small_store import SmallStore
from tests.unit.support import Passing

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
PAUSES = [0, 0, 0.1, 0.5, 2, -0.2]

seeds = st.integers(0, 2**64 - 1)


def _plain(decision: Decision) -> tuple[object, ...]:
    """All fields but the decisions within; and the number of a place is another in every store."""
    answer = decision[0][:6] if decision.quota.algorithm == CONCURRENCY else decision[0]
    return answer, *decision[1:5], bool(decision[5])


def _told(outcome: object) -> tuple[object, ...]:
    assert isinstance(outcome, Verdict)
    return _plain(outcome), *[_plain(one) for one in outcome.decisions]


def _step(clock: ManualClock, random: Random) -> None:
    clock.set(clock.micros / 1_000_000 + random.choice(PAUSES))


@given(seeds)
def test_requests_of_any_keys_are_decided_as_by_the_smallest_store(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    store, small = MemoryStore(clock=clock), SmallStore(clock)
    counters = random.sample(COUNTERS, k=5)  # few, so that most are known after some rounds
    for _ in range(12):
        asks = tuple(
            Ask(key, quota, 1 if quota.flat else random.randint(1, 2), random.random() < 0.2)
            for key, quota in random.sample(counters, k=random.randint(1, 4))
        )
        (wanted,) = small.run([Acquire(asks)])
        assert _told(store.decide(asks, clock.micros, Verdict)) == _told(wanted)
        _step(clock, random)
    assert store.counters == sum(state is not None for state in small.states.values())


@given(seeds)
def test_both_bodies_decide_a_single_counter_alike(seed: int) -> None:
    random = Random(seed)
    clock = ManualClock()
    one, several = MemoryStore(clock=clock), MemoryStore(clock=clock)
    counters = random.sample(COUNTERS, k=3)
    for _ in range(20):
        key, quota = random.choice(counters)
        asks = ((key, quota, 1 if quota.flat else random.randint(0, 2), False),)
        wanted = several._ledger._several(asks, (hash(key) & MASK,), clock.micros, Verdict)
        assert _told(one.decide(asks, clock.micros, Verdict))[1:] == _told(wanted)[1:]
        _step(clock, random)
    assert one.counters == several.counters


@given(seeds)
def test_amendments_in_process_do_what_their_operations_do(seed: int) -> None:
    """Over a layer, a limiter goes the long way: everything is an operation."""
    random = Random(seed)
    clock = ManualClock()
    short, long = Limiter(MemoryStore(clock=clock)), Limiter(MemoryStore(clock=clock), clock=clock, layers=[Passing()])
    counters = random.sample(COUNTERS, k=3)
    charged: list[tuple[Verdict, Verdict]] = []
    for _ in range(30):
        ours, theirs = random.choice(charged) if charged else (None, None)
        match random.randrange(6):
            case 0 if ours and theirs:
                assert short.refund(ours) == long.refund(theirs)
            case 1 if ours and theirs and ours.quota.algorithm == CONCURRENCY:
                assert short.release(ours) == long.release(theirs)
            case 2 if ours and theirs and len(ours) == 7:
                units = random.randint(0, 4)
                assert short.settle(ours, units) == long.settle(theirs, units)
            case 3:
                _step(clock, random)
            case _:
                key, quota = random.choice(counters)
                request_id = random.choice([None, "a", "b"])
                cost = random.randint(1, 2)
                verdicts = short.acquire(key, quota, cost, request_id), long.acquire(key, quota, cost, request_id)
                assert _told(verdicts[0]) == _told(verdicts[1])
                if verdicts[0].receipt:
                    charged.append(verdicts)
    assert short.store.counters == long.store.counters  # type: ignore[attr-defined]

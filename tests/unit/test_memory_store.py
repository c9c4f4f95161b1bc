import gc
import random
from collections.abc import Callable, Iterator
from itertools import count, islice
from threading import Thread
from typing import Any

import pytest
from hypothesis import settings

from penstock import Limiter, ManualClock, Quota
from penstock.clock import Micros
from penstock.errors import InvalidOption
from penstock.model import Acquire, Amend, Ask, Key, Reset, Verdict
from penstock.quota import RATES
from penstock.stores import MemoryStore
from penstock.stores.memory import stripes
from penstock.stores.memory.store import LEAST_MAX_KEYS
from penstock.stores.memory.stripes import DRAINED_PER_NEWCOMER, MOST_LOOKED_AT, STRIPES, Kind, Spared, Stripes

SMALL = LEAST_MAX_KEYS
FLOOD = (10 if settings.get_current_profile_name() == "full" else 4) * SMALL
every_algorithm = pytest.mark.parametrize("algorithm", RATES)
both_kinds = pytest.mark.parametrize("algorithm", ["rolling_window", "gcra"])
"""The largest state and the smallest, where the algorithm itself is beside the point."""

untraced = pytest.mark.untraced
"""Floods run the same few lines a hundred thousand times; smaller tests show which."""


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(max_keys=SMALL, clock=clock)


@pytest.fixture
def limiter(store: MemoryStore) -> Limiter:
    return Limiter(store)


def flood(limiter: Limiter, quota: Quota, requests: int, prefix: str = "flood") -> int:
    """How many of that many fresh keys are admitted."""
    return sum(limiter.acquire(f"{prefix} {number}", quota).allowed for number in range(requests))


def locked(store: MemoryStore) -> int:
    """How many stripes another thread would find locked."""
    free: list[bool] = []

    def look() -> None:
        for stripe in store._stripes.all:
            free.append(stripe.lock.acquire(blocking=False))
            if free[-1]:
                stripe.lock.release()

    thread = Thread(target=look)
    thread.start()
    thread.join()
    return free.count(False)


def mates(quota: Quota) -> Iterator[str]:
    """Keys without end whose counters of `quota` are all in stripe 7."""
    return (key for key in (f"mate of {quota} {number}" for number in count()) if hash(key) % STRIPES == 7)


def doubled(store: MemoryStore) -> bool:
    """Whether a counter is in both generations."""
    slots = [(id(kind), slot) for stripe in store._stripes.all for kind, slot, _ in stripe.entries()]
    return len(slots) != len(set(slots)) or len(slots) != store.counters


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("max_keys", [0, -1, 4_095, True, 5e6, "5000", None])
def test_the_bound_is_a_whole_number_that_gives_every_stripe_its_share(max_keys: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        MemoryStore(max_keys=max_keys)
    assert str(caught.value) == f"max_keys {max_keys!r}: expected a whole number, at least 4096"


def test_there_are_at_least_256_stripes(store: MemoryStore) -> None:
    assert len({id(stripe.lock) for stripe in store._stripes.all}) >= 256


# ---------------------------------------------------------------- operations


def test_operations_of_a_batch_see_the_ones_before(store: MemoryStore) -> None:
    quota = Quota(2, 60)
    ask = Acquire((Ask("alice", quota, 2),))
    first, refused = store.run([ask, ask])
    assert isinstance(first, Verdict)
    assert first.receipt is not None
    _, again, _, after_reset = store.run([Amend(first.receipt, "refund"), ask, Reset("alice", quota), ask])
    assert [bool(verdict) for verdict in (first, refused, again, after_reset)] == [True, False, True, True]


def test_an_advisory_ask_is_counted_but_never_refuses(store: MemoryStore) -> None:
    advisory = Acquire((Ask("alice", Quota(1, 60), advisory=True),))
    first, second = store.run([advisory, advisory])
    assert isinstance(second, Verdict)
    assert first
    assert second
    assert [decision.allowed for decision in second.decisions] == [False]
    assert second.receipt is None


def test_an_advisory_ask_is_charged_only_if_the_request_passes(store: MemoryStore) -> None:
    enforced, advisory = Ask("alice", Quota(1, 60)), Ask("alice", Quota(9, 3600), advisory=True)
    store.run([Acquire((enforced, advisory)), Acquire((enforced, advisory))])
    (peeked,) = store.run([Acquire((advisory,), dry=True)])
    assert isinstance(peeked, Verdict)
    assert peeked.remaining == 8


def test_a_request_may_span_many_keys_and_stripes(store: MemoryStore) -> None:
    quota = Quota(2, 60)
    keys = [f"key {number}" for number in range(300)]
    request = Acquire(tuple(Ask(key, quota) for key in keys))
    assert [bool(verdict) for verdict in store.run([request, request, request])] == [True, True, False]
    (backwards,) = store.run([Acquire(tuple(Ask(key, quota) for key in reversed(keys)), dry=True)])
    assert isinstance(backwards, Verdict)
    assert {decision.remaining for decision in backwards.decisions} == {0}


@every_algorithm
def test_changing_amounts_keeps_what_was_used(store: MemoryStore, limiter: Limiter, algorithm: str) -> None:
    limiter.acquire("alice", Quota(10, 60, algorithm), cost=10)
    assert not limiter.acquire("alice", Quota(8, 60, algorithm))
    assert store.counters == 1


def test_amounts_that_vary_without_end_do_not_fill_the_memory(store: MemoryStore, limiter: Limiter) -> None:
    from penstock.stores.memory.counters import MAX_BOUND

    quotas = [Quota(limit, 60) for limit in range(1, MAX_BOUND + 100)]
    for quota in quotas:
        store.bind((quota,))
    assert len(store._bound) <= MAX_BOUND
    assert len(store._counters.prepared) <= MAX_BOUND
    assert limiter.acquire("alice", quotas[0])


def test_each_counter_is_counted_once(store: MemoryStore, limiter: Limiter) -> None:
    keys: list[Key] = ["a", "b", ("a", "b"), "é"]
    for key in keys * 3:
        limiter.acquire(key, ["10/minute", "10/hour"])
    assert store.counters == 8


def test_looking_and_resetting_leave_no_counter(store: MemoryStore, limiter: Limiter) -> None:
    limiter.peek("alice", ["10/minute", "10/hour"])
    limiter.reset("alice", "10/minute")
    assert store.counters == 0
    limiter.acquire("alice", "10/minute")
    limiter.reset("alice", "10/minute")
    assert store.counters == 0


@every_algorithm
def test_a_refund_of_everything_leaves_no_use_behind(limiter: Limiter, algorithm: str) -> None:
    quota = Quota(10, 60, algorithm, penalty=5)
    verdict = limiter.acquire("alice", quota, cost=4)
    limiter.refund(verdict)
    limiter.refund(verdict)
    assert limiter.peek("alice", quota, cost=10)


# ---------------------------------------------------------------- the bound


@untraced
@both_kinds
def test_there_are_never_more_counters_than_the_bound(clock: ManualClock, algorithm: str) -> None:
    store = MemoryStore(max_keys=SMALL, clock=clock)
    limiter = Limiter(store)
    quota = Quota(10, 60, algorithm)
    most = 0
    for number in range(FLOOD):
        limiter.acquire(f"flood {number}", quota)
        if number % 500 == 0:
            most = max(most, store.counters)
    assert most <= SMALL
    assert store.counters >= SMALL // 2


@untraced
def test_the_bound_holds_for_requests_of_several_quotas(store: MemoryStore, limiter: Limiter) -> None:
    quotas = ["10/minute", "100/hour", "1000/day gcra"]
    for number in range(FLOOD // 2):
        limiter.acquire(f"flood {number}", quotas)
        assert number % 500 or store.counters <= SMALL
    assert store.counters <= SMALL


@untraced
def test_the_bound_holds_when_all_counters_of_a_request_share_a_stripe(store: MemoryStore) -> None:
    quotas = Quota(10, 60), Quota(100, 3600), Quota(1000, 86_400)
    keys = [mates(quota) for quota in quotas]
    stripe = store._stripes.all[7]
    for _ in range(60):
        store.run([Acquire(tuple(Ask(next(key), quota) for key, quota in zip(keys, quotas, strict=True)))])
        assert len(stripe.entries()) == stripe.count <= SMALL // STRIPES


@untraced
def test_the_bound_holds_while_time_passes(store: MemoryStore, limiter: Limiter, clock: ManualClock) -> None:
    for number in range(20_000):
        limiter.acquire(f"flood {number}", "10/minute")
        clock.advance(0.01)
        assert number % 500 or store.counters <= SMALL


# ---------------------------------------------------------------- when full


@untraced
@every_algorithm
def test_an_offender_stays_refused_through_a_flood_of_fresh_keys(limiter: Limiter, algorithm: str) -> None:
    quota = Quota(10, 60, algorithm)
    offenders = [f"offender {number}" for number in range(20)]
    for offender in offenders:
        limiter.acquire(offender, quota, cost=10)
    assert flood(limiter, quota, FLOOD) == FLOOD
    assert [limiter.peek(offender, quota).allowed for offender in offenders] == [False] * 20


@untraced
@pytest.mark.parametrize("text", ["10/minute penalty 15m", "10/minute count denied", "10/minute burst 20"])
def test_an_offender_stays_refused_whatever_the_quota_says(limiter: Limiter, text: str) -> None:
    quota = Quota.parse(text)
    limiter.acquire("offender", quota, cost=quota.capacity)
    limiter.acquire("offender", quota)
    flood(limiter, quota, FLOOD)
    assert not limiter.peek("offender", quota)


@untraced
def test_an_offender_with_several_quotas_stays_refused(limiter: Limiter) -> None:
    quotas = [Quota(10, 60), Quota(100, 3600)]
    limiter.acquire("offender", quotas, cost=10)
    for number in range(FLOOD // 2):
        limiter.acquire(f"flood {number}", quotas)
    assert not limiter.peek("offender", quotas)


@untraced
def test_a_newcomer_is_served_when_full_and_limited_as_long_as_it_is_active(limiter: Limiter) -> None:
    quota = Quota(10, 60)
    flood(limiter, quota, 3 * SMALL)
    admitted = 0
    for number in range(40):
        admitted += limiter.acquire("newcomer", quota).allowed
        flood(limiter, quota, 50, prefix=f"more {number}")
    assert 10 <= admitted < 20


@untraced
@both_kinds
def test_among_equals_the_older_stays(limiter: Limiter, clock: ManualClock, algorithm: str) -> None:
    """With a limit of 1 everybody has used all: a flood of fresh keys must not wash out who was there before."""
    quota = Quota(1, 60, algorithm)
    offenders = [f"offender {number}" for number in range(200)]
    for offender in offenders:
        limiter.acquire(offender, quota)
    clock.advance(1)
    flood(limiter, quota, FLOOD)
    assert sum(limiter.peek(offender, quota).allowed for offender in offenders) == 0


@untraced
def test_a_full_store_never_refuses_all_newcomers(limiter: Limiter) -> None:
    quota = Quota(1, 60)
    assert flood(limiter, quota, 3 * SMALL) == 3 * SMALL


@untraced
def test_a_key_with_more_counters_than_a_stripe_holds_stays_within_it(store: MemoryStore, limiter: Limiter) -> None:
    for number in range(10 * SMALL // 256):
        limiter.acquire("alice", f"10/minute name q{number}")
    assert store.counters <= SMALL // 256


@untraced
def test_making_room_looks_at_few_entries_however_many_are_spared() -> None:
    class Entries(Kind):
        expiry = staticmethod(lambda state: 2)
        weight = staticmethod(lambda state, now: (0.0, 0.0))

    stripes = Stripes(256)
    stripe, kind, state = stripes.all[0], Entries(stripes), object()
    looked: list[object] = []

    class All:
        def __contains__(self, entry: object) -> bool:
            looked.append(entry)
            return True

    for number in range(500):
        stripes.add(stripe, kind, number, state, 1, Spared((), All()))
    assert len(looked) <= 500 * MOST_LOOKED_AT
    assert stripe.count == 500  # all are of one request
    stripes.add(stripe, kind, "next", state, 1)
    assert stripe.count < 500


# ---------------------------------------------------------------- reclaiming


@every_algorithm
def test_newcomers_drain_what_has_expired(
    store: MemoryStore, limiter: Limiter, clock: ManualClock, algorithm: str
) -> None:
    quota = Quota(10, 60, algorithm)
    flood(limiter, quota, 3_000, prefix="early")
    clock.advance(180)
    flood(limiter, quota, 1_500, prefix="late")
    assert store.counters < 2_200


def test_what_has_not_expired_is_kept(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    flood(limiter, Quota(10, 86_400), 1_000, prefix="early")
    clock.advance(180)
    flood(limiter, Quota(10, 86_400), 1_000, prefix="late")
    assert store.counters == 2_000


@untraced
def test_a_counter_that_expires_later_than_others_outlives_them(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", "1/day")
    for round_ in range(10):
        flood(limiter, Quota(10, 1), 1_000, prefix=f"round {round_}")
        clock.advance(70)
    assert not limiter.peek("alice", "1/day")


def test_no_call_drains_more_than_a_few_counters(store: MemoryStore, limiter: Limiter, clock: ManualClock) -> None:
    quota = Quota(10, 60)
    flood(limiter, quota, 3_500, prefix="early")
    clock.advance(180)
    falls = []
    for number in range(1_000):
        before = store.counters
        limiter.acquire(f"late {number}", quota)
        falls.append(before + 1 - store.counters)
    assert 0 < max(falls) <= DRAINED_PER_NEWCOMER
    assert min(falls) >= 0


def test_a_call_on_a_known_key_drains_nothing(store: MemoryStore, limiter: Limiter, clock: ManualClock) -> None:
    quota = Quota(10, 3600)
    flood(limiter, quota, 3_000)
    clock.advance(180)
    before = store.counters
    flood(limiter, quota, 3_000)
    assert store.counters == before


@untraced
def test_counters_of_the_old_generation_are_found_again_and_not_doubled(
    store: MemoryStore, limiter: Limiter, clock: ManualClock
) -> None:
    quota = Quota(10, 86_400)
    for round_ in range(9):
        for number in range(500):
            assert limiter.acquire(f"key {number}", quota).remaining == 9 - round_
        assert store.counters - 500 <= round_ * 300
        clock.advance(70)
        flood(limiter, Quota(10, 1), 300, prefix=f"turn {round_}")
    assert not doubled(store)


@pytest.mark.parametrize("call", ["peek", "refund", "reset", "several"])
def test_every_operation_finds_the_old_generation(limiter: Limiter, clock: ManualClock, call: str) -> None:
    quota = Quota(10, 86_400)
    keys = [f"key {number}" for number in range(500)]
    verdicts = {key: limiter.acquire(key, quota, cost=4) for key in keys}
    clock.advance(70)
    flood(limiter, Quota(10, 1), 300)
    for key in keys:
        match call:
            case "peek":
                assert limiter.peek(key, quota).remaining == 6
            case "refund":
                assert limiter.refund(verdicts[key]).units == 4
            case "reset":
                limiter.reset(key, quota)
                assert limiter.peek(key, quota).remaining == 10
            case _:
                assert limiter.acquire(key, [quota, "1000/second"]).decisions[0].remaining == 5


def test_a_request_whose_own_newcomer_turns_the_generations_loses_no_charge(
    store: MemoryStore, clock: ManualClock
) -> None:
    """The new counter of a request may turn the generation in which the request's other counter stands."""
    new, known = Quota(10, 60), Quota(10, 3600)
    newcomer, (key, *others) = next(mates(new)), islice(mates(known), 20)
    store.run([Acquire((Ask(other, known),)) for other in (key, *others[:6])])
    clock.advance(61)
    (verdict,) = store.run([Acquire((Ask(newcomer, new), Ask(key, known, 9)))])
    assert verdict
    for other in others[6:]:
        store.run([Acquire((Ask(other, known),))])
    (after,) = store.run([Acquire((Ask(key, known, 0),), dry=True)])
    assert isinstance(after, Verdict)
    assert after.remaining == 0
    assert not doubled(store)


@pytest.mark.parametrize("seed", range(10))
def test_no_charge_is_lost_or_doubled_however_generations_turn(
    store: MemoryStore, clock: ManualClock, seed: int
) -> None:
    """Requests of several counters in one stripe, never more than its share: every unit is accounted for."""
    chance = random.Random(seed)
    share = SMALL // STRIPES
    quota, other = Quota(1_000, 86_400, "rolling_window"), Quota(1_000, 43_200, "rolling_window")
    pool = [(key, of) for of in (quota, other) for key in islice(mates(of), share // 2)]
    used = dict.fromkeys(pool, 0)
    for _ in range(200):
        chosen = chance.sample(pool, chance.choice([1, 2, 3]))
        cost = chance.randint(1, 3)
        (verdict,) = store.run([Acquire(tuple(Ask(key, of, cost) for key, of in chosen))])
        assert isinstance(verdict, Verdict)
        for counter, decision in zip(chosen, verdict.decisions, strict=True):
            used[counter] += cost
            assert decision.remaining == 1_000 - used[counter]
        if chance.random() < 0.1:
            key, of = counter = chance.choice(pool)
            store.run([Reset(key, of)])
            used[counter] = 0
        clock.advance(chance.choice([0, 1, 61]))
    assert store.counters <= share


@untraced
@pytest.mark.parametrize("seed", range(FLOOD // SMALL))
def test_the_bound_holds_however_requests_overlap_in_a_stripe(
    store: MemoryStore, clock: ManualClock, seed: int
) -> None:
    chance = random.Random(seed)
    quota, other = Quota(10, 86_400), Quota(10, 43_200, "gcra")
    pool = [(key, of) for of in (quota, other) for key in islice(mates(of), 30)]
    stripe = store._stripes.all[7]
    for _ in range(400):
        chosen = chance.sample(pool, chance.choice([1, 2, 3]))
        store.run([Acquire(tuple(Ask(key, of, chance.randint(1, 3)) for key, of in chosen))])
        assert not doubled(store)
        assert len(stripe.entries()) == stripe.count <= SMALL // STRIPES
        clock.advance(chance.choice([0, 1, 61]))


@untraced
def test_a_large_family_does_not_keep_others_from_being_reclaimed(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=25_600, clock=clock)
    limiter = Limiter(store)
    lasting, passing = Quota(1_000, 86_400, "gcra"), Quota(10, 1, "gcra")
    for number in range(10_000):
        limiter.acquire(f"lasting {number}", lasting, cost=500)
    for round_ in range(30):
        clock.advance(120)
        flood(limiter, passing, 1_000, prefix=f"passing {round_}")
    lost = sum(limiter.peek(f"lasting {number}", lasting).remaining == 1_000 for number in range(10_000))
    assert lost == 0
    assert store.counters < 20_000


def test_families_that_nobody_asks_for_any_more_leave_few_shelves_behind(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    for number in range(1_000):
        limiter.acquire("alice", Quota(10, 1, name=f"n{number}"))
        clock.advance(3)
    assert sum(len(stripe.shelves) for stripe in store._stripes.all) < 100


@untraced
def test_a_newcomer_displaces_no_other_counter_of_its_own_key(limiter: Limiter) -> None:
    first, second = Quota(10**6, 3_600, "gcra"), Quota(10, 60)
    flood(limiter, second, 3 * SMALL)
    limiter.acquire("alice", first)
    limiter.acquire("alice", second)
    assert limiter.peek("alice", first).remaining == 10**6 - 1


def test_a_counter_that_is_dropped_as_expired_while_its_request_is_decided_is_kept(
    store: MemoryStore, clock: ManualClock
) -> None:
    """Places that were all released say nothing more, so making room for the request's other counter drops them."""
    places, rate = Quota.parse("2 concurrent ttl 30s"), Quota(10, 60)
    limiter = Limiter(store)
    limiter.release(limiter.acquire("alice", places))
    clock.advance(61)
    others = (key for key in map(str, count()) if store._stripes.of(key) is store._stripes.of("alice"))
    for other in islice(others, 8):  # turn the generations
        limiter.acquire(other, places)
    assert limiter.acquire("alice", [rate, places])
    assert [inspection.used for inspection in limiter.inspect("alice", [rate, places])] == [1, 1]
    assert not doubled(store)


# ---------------------------------------------------------------- faults


class Poison:
    """A state that no algorithm can work with."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError

    def __iter__(self) -> Iterator[int]:
        raise ZeroDivisionError


@every_algorithm
@pytest.mark.parametrize("call", ["acquire", "several", "peek", "refund"])
def test_a_call_that_breaks_leaves_no_lock_behind(
    store: MemoryStore, limiter: Limiter, algorithm: str, call: str
) -> None:
    quota = Quota(10, 60, algorithm)
    verdict = limiter.acquire("alice", quota)
    for stripe in store._stripes.all:
        for kind, slot, _ in stripe.entries():
            stripe.write(kind, slot, Poison())
    attempts: dict[str, Callable[[], object]] = {
        "acquire": lambda: limiter.acquire("alice", quota),
        "several": lambda: limiter.acquire("alice", [quota, "10/hour"]),
        "peek": lambda: limiter.peek("alice", quota),
        "refund": lambda: limiter.refund(verdict),
    }
    with pytest.raises(ZeroDivisionError):
        attempts[call]()
    assert locked(store) == 0
    limiter.reset("alice", quota)
    assert limiter.acquire("alice", quota)


def test_a_bad_key_leaves_no_lock_behind(store: MemoryStore, limiter: Limiter) -> None:
    for key in ("", "\ud800", "x" * 2_000):
        with pytest.raises(ValueError, match=r"^key"):
            limiter.acquire(key, "10/minute")
    assert locked(store) == 0
    assert store.counters == 0


def test_a_store_nobody_holds_is_freed() -> None:

    gc.collect()
    before = len(stripes._alive)
    store = MemoryStore()
    Limiter(store).acquire("alice", "10/minute")
    assert len(stripes._alive) == before + 1
    del store
    gc.collect()
    assert len(stripes._alive) == before


PACED = Quota.parse("200/second gcra burst 1")


def decided(store: MemoryStore, now: Micros) -> Verdict:
    """Decide one unit of alice's in process."""
    local = store.bind((PACED,)).local
    verdict = None if local is None else local("alice", 1, now)
    assert verdict is not None
    return verdict


def stale_asks(store: MemoryStore) -> dict[str, Callable[[Micros], Verdict]]:
    """Ways to ask with an instant that was read before others had their turn."""
    posed = (("alice", PACED, 1, False),)
    other = ("bob", PACED, 1, False)
    once = store.bind((PACED,)).once
    assert once is not None
    return {
        "one": lambda now: decided(store, now),
        "one with an id": lambda now: once("alice", 1, b"id", now),
        "a lone ask of rules": lambda now: store.decide(posed, now, Verdict),
        "asks of rules": lambda now: store.decide((*posed, other), now, Verdict),
    }


@pytest.mark.parametrize("way", stale_asks(MemoryStore()))
def test_who_was_held_up_after_reading_the_clock_gives_nobody_a_unit(way: str) -> None:
    """It looks as if the clock had been stepped back by more than the bucket holds, and it was not."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    stale = clock.time_ns() // 1_000
    for _ in range(4):
        clock.advance(0.005)
        assert decided(store, clock.time_ns() // 1_000)
    held_up = stale_asks(store)[way](stale)
    assert not held_up
    assert held_up.at_us == clock.time_ns() // 1_000
    assert not decided(store, clock.time_ns() // 1_000)
    clock.advance(0.005)
    assert decided(store, clock.time_ns() // 1_000)


def test_fork_takes_the_lock_for_new_kinds_after_all_stripes() -> None:
    """A request of quotas not seen before takes them in that order, so the other one would be a deadlock."""
    store = MemoryStore(clock=ManualClock())
    taken: list[object] = []

    class Noted:
        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def acquire(self) -> None:
            taken.append(self)
            self.lock.acquire()

        def release(self) -> None:
            self.lock.release()

    inner = store._stripes
    inner.lock = of_kinds = Noted(inner.lock)  # type: ignore[assignment]
    inner.all[7].lock = of_stripe = Noted(inner.all[7].lock)  # type: ignore[assignment]
    stripes._before_fork()
    stripes._after_fork()
    assert taken == [of_stripe, of_kinds]

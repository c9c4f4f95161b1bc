"""The memory store: counters of one process, exact across threads, bounded in number.

**Stripes.** Counters are spread over 256 stripes by hash, each with a lock of its own; a request takes the locks of its
stripes in order. A lock is held for about a microsecond, so asyncio callers share the store without harm.

**Bound.** Each stripe keeps at most its share of `max_keys`. A stripe has two generations: new and touched counters
are in the young one; once that fills half the share, or a minute has passed, it becomes the old one. Every newcomer
drains a few counters from the old generation: expired ones are dropped, the others move to the young. So memory is
reclaimed a little at a time by those who need it, and no call ever scans.

**When full**, a newcomer still gets in: of the few counters drained for it, the one that has used the smallest share of
its quota is forgotten, and among equals the youngest. A flood of new keys therefore displaces itself. Who sits at the
limit stays remembered, unless it drives most of a stripe's other keys to their limits as well. A forgotten counter
regains at most one budget.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple
from weakref import WeakSet

from penstock import algorithms
from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import InvalidOption
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    Answer,
    Ask,
    Charge,
    Decision,
    Key,
    Op,
    Outcome,
    Reset,
    Verdict,
    check_cost,
    check_key,
)
from penstock.quota import Identity, Quota
from penstock.stores.base import LoneAsk

STRIPES = 256
DEFAULT_MAX_KEYS = 1_000_000
LEAST_MAX_KEYS = 16 * STRIPES
DRAINED_PER_NEWCOMER = 4
GENERATION: Micros = 60_000_000
MAX_BOUND = 4_096

_ONE = 1
_MASK = STRIPES - 1


class _Stripe:
    """A share of the counters, and the lock without which nobody looks at them."""

    __slots__ = ("lock", "old", "turned_at", "young")

    def __init__(self) -> None:
        self.lock = RLock()
        self.young: dict[str, State] = {}
        self.old: dict[str, State] = {}
        self.turned_at: Micros = 0

    def find(self, slot: str) -> State:
        """The state of a counter, brought to the young generation; None if it is not known."""
        state = self.young.get(slot)
        if state is None and (state := self.old.pop(slot, None)) is not None:
            self.young[slot] = state
        return state

    def forget(self, slot: str) -> None:
        self.young.pop(slot, None)
        self.old.pop(slot, None)

    def turn(self, now: Micros) -> None:
        """Let the young generation become the old one, which must have been drained."""
        self.old, self.young, self.turned_at = self.young, {}, now


class _Family:
    """All counters of one identity: same algorithm, period and name, whatever the key and the amount."""

    __slots__ = ("bounds", "latest", "prefix", "prefix_of_parts", "quota")

    def __init__(self, number: int, quota: Quota) -> None:
        self.prefix = f"{number}:"
        self.prefix_of_parts = f"{number}+:"
        self.bounds: dict[Quota, Bound] = {}
        self.quota = quota
        self.latest = self.bind(quota)

    def bind(self, quota: Quota) -> Bound:
        bound = self.bounds.get(quota)
        if bound is None:
            if len(self.bounds) >= MAX_BOUND:  # amounts that vary without end: start over
                self.bounds.clear()
            bound = self.bounds[quota] = algorithms.bind(quota)
            self.latest, self.quota = bound, quota
        return bound

    def slot(self, key: Key) -> str:
        """Where the counter of `key` lives. Injective: parts carry their lengths, and lone texts another prefix."""
        key = check_key(key)
        if isinstance(key, str):
            return self.prefix + key
        return self.prefix_of_parts + "".join(f"{len(part)}:{part}" for part in key)

    def weight(self, state: State, now: Micros) -> tuple[float, float]:
        """How much would be lost with `state`: the share of the quota that is used, then how long ago it began."""
        answer, _ = self.latest.peek(state, 0, now)
        used = 1 - answer[1] / self.quota.capacity
        return used, -(self.latest.expiry(state) - now) / self.quota.period_us


class _Place(NamedTuple):
    """Where one ask's counter is, and what decides on it."""

    ask: Ask
    bound: Bound
    stripe: _Stripe
    slot: str


class MemoryStore:
    """Counters in this process.

    - `max_keys`: how many counters to remember at most; at least 4,096.
    - `clock`: where the time comes from.
    """

    def __init__(self, *, max_keys: int = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < LEAST_MAX_KEYS:
            raise InvalidOption(f"max_keys {max_keys!r}: expected a whole number, at least {LEAST_MAX_KEYS}")
        self.clock: Clock = clock or SystemClock()
        self._share = max_keys // STRIPES
        self._stripes = tuple(_Stripe() for _ in range(STRIPES))
        self._families: dict[Identity, _Family] = {}
        self._by_prefix: dict[str, _Family] = {}
        self._lone: dict[Quota, LoneAsk] = {}
        self._lock = Lock()  # protects the making of families
        _alive.add(self)

    @property
    def counters(self) -> int:
        """How many counters are remembered."""
        return sum(len(stripe.young) + len(stripe.old) for stripe in self._stripes)

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        now = self.clock.time_ns() // 1_000
        return [self._run(op, now) for op in ops]

    def close(self) -> None:
        """Nothing to give back."""

    def bind(self, quota: Quota) -> LoneAsk:
        lone = self._lone.get(quota)
        if lone is None:
            if len(self._lone) >= MAX_BOUND:
                self._lone.clear()
            lone = self._lone[quota] = self._bind(quota)
        return lone

    def _bind(self, quota: Quota) -> LoneAsk:
        """The hot path: everything that does not depend on key, cost and now is done here, once."""
        family = self._family(quota)
        prefix, stripes = family.prefix, self._stripes
        decide, newcomer = family.bind(quota).decide, self._newcomer

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            if cost is not _ONE:  # 1 always fits; anything else is looked at, True and 1.0 included
                check_cost(cost, quota)
            try:
                slot = prefix + key  # type: ignore[operator]
            except TypeError:  # a tuple, or no key at all
                slot = family.slot(key)
            stripe = stripes[hash(slot) & _MASK]
            lock = stripe.lock
            try:
                lock.acquire()
                state = stripe.young.get(slot)
                if state is None:
                    state = newcomer(stripe, slot, key, now)
                answer, after = decide(state, cost, now)
                if after is not state:
                    stripe.young[slot] = after
            finally:
                lock.release()
            return Verdict((answer, now, key, quota, cost, ()))

        return ask

    def _run(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            if len(op.asks) == 1 and not op.dry:
                ask = op.asks[0]
                if not ask.advisory:
                    return self.bind(ask.quota)(ask.key, ask.cost, now)
            return self._acquire(op, now)
        if isinstance(op, Amend):
            return Amended(tuple(self._refund(charge, now) for charge in op.receipt.portion(op.units)))
        return self._reset(op)

    def _acquire(self, op: Acquire, now: Micros) -> Verdict:
        """Decide on all asks, then write all, with all their stripes locked in order."""
        places = []
        numbers = set()
        for ask in op.asks:
            family = self._family(ask.quota)
            slot = family.slot(ask.key)
            number = hash(slot) & _MASK
            numbers.add(number)
            places.append(_Place(ask, family.bind(ask.quota), self._stripes[number], slot))
        stripes = [self._stripes[number] for number in sorted(numbers)]
        for stripe in stripes:
            stripe.lock.acquire()
        try:
            if op.dry:
                return Verdict.of(tuple(_peek(place, place.stripe.find(place.slot), now) for place in places))
            return Verdict.of(self._decide(places, now))
        finally:
            for stripe in stripes:
                stripe.lock.release()

    def _decide(self, places: list[_Place], now: Micros) -> tuple[Decision, ...]:
        before = [place.stripe.find(place.slot) for place in places]
        steps = [p.bound.decide(state, p.ask.cost, now) for p, state in zip(places, before, strict=True)]
        passes = all(answer[0] or place.ask.advisory for place, (answer, _) in zip(places, steps, strict=True))
        decisions = []
        for place, state, (answer, after) in zip(places, before, steps, strict=True):
            if answer[0] and not passes:  # it would have passed, but the request does not: nothing is charged
                decisions.append(_peek(place, state, now))
                continue
            decisions.append(_decision(place.ask, answer, now))
            if after is not state:
                if state is None:
                    self._make_room(place.stripe, now)
                place.stripe.young[place.slot] = after
        return tuple(decisions)

    def _refund(self, charge: Charge, now: Micros) -> int:
        family = self._family(charge.quota)
        slot = family.slot(charge.key)
        stripe = self._stripes[hash(slot) & _MASK]
        with stripe.lock:
            state = stripe.find(slot)
            if state is None or not charge.cost:
                return 0
            back, after = family.bind(charge.quota).refund(state, charge.cost, charge.mark, now)
            if after is None:
                stripe.forget(slot)
            else:
                stripe.young[slot] = after
            return back

    def _reset(self, op: Reset) -> Amended:
        slot = self._family(op.quota).slot(op.key)
        stripe = self._stripes[hash(slot) & _MASK]
        with stripe.lock:
            stripe.forget(slot)
        return Amended()

    def _family(self, quota: Quota) -> _Family:
        family = self._families.get(quota.identity)
        if family is None:
            with self._lock:
                family = self._families.get(quota.identity)
                if family is None:
                    family = _Family(len(self._families), quota)
                    self._by_prefix[family.prefix[:-1]] = self._by_prefix[family.prefix_of_parts[:-1]] = family
                    self._families[quota.identity] = family
        return family

    def _newcomer(self, stripe: _Stripe, slot: str, key: Key, now: Micros) -> State:
        """The state of a counter that the young generation does not have; room is made for it if nobody has it."""
        state = stripe.find(slot)
        if state is None:
            check_key(key)
            self._make_room(stripe, now)
        return state

    def _make_room(self, stripe: _Stripe, now: Micros) -> None:
        """Drain a few counters of the old generation; afterwards there is room for one more."""
        if not stripe.old and (len(stripe.young) * 2 >= self._share or abs(now - stripe.turned_at) >= GENERATION):
            stripe.turn(now)
        full = len(stripe.young) + len(stripe.old) >= self._share
        survivors = []
        for _ in range(DRAINED_PER_NEWCOMER):
            if not stripe.old and full:  # choose among more than the last one left
                stripe.turn(now)
            if not stripe.old:
                break
            slot, state = stripe.old.popitem()
            family = self._by_prefix[slot.partition(":")[0]]
            if family.latest.expiry(state) > now:
                survivors.append((slot, state, family))
            else:
                full = False
        if full:
            survivors.remove(min(survivors, key=lambda survivor: survivor[2].weight(survivor[1], now)))
        for slot, state, _ in survivors:
            stripe.young[slot] = state


def _peek(place: _Place, state: State, now: Micros) -> Decision:
    answer, _ = place.bound.peek(state, place.ask.cost, now)
    return _decision(place.ask, answer, now)


def _decision(ask: Ask, answer: Answer, now: Micros) -> Decision:
    return Decision((answer, now, ask.key, ask.quota, ask.cost, ask.advisory))


class AsyncMemoryStore:
    """A memory store for asyncio: the same counters, which never make anyone wait."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.clock = store.clock
        self.bind = store.bind

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self._store.run(ops, deadline)

    async def close(self) -> None:
        self._store.close()


# A fork copies locks as they are. The forking thread therefore takes all of them first: nobody else is then half-way
# through a change, and the child, in which only that thread lives on, can let go of them.

_alive: WeakSet[MemoryStore] = WeakSet()
_fork_lock = Lock()
_held: list[Any] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for store in list(_alive):
        locks: list[Any] = [store._lock, *(stripe.lock for stripe in store._stripes)]
        for lock in locks:
            lock.acquire()
            _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

"""The memory store: counters of one process, exact across threads, bounded in number.

A lock is held for about a microsecond, so asyncio callers share the store without harm. `max_keys` bounds the number
of counters. When there is no room a newcomer still gets in, and the counter that has used the smallest share of its
quota makes way: a flood of new keys displaces itself, while who sits at the limit stays remembered, unless it drives
most of a stripe's other keys to their limits as well. A forgotten counter regains at most one budget. See `stripes`
for how.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple, cast

from penstock import algorithms
from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import InvalidOption
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    AmendVerb,
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
from penstock.quota import CONCURRENCY, Identity, Quota
from penstock.stores.base import LoneAsk
from penstock.stores.stripes import MASK, STRIPES, Locked, Stripe, Stripes

DEFAULT_MAX_KEYS = 1_000_000
LEAST_MAX_KEYS = 16 * STRIPES
LEAST_MEMORY_OF_IDS: Micros = 60_000_000
MAX_BOUND = 4_096
RECORD = "#"

_ONE = 1


class Family:
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

    def expiry(self, state: State) -> Micros:
        return self.latest.expiry(state)

    def weight(self, state: State, now: Micros) -> tuple[float, float]:
        """The share of the quota that is used, then how long ago that began."""
        (_, remaining, *_), _ = self.latest.peek(state, 0, now)
        return 1 - remaining / self.quota.capacity, -(self.latest.expiry(state) - now) / self.quota.period_us


class Record(NamedTuple):
    """What is remembered of an admitted request that had an id."""

    expires_at: Micros
    verdict: Verdict
    cost: int  # what it costs now: less after a refund, something else once settled
    settled: bool = False


class Records:
    """The kind of all records: as long as they live they weigh as much as a counter at its limit."""

    def expiry(self, record: Record) -> Micros:
        return record.expires_at

    def weight(self, record: Record, now: Micros) -> tuple[float, float]:
        return 1.0, 0.0


class Counter(NamedTuple):
    """Where a counter is, and what decides on it."""

    bound: Bound
    stripe: Stripe
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
        self._stripes = Stripes(max_keys)
        self._stripes.kinds[RECORD] = Records()
        self._families: dict[Identity, Family] = {}
        self._lone: dict[Quota, LoneAsk] = {}
        self._lock = Lock()  # protects the making of families

    @property
    def counters(self) -> int:
        """How many counters are remembered, and records of requests with an id."""
        return self._stripes.count()

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
        prefix, stripes = family.prefix, self._stripes.all
        decide, newcomer = family.bind(quota).decide, self._newcomer

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            if cost is not _ONE:  # 1 always fits; anything else is looked at, True and 1.0 included
                check_cost(cost, quota)
            try:
                slot = prefix + key  # type: ignore[operator]
            except TypeError:  # a tuple, or no key at all
                slot = family.slot(key)
            stripe = stripes[hash(slot) & MASK]
            lock = stripe.lock
            # An RLock knows its owner, so taking it within the try is safe even if an exception comes from outside
            # (Ctrl-C) between any two steps. That costs half of a with statement; see `python -m bench locks`.
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

    def _newcomer(self, stripe: Stripe, slot: str, key: Key, now: Micros) -> State:
        """The state of a counter that the young generation does not have; room is made for it if nobody has it."""
        state = stripe.find(slot)
        if state is None:
            check_key(key)
            self._stripes.make_room(stripe, now)
        return state

    def _run(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            if len(op.asks) == 1 and not op.dry and op.id is None:
                ask = op.asks[0]
                if not ask.advisory:
                    return self.bind(ask.quota)(ask.key, ask.cost, now)
            return self._acquire(op, now)
        return self._amend(op, now) if isinstance(op, Amend) else self._reset(op)

    # Acquire: decide on all asks, then write all

    def _acquire(self, op: Acquire, now: Micros) -> Verdict:
        counters = [self._counter(ask.key, ask.quota) for ask in op.asks]
        record = None if op.id is None else f"{RECORD}:{op.id.hex()}:{counters[0].slot}"
        home = counters[0].stripe  # where the record lives: beside the first counter, under the same lock
        with Locked(counter.stripe for counter in counters):
            if op.dry:
                asked = zip(op.asks, counters, strict=True)
                return Verdict.of(tuple(_peek(ask, c, c.stripe.find(c.slot), now) for ask, c in asked))
            if record is not None:
                known: Record | None = home.find(record)
                if known is not None and known.expires_at > now:
                    return known.verdict
            verdict = Verdict.of(self._decide(op.asks, counters, now), record)
            if record is not None and verdict.allowed:
                lasts = max(LEAST_MEMORY_OF_IDS, *(ask.quota.period_us for ask in op.asks))
                cost = max(ask.cost for ask in op.asks)
                self._stripes.put(home, record, Record(now + lasts, verdict, cost), now)
            return verdict

    def _decide(self, asks: tuple[Ask, ...], counters: list[Counter], now: Micros) -> tuple[Decision, ...]:
        before = [counter.stripe.find(counter.slot) for counter in counters]
        steps = [c.bound.decide(s, ask.cost, now) for ask, c, s in zip(asks, counters, before, strict=True)]
        passes = all(answer[0] or ask.advisory for ask, (answer, _) in zip(asks, steps, strict=True))
        decisions = []
        for ask, counter, state, (answer, after) in zip(asks, counters, before, steps, strict=True):
            if answer[0] and not passes:  # it would have passed, but the request does not: nothing is charged
                decisions.append(_peek(ask, counter, state, now))
                continue
            decisions.append(_decision(ask, answer, now))
            if after is not state:
                self._stripes.put(counter.stripe, counter.slot, after, now)
        return tuple(decisions)

    # Amend: change what a receipt was charged

    def _amend(self, op: Amend, now: Micros) -> Amended:
        charges, name = op.receipt.charges, op.receipt.record
        counters = [self._counter(charge.key, charge.quota) for charge in charges]
        if name is None:
            with Locked(counter.stripe for counter in counters):
                return self._amend_charges(op.verb, op.receipt.portion(op.units), counters, now)
        home = self._stripes.of(name.split(":", 2)[2])
        with Locked((home, *(counter.stripe for counter in counters))):
            record = home.find(name)
            if record is None or record.expires_at <= now:  # given back before, or too long ago
                return Amended((0,) * len(charges))
            return self._amend_record(op, record, counters, home, now)

    def _amend_record(self, op: Amend, record: Record, counters: list[Counter], home: Stripe, now: Micros) -> Amended:
        """Amend a request that had an id: what was given back or settled is noted, so it cannot be done twice."""
        receipt, name = op.receipt, cast("str", op.receipt.record)
        if op.verb == "settle":
            if record.settled:
                return Amended((0,) * len(counters))
            units = cast("int", op.units)
            home.young[name] = record._replace(cost=units, settled=True)
            return self._settle(record.cost - units, receipt.charges, counters, now)
        if op.verb == "refund":
            units = record.cost if op.units is None else min(op.units, record.cost)
            home.young[name] = record._replace(cost=record.cost - units)
            if units == record.cost:
                home.forget(name)
            return self._amend_charges("refund", receipt.portion(units), counters, now)
        if op.verb == "release":
            home.forget(name)
        else:
            lasts = max(charge.quota.period_us for charge in receipt.charges)
            home.young[name] = record._replace(expires_at=max(record.expires_at, now + lasts))
        return self._amend_charges(op.verb, receipt.charges, counters, now)

    def _amend_charges(
        self, verb: AmendVerb, charges: tuple[Charge, ...], counters: list[Counter], now: Micros
    ) -> Amended:
        return Amended(tuple(self._amend_one(verb, ch, co, now) for ch, co in zip(charges, counters, strict=True)))

    def _amend_one(self, verb: AmendVerb, charge: Charge, counter: Counter, now: Micros) -> int:
        bound, stripe, slot = counter
        state = stripe.find(slot)
        if state is None or not charge.cost or (verb != "refund" and charge.quota.algorithm != CONCURRENCY):
            return 0
        if verb == "renew" and bound.renew is not None:
            renewed = bound.renew(state, charge.mark, now)
            if renewed is not None:
                stripe.young[slot] = renewed
            return int(renewed is not None)
        back, after = bound.refund(state, charge.cost, charge.mark, now)
        if after is None:
            stripe.forget(slot)
        else:
            stripe.young[slot] = after
        return back

    def _settle(self, back: int, charges: tuple[Charge, ...], counters: list[Counter], now: Micros) -> Amended:
        """Give `back` units back, or charge them if fewer than none, wherever the cost of the request was charged."""
        each = []
        for charge, counter in zip(charges, counters, strict=True):
            if charge.quota.flat or not back:
                each.append(0)
            elif back > 0:
                each.append(self._amend_one("refund", charge._replace(cost=min(back, charge.cost)), counter, now))
            else:
                bound, stripe, slot = counter
                self._stripes.put(stripe, slot, bound.force(stripe.find(slot), -back, now), now)
                each.append(back)
        return Amended(tuple(each))

    def _reset(self, op: Reset) -> Amended:
        counter = self._counter(op.key, op.quota)
        with counter.stripe.lock:
            counter.stripe.forget(counter.slot)
        return Amended()

    def _counter(self, key: Key, quota: Quota) -> Counter:
        family = self._family(quota)
        slot = family.slot(key)
        return Counter(family.bind(quota), self._stripes.of(slot), slot)

    def _family(self, quota: Quota) -> Family:
        family = self._families.get(quota.identity)
        if family is None:
            with self._lock:
                family = self._families.get(quota.identity)
                if family is None:
                    family = Family(len(self._families), quota)
                    for prefix in (family.prefix, family.prefix_of_parts):
                        self._stripes.kinds[prefix[:-1]] = family
                    self._families[quota.identity] = family
        return family


def _peek(ask: Ask, counter: Counter, state: State, now: Micros) -> Decision:
    answer, _ = counter.bound.peek(state, ask.cost, now)
    return _decision(ask, answer, now)


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

"""The memory store: counters of one process, exact across threads, bounded in number.

A lock is held for about a microsecond, so asyncio callers share the store without harm. `max_keys` bounds the number
of counters. When there is no room a newcomer still gets in, and the counter that has used the smallest share of its
quota makes way: a flood of new keys displaces itself, while who sits at the limit stays remembered, unless it drives
most of a stripe's other keys to their limits as well. A forgotten counter regains at most one budget. See `stripes`
for how.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, cast

from penstock import algorithms
from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import InvalidOption, shown
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    AmendVerb,
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
    check_units,
    new,
)
from penstock.quota import CONCURRENCY, Identity, Quota
from penstock.stores.base import DirectAsk
from penstock.stores.stripes import MASK, STRIPES, Kind, Stripe, Stripes, holding

DEFAULT_MAX_KEYS = 1_000_000
LEAST_MAX_KEYS = 16 * STRIPES
LEAST_MEMORY_OF_IDS: Micros = 60_000_000
MAX_BOUND = 4_096

_ONE = 1


class Family(Kind):
    """All counters of one identity: same algorithm, period and name, whatever the key and the amount."""

    __slots__ = ("bounds", "latest", "number", "quota")

    def __init__(self, stripes: Stripes, number: int, quota: Quota) -> None:
        super().__init__(stripes)
        self.number = number
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

    def expiry(self, state: State) -> Micros:
        return self.latest.expiry(state)

    def weight(self, state: State, now: Micros) -> tuple[float, float]:
        """The share of the quota that is used, then how long ago that began."""
        (_, remaining, *_), _ = self.latest.peek(state, 0, now)
        return 1 - remaining / self.quota.capacity, -(self.latest.expiry(state) - now) / self.quota.period_us


class Record(NamedTuple):
    """What is remembered of an admitted request that had an id."""

    serial: int
    expires_at: Micros
    verdict: Verdict
    cost: int  # what it costs now: less after a refund, something else once settled
    settled: bool = False


class Records(Kind):
    """The kind of all records: they make way before any counter that was used, the youngest first."""

    __slots__ = ()

    def expiry(self, record: Record) -> Micros:
        return record.expires_at

    def weight(self, record: Record, now: Micros) -> tuple[float, float]:
        return 0.0, float(now - record.expires_at)


class Counter(NamedTuple):
    """What decides on a counter, and where it is."""

    bound: Bound
    family: Family
    stripe: Stripe
    key: Key


class MemoryStore:
    """Counters in this process.

    - `max_keys`: how many counters to remember at most; at least 4,096.
    - `clock`: where the time comes from.
    """

    def __init__(self, *, max_keys: int = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < LEAST_MAX_KEYS:
            raise InvalidOption(f"max_keys {shown(max_keys)}: expected a whole number, at least {LEAST_MAX_KEYS}")
        self.clock: Clock = clock or SystemClock()
        self._stripes = Stripes(max_keys)
        self._records = Records(self._stripes)
        self._families: dict[Identity, Family] = {}
        self._direct: dict[tuple[Quota, ...], DirectAsk] = {}
        self._lock = self._stripes.lock  # protects the making of families
        self._serials = count(1)

    @property
    def counters(self) -> int:
        """How many counters are remembered, and records of requests with an id."""
        return self._stripes.count()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        now = self.clock.time_ns() // 1_000
        return [self._run(op, now) for op in ops]

    def close(self) -> None:
        """Nothing to give back."""

    def bind(self, quotas: tuple[Quota, ...]) -> DirectAsk:
        direct = self._direct.get(quotas)
        if direct is None:
            if len(self._direct) >= MAX_BOUND:
                self._direct.clear()
            direct = self._direct[quotas] = self._bind_one(*quotas) if len(quotas) == 1 else self._bind_all(quotas)
        return direct

    def _bind_one(self, quota: Quota) -> DirectAsk:
        """The hot path: everything that does not depend on key, cost and now is done here, once."""
        family = self._family(quota)
        shelves, decide, newcomer = family.shelves, family.bind(quota).decide, self._newcomer
        charged = partial(_charged, quota)

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            if cost is not _ONE:  # 1 always fits; anything else is looked at, True and 1.0 included
                cost = charged(cost)
            try:
                shelf = shelves[hash(key) & MASK]
            except TypeError:  # no key at all, or something unhashable within one
                shelf = shelves[hash(check_key(key)) & MASK]
            # An RLock knows its owner, so an exception from outside (Ctrl-C) between any two steps leaves nothing
            # locked, and is not masked by a release of what was never taken. That costs half of a with statement; see
            # `python -m bench locks`.
            try:
                shelf.acquire()
                young = shelf.young
                try:
                    state = young[key]
                except KeyError:
                    if check_key(key) is not key:  # ("a",) is the same as "a"
                        shelf.release()
                        return ask(key[0], cost, now)
                    state, young = newcomer(family, key, now)
                answer, after = decide(state, cost, now)
                if after is not state:
                    young[key] = after
                shelf.release()
            except BaseException:
                if shelf.is_owned():
                    shelf.release()
                raise
            return Verdict((answer, now, key, quota, cost, ()))

        return ask

    def _newcomer(self, family: Family, key: Key, now: Micros) -> tuple[State, dict[Key, State]]:
        """The state of a counter that is not in the young generation, and the one where it is now to be kept.

        If nobody has it, room is made, and it counts as kept; the caller will do so, as the first ask is never refused.
        """
        stripe = self._stripes.of(key)
        state = stripe.find(family, key)
        if state is None:
            self._stripes.make_room(stripe, family, now)
            stripe.count += 1
        return state, stripe.shelf(family, now).young

    def _bind_all(self, quotas: tuple[Quota, ...]) -> DirectAsk:
        """As above for several quotas: all counters of one key are in one stripe."""
        families = [(quota, self._family(quota), self._family(quota).bind(quota)) for quota in quotas]
        stripes, decide = self._stripes.all, self._decide

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            key = check_key(key)
            stripe = stripes[hash(key) & MASK]
            asks = [
                new(Ask, (key, quota, 1 if cost is _ONE else _charged(quota, cost), False)) for quota, _, _ in families
            ]
            counters = [new(Counter, (bound, family, stripe, key)) for _, family, bound in families]
            with stripe.lock:
                return Verdict.of(decide(asks, counters, now))

        return ask

    def _run(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            return self._acquire(op, now)
        return self._amend(op, now) if isinstance(op, Amend) else self._reset(op)

    # Acquire: decide on all asks, then write all

    def _acquire(self, op: Acquire, now: Micros) -> Verdict:
        asks, dry, request_id = op
        counters = [self._counter(ask.key, ask.quota) for ask in asks]
        stripes = [counter.stripe for counter in counters]
        if request_id is not None:
            return self._acquire_once(asks, counters, stripes, request_id, now)
        if dry:
            return holding(
                stripes, lambda: Verdict.of(tuple([_peek(a, c, now) for a, c in zip(asks, counters, strict=True)]))
            )
        return holding(stripes, lambda: Verdict.of(self._decide(asks, counters, now)))

    def _acquire_once(
        self, asks: Sequence[Ask], counters: Sequence[Counter], stripes: list[Stripe], request_id: bytes, now: Micros
    ) -> Verdict:
        """Decide on a request with an id, unless it was admitted before: then answer as then."""
        name = f"{request_id.hex()}:{''.join([_written(counter) for counter in counters])}"
        home, records = self._stripes.of(name), self._records  # not beside the key: it may have many

        def once() -> Verdict:
            record = home.find(records, name)
            if record is not None and record.expires_at > now and self._still_held(record.verdict, counters, now):
                return cast("Verdict", record.verdict)
            serial = next(self._serials)
            verdict = Verdict.of(self._decide(asks, counters, now), f"{name}@{serial}")
            if verdict.allowed:
                lasts = max(LEAST_MEMORY_OF_IDS, *(ask.quota.horizon_us for ask in asks))
                home.forget(records, name)
                record = Record(serial, now + lasts, verdict, max(ask.cost for ask in asks))
                self._stripes.add(home, records, name, record, now)
            return verdict

        return holding([home, *stripes], once)

    def _still_held(self, verdict: Verdict, counters: Sequence[Counter], now: Micros) -> bool:
        """Whether the places that came with a verdict are, so that it may be given again."""
        for decision, (bound, family, stripe, key) in zip(verdict.decisions, counters, strict=False):
            if bound.renew is not None:
                state = stripe.find(family, key)
                if state is None or bound.renew(state, decision.mark, now) is None:
                    return False
        return True

    def _decide(self, asks: Sequence[Ask], counters: Sequence[Counter], now: Micros) -> tuple[Decision, ...]:
        steps = []
        passes = True
        for (_, _, cost, advisory), (bound, family, stripe, key) in zip(asks, counters, strict=True):
            state = stripe.find(family, key)
            answer, after = bound.decide(state, cost, now)
            steps.append((answer, state, after))
            if not answer[0] and not advisory:
                passes = False
        keys = [counter.key for counter in counters]  # making room for one must not cost another
        decisions = []
        for ask, counter, (answer, state, after) in zip(asks, counters, steps, strict=True):
            if answer[0] and not passes:  # it would have passed, but the request does not: nothing is charged
                decisions.append(_peek(ask, counter, now))
                continue
            decisions.append(Decision((answer, now, *ask)))
            if state is None and after is not None:
                self._stripes.add(counter.stripe, counter.family, counter.key, after, now, keys)
            elif after is not state:
                counter.stripe.write(counter.family, counter.key, after)
        return tuple(decisions)

    # Amend: change what a receipt was charged

    def _amend(self, op: Amend, now: Micros) -> Amended:
        charges, name = op.receipt
        counters = [self._counter(charge.key, charge.quota) for charge in charges]
        stripes = [counter.stripe for counter in counters]
        if name is None:
            portion = op.receipt.portion(op.units)
            return holding(stripes, lambda: self._amend_charges(op.verb, portion, counters, now))
        name, _, serial = name.rpartition("@")
        home, records = self._stripes.of(name), self._records

        def amend() -> Amended:
            record = home.find(records, name)
            if record is None or record.expires_at <= now or record.serial != int(serial):
                return Amended((0,) * len(charges))  # given back before, too long ago, or another request by now
            changed, amended = self._amend_record(op, record, counters, now)
            if changed is None:
                home.forget(records, name)
            else:
                home.write(records, name, changed)
            return amended

        return holding([home, *stripes], amend)

    def _amend_record(
        self, op: Amend, record: Record, counters: list[Counter], now: Micros
    ) -> tuple[Record | None, Amended]:
        """Amend a request that had an id: what was given back or settled is noted, so it cannot be done twice."""
        charges = op.receipt.charges
        serial, expires_at, verdict, cost, settled = record
        if op.verb == "settle":
            if settled:
                return record, Amended((0,) * len(charges))
            units = cast("int", op.units)
            amended = self._settle(cost - units, charges, counters, now)
            return Record(serial, expires_at, verdict, units, settled=True), amended
        if op.verb == "refund":
            units = cost if op.units is None else min(op.units, cost)
            left = None if units == cost else Record(serial, expires_at, verdict, cost - units, settled)
            portion = op.receipt.portion(units, last=left is None)
            return left, self._amend_charges("refund", portion, counters, now)
        if op.verb == "renew":
            expires_at = max(expires_at, now + max(charge.quota.horizon_us for charge in charges))
        return Record(serial, expires_at, verdict, cost, settled), self._amend_charges(op.verb, charges, counters, now)

    def _amend_charges(
        self, verb: AmendVerb, charges: tuple[Charge, ...], counters: list[Counter], now: Micros
    ) -> Amended:
        return Amended(tuple([self._amend_one(verb, ch, co, now) for ch, co in zip(charges, counters, strict=True)]))

    def _amend_one(self, verb: AmendVerb, charge: Charge, counter: Counter, now: Micros) -> int:
        bound, family, stripe, key = counter
        state = stripe.find(family, key)
        if state is None or not charge.cost or (verb != "refund" and charge.quota.algorithm != CONCURRENCY):
            return 0
        if verb == "renew" and bound.renew is not None:
            renewed = bound.renew(state, charge.mark, now)
            if renewed is not None:
                stripe.write(family, key, renewed)
            return int(renewed is not None)
        back, after = bound.refund(state, charge.cost, charge.mark, now)
        if after is None:
            stripe.forget(family, key)
        else:
            stripe.write(family, key, after)
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
                self._force(counter, -back, now)
                each.append(back)
        return Amended(tuple(each))

    def _force(self, counter: Counter, units: int, now: Micros) -> None:
        bound, family, stripe, key = counter
        state = stripe.find(family, key)
        after = bound.force(state, units, now)
        if state is None:
            self._stripes.add(stripe, family, key, after, now)
        else:
            stripe.write(family, key, after)

    def _reset(self, op: Reset) -> Amended:
        _, family, stripe, key = self._counter(op.key, op.quota)
        with stripe.lock:
            stripe.forget(family, key)
        return Amended()

    def _counter(self, key: Key, quota: Quota) -> Counter:
        family = self._family(quota)
        return Counter(family.bind(quota), family, self._stripes.of(key), key)

    def _family(self, quota: Quota) -> Family:
        family = self._families.get(quota.identity)
        if family is None:
            with self._lock:
                family = self._families.get(quota.identity)
                if family is None:
                    family = self._families[quota.identity] = Family(self._stripes, len(self._families), quota)
        return family


def _charged(quota: Quota, cost: int) -> int:
    """What a request that costs `cost` charges to a counter of `quota`."""
    return check_units("cost", cost, least=1) and 1 if quota.flat else check_cost(cost, quota)


def _peek(ask: Ask, counter: Counter, now: Micros) -> Decision:
    bound, family, stripe, key = counter
    answer, _ = bound.peek(stripe.find(family, key), ask.cost, now)
    return Decision((answer, now, *ask))


def _written(counter: Counter) -> str:
    """The name of a counter, such that names one after the other still tell which counters they are."""
    parts = (counter.key,) if isinstance(counter.key, str) else counter.key
    return f"{counter.family.number}+{len(parts)}+{''.join([f'{len(part)}:{part}' for part in parts])}"


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

"""Changing what was charged in memory: refund, settle, release, renew, report. And records of requests with an id.

A request that had an id leaves a record when it is admitted. Whatever is given back or settled is noted there, so that
doing it twice is harmless. Without an id, only the counters themselves tell what is still charged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias, cast

from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Micros
from penstock.engine.protocols import DirectAmends
from penstock.model import Amend, Amended, AmendVerb, Charge, Key, Verdict, new, own_mark
from penstock.quota import CONCURRENCY, DRAINING, Quota
from penstock.stores.memory.counters import Counter, Family
from penstock.stores.memory.stripes import MASK, Kind, Stripe, Stripes, holding

LEAST_MEMORY_OF_IDS: Micros = 60_000_000


class RecordName(NamedTuple):
    """Where a record is kept, and which of all that were ever kept there it is.

    A text of both would do, but the slot alone remembers its hash, and settling is to be quick.
    """

    slot: str
    serial: int

    def __str__(self) -> str:
        return f"{self.slot}@{self.serial}"

    def __repr__(self) -> str:
        return f"<RecordName {self.serial}>"  # the slot tells the key


Record: TypeAlias = tuple[int, Micros, Verdict, int, bool]
"""What is remembered of an admitted request that had an id: serial, expires_at, verdict, cost, settled.

The cost is what of it can be given back: less after a refund, something else once settled.
"""


NO_RECORD: Record = (0, 0, Verdict(), 0, True)


class Records(Kind):
    """The kind of all records: they make way before any counter that was used, the youngest first."""

    __slots__ = ()

    def expiry(self, record: Record) -> Micros:
        _, expires_at, _, _, _ = record
        return expires_at

    def weight(self, record: Record, now: Micros) -> tuple[float, float]:
        return 0.0, float(now - self.expiry(record))


class Amends:
    """Amends what counters were charged, and keeps the records."""

    def __init__(self, stripes: Stripes) -> None:
        self._stripes = stripes
        self._records = Records(stripes)
        self._serials = count(1)

    def home(self, slot: str) -> Stripe:
        """Where the record in `slot` is kept. Not beside its key, which may have many."""
        return self._stripes.all[hash(slot) & MASK]

    def recall(self, home: Stripe, slot: str, now: Micros) -> Verdict | None:
        """The answer that a request with an id was given, if it is remembered. Its home must be locked."""
        record: Record | None = home.find(self._records, slot)
        if record is None:
            return None
        _, expires_at, verdict, _, _ = record
        return verdict if expires_at > now else None

    def next_name(self, slot: str) -> RecordName:
        return new(RecordName, (slot, next(self._serials)))

    def remember(self, home: Stripe, name: RecordName, verdict: Verdict, now: Micros) -> None:
        """Keep the answer to a request with an id. Its home must be locked."""
        slot, serial = name
        _, _, _, quota, cost, several, _ = verdict
        lasts = quota.horizon_us
        if several:
            lasts = max([decision.quota.horizon_us for decision in several])
            cost = max([decision.cost for decision in several])
        lasts = lasts if lasts > LEAST_MEMORY_OF_IDS else LEAST_MEMORY_OF_IDS
        home.forget(self._records, slot)
        record: Record = (serial, now + lasts, verdict, cost, False)
        self._stripes.add(home, self._records, slot, record, now)

    def run(self, op: Amend, counters: Sequence[Counter], now: Micros) -> Amended:
        """Amend what `counters` were charged, one for each charge of the receipt."""
        charges, name, _ = op.receipt
        stripes = [counter.stripe for counter in counters]
        if name is None:
            portion = op.receipt.portion(op.units)
            return holding(stripes, lambda: self._amend_charges(op.verb, portion, counters, now))
        slot, _, serial = name.rpartition("@")
        home, records = self.home(slot), self._records

        def amend() -> Amended:
            record: Record | None = home.find(records, slot)
            if record is None or records.expiry(record) <= now or str(record[0]) != serial:
                return Amended((0,) * len(charges))  # given back before, too long ago, or another request by now
            changed, amended = self._amend_record(op, record, counters, now)
            if changed is None:
                home.forget(records, slot)
            else:
                home.write(records, slot, changed)
            return amended

        return holding([home, *stripes], amend)

    def bind(self, family: Family, quota: Quota) -> DirectAmends:
        """Refund and settle for what a single counter of `family` was charged, all that can be done before done."""
        bound = family.bind(quota)
        return DirectAmends(self._bind_refund(family, bound), self._bind_settle(family, bound, quota))

    def _bind_refund(self, family: Family, bound: Bound) -> Callable[[Key, int, int, Micros], int]:
        shelves, give_back = family.shelves, bound.refund

        def refund(key: Key, cost: int, mark: int, now: Micros) -> int:
            shelf = shelves[hash(key) & MASK]
            acquire, release = shelf.acquire, shelf.release
            try:  # as in MemoryStore: half the price of a with statement, and as safe
                acquire()
                young = shelf.young
                state = young.get(key)
                if state is None:
                    back = self._refund(cost, mark, Counter(bound, family, self._stripes.of(key), key), now)
                else:
                    back, after = give_back(state, cost, mark, now)
                    if after is None:
                        self._stripes.of(key).forget(family, key)
                    else:
                        young[key] = after
                release()
            except BaseException:
                if shelf.is_owned():
                    release()
                raise
            return back

        return refund

    def _bind_settle(self, family: Family, bound: Bound, quota: Quota) -> Callable[[Verdict, int, Micros], int]:
        stripes, shelves, give_back, force = self._stripes.all, family.shelves, bound.refund, bound.force
        records, note_shelves = self._records, self._records.shelves
        drains, flat = quota.algorithm in DRAINING, quota.flat

        def settle(verdict: Verdict, units: int, now: Micros) -> int:
            answer, _, key, _, cost, _, name = verdict
            if name.__class__ is not RecordName:
                return 0  # what another store remembers
            slot, serial = name
            at, home_at = hash(key) & MASK, hash(slot) & MASK
            first, second = (
                (shelves[at], note_shelves[home_at]) if at < home_at else (note_shelves[home_at], shelves[at])
            )
            acquire, acquire_too, release, release_too = first.acquire, second.acquire, first.release, second.release
            try:  # as above, with two locks, which may be the same one
                acquire()
                acquire_too()
                notes, back = note_shelves[home_at].young, 0
                own_serial, expires_at, remembered, costs_now, settled = (
                    notes.get(slot) or stripes[home_at].find(records, slot) or NO_RECORD
                )
                if not settled and expires_at > now and own_serial == serial:
                    refundable = costs_now if drains and units > costs_now else units
                    notes[slot] = (serial, expires_at, remembered, refundable, True)
                    back, young = costs_now - units, shelves[at].young
                    state = young.get(key)
                    if state is None or cost != costs_now or flat:
                        back = elsewhere(verdict, costs_now, back, now)
                    elif back > 0:
                        back, after = give_back(state, back, answer[6], now)
                        if after is None:
                            stripes[at].forget(family, key)
                        else:
                            young[key] = after
                    elif back:
                        young[key] = force(state, -back, now)
                release_too()
                release()
            except BaseException:
                for shelf in (second, first):
                    if shelf.is_owned():
                        shelf.release()
                raise
            return back

        def elsewhere(verdict: Verdict, costs_now: int, back: int, now: Micros) -> int:
            """The less usual: the counter is not among the young, part of it was given back before, or it is flat."""
            answer, _, key, _, cost, _, _ = verdict
            charge = Charge(key, quota, cost, answer[6])
            charge = charge if costs_now == cost else _without_queues((charge,))[0]
            return self._settle_one(back, charge, Counter(bound, family, self._stripes.of(key), key), now)

        return settle

    def _amend_record(
        self, op: Amend, record: Record, counters: Sequence[Counter], now: Micros
    ) -> tuple[Record | None, Amended]:
        """Amend a request that had an id: what was given back or settled is noted, so it cannot be done twice."""
        charges = op.receipt.charges
        serial, expires_at, verdict, cost, settled = record
        # A place in a queue is given back by the first amendment or not at all: once a part of it was, somebody else's
        # place may end where it ended.
        first = not settled and cost == max(decision.cost for decision in verdict.decisions)
        if op.verb == "settle":
            if settled:
                return record, Amended((0,) * len(charges))
            units = cast("int", op.units)
            amended = self._settle(cost - units, charges if first else _without_queues(charges), counters, now)
            # What was charged on top of a bucket stays charged: there may have been no room for all of it.
            drains = any(charge.quota.algorithm in DRAINING for charge in charges)
            refundable = min(units, cost) if drains else units
            return (serial, expires_at, verdict, refundable, True), amended
        if op.verb == "refund":
            units = cost if op.units is None else min(op.units, cost)
            left = None if units == cost else (serial, expires_at, verdict, cost - units, settled)
            portion = op.receipt.portion(units, last=left is None)
            return left, self._amend_charges("refund", portion if first else _without_queues(portion), counters, now)
        if op.verb == "renew":
            expires_at = max(expires_at, now + max(charge.quota.horizon_us for charge in charges))
        return (serial, expires_at, verdict, cost, settled), self._amend_charges(op.verb, charges, counters, now)

    def _amend_charges(
        self, verb: AmendVerb, charges: tuple[Charge, ...], counters: Sequence[Counter], now: Micros
    ) -> Amended:
        return Amended(tuple([self._amend_one(verb, ch, co, now) for ch, co in zip(charges, counters, strict=True)]))

    def _amend_one(self, verb: AmendVerb, charge: Charge, counter: Counter, now: Micros) -> int:
        if verb == "report":
            return self._report(charge, counter, now)
        if not charge.cost or (verb != "refund" and charge.quota.algorithm != CONCURRENCY):
            return 0
        if verb != "renew":
            return self._refund(charge.cost, own_mark(charge.mark), counter, now)
        renew, state = counter.bound.renew, counter.find()
        renewed = renew(state, own_mark(charge.mark), now) if renew is not None and state is not None else None
        if renewed is not None:
            counter.write(renewed)
        return int(renewed is not None)

    def _settle(self, back: int, charges: tuple[Charge, ...], counters: Sequence[Counter], now: Micros) -> Amended:
        each = [self._settle_one(back, *charged, now) for charged in zip(charges, counters, strict=True)]
        return Amended(tuple(each))

    def _settle_one(self, back: int, charge: Charge, counter: Counter, now: Micros) -> int:
        """Give `back` units back, or charge them if fewer than none, where the cost of the request was charged."""
        if charge.quota.flat or not back:
            return 0
        if back > 0:
            return self._refund(min(back, charge.cost), own_mark(charge.mark), counter, now)
        self._force(counter, -back, now)
        return back

    def _refund(self, units: int, mark: int, counter: Counter, now: Micros) -> int:
        state = counter.find()
        if state is None:
            return 0
        back, after = counter.bound.refund(state, units, mark, now)
        counter.write(after)
        return back

    def _force(self, counter: Counter, units: int, now: Micros) -> None:
        state = counter.find()
        self._charge(counter, state, counter.bound.force(state, units, now), now)

    def _report(self, charge: Charge, counter: Counter, now: Micros) -> int:
        """Charge what was admitted elsewhere; below zero how much of it still counts."""
        state = counter.find()
        charged, after = counter.bound.report(state, charge.cost, own_mark(charge.mark), now)
        if charged:
            self._charge(counter, state, after, now)
        return -charged

    def _charge(self, counter: Counter, state: State, after: State, now: Micros) -> None:
        """Keep what became of the state that was found, which may have been none."""
        if state is None:
            self._stripes.add(counter.stripe, counter.family, counter.key, after, now)
        else:
            counter.write(after)


def _without_queues(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
    """`charges` with nothing to give back to a queue."""
    return tuple([c._replace(cost=0) if c.quota.algorithm == "leaky_bucket" else c for c in charges])

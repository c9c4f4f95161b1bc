"""Changing what was charged in memory: refund, settle, release, renew, report.

Without an id, only the counters themselves tell what is still charged; with one, its record does.

`run` amends any receipt, by an operation. `bind` is the short way for a verdict of a single ask. It saves 6 us of a
release, which then takes 1.3 us, and 11 us of a settlement, which then takes 2.6 us. tests/property/test_together.py
shows that both do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Micros
from penstock.engine.protocols import DirectAmends
from penstock.model import Amend, Amended, AmendVerb, Charge, Key, Verdict, own_mark
from penstock.quota import CONCURRENCY, DRAINING, Quota
from penstock.stores.memory.counters import CounterKind, KeyCounter, QuotaCounters
from penstock.stores.memory.records import NO_RECORD, Record, RecordName, Records
from penstock.stores.memory.stripes import MASK, Stripes


class Amends:
    """Amends what counters were charged, and the records of it."""

    def __init__(self, stripes: Stripes, records: Records) -> None:
        self._stripes, self._records = stripes, records

    def run(self, op: Amend, counters: Sequence[KeyCounter], now: Micros) -> Amended:
        """Amend what `counters` were charged, one for each charge of the receipt."""
        charges, name, _ = op.receipt
        slots = [charge.key for charge in charges]
        if name is None:
            portion = op.receipt.portion(op.units)
            return self._stripes.holding(slots, lambda: self._amend_charges(op.verb, portion, counters, now))
        slot, _, serial = name.rpartition("@")
        home, records = self._records.home(slot), self._records

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

        return self._stripes.holding([slot, *slots], amend)

    def bind(self, counters: QuotaCounters, quota: Quota) -> DirectAmends:
        """Refund and settle for what a single counter of `quota` was charged, all that can be done before done."""
        _, _, _, bound, kind = counters
        return DirectAmends(self._bind_refund(kind, bound), self._bind_settle(kind, bound, quota))

    def _bind_refund(self, kind: CounterKind, bound: Bound) -> Callable[[Key, int, int, Micros], int]:
        shelves, give_back = kind.shelves, bound.refund

        def refund(key: Key, cost: int, mark: int, now: Micros) -> int:
            shelf = shelves[hash(key) & MASK]
            acquire, release = shelf.acquire, shelf.release
            try:  # see `decide` for the locks
                acquire()
                state = shelf.find(key)
                back, after = (0, None) if state is None else give_back(state, cost, mark, now)
                if after is not None:
                    shelf.young[key] = after
                elif state is not None:
                    self._stripes.of(key).forget(kind, key)
                release()
            except BaseException:
                if shelf.is_owned():
                    release()
                raise
            return back

        return refund

    def _bind_settle(self, kind: CounterKind, bound: Bound, quota: Quota) -> Callable[[Verdict, int, Micros], int]:
        stripes, shelves, give_back, force = self._stripes.all, kind.shelves, bound.refund, bound.force
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
            try:  # with two locks, which may be the same one
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
                            stripes[at].forget(kind, key)
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
            """Settle the less usual: the counter is not among the young, is flat, or was refunded in part."""
            answer, _, key, _, cost, _, _ = verdict
            charge = Charge(key, quota, cost, answer[6])
            charge = charge if costs_now == cost else _without_queues((charge,))[0]
            return self._settle_one(back, charge, KeyCounter(bound, kind, self._stripes.of(key), key), now)

        return settle

    def _amend_record(
        self, op: Amend, record: Record, counters: Sequence[KeyCounter], now: Micros
    ) -> tuple[Record | None, Amended]:
        """Amend a request that had an id: what was given back or settled is noted, so it cannot be done twice."""
        charges = op.receipt.charges
        serial, expires_at, verdict, cost, settled = record
        # A place in a queue is given back by the first amendment or not at all: once a part of it was, the place of
        # another request may end where it ended.
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
        self, verb: AmendVerb, charges: tuple[Charge, ...], counters: Sequence[KeyCounter], now: Micros
    ) -> Amended:
        return Amended(tuple([self._amend_one(verb, ch, co, now) for ch, co in zip(charges, counters, strict=True)]))

    def _amend_one(self, verb: AmendVerb, charge: Charge, counter: KeyCounter, now: Micros) -> int:
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

    def _settle(self, back: int, charges: tuple[Charge, ...], counters: Sequence[KeyCounter], now: Micros) -> Amended:
        each = [self._settle_one(back, *charged, now) for charged in zip(charges, counters, strict=True)]
        return Amended(tuple(each))

    def _settle_one(self, back: int, charge: Charge, counter: KeyCounter, now: Micros) -> int:
        """Give `back` units back, or charge them if fewer than none, where the cost of the request was charged."""
        if charge.quota.flat or not back:
            return 0
        if back > 0:
            return self._refund(min(back, charge.cost), own_mark(charge.mark), counter, now)
        self._force(counter, -back, now)
        return back

    def _refund(self, units: int, mark: int, counter: KeyCounter, now: Micros) -> int:
        state = counter.find()
        if state is None:
            return 0
        back, after = counter.bound.refund(state, units, mark, now)
        counter.write(after)
        return back

    def _force(self, counter: KeyCounter, units: int, now: Micros) -> None:
        state = counter.find()
        self._charge(counter, state, counter.bound.force(state, units, now), now)

    def _report(self, charge: Charge, counter: KeyCounter, now: Micros) -> int:
        """Charge what was admitted elsewhere; below zero how much of it still counts."""
        state = counter.find()
        charged, after = counter.bound.report(state, charge.cost, own_mark(charge.mark), now)
        if charged:
            self._charge(counter, state, after, now)
        return -charged

    def _charge(self, counter: KeyCounter, state: State, after: State, now: Micros) -> None:
        """Keep what became of the state that was found, which may have been none."""
        if state is None:
            self._stripes.add(counter.stripe, counter.kind, counter.key, after, now)
        else:
            counter.write(after)


def _without_queues(charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
    """Return `charges` with nothing to give back to a queue."""
    return tuple([c._replace(cost=0) if c.quota.algorithm == "leaky_bucket" else c for c in charges])

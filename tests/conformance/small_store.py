"""The smallest honest store: a dictionary and a lock. It passes the kit; `broken_stores` each break it in one place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import cast

from penstock.algorithms import Bound, bind
from penstock.algorithms.base import State, Step
from penstock.clock import SECOND, Clock, Micros
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Ask,
    Charge,
    Decision,
    Grant,
    Key,
    Op,
    Outcome,
    Verdict,
    own_mark,
)
from penstock.quota import BUCKETS, CONCURRENCY, Quota


@dataclass(slots=True)
class Record:
    """What is known of a request that is amended; it lasts if the request had an id."""

    verdict: Verdict | None
    cost: int
    until: Micros
    settled: bool = False
    amended: bool = False


class SmallStore:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock: AbstractContextManager[object] = Lock()
        self.states: dict[Hashable, State] = {}
        self.records: dict[str, Record] = {}
        self.named: dict[Hashable, str] = {}
        self.numbers = count()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        with self.lock:
            now = self.now()
            return [self.do(op, now) for op in ops]

    def close(self) -> None:
        pass

    def now(self) -> Micros:
        return self.clock.time_ns() // 1_000

    def place(self, key: Key, quota: Quota) -> Hashable:
        return key, quota.identity

    def bind(self, quota: Quota) -> Bound:
        return bind(quota)

    def find(self, ask: Ask | Charge) -> State:
        return self.states.get(self.place(ask.key, ask.quota))

    def do(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            return self.acquire(op, now) if op.id is None else self.acquire_once(op, now)
        if isinstance(op, Grant):
            acquire = Acquire((Ask(op.key, op.quota, self.granted(op, now)),), id=op.id)
            return self.acquire(acquire, now) if op.id is None else self.acquire_once(acquire, now)
        if isinstance(op, Amend):
            return Amended(tuple(self.amend(op, now)))
        self.states.pop(self.place(op.key, op.quota), None)
        return Amended()

    # Acquire

    def acquire(self, op: Acquire, now: Micros) -> Verdict:
        steps = [self.bind(ask.quota).decide(self.find(ask), ask.cost, now) for ask in op.asks]
        passes = self.passes(op.asks, steps)
        decisions = []
        for ask, (answer, after) in zip(op.asks, steps, strict=True):
            if self.keeps(op, allowed=answer[0], passes=passes):
                self.states[self.place(ask.key, ask.quota)] = after
            else:
                answer, _ = self.bind(ask.quota).peek(self.find(ask), ask.cost, now)
            decisions.append(Decision((answer, now, ask.key, ask.quota, ask.cost, ask.advisory)))
        return Verdict.of(tuple(decisions))

    def granted(self, op: Grant, now: Micros) -> int:
        """What of a grant to ask for."""
        answer, _ = self.bind(op.quota).peek(self.states.get(self.place(op.key, op.quota)), 0, now)
        return op.cost(answer[1])

    def passes(self, asks: Sequence[Ask], steps: Sequence[Step]) -> bool:
        return all(answer[0] or ask.advisory for ask, (answer, _) in zip(asks, steps, strict=True))

    def keeps(self, op: Acquire, *, allowed: bool, passes: bool) -> bool:
        """Whether an ask's step is kept: charges if all pass, and what refusing leaves behind."""
        return not op.dry and (passes or not allowed)

    def acquire_once(self, op: Acquire, now: Micros) -> Verdict:
        name = self.name(op)
        record = self.records.get(self.named.get(name, ""))
        if record is not None and record.verdict is not None and self.remembers(record, now):
            return record.verdict
        number = self.number(op)
        verdict = Verdict.of(self.acquire(op, now).decisions, number)
        if self.is_worth_remembering(verdict):
            self.records.pop(self.named.get(name, ""), None)
            self.records[number] = Record(verdict, max(ask.cost for ask in op.asks), now + self.memory(op.asks))
            self.named[name] = number
        return verdict

    def name(self, op: Acquire) -> Hashable:
        return op.id, tuple(self.place(ask.key, ask.quota) for ask in op.asks)

    def number(self, op: Acquire) -> str:
        return str(next(self.numbers))

    def memory(self, asks: Sequence[Ask]) -> Micros:
        return max(60 * SECOND, *(ask.quota.horizon_us for ask in asks))

    def is_worth_remembering(self, verdict: Verdict) -> bool:
        return verdict.allowed

    def remembers(self, record: Record, now: Micros) -> bool:
        return now < record.until and all(self.is_held(d, now) for d in cast("Verdict", record.verdict).decisions)

    def is_held(self, decision: Decision, now: Micros) -> bool:
        """Whether a place is still held; whatever is no place was never lost."""
        if decision.quota.algorithm != CONCURRENCY or decision.mark == NOT_CHARGED:
            return True
        return self.renew(Charge(decision.key, decision.quota, 1, decision.mark), now, dry=True) == 1

    # Amend

    def amend(self, op: Amend, now: Micros) -> list[int]:
        charges, number, _ = op.receipt
        record = Record(None, op.receipt.cost, now + 1) if number is None else self.records.get(number)
        if record is None or record.until <= now:
            return [0] * len(charges)
        if op.verb == "refund":
            return self.refund_request(op, record, now)
        if op.verb == "report":
            return [-self.report(charge, now) for charge in charges]
        if op.verb == "settle":
            return self.settle(op, record, now)
        if op.verb == "renew":
            record.until = max(record.until, now + max(charge.quota.horizon_us for charge in charges))
        change = self.renew if op.verb == "renew" else self.release
        return [change(charge, now) for charge in charges]

    def refund_request(self, op: Amend, record: Record, now: Micros) -> list[int]:
        units = record.cost if op.units is None else min(op.units, record.cost)
        record.cost -= units
        if not record.cost:
            record.until = now
        charges = op.receipt.charges
        return self.give_back(charges, [self.portion(charge, units, record) for charge in charges], record, now)

    def portion(self, charge: Charge, units: int, record: Record) -> int:
        return int(not record.cost) if charge.quota.flat else min(charge.cost, units)

    def give_back(self, charges: Sequence[Charge], portions: Sequence[int], record: Record, now: Micros) -> list[int]:
        again, record.amended = record.amended, True
        return [
            0 if not units or (again and self.is_stuck(charge)) else self.refund(charge._replace(cost=units), now)
            for charge, units in zip(charges, portions, strict=True)
        ]

    def is_stuck(self, charge: Charge) -> bool:
        """Whether a charge cannot be given back once a part of it was: its place in a queue then ends elsewhere."""
        return charge.quota.algorithm == "leaky_bucket"

    def refund(self, charge: Charge, now: Micros) -> int:
        state = self.find(charge)
        if state is None or not charge.cost:
            return 0
        back, after = self.bind(charge.quota).refund(state, charge.cost, own_mark(charge.mark), now)
        self.states[self.place(charge.key, charge.quota)] = after
        return back

    def settle(self, op: Amend, record: Record, now: Micros) -> list[int]:
        charges, units = op.receipt.charges, cast("int", op.units)
        if record.settled:
            return [0] * len(charges)
        drains = any(charge.quota.algorithm in (*BUCKETS, "leaky_bucket") for charge in charges)
        # What is charged on top of a bucket stays charged: there may have been no room for all of it.
        cost = min(units, record.cost) if drains else units
        back, record.cost, record.settled = record.cost - units, cost, True
        if back >= 0:
            portions = [0 if charge.quota.flat else min(charge.cost, back) for charge in charges]
            return self.give_back(charges, portions, record, now)
        record.amended = True
        return [0 if charge.quota.flat else self.force(charge, -back, now) for charge in charges]

    def force(self, charge: Charge, units: int, now: Micros) -> int:
        state = self.bind(charge.quota).force(self.find(charge), units, now)
        self.states[self.place(charge.key, charge.quota)] = state
        return -units

    def report(self, charge: Charge, now: Micros) -> int:
        charged, state = self.bind(charge.quota).report(self.find(charge), charge.cost, own_mark(charge.mark), now)
        self.states[self.place(charge.key, charge.quota)] = state
        return charged

    def release(self, charge: Charge, now: Micros) -> int:
        return self.refund(charge, now) if charge.quota.algorithm == CONCURRENCY else 0

    def renew(self, charge: Charge, now: Micros, *, dry: bool = False) -> int:
        renew, state = self.bind(charge.quota).renew, self.find(charge)
        after = None if renew is None or state is None else renew(state, own_mark(charge.mark), now)
        if after is not None and not dry:
            self.states[self.place(charge.key, charge.quota)] = after
        return int(after is not None)

"""The smallest honest store: a dictionary and a lock. It passes the kit; `broken_stores` each break it in one place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from threading import Lock

from penstock.algorithms import Bound, bind
from penstock.algorithms.base import State, Step
from penstock.clock import Clock, Micros
from penstock.model import Acquire, Amend, Amended, Ask, Charge, Decision, Key, Op, Outcome, Verdict
from penstock.quota import Quota


class SmallStore:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock: AbstractContextManager[object] = Lock()
        self.states: dict[Hashable, State] = {}

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

    def do(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            return self.acquire(op, now)
        if isinstance(op, Amend):
            return Amended(tuple(self.refund(charge, now) for charge in op.receipt.portion(op.units)))
        self.states.pop(self.place(op.key, op.quota), None)
        return Amended()

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

    def find(self, ask: Ask) -> State:
        return self.states.get(self.place(ask.key, ask.quota))

    def passes(self, asks: Sequence[Ask], steps: Sequence[Step]) -> bool:
        return all(answer[0] or ask.advisory for ask, (answer, _) in zip(asks, steps, strict=True))

    def keeps(self, op: Acquire, *, allowed: bool, passes: bool) -> bool:
        """Whether an ask's step is kept: charges if all pass, and what refusing leaves behind."""
        return not op.dry and (passes or not allowed)

    def refund(self, charge: Charge, now: Micros) -> int:
        state = self.states.get(self.place(charge.key, charge.quota))
        if state is None or not charge.cost:
            return 0
        back, after = self.bind(charge.quota).refund(state, charge.cost, charge.mark, now)
        self.states[self.place(charge.key, charge.quota)] = after
        return back

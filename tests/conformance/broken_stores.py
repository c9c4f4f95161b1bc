"""Stores that are wrong in one way each, as real ones have been. The kit must catch every one of them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from math import ceil, floor

from penstock.algorithms import Bound, bind
from penstock.algorithms.base import State, Step, peek_by
from penstock.clock import SECOND, Clock, Micros
from penstock.model import NOT_CHARGED, Acquire, Ask, Charge, Key, Op, Outcome, Verdict
from penstock.quota import BUCKETS, Quota
from tests.conformance.small_store import SmallStore


class RefusesTheLastUnit(SmallStore):
    """`<` where `<=` was meant."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)

        def decide(state: State, cost: int, now: Micros) -> Step:
            answer, after = bound.decide(state, cost, now)
            if answer[0] and cost and answer[1] == 0:
                _, _, _, reset_after, more_after, _, _ = answer
                return (False, cost, reset_after, reset_after, more_after, 0, NOT_CHARGED), state
            return answer, after

        return bound._replace(decide=decide)


class AdmitsOneTooMany(SmallStore):
    """`<=` where `<` was meant."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)

        def decide(state: State, cost: int, now: Micros) -> Step:
            answer, after = bound.decide(state, cost, now)
            if not answer[0] and answer[1] == cost - 1:
                _, _, _, reset_after, more_after, _, _ = answer
                return (True, 0, 0, reset_after, more_after, 0, now), bound.force(state, cost, now)
            return answer, after

        return bound._replace(decide=decide)


class KeepsTheOldEdge(SmallStore):
    """[t − period, t] where (t − period, t] was meant."""

    def bind(self, quota: Quota) -> Bound:
        if quota.algorithm != "rolling_window":
            return bind(quota)
        longer = (quota.period_us + 1) / SECOND
        return bind(Quota(quota.limit, longer, quota.algorithm, penalty=quota.penalty, count_denied=quota.count_denied))


class EndsWindowsEarly(SmallStore):
    """A window that ends a microsecond before its end."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)
        if quota.algorithm != "fixed_window":
            return bound
        return bound._replace(decide=lambda state, cost, now: bound.decide(state, cost, now + 1))


class ChargesOnDryRun(SmallStore):
    def keeps(self, op: Acquire, *, allowed: bool, passes: bool) -> bool:
        return passes or not allowed


class ChargesWhateverFits(SmallStore):
    """Not all or nothing."""

    def keeps(self, op: Acquire, *, allowed: bool, passes: bool) -> bool:
        return not op.dry


class RefusesByAdvice(SmallStore):
    """Takes an advisory ask for an enforced one."""

    def passes(self, asks: Sequence[Ask], steps: Sequence[Step]) -> bool:
        return all(answer[0] for answer, _ in steps)


class RefundsWhateverIsThere(SmallStore):
    """Takes the units from the counter as it is now, wherever the charge went."""

    def refund(self, charge: Charge, now: Micros) -> int:
        state = self.states.get(self.place(charge.key, charge.quota))
        (_, _, _, _, _, _, mark_of_now), _ = self.bind(charge.quota).decide(state, 0, now)
        return super().refund(charge._replace(mark=mark_of_now), now)


class RefundsTwice(SmallStore):
    def refund(self, charge: Charge, now: Micros) -> int:
        return super().refund(charge, now) + super().refund(charge, now)


class FloatTokens(SmallStore):
    """A token bucket as most are written: it loses a unit to rounding now and then."""

    def bind(self, quota: Quota) -> Bound:
        if quota.algorithm not in BUCKETS:
            return bind(quota)
        rate, burst = quota.limit / quota.period_us, quota.capacity

        def decide(state: State, cost: int, now: Micros) -> Step:
            tokens, at = state or (float(burst), now)
            tokens = min(burst, tokens + (now - at) * rate)
            if cost > tokens:
                wait, more = ceil((cost - tokens) / rate), ceil((floor(tokens) + 1 - tokens) / rate)
                return (False, floor(tokens), wait, ceil((burst - tokens) / rate), more, 0, NOT_CHARGED), state
            tokens -= cost
            more = ceil((floor(tokens) + 1 - tokens) / rate) if tokens < burst else 0
            return (True, floor(tokens), 0, ceil((burst - tokens) / rate), more, 0, now), (tokens, now)

        return bind(quota)._replace(decide=decide, peek=peek_by(decide))


class DecidesOnASnapshot(SmallStore):
    """A batch whose operations do not see each other."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        before, outcomes = dict(self.states), []
        for op in ops:
            after, self.states = self.states, dict(before)
            outcomes += super().run([op])
            self.states = after | self.states
        return outcomes


class ReadsTheClockForEachOperation(SmallStore):
    def do(self, op: Op, now: Micros) -> Outcome:
        return super().do(op, self.now())


class ChecksThenIncrements(SmallStore):
    """No lock: whoever reads between another's reading and writing overwrites what that one wrote."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lock = nullcontext()

    def passes(self, asks: Sequence[Ask], steps: Sequence[Step]) -> bool:
        time.sleep(0)  # between check and increment, let somebody else run
        return super().passes(asks, steps)


class JoinsKeys(SmallStore):
    def place(self, key: Key, quota: Quota) -> Hashable:
        return super().place(key if isinstance(key, str) else "/".join(key), quota)


class LosesCountWhenTheLimitChanges(SmallStore):
    def place(self, key: Key, quota: Quota) -> Hashable:
        return super().place(key, quota), quota.limit


class ForgetsWhenTimeGoesBack(SmallStore):
    latest = 0

    def now(self) -> Micros:
        now = super().now()
        if now < self.latest:
            self.states.clear()
        self.latest = now
        return now


class ForgetsAfterOnePeriod(SmallStore):
    """An expiry that is set with the first charge, and shorter than the algorithm remembers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.born: dict[Hashable, Micros] = {}

    def acquire(self, op: Acquire, now: Micros) -> Verdict:
        for ask in op.asks:
            place = self.place(ask.key, ask.quota)
            if now - self.born.setdefault(place, now) >= ask.quota.period_us:
                self.states.pop(place, None)
                self.born[place] = now
        return super().acquire(op, now)


class ForgetsTheMicroseconds(SmallStore):
    """A store that counts in milliseconds."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)
        return bound._replace(decide=lambda state, cost, now: bound.decide(state, cost, now // 1_000 * 1_000))


class PromisesTooEarly(SmallStore):
    """Rounds waiting times down."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)

        def decide(state: State, cost: int, now: Micros) -> Step:
            (allowed, left, retry_after, reset_after, more_after, delay, mark), after = bound.decide(state, cost, now)
            return (allowed, left, max(0, retry_after - 1), reset_after, more_after, delay, mark), after

        return bound._replace(decide=decide)


class CountsNoRefusals(SmallStore):
    """Does not know `count denied`."""

    def bind(self, quota: Quota) -> Bound:
        plain = Quota(quota.limit, quota.period, quota.algorithm, burst=quota.burst, penalty=quota.penalty)
        return bind(plain)


class KnowsNoPenalty(SmallStore):
    def bind(self, quota: Quota) -> Bound:
        plain = Quota(quota.limit, quota.period, quota.algorithm, burst=quota.burst, count_denied=quota.count_denied)
        return bind(plain)

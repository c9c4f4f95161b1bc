"""Stores that are wrong in one way each, as real ones have been. The kit must catch every one of them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import ceil, floor

from penstock.algorithms import Bound, bind
from penstock.algorithms.base import State, Step, peek_by
from penstock.clock import SECOND, Clock, Micros
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
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
from penstock.quota import BUCKETS, CONCURRENCY, FLAT, Quota
from penstock.quota.periods import CalendarPeriod
from tests.conformance.small_store import Record, SmallStore


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
    """No lock: a thread that reads between the reading and the writing of another one overwrites its write."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lock = nullcontext()

    def passes(self, asks: Sequence[Ask], steps: Sequence[Step]) -> bool:
        time.sleep(0)  # between check and increment, let another thread run
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
        if quota.algorithm in FLAT or quota.calendar or quota.queue is not None:
            return bind(quota)
        plain = Quota(quota.limit, quota.period, quota.algorithm, burst=quota.burst, penalty=quota.penalty)
        return bind(plain)


class KnowsNoPenalty(SmallStore):
    def bind(self, quota: Quota) -> Bound:
        if quota.algorithm in FLAT or quota.calendar or quota.queue is not None:
            return bind(quota)
        plain = Quota(quota.limit, quota.period, quota.algorithm, burst=quota.burst, count_denied=quota.count_denied)
        return bind(plain)


# Places


class HasOnePlaceMore(SmallStore):
    def bind(self, quota: Quota) -> Bound:
        return bind(quota if quota.algorithm != CONCURRENCY else Quota(quota.limit + 1, quota.period, CONCURRENCY))


class KeepsPlacesOfTheDead(SmallStore):
    """Places that never expire, as with a counter that is raised and lowered."""

    def bind(self, quota: Quota) -> Bound:
        if quota.algorithm != CONCURRENCY:
            return bind(quota)
        return bind(Quota(quota.limit, quota.period * 1_000, CONCURRENCY, penalty=quota.penalty))


class ReleasesWhateverPlace(SmallStore):
    """Lowers a counter instead of taking back the place of its holder."""

    def release(self, charge: Charge, now: Micros) -> int:
        state = self.find(charge)
        if charge.quota.algorithm != CONCURRENCY or state is None:
            return 0
        _, _, held = state[1] if charge.quota.penalty_us else state
        return super().release(charge._replace(mark=next(iter(held))), now)


class RenewsNothing(SmallStore):
    """Says yes, and lets the place expire."""

    def renew(self, charge: Charge, now: Micros, *, dry: bool = False) -> int:
        return super().renew(charge, now, dry=True)


class RenewsEverything(SmallStore):
    """Renews a lost place, whether one is free or not."""

    def renew(self, charge: Charge, now: Micros, *, dry: bool = False) -> int:
        held = super().renew(charge, now, dry=dry)
        if charge.quota.algorithm != CONCURRENCY or held or dry:
            return held
        _, after = self.bind(charge.quota).decide(self.find(charge), 1, now)
        self.states[self.place(charge.key, charge.quota)] = after
        return 1


class ReleasesRatesAsWell(SmallStore):
    def release(self, charge: Charge, now: Micros) -> int:
        return self.refund(charge, now)


class PromisesAPlaceThatIsTaken(SmallStore):
    """After the limit was lowered, tells the first expiry as the time when a place will be free."""

    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)
        if quota.algorithm != CONCURRENCY:
            return bound

        def peek(state: State, cost: int, now: Micros) -> Step:
            (allowed, left, retry_after, reset_after, _, delay, mark), state = bound.peek(state, cost, now)
            return (allowed, left, min(retry_after, reset_after), reset_after, reset_after, delay, mark), state

        return bound._replace(peek=peek)


# Ids


class KnowsNoIds(SmallStore):
    def remembers(self, record: Record, now: Micros) -> bool:
        return False


class RemembersRefusals(SmallStore):
    def is_worth_remembering(self, verdict: Verdict) -> bool:
        return True


class MixesUpRequestsOfOneId(SmallStore):
    def name(self, op: Acquire) -> Hashable:
        return op.id


class ForgetsIdsWithTheWindow(SmallStore):
    """A record that lives for one period, which may be short, or shorter than its charge counts."""

    def memory(self, asks: Sequence[Ask]) -> Micros:
        return max(ask.quota.period_us for ask in asks)


class RemembersForEver(SmallStore):
    def memory(self, asks: Sequence[Ask]) -> Micros:
        return 2**60


class GivesBackTwiceByRecord(SmallStore):
    """The record does not note what was given back."""

    def refund_request(self, op: Amend, record: Record, now: Micros) -> list[int]:
        return super().refund_request(op, replace(record), now)


class KnowsRequestsByTheirIdAlone(SmallStore):
    """An old receipt reaches the request that was admitted later under the same id."""

    def number(self, op: Acquire) -> str:
        return f"{op.id!r}{self.name(op)}"


class TakesALostPlaceForHeld(SmallStore):
    def is_held(self, decision: Decision, now: Micros) -> bool:
        return True


class TakesAdviceForALostPlace(SmallStore):
    """A place that an advisory ask did not get counts as lost, and the request is charged again."""

    def is_held(self, decision: Decision, now: Micros) -> bool:
        return decision.quota.algorithm != CONCURRENCY or (
            decision.mark != NOT_CHARGED and super().is_held(decision, now)
        )


class GivesFlatChargesBackTooSoon(SmallStore):
    """Compares what is given back with the estimate, though the request was settled for more."""

    def portion(self, charge: Charge, units: int, record: Record) -> int:
        estimate = max(d.cost for d in record.verdict.decisions) if record.verdict else record.cost
        return super().portion(charge, units, replace(record, cost=0) if units >= estimate else record)


# Settling


class SettlesEachTime(SmallStore):
    def settle(self, op: Amend, record: Record, now: Micros) -> list[int]:
        record.settled = False
        return super().settle(op, record, now)


class SettlesOnlyWhatFits(SmallStore):
    """Asks before it charges more, and is refused."""

    def force(self, charge: Charge, units: int, now: Micros) -> int:
        answer, _ = self.bind(charge.quota).decide(self.find(charge), units, now)
        return super().force(charge, units, now) if answer[0] else 0


class SettlesPlacesAsWell(SmallStore):
    """Takes what is charged once whatever the cost for a part of the cost."""

    def settle(self, op: Amend, record: Record, now: Micros) -> list[int]:
        back = super().settle(op, record, now)
        flat = [charge for charge in op.receipt.charges if charge.quota.flat]
        for charge in flat if any(units > 0 for units in back) else []:
            self.refund(charge, now)
        return back


class ForgetsByAnOldLimit(SmallStore):
    """Trims a log to the limit of the receipt, which has been raised since."""

    def force(self, charge: Charge, units: int, now: Micros) -> int:
        quota = charge.quota
        if quota.algorithm == "rolling_window" and not quota.count_denied:
            charge = charge._replace(quota=Quota(quota.limit, quota.period, quota.algorithm, count_denied=True))
        return super().force(charge, units, now)


# Grants


class GrantsAllOrNothing(SmallStore):
    """Knows no partial grant."""

    def granted(self, op: Grant, now: Micros) -> int:
        return op.most


class GrantsLessThanTheLeast(SmallStore):
    """Grants what is left, however little that is."""

    def granted(self, op: Grant, now: Micros) -> int:
        return super().granted(op._replace(least=1), now)


# Reports


class ReportsIntoTheCurrentWindow(SmallStore):
    """Takes what happened elsewhere, whenever that was, for what happens now."""

    def report(self, charge: Charge, now: Micros) -> int:
        return super().report(charge._replace(mark=now), now)


class ReportsOnlyWhatFits(SmallStore):
    """Takes a report for a question."""

    def report(self, charge: Charge, now: Micros) -> int:
        answer, _ = self.bind(charge.quota).decide(self.find(charge), charge.cost, now)
        return super().report(charge, now) if answer[0] else 0


class LetsReportsLingerInTheLog(SmallStore):
    """Appends what happened earlier to a log, so that it leaves late."""

    def report(self, charge: Charge, now: Micros) -> int:
        still_counts, _ = self.bind(charge.quota).report(None, charge.cost, own_mark(charge.mark), now)
        return super().report(charge._replace(mark=now), now) if still_counts else 0


# Queues


class DelaysNobody(SmallStore):
    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)

        def decide(state: State, cost: int, now: Micros) -> Step:
            (allowed, left, retry_after, reset_after, more_after, _, mark), after = bound.decide(state, cost, now)
            return (allowed, left, retry_after, reset_after, more_after, 0, mark), after

        return bound._replace(decide=decide)


class RoundsDelaysDown(SmallStore):
    def bind(self, quota: Quota) -> Bound:
        bound = bind(quota)

        def decide(state: State, cost: int, now: Micros) -> Step:
            (allowed, left, retry_after, reset_after, more_after, delay, mark), after = bound.decide(state, cost, now)
            return (allowed, left, retry_after, reset_after, more_after, max(0, delay - 1), mark), after

        return bound._replace(decide=decide)


class GivesBackPlacesInTheMiddle(SmallStore):
    """Lowers the level of a queue, wherever in it the place was."""

    def refund(self, charge: Charge, now: Micros) -> int:
        state = self.find(charge)
        if charge.quota.algorithm != "leaky_bucket" or state is None or charge.quota.penalty_us:
            return super().refund(charge, now)
        return super().refund(charge._replace(mark=state[0]), now)


class GivesBackAPlaceInParts(SmallStore):
    """Knows a place by where it ends, though a later place may end there."""

    def is_stuck(self, charge: Charge) -> bool:
        return False


# Calendars


class _OtherCalendar(SmallStore):
    """Counts by another calendar than the quota says."""

    def other(self, calendar: CalendarPeriod) -> CalendarPeriod:
        raise NotImplementedError

    def bind(self, quota: Quota) -> Bound:
        if quota.calendar is None:
            return bind(quota)
        other = self.other(quota.calendar)
        return bind(Quota(quota.limit, other, penalty=quota.penalty, count_denied=quota.count_denied))


class CountsByUtc(_OtherCalendar):
    def other(self, calendar: CalendarPeriod) -> CalendarPeriod:
        return calendar._replace(zone="UTC")


class KnowsNoFirstDay(_OtherCalendar):
    def other(self, calendar: CalendarPeriod) -> CalendarPeriod:
        return calendar._replace(first=1)


class TakesDaysFor24Hours(SmallStore):
    """Finds the beginning of a day by the clocks, and its end by adding."""

    def bind(self, quota: Quota) -> Bound:
        bound, calendar = bind(quota), quota.calendar
        if calendar is None or calendar.unit != "day":
            return bound

        def decide(state: State, cost: int, now: Micros) -> Step:
            start, _ = calendar.bounds(now)
            return bound.decide(state, cost, min(now, start + 86_400 * SECOND - 1))

        return bound._replace(decide=decide)

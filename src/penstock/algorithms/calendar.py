"""Calendar: one counter per day, week, month or year of a time zone.

Promise: at most `limit` units per calendar period.
State: (beginning of the period, its end, units used). The boundaries come from the quota's calendar, and are computed
once per period and not once per decision.
"""

from __future__ import annotations

from typing import cast

from penstock.algorithms.base import MAX_USED, Bound, State, Step, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota
from penstock.quota.periods import CalendarPeriod


def bind(quota: Quota) -> Bound:
    limit, calendar = quota.limit, cast("CalendarPeriod", quota.calendar)
    latest = calendar.bounds(0)  # the bounds computed last; all counters need the same ones

    def decide(state: State, cost: int, now: Micros) -> Step:
        start, end, used = current(state, now)
        until_end = end - now
        total = used + cost
        if total <= limit:
            return (True, limit - total, 0, until_end, until_end if total else 0, 0, start), (start, end, total)
        kept = state if state[0] == start else (start, end, used)  # keep one that was pulled back
        return (False, max(limit - used, 0), until_end, until_end, until_end, 0, NOT_CHARGED), kept

    def current(state: State, now: Micros) -> tuple[Micros, Micros, int]:
        """Return the period that counts now, and the units used in it."""
        if state is not None:
            start, end, used = state
            if start <= now < end:
                return start, end, used
            if now < start <= now + (end - start):  # time went back: stand still until it has caught up
                return start, end, used
            if now < start:  # the clock was stepped back
                return *bounds(now), used
        return *bounds(now), 0

    def bounds(now: Micros) -> tuple[Micros, Micros]:
        nonlocal latest
        found = latest
        if not found[0] <= now < found[1]:
            latest = found = calendar.bounds(now)
        return found

    def force(state: State, cost: int, now: Micros) -> State:
        start, end, used = current(state, now)
        return start, end, min(used + cost, MAX_USED)

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        start, end, used = current(state, now)
        back = min(units, used) if start == mark else 0
        return back, (start, end, used - back)

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        start, end, used = current(state, now)
        if at < min(start, now):
            return 0, state
        return units, (start, end, min(used + units, MAX_USED))

    def expiry(state: State) -> Micros:
        end: Micros = state[1]
        return end

    return Bound(decide, peek_by(decide), force, refund, report, expiry)

"""Fixed window: one counter per window, windows aligned to the Unix epoch.

Promise: at most `limit` units per window, so at most 2·limit in a span of one period that crosses a boundary.
State: (end of the window, units used). The cheapest algorithm; choose it where a burst at a boundary does no harm.
"""

from __future__ import annotations

from penstock.algorithms.base import MAX_USED, Bound, State, Step, bind_window_end, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit, period = quota.limit, quota.period_us
    window_end = bind_window_end(period)

    def decide(state: State, cost: int, now: Micros) -> Step:
        end, used = state or (0, 0)
        until_end = end - now
        if not 0 < until_end <= period:
            end, used = turned(end, used, now)
            until_end = end - now
        total = used + cost
        if total <= limit:
            return (True, limit - total, 0, until_end, until_end if total else 0, 0, end), (end, total)
        kept = state if state[0] is end else (end, used)  # keep one that was pulled back
        return (False, limit - used if used < limit else 0, until_end, until_end, until_end, 0, NOT_CHARGED), kept

    def turned(end: Micros, used: int, now: Micros) -> tuple[Micros, int]:
        """Return the window that counts now and the units used in it, if `now` is outside the state's window."""
        if end <= now:
            return window_end(now), 0
        if end - now <= 2 * period:  # time went back over a boundary: stand still until it has caught up
            return end, used
        return window_end(now), used  # the clock was stepped back

    def force(state: State, cost: int, now: Micros) -> State:
        end, used = state or (0, 0)
        if not 0 < end - now <= period:
            end, used = turned(end, used, now)
        total = used + cost
        return end, total if total < MAX_USED else MAX_USED

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        end, used = state
        if not 0 < end - now <= period:
            end, used = turned(end, used, now)
        if end != mark:
            return 0, (end, used)
        back = units if units < used else used
        return back, (end, used - back)

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        end, used = state or (0, 0)
        if not 0 < end - now <= period:
            end, used = turned(end, used, now)
        if at < min(end - period, now):
            return 0, state
        return units, (end, min(used + units, MAX_USED))

    def expiry(state: State) -> Micros:
        end: Micros = state[0]
        return end

    return Bound(decide, peek_by(decide), force, refund, report, expiry)

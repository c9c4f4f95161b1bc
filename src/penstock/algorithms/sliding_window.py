"""Sliding window: the current window's counter plus the previous one's, weighted by its overlap with the last period.

Promise: the estimate `current + previous · overlap` never exceeds `limit` at an admission. The true count in any span
of one period is below 2·limit. Under steady traffic it stays close to `limit`, because the estimate assumes that the
units of the previous window are spread evenly.
State: (end of the window, units in it, units in the one before).

Overlap is counted in ticks of ceil(period / 2^20) µs. So every product stays below 2^53, and a store that computes in
doubles agrees to the last unit.
"""

from __future__ import annotations

from penstock.algorithms.base import MAX_USED, Bound, State, Step, bind_window_end, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit, period = quota.limit, quota.period_us
    tick = -(-period >> 20)
    ticks = -(-period // tick)

    lone = min(-(-ticks // limit) * tick, period)  # from the end of a full window until its first unit is free
    window_end = bind_window_end(period)

    def decide(state: State, cost: int, now: Micros) -> Step:
        end, current, previous = state or (0, 0, 0)
        until_end = end - now
        if not 0 < until_end <= period:
            end, current, previous = turned(end, current, previous, now)
            until_end = end - now
        free = limit - current
        if previous:
            elapsed = period - until_end  # below zero while time stands still
            free += -previous * (ticks - elapsed // tick if elapsed > 0 else ticks) // ticks
        if cost <= free:
            current += cost
            free -= cost
            if previous:
                until_more = until(free + 1, current, previous, end) - now
            else:  # a unit is free once this share of the window has left the period
                share = -(-ticks // current) * tick if current else 0
                until_more = until_end + (share if share < period else period) if share else 0
            return (True, free, 0, until_end, until_more, 0, end), (end, current, previous)
        kept = state if state[0] is end else (end, current, previous)  # keep one that was pulled back
        if cost == 1 and current == limit:
            wait = until_end + lone
            return (False, 0, wait, until_end, wait, 0, NOT_CHARGED), kept
        if free < 0:
            free = 0
        retry_after = until_more = until(cost, current, previous, end) - now
        if cost != free + 1:
            until_more = until(free + 1, current, previous, end) - now
        return (False, free, retry_after, until_end, until_more, 0, NOT_CHARGED), kept

    def turned(end: Micros, current: int, previous: int, now: Micros) -> tuple[Micros, int, int]:
        """Return the window that counts now, its units and those before, if `now` is outside the state's window."""
        end_now = window_end(now)
        if end <= now:
            return end_now, 0, current if end == end_now - period else 0
        if end - now <= 2 * period:  # time went back over a boundary: stand still until it has caught up
            return end, current, previous
        return end_now, min(current + previous, limit), 0  # the clock was stepped back: all of it counts as of now

    def until(units: int, current: int, previous: int, end: Micros) -> Micros:
        """Return when `units` that are not free now will be free, without other requests."""
        if current + units <= limit:  # as soon as less of the previous window overlaps
            overlap = (limit - current - units) * ticks // previous
            at = end - period + (ticks - overlap) * tick
            return at if at < end else end
        overlap = (limit - units) * ticks // current  # not before this window has become the previous one
        at = end + (ticks - overlap) * tick
        return at if at < end + period else end + period

    def force(state: State, cost: int, now: Micros) -> State:
        end, current, previous = state or (0, 0, 0)
        if not 0 < end - now <= period:
            end, current, previous = turned(end, current, previous, now)
        total = current + cost
        return end, total if total < MAX_USED else MAX_USED, previous

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        end, current, previous = state
        if not 0 < end - now <= period:
            end, current, previous = turned(end, current, previous, now)
        if mark == end:
            back = units if units < current else current
            return back, (end, current - back, previous)
        back = min(units, previous) if mark == end - period else 0
        return back, (end, current, previous - back)

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        end, current, previous = state or (0, 0, 0)
        if not 0 < end - now <= period:
            end, current, previous = turned(end, current, previous, now)
        if at >= min(end - period, now):
            return units, (end, min(current + units, MAX_USED), previous)
        if at >= end - 2 * period:
            return units, (end, current, min(previous + units, MAX_USED))
        return 0, state

    def expiry(state: State) -> Micros:
        end: Micros = state[0]
        return end + period

    return Bound(decide, peek_by(decide), force, refund, report, expiry)

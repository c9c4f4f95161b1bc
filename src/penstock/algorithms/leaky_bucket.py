"""Leaky bucket: a queue that lets requests out at an even pace, each told how long to wait.

Promise: admitted requests start at least one interval (period/limit) times their cost apart, to the microsecond; at
most `queue` units wait.
State: (when the queue will be empty · units per period, units per period), as GCRA keeps it. One request is in service
and `queue` units may wait behind it, so the bucket holds queue + 1.

Only the last place in the queue can be given back: what stands behind any other has been told its time already.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State, Step
from penstock.algorithms.bucket import bind_force, bind_refusal
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit, period = quota.limit, quota.period_us
    full = quota.capacity * period
    refusal = bind_refusal(quota)

    def decide(state: State, cost: int, now: Micros) -> Step:
        owed, _ = (0, now) if state is None else level(state, now)
        total = owed + cost * period
        if total > full:
            changed = owed == full or state[1] != limit  # pulled back, or drained at another rate from now on
            return refusal(owed, cost, 0), keep(owed, now) if changed else state
        remaining, until_empty, until_more = outlook(total)
        tail = now * limit + total
        return (True, remaining, 0, until_empty, until_more, -(-owed // limit), tail), (tail, limit)

    def peek(state: State, cost: int, now: Micros) -> Step:
        owed, _ = (0, now) if state is None else level(state, now)
        if cost and owed + cost * period > full:
            return refusal(owed, cost, 0), state
        remaining, until_empty, until_more = outlook(owed)
        return (True, remaining, 0, until_empty, until_more, -(-owed // limit), NOT_CHARGED), state

    def outlook(owed: int) -> tuple[int, Micros, Micros]:
        """Places left, and the time until the queue is empty and until there is one more place."""
        remaining = (full - owed) // period
        until_more = -((full - owed - (remaining + 1) * period) // limit) if owed else 0
        return remaining, -(-owed // limit), until_more

    def level(state: State, now: Micros) -> tuple[int, Micros]:
        tail, rate = state
        return min(max(tail - now * rate, 0), full), now

    def keep(owed: int, at: Micros) -> State:
        return at * limit + owed, limit

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        tail, rate = state
        owed, _ = level(state, now)
        if tail != mark or rate != limit:
            return 0, state
        back = min(units * period, owed)  # what has been served cannot be given back
        return -(-back // period), keep(owed - back, now)

    def expiry(state: State) -> Micros:
        tail, rate = state
        empty: Micros = -(-tail // rate)
        return empty

    return Bound(decide, peek, bind_force(quota, level, keep), refund, expiry)

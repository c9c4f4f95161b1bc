"""GCRA, the generic cell rate algorithm: remembers only when the bucket will be full again.

Promise: as token bucket, with which it agrees decision for decision while time runs forwards.
State: (theoretical arrival time · units per period, units per period). The rate stands beside the time so that units
owed can be told from it after a change of `limit`.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State, Step, peek_by
from penstock.algorithms.bucket import bind_force, bind_refund, bind_refusal
from penstock.clock import Micros
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit, period = quota.limit, quota.period_us
    full = quota.capacity * period
    refusal = bind_refusal(quota)

    def decide(state: State, cost: int, now: Micros) -> Step:
        owed = 0
        if state is not None:
            arrival, rate = state
            owed = arrival - now * rate
            if owed < 0:
                owed = 0
            elif owed > full:  # the burst was lowered, or the clock was stepped
                owed = full
        total = owed + cost * period
        if total > full:
            # What was pulled back, or is paid back at another rate from now on, must be kept so for the answer to hold.
            changed = owed == full or state[1] != limit
            return refusal(owed, cost, 0), (now * limit + owed, limit) if changed else state
        remaining = (full - total) // period
        until_more = -((full - total - (remaining + 1) * period) // limit) if total else 0
        return (True, remaining, 0, -(-total // limit), until_more, 0, now), (now * limit + total, limit)

    def level(state: State, now: Micros) -> tuple[int, Micros]:
        arrival, rate = state
        return min(max(arrival - now * rate, 0), full), now

    def keep(owed: int, at: Micros) -> State:
        return at * limit + owed, limit

    def expiry(state: State) -> Micros:
        arrival, rate = state
        full_again: Micros = -(-arrival // rate)
        return full_again

    force, refund = bind_force(quota, level, keep), bind_refund(quota, level, keep)
    return Bound(decide, peek_by(decide), force, refund, expiry)

"""Token bucket: holds up to `burst` units and refills at `limit` per `period`, lazily.

Promise: at most burst + rate·t units in every span of length t.
State: (units owed to the bucket · period, the instant of that, units per period). Owed rather than held, because what
is owed keeps its meaning when `burst` or `limit` change.
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
        owed, at = (0, now) if state is None else level(state, now)
        total = owed + cost * period
        if total > full:
            # What was pulled back, or is paid back at another rate from now on, must be kept so for the answer to hold.
            changed = owed == full or at < state[1] or state[2] != limit
            return refusal(owed, cost, at - now), (owed, at, limit) if changed else state
        remaining = (full - total) // period
        until_full = at - now - (-total // limit)
        until_more = at - now - ((full - total - (remaining + 1) * period) // limit) if total else 0
        return (True, remaining, 0, until_full, until_more, 0, at), (total, at, limit)

    def level(state: State, now: Micros) -> tuple[int, Micros]:
        """What is owed, and the instant at which that holds: now, or later while time stands still."""
        owed, at, rate = state
        if at <= now:
            owed -= (now - at) * rate
            at = now
        elif (at - now) * limit > full:  # ahead by more than a full burst: the clock was stepped
            at = now
        if owed < 0:
            return 0, at
        return (owed if owed < full else full), at  # more than full if the burst was lowered

    def keep(owed: int, at: Micros) -> State:
        return owed, at, limit

    def expiry(state: State) -> Micros:
        owed, at, rate = state
        paid_back: Micros = at - (-owed // rate)
        return paid_back

    force, refund = bind_force(quota, level, keep), bind_refund(quota, level, keep)
    return Bound(decide, peek_by(decide), force, refund, expiry)

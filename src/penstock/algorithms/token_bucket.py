"""Token bucket: holds up to `burst` units and refills at `limit` per `period`, lazily.

Promise: at most burst + rate·t units in every span of length t.
State: (units owed to the bucket · period, the instant of that, units per period). Owed rather than held, because what
is owed keeps its meaning when `burst` or `limit` change.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State
from penstock.algorithms.bucket import bind_bucket
from penstock.clock import Micros
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit = quota.limit
    full = quota.capacity * quota.period_us

    def level(state: State, now: Micros) -> tuple[int, Micros]:
        owed, at, rate = state
        if at <= now:
            owed -= (now - at) * rate
            return (owed if owed > 0 else 0), now
        if (at - now) * limit > full:  # ahead by more than a full burst: the clock was stepped
            return owed, now
        return owed, at  # time went back: stand still until it has caught up

    def keep(owed: int, at: Micros) -> State:
        return owed, at, limit

    def expiry(state: State) -> Micros:
        owed, at, rate = state
        paid_back: Micros = at - (-owed // rate)
        return paid_back

    return bind_bucket(quota, level, keep, expiry)

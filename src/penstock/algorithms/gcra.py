"""GCRA, the generic cell rate algorithm: remembers only when the bucket will be full again.

Promise: as token bucket, with which it agrees decision for decision while time runs forwards.
State: (theoretical arrival time · units per period, units per period). The rate stands beside the time so that units
owed can be told from it after a change of `limit`.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State
from penstock.algorithms.bucket import bind_bucket
from penstock.clock import Micros
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit = quota.limit

    def level(state: State, now: Micros) -> tuple[int, Micros]:
        arrival, rate = state
        owed = arrival - now * rate
        return (owed if owed > 0 else 0), now

    def keep(owed: int, at: Micros) -> State:
        return at * limit + owed, limit

    def expiry(state: State) -> Micros:
        arrival, rate = state
        full_again: Micros = -(-arrival // rate)
        return full_again

    return bind_bucket(quota, level, keep, expiry)

"""Leaky bucket: a queue that admits requests at an even pace, each with the delay after which to start.

Promise: admitted requests start at least one interval (period/limit) times their cost apart, to the microsecond; at
most `queue` units wait.
State: that of a bucket (see `bucket`): when the queue will be empty. One unit is in service and `queue` units may wait
behind it, so the bucket holds queue + 1.

Only the last place in the queue can be given back, because the delays of requests behind any other are already fixed.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State, Step
from penstock.algorithms.bucket import Bucket
from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    bucket = Bucket(quota)
    unit, pace, full = bucket.unit, bucket.pace, bucket.full

    def decide(state: State, cost: int, now: Micros) -> Step:
        owed = bucket.owed(state, now)
        total = owed + cost * unit
        if total > full:
            return bucket.refusal(state, cost, now)
        after = bucket.keep(total, now)
        return outlook(total, owed, mark=after[0]), after

    def peek(state: State, cost: int, now: Micros) -> Step:
        owed = bucket.owed(state, now)
        if cost and owed + cost * unit > full:
            answer, _ = bucket.refusal(state, cost, now)
            return answer, state
        return outlook(owed, owed, NOT_CHARGED), state

    def outlook(owed: int, ahead: int, mark: int) -> Answer:
        """Return the admission with `owed` in the bucket, of which `ahead` is served before it."""
        room = full - owed
        until_more = -((room % unit - unit) // pace) if owed else 0
        return True, room // unit, 0, -(-owed // pace), until_more, -(-ahead // pace), mark

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        tail, rate = state
        if tail != mark or rate != quota.limit:
            return 0, state
        owed = bucket.owed(state, now)
        back = min(units * unit, owed)  # units that have been served cannot be given back
        return -(-back // unit), bucket.keep(owed - back, now)

    return Bound(decide, peek, bucket.force, refund, bucket.report, bucket.expiry)

"""What token bucket and GCRA share: the arithmetic of a bucket that is owed units and paid back by time.

Everything is scaled by the period: one unit is `period`, and a microsecond pays back `limit`, so the rational refill
interval period/limit never has to be rounded. `full` is the most that can be owed.

The two algorithms differ in what they remember, and so in what they do while time runs backwards: a token bucket stands
still; GCRA's arrival time comes no nearer. `level(state, now)` reads (owed, the instant at which that holds), and
`keep(owed, at)` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.algorithms.base import Bound, Expiry, State, Step, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota

Level: TypeAlias = Callable[[State, Micros], tuple[int, Micros]]
Keep: TypeAlias = Callable[[int, Micros], State]


def bind_bucket(quota: Quota, level: Level, keep: Keep, expiry: Expiry) -> Bound:
    limit, period = quota.limit, quota.period_us
    full = quota.capacity * period

    def decide(state: State, cost: int, now: Micros) -> Step:
        owed, at = (0, now) if state is None else level(state, now)
        if owed > full:  # the burst was lowered, or the clock was stepped
            owed = full
        lag = at - now
        total = owed + cost * period
        if total <= full:
            remaining, spare = divmod(full - total, period)
            until_full = lag - (-total // limit)
            until_more = lag - ((spare - period) // limit) if total else 0
            return (True, remaining, 0, until_full, until_more, 0, at), keep(total, at)
        remaining, spare = divmod(full - owed, period)
        until_full = lag - (-owed // limit)
        until_more = lag - ((spare - period) // limit)
        return (False, remaining, lag - ((full - total) // limit), until_full, until_more, 0, NOT_CHARGED), state

    def force(state: State, cost: int, now: Micros) -> State:
        owed, at = (0, now) if state is None else level(state, now)
        return keep(min(owed + cost * period, full), at)

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        """Give back what time has not paid back yet; a later charge may stand where the rest was."""
        owed, at = level(state, now)
        unpaid = units * period - max(at - mark, 0) * limit
        back = max(min(unpaid, owed, full), 0)
        return -(-back // period), keep(owed - back, at)

    return Bound(decide, peek_by(decide), force, refund, expiry)

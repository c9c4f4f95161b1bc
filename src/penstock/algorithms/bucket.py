"""What token bucket and GCRA share: the arithmetic of a bucket that is owed units and paid back by time.

Everything is scaled by the period: one unit is `period`, and a microsecond pays back `limit`, so the rational refill
interval period/limit never has to be rounded. `full`, burst · period, is the most that can be owed.

The two algorithms differ in what they remember, and so in what they do while time runs backwards: a token bucket stands
still; GCRA's arrival time comes no nearer. Each reads and admits in its own way, because that is the hot path; what
happens less often is here, in terms of two functions of theirs: `level(state, now)` reads (owed, the instant at which
that holds), and `keep(owed, at)` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from penstock.algorithms.base import Force, Refund, State
from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer
from penstock.quota import Quota

Level: TypeAlias = Callable[[State, Micros], tuple[int, Micros]]
Keep: TypeAlias = Callable[[int, Micros], State]
Refusal: TypeAlias = Callable[[int, int, Micros], Answer]


def bind_refusal(quota: Quota) -> Refusal:
    """How a bucket says no: to `cost`, when `owed` units are owed as of `lag` microseconds from now."""
    limit, period = quota.limit, quota.period_us
    full = quota.capacity * period

    def refusal(owed: int, cost: int, lag: Micros) -> Answer:
        room = full - owed
        remaining = room // period
        retry_after = until_more = lag - ((room - cost * period) // limit)
        if cost != remaining + 1:
            until_more = lag - ((room - (remaining + 1) * period) // limit)
        return False, remaining, retry_after, lag - (-owed // limit), until_more, 0, NOT_CHARGED

    return refusal


def bind_force(quota: Quota, level: Level, keep: Keep) -> Force:
    """Charge whether it fits or not; a bucket cannot owe more than all of itself."""
    period = quota.period_us
    full = quota.capacity * period

    def force(state: State, cost: int, now: Micros) -> State:
        owed, at = (0, now) if state is None else level(state, now)
        return keep(min(owed + cost * period, full), at)

    return force


def bind_refund(quota: Quota, level: Level, keep: Keep) -> Refund:
    """Give back what time has not paid back yet; a later charge may stand where the rest was."""
    limit, period = quota.limit, quota.period_us

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        owed, at = level(state, now)
        unpaid = units * period - max(at - mark, 0) * limit
        back = max(min(unpaid, owed), 0)
        return -(-back // period), keep(owed - back, at)

    return refund

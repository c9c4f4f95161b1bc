"""The bucket behind token bucket, GCRA and leaky bucket: charged units are owed to it, and time pays them back.

State: (the instant at which nothing is owed any more, in ticks; units per period). The rate is part of the state
because what is owed depends on it after a change of `limit`.

A tick is the largest fraction of a microsecond in which all amounts are whole. With g = gcd(limit, period), a unit is
period/g ticks and a microsecond pays back limit/g. So the rational interval period/limit is never rounded, and numbers
stay small. Only a change of `limit`, and so of the tick, rounds what is owed up, by less than a microsecond's worth.

While time runs backwards, the instant stays: more is owed, never less. No more than the whole bucket can be owed. A
state beyond that comes from a larger burst or a clock that was stepped, and is pulled back to full.
"""

from __future__ import annotations

from math import gcd

from penstock.algorithms.base import MAX_USED, Bound, State, Step, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer
from penstock.quota import Quota


class Bucket:
    """A bucket bound to a quota, with all operations but `decide`. `unit`, `pace` and `full` are in ticks."""

    def __init__(self, quota: Quota) -> None:
        self.limit, self.period = quota.limit, quota.period_us
        self.share = gcd(self.limit, self.period)
        self.unit = self.period // self.share
        self.pace = self.limit // self.share
        self.full = quota.capacity * self.unit

    def owed(self, state: State, now: Micros) -> int:
        """Return what is owed to the bucket now; at most `full`."""
        if state is None:
            return 0
        paid_at, rate = state
        if rate == self.limit:
            owed = paid_at - now * self.pace
        else:
            share = gcd(rate, self.period)
            owed = -((now * (rate // share) - paid_at) * share // self.share)
        if owed <= 0:
            return 0
        return owed if owed < self.full else self.full

    def keep(self, owed: int, now: Micros) -> State:
        return now * self.pace + owed, self.limit

    def refusal(self, state: State, cost: int, now: Micros) -> Step:
        """Return the refusal of `cost`, and the state to keep.

        A state that was pulled back, or converted to another rate, must be kept for the answer to hold.
        """
        unit, pace = self.unit, self.pace
        owed = self.owed(state, now)
        room = self.full - owed
        remaining = room // unit
        retry_after = until_more = -((room - cost * unit) // pace)
        if cost != remaining + 1:
            until_more = -((room - (remaining + 1) * unit) // pace)
        answer: Answer = (False, remaining, retry_after, -(-owed // pace), until_more, 0, NOT_CHARGED)
        return answer, self.keep(owed, now) if not room or state[1] != self.limit else state

    def force(self, state: State, cost: int, now: Micros) -> State:
        """Charge `cost`, whether it fits or not, up to the whole bucket."""
        owed = self.owed(state, now) + cost * self.unit
        return now * self.pace + (owed if owed < self.full else self.full), self.limit

    def refund(self, state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        """Give back the units that time has not paid back yet; the rest may already serve later charges."""
        owed = self.owed(state, now)
        unit, pace = self.unit, self.pace
        unpaid = units * unit - (now - mark) * pace if now > mark else units * unit
        if unpaid <= 0:
            return 0, (now * pace + owed, self.limit)
        back = unpaid if unpaid < owed else owed
        return -(-back // unit), (now * pace + owed - back, self.limit)

    def report(self, state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        """Charge the units that time has not paid back since `at`; the mirror image of `refund`.

        `units` may exceed the bucket: they are all units that were admitted since it was empty, at `at`.
        """
        unpaid = min(min(units, MAX_USED) * self.unit - max(now - at, 0) * self.pace, self.full)
        if unpaid <= 0:
            return 0, state
        return -(-unpaid // self.unit), self.keep(min(self.owed(state, now) + unpaid, self.full), now)

    def expiry(self, state: State) -> Micros:
        paid_at, rate = state
        paid: Micros = -(-paid_at // (rate // gcd(rate, self.period)))
        return paid


def bind(quota: Quota) -> Bound:
    """Bind a bucket that admits or refuses at once."""
    bucket = Bucket(quota)
    limit, unit, pace, full = bucket.limit, bucket.unit, bucket.pace, bucket.full
    owed_to, refusal = bucket.owed, bucket.refusal
    but_one = full - unit

    def decide(state: State, cost: int, now: Micros) -> Step:
        ticks = now if pace == 1 else now * pace
        paid_at, rate = state or (0, limit)
        owed = paid_at - ticks if rate == limit else owed_to(state, now)
        if owed < 0:
            owed = 0
        room = (but_one if cost == 1 else full - cost * unit) - owed
        if room < 0:
            if cost != 1 or owed >= full or rate != limit:
                return refusal(state, cost, now)
            # One unit is refused only if none is free, so both waits are until the next one.
            until_full, until_more = (owed, -room) if pace == 1 else (-(-owed // pace), -(room // pace))
            return (False, 0, until_more, until_full, until_more, 0, NOT_CHARGED), state
        total = full - room
        if not total:
            return (True, quota.capacity, 0, 0, 0, 0, now), state
        until_full, until_more = total, total % unit or unit
        if pace != 1:
            until_full, until_more = -(-until_full // pace), -(-until_more // pace)
        return (True, room // unit, 0, until_full, until_more, 0, now), (ticks + total, limit)

    return Bound(decide, peek_by(decide), bucket.force, bucket.refund, bucket.report, bucket.expiry)

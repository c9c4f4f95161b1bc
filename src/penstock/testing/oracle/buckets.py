"""The oracle's buckets: a level in exact fractions, drained by time and raised by charges. And the queue, which is one.

The token bucket and GCRA are this same bucket, seen from its free and from its filled part.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, gcd

from penstock.algorithms.base import MAX_USED
from penstock.clock import Micros
from penstock.quota import Quota
from penstock.testing.oracle.windows import ChargedUnits, Counter, first_delay


class BucketCounter(Counter):
    """A level that drains at limit / period, and that a charge raises; it may not rise above the burst.

    When the limit or the burst changes, units owed stay owed, but never more than a burst. The change takes effect with
    the first request under it: until then the bucket drains as before. What is owed is then rounded up to what the new
    rate pays back in whole shares of a microsecond.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level_then, self.then, self.limit_then = Fraction(0), 0, 0

    def level(self, quota: Quota, at: Micros) -> Fraction:
        if not self.level_then:  # mostly: and fractions take their time
            return self.level_then
        level = _drained(self.level_then, at - self.then, self.limit_then, quota.period_us)
        if self.limit_then != quota.limit:
            share = Fraction(gcd(quota.limit, quota.period_us), quota.period_us)
            level = ceil(level / share) * share
        return min(level, Fraction(quota.capacity))

    def settle(self, quota: Quota, now: Micros) -> None:
        self._change(quota, 0, now)

    def fits(self, quota: Quota, cost: int, at: Micros) -> bool:
        return self.level(quota, at) + cost <= quota.capacity

    def remaining(self, quota: Quota, at: Micros) -> int:
        return max(0, floor(quota.capacity - self.level(quota, at)))

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        return self._until(Fraction(0), quota, now)

    def untouched(self, quota: Quota, now: Micros) -> bool:
        return self.level(quota, now) == 0

    def retry_after(self, quota: Quota, cost: int, now: Micros) -> Micros:
        over = self.level(quota, now) - (quota.capacity - cost)
        above, below = over.numerator * quota.period_us, over.denominator * quota.limit
        return first_delay(lambda delay: delay * below >= above)  # whole numbers: fractions take ten times as long

    def more_after(self, quota: Quota, now: Micros) -> Micros:
        if self.untouched(quota, now):
            return 0
        one_more = self.remaining(quota, now) + 1
        return self._until(Fraction(quota.capacity - one_more), quota, now)

    def charge(self, quota: Quota, cost: int, now: Micros) -> ChargedUnits:
        self._change(quota, cost, now)
        return ChargedUnits(now, cost)

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        """What does not fit fills the bucket to the brim."""
        self._change(quota, cost, now)

    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
        """What has drained since the charge may be what was charged, so only the rest is given back.

        A unit of which a part came back is told as given back: otherwise what was charged and not told as given back
        could exceed the promise.
        """
        still = _drained(Fraction(units), now - entry.at, quota.limit, quota.period_us)
        still = min(still, self.level(quota, now))
        self._change(quota, -still, now)
        return ceil(still)

    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        """What has drained since may be what was admitted, so only the rest is charged."""
        still = _drained(Fraction(min(units, MAX_USED)), now - at, quota.limit, quota.period_us)
        still = min(still, Fraction(quota.capacity))
        if still:
            self._change(quota, still, now)
        return ceil(still)

    def _change(self, quota: Quota, units: Fraction | int, now: Micros) -> None:
        level = max(Fraction(0), self.level(quota, now) + units)
        self.level_then, self.then, self.limit_then = min(level, Fraction(quota.capacity)), now, quota.limit
        self.written_at = now

    def _until(self, level: Fraction, quota: Quota, now: Micros) -> Micros:
        """The first whole microsecond at which no more than `level` is left."""
        return ceil((self.level(quota, now) - level) * quota.period_us / quota.limit)


class Queue(BucketCounter):
    """A bucket whose level is a queue: a request waits until all before it have been served.

    `line` has every request that ever joined, in order. Only the last can leave, or give back a part of its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: list[ChargedUnits] = []

    def delay(self, quota: Quota, now: Micros) -> Micros:
        return self._until(Fraction(0), quota, now)

    def charge(self, quota: Quota, cost: int, now: Micros) -> ChargedUnits:
        entry = super().charge(quota, cost, now)
        self.line.append(entry)
        return entry

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        before = self.level(quota, now)
        super().force(quota, cost, now)
        if self.level(quota, now) > before:
            self.line.append(ChargedUnits(now, cost))

    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        before = self.level(quota, now)
        charged = super().report(quota, units, at, now)
        if self.level(quota, now) > before:
            self.line.append(ChargedUnits(now, charged))
        return charged

    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
        if self.line[-1] is not entry:
            return 0
        back = min(Fraction(units), self.level(quota, now))
        self._change(quota, -back, now)
        self.line.pop()
        if units < entry.units:
            self.line.append(ChargedUnits(entry.at, entry.units - units))
        return ceil(back)


def _drained(level: Fraction, time: Micros, limit: int, period: Micros) -> Fraction:
    return max(Fraction(0), level - Fraction(time * limit, period))

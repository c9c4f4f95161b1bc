"""The oracle's counters: one naive log per algorithm, scanned anew for every question.

Windows sum the entries that lie in them; a bucket's level is an exact fraction, drained by time and raised by charges.
`fits` is the definition of each algorithm, and `remaining` what it leaves. How long to wait is searched for: instant by
instant in principle, by leaps and halving in fact, since what fits now also fits later if nobody else comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

from penstock.algorithms.base import MAX_USED
from penstock.clock import Micros
from penstock.quota import MIN_INTERVAL, Quota

NEVER: Micros = 2**80
"""Longer than anything in a rate limiter takes; a search that gets here would never end."""


@dataclass(eq=False, slots=True)
class Entry:
    """Units charged at an instant; also the receipt by which they are given back."""

    at: Micros
    units: int


def first_delay(passes: Callable[[Micros], bool]) -> Micros:
    """The smallest delay after which `passes` holds, if it keeps holding from then on."""
    if passes(0):
        return 0
    low, high = 0, 1
    while not passes(high):
        low, high = high, high * 16
        if high > NEVER:
            raise AssertionError("the oracle found no instant at which it would pass")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


class Counter(ABC):
    """What one key used of one quota."""

    def __init__(self) -> None:
        self.shut_until: Micros = 0
        self.written_at: Micros | None = None

    @abstractmethod
    def fits(self, quota: Quota, cost: int, at: Micros) -> bool:
        """Whether `cost` would pass at an instant, if nothing else were charged until then."""

    @abstractmethod
    def remaining(self, quota: Quota, at: Micros) -> int:
        """Whole units left at an instant, if nothing else were charged until then."""

    @abstractmethod
    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        """Until the window ends, the oldest entry leaves, or the bucket is full."""

    def settle(self, quota: Quota, now: Micros) -> None:  # noqa: B027 - windows have nothing to do here
        """Note that `quota` itself was asked, which matters only to counters that remember a rate."""

    @abstractmethod
    def charge(self, quota: Quota, cost: int, now: Micros) -> Entry:
        """Log an admission."""

    @abstractmethod
    def charge_denied(self, quota: Quota, cost: int, now: Micros) -> None:
        """Log a refusal, for a quota that counts them."""

    @abstractmethod
    def refund(self, quota: Quota, entry: Entry, units: int, now: Micros) -> int:
        """Take back as many of the units as are provably still charged; how many those were."""

    @abstractmethod
    def untouched(self, quota: Quota, now: Micros) -> bool:
        """Whether nothing is in use."""

    def retry_after(self, quota: Quota, cost: int, now: Micros) -> Micros:
        return first_delay(lambda delay: self.fits(quota, cost, now + delay))

    def more_after(self, quota: Quota, now: Micros) -> Micros:
        if self.untouched(quota, now):
            return 0
        remaining = self.remaining(quota, now)
        return first_delay(lambda delay: self.remaining(quota, now + delay) > remaining)


class _Window(Counter):
    """A log of entries, of which a window holds some."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Entry] = []

    @abstractmethod
    def used(self, quota: Quota, at: Micros) -> Fraction | int:
        """What counts against the limit at an instant."""

    @abstractmethod
    def counts(self, quota: Quota, entry: Entry, at: Micros) -> bool:
        """Whether an entry still has a part in what is used."""

    def fits(self, quota: Quota, cost: int, at: Micros) -> bool:
        return self.used(quota, at) <= quota.limit - cost

    def remaining(self, quota: Quota, at: Micros) -> int:
        return max(0, floor(quota.limit - self.used(quota, at)))

    def untouched(self, quota: Quota, now: Micros) -> bool:
        return self.used(quota, now) == 0

    def charge(self, quota: Quota, cost: int, now: Micros) -> Entry:
        entry = Entry(now, cost)
        self.log = [e for e in self.log if e.at > now - 2 * quota.period_us]  # nobody remembers longer
        self.log.append(entry)
        self.written_at = now
        return entry

    def charge_denied(self, quota: Quota, cost: int, now: Micros) -> None:
        self.charge(quota, cost, now)

    def refund(self, quota: Quota, entry: Entry, units: int, now: Micros) -> int:
        if not self.counts(quota, entry, now):
            return 0
        entry.units -= units
        self.written_at = now
        return units


class _Aligned(_Window):
    """Windows that begin at multiples of the period since the epoch; each has a counter that does not overflow."""

    def window_sum(self, quota: Quota, window: int) -> int:
        return sum(entry.units for entry in self.log if entry.at // quota.period_us == window)

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        return quota.period_us - now % quota.period_us

    def charge_denied(self, quota: Quota, cost: int, now: Micros) -> None:
        room = MAX_USED - self.window_sum(quota, now // quota.period_us)
        self.charge(quota, min(cost, room), now)


class FixedWindow(_Aligned):
    """Used is what was charged in the same aligned window."""

    def used(self, quota: Quota, at: Micros) -> int:
        return self.window_sum(quota, at // quota.period_us)

    def counts(self, quota: Quota, entry: Entry, at: Micros) -> bool:
        return entry.at // quota.period_us == at // quota.period_us

    def more_after(self, quota: Quota, now: Micros) -> Micros:
        return 0 if self.untouched(quota, now) else self.reset_after(quota, now)


class SlidingWindow(_Aligned):
    """Used is the current window, and the previous one as far as it overlaps the last period."""

    def used(self, quota: Quota, at: Micros) -> Fraction:
        period = quota.period_us
        window, elapsed = divmod(at, period)
        tick = -(-period // 2**20)
        ticks = -(-period // tick)
        current, previous = self.window_sum(quota, window), self.window_sum(quota, window - 1)
        return Fraction(current * ticks + previous * (ticks - elapsed // tick), ticks)

    def counts(self, quota: Quota, entry: Entry, at: Micros) -> bool:
        return at // quota.period_us - entry.at // quota.period_us in (0, 1)


class RollingWindow(_Window):
    """Used is what was charged in (now − period, now].

    Units charged at one instant are alike: they leave together, so it does not matter which of them is given back. A
    log that counts refusals keeps what the newest `limit` units need: nothing before them can change an answer.
    """

    def used(self, quota: Quota, at: Micros) -> int:
        return sum(entry.units for entry in self.log if self.counts(quota, entry, at))

    def counts(self, quota: Quota, entry: Entry, at: Micros) -> bool:
        return at - quota.period_us < entry.at

    def charge_denied(self, quota: Quota, cost: int, now: Micros) -> None:
        self.charge(quota, cost, now)
        while sum(entry.units for entry in self.log[1:]) >= quota.limit:
            del self.log[0]

    def refund(self, quota: Quota, entry: Entry, units: int, now: Micros) -> int:
        back = 0
        for alike in [e for e in self.log if e.at == entry.at and self.counts(quota, e, now)]:
            taken = min(alike.units, units - back)
            alike.units -= taken
            back += taken
        if back:
            self.written_at = now
        return back

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        live = [entry.at for entry in self.log if entry.units and self.counts(quota, entry, now)]
        return min(live) + quota.period_us - now if live else 0


class Bucket(Counter):
    """A level that drains at limit / period, and that a charge raises; it may not rise above the burst.

    The token bucket and GCRA are this same bucket, seen from its free and from its filled part.

    When the limit or the burst changes, units owed stay owed, but never more than a burst. The change takes effect with
    the first request under it: until then the bucket drains as before. What is owed is then rounded up to what the new
    rate pays back in whole shares of a microsecond.
    """

    def __init__(self) -> None:
        super().__init__()
        self.level_then, self.then, self.limit_then = Fraction(0), 0, 0

    def level(self, quota: Quota, at: Micros) -> Fraction:
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
        level = self.level(quota, now)
        return first_delay(lambda delay: _drained(level, delay, quota.limit, quota.period_us) <= quota.capacity - cost)

    def more_after(self, quota: Quota, now: Micros) -> Micros:
        if self.untouched(quota, now):
            return 0
        one_more = self.remaining(quota, now) + 1
        return self._until(Fraction(quota.capacity - one_more), quota, now)

    def charge(self, quota: Quota, cost: int, now: Micros) -> Entry:
        self._change(quota, cost, now)
        return Entry(now, cost)

    def charge_denied(self, quota: Quota, cost: int, now: Micros) -> None:
        """A refused charge fills the bucket at most to the brim."""
        self._change(quota, cost, now)

    def refund(self, quota: Quota, entry: Entry, units: int, now: Micros) -> int:
        """What has drained since the charge may be what was charged, so only the rest is given back.

        A unit of which a part came back is told as given back: otherwise what was charged and not told as given back
        could exceed the promise.
        """
        still = _drained(Fraction(units), now - entry.at, quota.limit, quota.period_us)
        still = min(still, self.level(quota, now))
        self._change(quota, -still, now)
        return ceil(still)

    def _change(self, quota: Quota, units: Fraction | int, now: Micros) -> None:
        level = max(Fraction(0), self.level(quota, now) + units)
        self.level_then, self.then, self.limit_then = min(level, Fraction(quota.capacity)), now, quota.limit
        self.written_at = now

    def _until(self, level: Fraction, quota: Quota, now: Micros) -> Micros:
        """The first whole microsecond at which no more than `level` is left."""
        return ceil((self.level(quota, now) - level) * quota.period_us / quota.limit)


def _drained(level: Fraction, time: Micros, limit: int, period: Micros) -> Fraction:
    return max(Fraction(0), level - Fraction(time * limit, period))


COUNTERS: dict[str, Callable[[], Counter]] = {
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "rolling_window": RollingWindow,
    "token_bucket": Bucket,
    "gcra": Bucket,
    MIN_INTERVAL: Bucket,
}

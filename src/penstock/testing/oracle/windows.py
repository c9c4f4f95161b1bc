"""The oracle's counters: one naive log per algorithm, scanned anew for every question. Here: what all have; windows.

Windows sum the entries that lie in them. `fits` is the definition of each algorithm, and `remaining` what it leaves.
How long to wait is searched for: instant by instant in principle, by leaps and halving in fact, since what fits now
also fits later if no other request comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from penstock.algorithms.base import MAX_USED
from penstock.clock import Micros
from penstock.quota import Quota

NEVER: Micros = 2**80
"""Longer than anything in a rate limiter takes; a search that gets here would never end."""


@dataclass(eq=False, slots=True)
class ChargedUnits:
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
        """Until the window ends, the oldest entry leaves, the bucket is full, or the first place expires."""

    @abstractmethod
    def untouched(self, quota: Quota, now: Micros) -> bool:
        """Whether nothing is in use."""

    @abstractmethod
    def charge(self, quota: Quota, cost: int, now: Micros) -> ChargedUnits:
        """Log an admission."""

    @abstractmethod
    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        """Log units that were not admitted: a refusal, for a quota that counts them, or a cost settled upwards."""

    @abstractmethod
    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
        """Take back as many of the units as are provably still charged; how many those were."""

    @abstractmethod
    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        """Log what was admitted elsewhere at an instant, unless it counts no more; how many units still count."""

    def settle(self, quota: Quota, now: Micros) -> None:  # noqa: B027 - windows have nothing to do here
        """Note that `quota` itself was asked, which matters only to counters that remember a rate."""

    def delay(self, quota: Quota, now: Micros) -> Micros:
        """Return how long an admission now is delayed: not at all, except in a queue."""
        return 0

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
        self.log: list[ChargedUnits] = []

    @abstractmethod
    def used(self, quota: Quota, at: Micros) -> int:
        """What counts against the limit at an instant."""

    def fits(self, quota: Quota, cost: int, at: Micros) -> bool:
        return self.used(quota, at) <= quota.limit - cost

    def remaining(self, quota: Quota, at: Micros) -> int:
        return max(0, quota.limit - self.used(quota, at))

    def untouched(self, quota: Quota, now: Micros) -> bool:
        return self.used(quota, now) == 0

    def charge(self, quota: Quota, cost: int, now: Micros) -> ChargedUnits:
        entry = ChargedUnits(now, cost)
        self.log = [e for e in self.log if e.at > now - 2 * quota.period_us]  # older entries matter to no window
        self.log.append(entry)
        self.written_at = now
        return entry

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        self.charge(quota, cost, now)


class Aligned(_Window):
    """Windows that lie beside one another, each with a counter that does not overflow, of units that are all alike."""

    def window(self, quota: Quota, at: Micros) -> int:
        """The window that holds an instant; here they begin at multiples of the period since the epoch."""
        return at // quota.period_us

    @abstractmethod
    def counts(self, quota: Quota, entry: ChargedUnits, at: Micros) -> bool:
        """Whether the window of an entry still has a part in what is used."""

    def window_sum(self, quota: Quota, window: int) -> int:
        return sum(entry.units for entry in self.log if self.window(quota, entry.at) == window)

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        return quota.period_us - now % quota.period_us

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        room = MAX_USED - self.window_sum(quota, self.window(quota, now))
        self.charge(quota, min(cost, room), now)

    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        if not self.counts(quota, ChargedUnits(at, units), now):
            return 0
        room = MAX_USED - self.window_sum(quota, self.window(quota, at))
        self.log.append(ChargedUnits(at, min(units, room)))
        self.written_at = now
        return units

    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
        if not self.counts(quota, entry, now):
            return 0
        back = min(units, self.window_sum(quota, self.window(quota, entry.at)))
        self.log.append(ChargedUnits(entry.at, -back))
        self.written_at = now
        return back


class FixedWindow(Aligned):
    """Used is what was charged in the same window."""

    def used(self, quota: Quota, at: Micros) -> int:
        return self.window_sum(quota, self.window(quota, at))

    def counts(self, quota: Quota, entry: ChargedUnits, at: Micros) -> bool:
        return self.window(quota, entry.at) == self.window(quota, at)

    def more_after(self, quota: Quota, now: Micros) -> Micros:
        return 0 if self.untouched(quota, now) else self.reset_after(quota, now)


class SlidingWindow(Aligned):
    """Used is the current window, and the previous one as far as it overlaps the last period, rounded up."""

    def used(self, quota: Quota, at: Micros) -> int:
        period = quota.period_us
        window, elapsed = divmod(at, period)
        tick = -(-period // 2**20)
        ticks = -(-period // tick)
        current, previous = self.window_sum(quota, window), self.window_sum(quota, window - 1)
        return current - (-previous * (ticks - elapsed // tick) // ticks)

    def counts(self, quota: Quota, entry: ChargedUnits, at: Micros) -> bool:
        return self.window(quota, at) - self.window(quota, entry.at) in (0, 1)


class RollingWindow(_Window):
    """Used is what was charged in (now − period, now].

    Units charged at one instant are alike: they leave together, so it does not matter which of them is given back. A
    log that counts refusals keeps what the newest `limit` units need: nothing before them can change an answer.
    """

    def used(self, quota: Quota, at: Micros) -> int:
        return sum(entry.units for entry in self.log if self.counts(quota, entry, at))

    def counts(self, quota: Quota, entry: ChargedUnits, at: Micros) -> bool:
        return at - quota.period_us < entry.at

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        self.charge(quota, cost, now)
        self._trim(quota)

    def _trim(self, quota: Quota) -> None:
        while quota.count_denied and sum(entry.units for entry in self.log[1:]) >= quota.limit:
            del self.log[0]

    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        entry = ChargedUnits(at, units)
        if not self.counts(quota, entry, now):
            return 0
        self.log = sorted([*self.log, entry], key=lambda logged: logged.at)
        self.written_at = max(at, self.written_at or at)  # the log lies where its newest entry does
        self._trim(quota)
        return units

    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
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

"""The oracle's places: a list of those that are held, each until an instant."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.clock import Micros
from penstock.quota import Quota
from penstock.testing.oracle.windows import ChargedUnits, Counter


@dataclass(eq=False, slots=True)
class Place(ChargedUnits):
    """A place that is held until an instant, unless it is given back before."""

    until: Micros


class Places(Counter):
    """At most `limit` are held. A place knows its own end, whatever limit and ttl are in force since."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Place] = []

    def held(self, at: Micros) -> list[Place]:
        return [place for place in self.taken if place.until > at]

    def holds(self, entry: ChargedUnits | None, at: Micros) -> bool:
        """Whether the place that `entry` got is still held."""
        return any(place is entry for place in self.held(at))

    def fits(self, quota: Quota, cost: int, at: Micros) -> bool:
        return len(self.held(at)) < quota.limit

    def remaining(self, quota: Quota, at: Micros) -> int:
        return max(0, quota.limit - len(self.held(at)))

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        return min((place.until for place in self.held(now)), default=now) - now

    def untouched(self, quota: Quota, now: Micros) -> bool:
        return not self.held(now)

    def charge(self, quota: Quota, cost: int, now: Micros) -> ChargedUnits:
        place = Place(now, 1, now + quota.period_us)
        self.taken = [*self.held(now), place]
        self.written_at = now
        return place

    def force(self, quota: Quota, cost: int, now: Micros) -> None:
        """A place that was not granted cannot be held."""

    def refund(self, quota: Quota, entry: ChargedUnits, units: int, now: Micros) -> int:
        if not self.holds(entry, now):
            return 0
        self.taken = [place for place in self.taken if place is not entry]
        self.written_at = now
        return 1

    def report(self, quota: Quota, units: int, at: Micros, now: Micros) -> int:
        """A place that is held elsewhere is not held here."""
        return 0

    def renew(self, quota: Quota, entry: ChargedUnits, now: Micros) -> int:
        """Hold on to a place for another ttl; 0 if it is no longer held."""
        for place in self.held(now):
            if place is entry:
                place.until = now + quota.period_us
                self.written_at = now
                return 1
        return 0

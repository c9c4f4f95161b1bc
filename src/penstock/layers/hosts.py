"""The number of hosts that share the limits: each holds a place in the store, and counts the places that are held.

A host is a limiter with a fallback, so usually a process. It announces itself every few seconds; a host that has not
done so for a while is not counted. While the store is gone the last number stays in use, and its age can be read. A
lower number takes effect only after a while: a store that came back empty knows just the first host that announced
itself. Pure: the fallback runs the operations and passes on their outcomes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.clock import SECOND, Micros
from penstock.model import Acquire, Amend, Amended, Ask, Op, Outcome, Verdict
from penstock.quota import CONCURRENCY, Quota

EVERY: Micros = 3 * SECOND
FORGOTTEN_AFTER = 60
"""Microseconds between announcements, and seconds after which a host without one is not counted. Announcements are made
when requests come, so a host with few of them needs time. Counting too many hosts makes shares too small, counting too
few makes them too large.
"""

BELIEVED_AFTER = 10 * EVERY
"""For how long a lower number must be seen before it takes effect: all hosts have announced themselves by then."""

FIRST_LOOK_AGAIN: Micros = SECOND
"""When a new host counts again: others may have started with it."""

PLACES = Quota(10_000, FORGOTTEN_AFTER, CONCURRENCY, name="penstock-hosts")
KEY = "penstock hosts"


class Hosts:
    """The number of hosts, as far as it is known; with `fixed`, that number, and the store is not used."""

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.number: int | None = fixed
        self.known_at: Micros | None = None
        self._place: Verdict | None = None
        self._id = os.urandom(12)
        self._announced_at: Micros = -EVERY
        self._fewer_since: Micros | None = None
        self.offset: Micros = 0  # the store's clock minus the clock of this process

    def age(self, now: Micros) -> Micros | None:
        """Return the age of the number; None if it is fixed or not known."""
        return None if self.known_at is None else max(now - self.known_at, 0)

    def announce(self, now: Micros) -> list[Op]:
        """Return the operations that are due, if any: renew the place, and count the places."""
        if self.fixed is not None or 0 <= now - self._announced_at < EVERY:
            return []
        self._announced_at = now
        look = Acquire((Ask(KEY, PLACES, 0),), dry=True, on_failure="raise")
        if self._place is not None and self._place.receipt is not None:
            return [Amend(self._place.receipt, "renew"), look]
        return [Acquire((Ask(KEY, PLACES),), id=self._id, on_failure="raise"), look]

    def heard(self, outcomes: Sequence[Outcome], now: Micros) -> None:
        """Take in the outcomes of these operations. Without an outcome nothing changes."""
        if len(outcomes) < 2:
            return
        place, look = outcomes
        if isinstance(place, Verdict):
            self._place = place if place else None
        elif isinstance(place, Amended) and not any(place.each):  # the place was lost: take another next time
            self._place, self._id, self._announced_at = None, os.urandom(12), now - EVERY
        if isinstance(look, Verdict):
            self.offset = look.at_us - now
            if self.number is None:
                self._announced_at = now - EVERY + FIRST_LOOK_AGAIN
            self._see(max(PLACES.limit - look.remaining, 1), now)

    def _see(self, number: int, now: Micros) -> None:
        self.known_at = now
        if self.number is None or number >= self.number:
            self.number, self._fewer_since = number, None
        elif self._fewer_since is None or now < self._fewer_since:  # for the first time, or the clock was set back
            self._fewer_since = now
        elif now - self._fewer_since >= BELIEVED_AFTER:
            self.number, self._fewer_since = number, None

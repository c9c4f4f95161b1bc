"""How many hosts share the limits: every one of them holds a place in the store, and counts those that are held.

A host is a limiter with a store of its own to fall back on, so usually a process. It announces itself every few
seconds; one that has not done so for a while does not count. When the store is gone the last number stands, and its age
can be read. A number that falls is believed after a while: a store that came back empty has heard of one host first,
not of the only one. Pure: the operations and their outcomes go through the layer that asks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock.clock import SECOND, Micros
from penstock.model import Acquire, Amend, Amended, Ask, Op, Outcome, Verdict
from penstock.quota import CONCURRENCY, Quota

EVERY: Micros = 3 * SECOND
FORGOTTEN_AFTER = 60
"""Microseconds between announcements, and seconds after which a host that has not made one is gone. It makes them when
it is asked something, so one that is seldom asked needs time; too many hosts counted are too small a share, too few are
too large a one.
"""

BELIEVED_AFTER = 10 * EVERY
"""For how long fewer hosts must have been seen than before: by then all have announced themselves again."""

FIRST_LOOK_AGAIN: Micros = SECOND
"""When a host looks again that has just begun: others may have begun with it."""

PLACES = Quota(10_000, FORGOTTEN_AFTER, CONCURRENCY, name="penstock-hosts")
KEY = "penstock hosts"


class Hosts:
    """The number of hosts, as far as it is known; `fixed` if it was said and need not be found out."""

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.number: int | None = fixed
        self.known_at: Micros | None = None
        self._place: Verdict | None = None
        self._id = os.urandom(12)
        self._announced_at: Micros = -EVERY
        self._fewer_since: Micros | None = None
        self.offset: Micros = 0  # what the store's clock is ahead of ours

    def age(self, now: Micros) -> Micros | None:
        """How old the number is; None if it is not known, or was said."""
        return None if self.known_at is None else max(now - self.known_at, 0)

    def announce(self, now: Micros) -> list[Op]:
        """What to ask now, if it is time: hold on to the place, and see how many are held."""
        if self.fixed is not None or 0 <= now - self._announced_at < EVERY:
            return []
        self._announced_at = now
        look = Acquire((Ask(KEY, PLACES, 0),), dry=True, on_failure="raise")
        if self._place is not None and self._place.receipt is not None:
            return [Amend(self._place.receipt, "renew"), look]
        return [Acquire((Ask(KEY, PLACES),), id=self._id, on_failure="raise"), look]

    def heard(self, outcomes: Sequence[Outcome], now: Micros) -> None:
        """What came of that. Without an answer nothing changes."""
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
        elif self._fewer_since is None:
            self._fewer_since = now
        elif not 0 <= now - self._fewer_since < BELIEVED_AFTER:
            self.number, self._fewer_since = number, None

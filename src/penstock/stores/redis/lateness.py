"""How late an event loop is: the time that it computed is not the server's.

While calls are under way, a timer beats. What it comes too late by was spent by the loop on other things, or waiting
for the interpreter: replies may have been there all the while.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.clock import monotonic

BEAT = 0.005
"""Seconds between two beats. A stall is measured as shorter by up to as much."""

TOLERATED = 0.002
"""Seconds of lateness that count as none."""

REMEMBERED = 256
"""How many stalls are remembered."""


class Lateness:
    """The stalls of one event loop while calls are under way. `until`: how long it is watched."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.until = 0.0
        self._expected = 0.0  # when the next beat is due; 0 if there is none
        self._stalls: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def watch(self, until: float) -> None:
        """Watch the loop until then, and a little longer, so that not every call has to ask for it."""
        self.until = until + 10 * BEAT
        if not self._expected:
            self._go_on()

    def since(self, began: float) -> float:
        """Return for how many seconds the loop was late since then."""
        late = sum([end - max(start, began) for start, end in self._stalls if end > began])
        start = max(self._expected, began)
        now = monotonic()
        return late + now - start if self._expected and now - start > TOLERATED else late

    def _go_on(self) -> None:
        self._expected = monotonic() + BEAT
        self._loop.call_later(BEAT, self._beat)

    def _beat(self) -> None:
        now = monotonic()
        if now - self._expected > TOLERATED:
            self._stalls.append((self._expected, now))
        if now < self.until:
            self._go_on()
        else:
            self._expected = self.until = 0.0

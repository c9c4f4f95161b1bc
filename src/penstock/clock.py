"""Clocks: the only place in Penstock that looks at the time.

A clock has one method, spelled as in the standard library: `time_ns()`, nanoseconds since the Unix epoch. Everything
inside Penstock counts whole microseconds since the epoch (`Micros`); whoever holds a clock divides by 1,000. The system
clock hands out the interpreter's own C function, so reading the time costs no Python call.
"""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

from penstock.errors import InvalidOption

Micros: TypeAlias = int

SECOND: Micros = 1_000_000


class Clock(Protocol):
    """Where a store and a limiter learn what time it is."""

    def time_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""


class SystemClock:
    """The wall clock of this machine."""

    time_ns = staticmethod(time.time_ns)


class ManualClock:
    """A clock that moves only when told to, for tests that never sleep.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    """

    def __init__(self, start: float = 1_700_000_000) -> None:
        self.micros: Micros = round(start * SECOND)

    def time_ns(self) -> int:
        return self.micros * 1_000

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        if not seconds >= 0:
            raise InvalidOption(f"advance({seconds!r}): expected seconds >= 0; use set() to step the clock back")
        self.micros += round(seconds * SECOND)

    def set(self, seconds: float) -> None:
        """Step the clock, forwards or backwards, to `seconds` since the Unix epoch."""
        self.micros = round(seconds * SECOND)

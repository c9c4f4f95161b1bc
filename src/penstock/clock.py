"""Clocks: the only place in Penstock that looks at the time.

A clock tells the time, spelled as in the standard library: `time_ns()`, nanoseconds since the Unix epoch; and it
waits, because whoever makes time pass must be asked to let it pass. Everything inside Penstock counts whole
microseconds since the epoch (`Micros`); whoever holds a clock divides by 1,000. The system clock hands out the
interpreter's own C function, so reading the time costs no Python call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Protocol, TypeAlias

from penstock.errors import InvalidOption, shown

Micros: TypeAlias = int

SECOND: Micros = 1_000_000

monotonic = time.monotonic
"""Seconds that never go back, for the deadlines of sockets, which no test moves by hand."""


class Clock(Protocol):
    """Where a store and a limiter learn what time it is."""

    def time_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        """Return after `micros`, or as soon as somebody sets `woken`."""

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        """The same for asyncio."""


class SystemClock:
    """The wall clock of this machine."""

    time_ns = staticmethod(time.time_ns)

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        woken.wait(micros / SECOND)

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        with suppress(TimeoutError):
            # Not wait_for, which in Python 3.11 can swallow a cancellation.
            async with asyncio.timeout(micros / SECOND):
                await woken.wait()


class SteadyClock(SystemClock):
    """Counts from some instant or other and is never set: for spans of time, where nothing is compared with others."""

    time_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when told to, for tests that never sleep. Who waits by it moves it, and waits no longer.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    """

    def __init__(self, start: float = 1_700_000_000) -> None:
        self.micros: Micros = _micros("start", start)

    def time_ns(self) -> int:
        return self.micros * 1_000

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        if not woken.is_set():
            self.micros += micros

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        if not woken.is_set():
            self.micros += micros
        await asyncio.sleep(0)  # as any wait does, let others run

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.micros += _micros("advance", seconds, "; use set() to step the clock back")

    def set(self, seconds: float) -> None:
        """Step the clock, forwards or backwards, to `seconds` since the Unix epoch."""
        self.micros = _micros("set", seconds)


def _micros(what: str, seconds: float, hint: str = "") -> Micros:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds < float("inf"):
        raise InvalidOption(f"{what}({shown(seconds)}): expected seconds >= 0{hint}")
    return round(seconds * SECOND)

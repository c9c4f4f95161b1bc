"""Clocks: the only module of Penstock that reads the time.

A clock reads the time by `time_ns()`, nanoseconds since the Unix epoch, as the standard library does. It also waits, so
that waiting on a manual clock needs no real time. All other modules count whole microseconds since the epoch
(`Micros`), so they divide the reading by 1,000. `SystemClock.time_ns` is the interpreter's own C function: reading the
time costs no Python call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeAlias

from penstock.errors import InvalidOption, shown

Micros: TypeAlias = int

SECOND: Micros = 1_000_000

monotonic = time.monotonic
"""Seconds that never go back, for the deadlines of sockets, which no test controls."""


class Clock(Protocol):
    """What stores and limiters read the time from, and wait on.

    A clock may also have `steady_ns()`, nanoseconds from an arbitrary instant that are never set back. Limiters measure
    intervals by that.
    """

    def time_ns(self) -> int:
        """Return nanoseconds since the Unix epoch."""

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        """Return after `micros`, or as soon as `woken` is set."""

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        """Do the same on an event loop."""


class SystemClock:
    """The wall clock of this machine."""

    time_ns = staticmethod(time.time_ns)
    steady_ns = staticmethod(time.monotonic_ns)

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        woken.wait(micros / SECOND)

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        with suppress(TimeoutError):
            # Not wait_for, which in Python 3.11 can swallow a cancellation.
            async with asyncio.timeout(micros / SECOND):
                await woken.wait()


class SteadyClock(SystemClock):
    """A clock that is never set back, for measuring spans. It counts from an arbitrary instant."""

    time_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when it is moved, for tests that never sleep. Waiting on it moves it at once.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    """

    def __init__(self, start: float = 1_700_000_000) -> None:
        self.micros: Micros = _micros("start", start)
        self._set_back: Micros = 0

    def time_ns(self) -> int:
        return self.micros * 1_000

    def steady_ns(self) -> int:
        """Return the same, as if the clock had never been set back."""
        return (self.micros + self._set_back) * 1_000

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        if not woken.is_set():
            self.micros += micros

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        if not woken.is_set():
            self.micros += micros
        await asyncio.sleep(0)  # let other tasks run, as any wait does

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`."""
        self.micros += _micros("advance", seconds, "; use set() to step the clock back")

    def set(self, seconds: float) -> None:
        """Set the clock, forwards or backwards, to `seconds` since the Unix epoch."""
        before, self.micros = self.micros, _micros("set", seconds)
        self._set_back += max(before - self.micros, 0)


def steady_ns_of(clock: Clock) -> Callable[[], int]:
    """Return what measures intervals by `clock`: its `steady_ns`, which is never set back, or else its `time_ns`."""
    steady_ns: Callable[[], int] = getattr(clock, "steady_ns", clock.time_ns)
    return steady_ns


def _micros(what: str, seconds: float, hint: str = "") -> Micros:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds < float("inf"):
        raise InvalidOption(f"{what}({shown(seconds)}): expected seconds >= 0{hint}")
    return round(seconds * SECOND)

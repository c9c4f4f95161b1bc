"""LoopLag: how late an event loop runs its timers, which is how long everything in it waits for its turn.

A loop is watched from the first time that it is asked about from within. A timer that sets itself again is all there
is: it costs a few microseconds each time and vanishes with its loop.
"""

from __future__ import annotations

import asyncio
from weakref import WeakSet, ref

from penstock.clock import SECOND, Clock, Micros, SteadyClock
from penstock.shedding.checks import micros
from penstock.shedding.forks import renew_in_children

EVERY: Micros = 50_000


class LoopLag:
    """The lag of the watched event loops, the latest of them, as a share of the `worst` that is bearable, in seconds.

    One instance serves all loops of a process. It is meant for loops that run on and on: one that rests between calls
    of `run_until_complete` seems late each time it goes on.
    """

    def __init__(self, worst: float = 0.1, *, clock: Clock | None = None) -> None:
        self._worst = micros("worst", worst)
        self._clock = clock or SteadyClock()
        self._watches: WeakSet[_Watch] = WeakSet()  # each is kept alive by its loop's timer, and by nothing else
        renew_in_children(self)

    def __call__(self) -> float:
        now = self._clock.time_ns() // 1_000
        watches = list(self._watches)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asked from outside any loop
            pass
        else:
            if not any(watch.loop is loop for watch in watches):
                self._watches.add(_Watch(loop, self, now))
        return max((watch.lag(now) for watch in watches), default=0) / self._worst

    def _renew(self) -> None:
        self._watches.clear()


class _Watch:
    """One loop: when its timer is due, and how late it was the last time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: LoopLag, now: Micros) -> None:
        self.loop = loop
        self._owner = ref(owner)  # not to be kept alive by a timer
        self._late: Micros = 0
        self._set(now)

    def lag(self, now: Micros) -> Micros:
        """How late the timer was, or already is."""
        return max(self._late, now - self._due) if self.loop.is_running() else 0

    def _set(self, now: Micros) -> None:
        self._due = now + EVERY
        self.loop.call_later(EVERY / SECOND, self._ring)

    def _ring(self) -> None:
        owner = self._owner()
        if owner is not None:
            now = owner._clock.time_ns() // 1_000
            self._late = max(now - self._due, 0)
            self._set(now)

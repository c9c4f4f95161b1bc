"""Looking at signals now and then, by whoever comes by: no thread, no task, nothing to start or to stop.

One caller at a time looks; the others go on with what was seen last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import RLock

from penstock.clock import Clock, Micros, SteadyClock
from penstock.shedding.forks import renew_in_children


class Looking(ABC):
    """Who looks at most once in `every` microseconds."""

    def __init__(self, clock: Clock | None, every: Micros) -> None:
        self._time_ns = (clock or SteadyClock()).time_ns
        self._every = every
        self._looked_at: Micros = 0
        self._due: Micros = 0
        self._renew()
        renew_in_children(self)

    @abstractmethod
    def _look(self, now: Micros) -> None:
        """Take in what there is to see."""

    def _look_if_due(self) -> None:
        now = self._time_ns() // 1_000
        if not self._looked_at <= now < self._due:
            self._take_turn(now)

    def _take_turn(self, now: Micros) -> None:
        """Look, unless somebody else does or just did."""
        turn = self._turn
        try:  # an RLock knows its owner: an exception from outside (Ctrl-C) between any two steps leaves nothing locked
            if turn.acquire(blocking=False):
                if not self._looked_at <= now < self._due:
                    self._looked_at, self._due = now, now + self._every
                    self._look(now)
                turn.release()
        except BaseException:
            if turn._is_owned():  # type: ignore[attr-defined]
                turn.release()
            raise

    def _renew(self) -> None:
        self._turn = RLock()

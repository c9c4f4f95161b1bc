"""The guard before a server: while the server fails, calls are refused at once.

A guard knows when calls began and how they ended; `breaker` decides what follows from that. Which replies count as
failures, and what a refused call returns, depends on the server: `stores.redis.guard` and `client.http` add that.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from threading import RLock
from weakref import WeakSet

from penstock.engine.breaker import CLOSED, HALF_OPEN, Breaker, Limits, State
from penstock.events import BreakerChanged, Hook, tell


class Guard:
    """Watches over the calls to one server, from all threads and event loops.

    - `server`: how log lines name the server, such as "redis at localhost:6379".
    - `shut` is False while the breaker is closed: then no call needs to be admitted first.
    - `unreported`: changes of state that `report` has not reported yet. Each method here calls `report` if there are
      any, and so must code that calls the breaker itself.
    """

    def __init__(self, place: str, server: str, limits: Limits, hook: Hook, log: logging.Logger) -> None:
        self.place, self._server, self._hook, self._log = place, server, hook, log
        self.breaker = Breaker(limits, self._changed, random.random)  # random delays spread the clients' probes
        self.probing = limits.probing
        self.shut = False
        self.unreported: deque[tuple[State, State, str]] = deque()
        self.unlock()
        _alive.add(self)

    def unlock(self) -> None:
        """Replace the locks, in a forked child: the threads that held them do not exist there."""
        self.breaker.unlock()
        self._reporting = RLock()

    def admits(self, now: float) -> bool:
        """Return whether a call may be made now."""
        admitted = self.breaker.admits(now)
        if self.unreported:
            self.report()
        return admitted

    def succeeded(self, began: float, now: float) -> None:
        """Record that a call begun at `began` was answered."""
        self.breaker.succeeded(began, now)
        if self.unreported:
            self.report()

    def failed(self, began: float, now: float, why: str) -> None:
        """Record that a call begun at `began` failed."""
        self.breaker.failed(began, now, why)
        if self.unreported:
            self.report()

    def force(self, state: State | None) -> None:
        """Keep the breaker open or closed, whatever happens; None ends that."""
        self.breaker.force(state)
        self.report()

    def _changed(self, was: State, state: State, why: str) -> None:
        """Note a change of state. The breaker is locked here, so the hook is called later."""
        self.shut = state != CLOSED
        self.unreported.append((was, state, why))

    def report(self) -> None:
        """Report the changes in order, unless another thread is reporting: a slow hook delays one caller, not all.

        What changes meanwhile is reported by the next call.
        """
        reporting = self._reporting
        try:  # an RLock knows its owner: an interrupt between any two steps leaves nothing locked
            if reporting.acquire(blocking=False):
                for _ in range(len(self.unreported)):
                    if self.unreported:  # a hook that calls back has reported the rest
                        self._announce(*self.unreported.popleft())
                reporting.release()
        except BaseException:
            if reporting._is_owned():  # type: ignore[attr-defined]
                reporting.release()
            raise

    def _announce(self, was: State, state: State, why: str) -> None:
        level = logging.DEBUG if HALF_OPEN in (was, state) and state != CLOSED else logging.WARNING  # it may last
        self._log.log(level, "%s: breaker %s, it was %s (%s)", self._server, state, was, why)
        tell(self._hook, BreakerChanged(self.place, was, state, why))


_alive: WeakSet[Guard] = WeakSet()


def _after_fork_in_child() -> None:
    for guard in list(_alive):
        guard.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

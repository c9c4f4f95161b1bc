"""The guard around a link: what is asked of a server that does not answer is refused at once.

One guard per server and store, shared by all its threads and event loops. It knows when calls began and how they
ended; `breaker` knows what follows from that.
"""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Collection
from threading import RLock
from typing import Any
from weakref import WeakSet

import hiredis

from penstock.clock import monotonic
from penstock.engine.breaker import CLOSED, HALF_OPEN, Breaker, Limits, State
from penstock.events import BreakerChanged, Hook, tell
from penstock.model import Failed
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.errors import not_sent

log = logging.getLogger("penstock.redis")

TROUBLED = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY")
"""How servers begin to say that they serve nobody just now."""


class Guard:
    """Watches over the calls to one server.

    `shut` is False as long as all is well: then there is nothing to ask the guard before a call.
    """

    def __init__(self, place: str, limits: Limits, waiting: int, hook: Hook) -> None:
        self.place, self.waiting, self._hook = place, waiting, hook
        self.breaker = Breaker(limits, self._changed, random.random)  # chance spreads the crowd
        self.probing = limits.probing
        self.shut = False
        self._untold: deque[tuple[State, State, str]] = deque()
        self.unlock()
        _alive.add(self)
        self._refusal = self._full = not_sent(f"{waiting} calls are waiting already", place)

    def unlock(self) -> None:
        """Make the locks anew, in a forked child: whoever held them is not there to give them up."""
        self.breaker.unlock()
        self._telling = RLock()

    def admit(self, now: float) -> Failed | None:
        """Why not to ask now, if so."""
        admitted = self.breaker.admits(now)
        if self._untold:
            self._tell()
        return None if admitted else self._refusal

    def full(self) -> Failed:
        """What those are told for whom there is no room to wait."""
        return self._full

    def heard(self, began: float, reply: Any) -> None:
        """A server said something to whom asked then."""
        if reply.__class__ is bytes or not _is_troubled(reply):
            self.breaker.succeeded(began, monotonic())
        else:
            self.breaker.failed(began, monotonic(), str(reply).partition(" ")[0])
        if self._untold:
            self._tell()

    def unanswered(self, began: float, failed: Failed) -> None:
        """Nothing was heard from it."""
        self.breaker.failed(began, monotonic(), str(failed.error))
        if self._untold:
            self._tell()

    def force(self, state: State | None) -> None:
        """Keep the breaker open or closed, whatever happens, until told otherwise (None)."""
        self.breaker.force(state)
        self._tell()

    def _changed(self, was: State, state: State, why: str) -> None:
        self.shut = state != CLOSED
        if self.shut and why:
            self._refusal = not_sent(f"not asked, because of {self.breaker.why or why}", self.place)
        self._untold.append((was, state, why))  # and told when the breaker is not locked any more

    def _tell(self) -> None:
        """Tell of what has changed, in order, unless somebody is at it: a slow hook holds up one caller, not all.

        What changes meanwhile, the next caller tells.
        """
        telling = self._telling
        try:  # an RLock knows its owner: an interrupt between any two steps leaves nothing locked
            if telling.acquire(blocking=False):
                for _ in range(len(self._untold)):
                    if self._untold:  # a hook that asks back has told of the rest
                        self._tell_of(*self._untold.popleft())
                telling.release()
        except BaseException:
            if telling._is_owned():  # type: ignore[attr-defined]
                telling.release()
            raise

    def _tell_of(self, was: State, state: State, why: str) -> None:
        level = logging.DEBUG if HALF_OPEN in (was, state) and state != CLOSED else logging.WARNING  # it may last
        log.log(level, "redis at %s: breaker %s, it was %s (%s)", self.place, state, was, why)
        tell(self._hook, BreakerChanged(self.place, was, state, why))


_alive: WeakSet[Guard] = WeakSet()


def _after_fork_in_child() -> None:
    for guard in list(_alive):
        guard.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Guards:
    """The guards of one store."""

    def __init__(self, settings: Settings, hook: Hook) -> None:
        self._settings, self._hook = settings, hook
        self._guards: dict[Node, Guard] = {}
        self._forced: State | None = None

    def of(self, node: Node) -> Guard:
        guard = self._guards.get(node)
        if guard is None:
            guard = Guard(node.place, self._settings.breaker, self._settings.waiting, self._hook)
            guard = self._guards.setdefault(node, guard)  # another thread may have been faster
            if self._forced is not None:
                guard.force(self._forced)
        return guard

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget the guards of all others."""
        for gone in set(self._guards) - set(nodes):
            self._guards.pop(gone, None)

    def states(self) -> dict[str, str]:
        return {node.place: guard.breaker.state for node, guard in list(self._guards.items())}

    def force(self, state: State | None) -> None:
        """Those of servers that are not known yet, too."""
        self._forced = state  # first: others may appear meanwhile
        for guard in list(self._guards.values()):
            guard.force(state)


def _is_troubled(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(TROUBLED)

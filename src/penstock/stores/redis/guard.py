"""The guard around a link: what is asked of a server that does not answer is refused at once.

One guard per server and store, shared by all its threads and event loops. It knows when calls began and how they
ended; `breaker` knows what follows from that.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection
from typing import Any

import hiredis

from penstock.clock import monotonic
from penstock.events import BreakerChanged, Hook, tell
from penstock.model import Failed
from penstock.stores.redis.breaker import CLOSED, HALF_OPEN, Breaker, Limits, State
from penstock.stores.redis.replies import not_sent
from penstock.stores.redis.settings import Node, Settings

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
        self._refusal = self._full = not_sent(f"{waiting} calls are waiting already", place)

    def admit(self, now: float) -> Failed | None:
        """Why not to ask now, if so."""
        return None if self.breaker.admits(now) else self._refusal

    def full(self) -> Failed:
        """What those are told for whom there is no room to wait."""
        return self._full

    def heard(self, began: float, reply: Any) -> None:
        """A server said something to whom asked then."""
        if reply.__class__ is bytes or not _is_troubled(reply):
            self.breaker.succeeded(began, monotonic())
        else:
            self.breaker.failed(began, monotonic(), str(reply).partition(" ")[0])

    def unanswered(self, began: float, failed: Failed) -> None:
        """Nothing was heard from it."""
        self.breaker.failed(began, monotonic(), str(failed.error))

    def _changed(self, was: State, state: State, why: str) -> None:
        self.shut = state != CLOSED
        if self.shut and why:
            self._refusal = not_sent(f"not asked, because of {self.breaker.why or why}", self.place)
        level = logging.DEBUG if HALF_OPEN in (was, state) and state != CLOSED else logging.WARNING  # it may last
        log.log(level, "redis at %s: breaker %s, it was %s (%s)", self.place, state, was, why)
        tell(self._hook, BreakerChanged(self.place, was, state, why))


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
                guard.breaker.force(self._forced)
        return guard

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget the guards of all others."""
        for gone in set(self._guards) - set(nodes):
            self._guards.pop(gone, None)

    def states(self) -> dict[str, str]:
        return {node.place: guard.breaker.state for node, guard in list(self._guards.items())}

    def force(self, state: State | None) -> None:
        """Those of servers that are not known yet, too."""
        for guard in list(self._guards.values()):
            guard.breaker.force(state)
        self._forced = state


def _is_troubled(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(TROUBLED)

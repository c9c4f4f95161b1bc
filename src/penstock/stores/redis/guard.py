"""The guards before the Redis servers of a store: which replies are failures, and what refused calls return."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import hiredis

from penstock.clock import monotonic
from penstock.engine.breaker import Limits, State
from penstock.engine.guard import Guard
from penstock.events import Hook
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.errors import not_sent

log = logging.getLogger("penstock.redis")

TROUBLED = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY")
"""The first words of errors with which a server says that it serves no calls at the moment."""


class RedisGuard(Guard):
    """Watches over the calls to one server.

    - `waiting`: how many calls may wait for it at once.
    - `slow`: seconds from which on a reply is slow.
    """

    def __init__(self, place: str, limits: Limits, waiting: int, hook: Hook) -> None:
        super().__init__(place, f"redis at {place}", limits, hook, log)
        self.waiting, self.slow = waiting, limits.slow
        self._full = not_sent(f"{waiting} calls are waiting already", place)
        self._refused = "", self._full  # the reason and the failure of the last refusal: an outage makes many

    def admit(self, now: float) -> Failed | None:
        """Return None if a call may be made now, else the failure to return."""
        if self.admits(now):
            return None
        why, failure = self._refused
        if self.breaker.why not in ("", why):  # empty: it has closed since
            why = self.breaker.why
            failure = not_sent(f"not asked, because of {why}", self.place)
            self._refused = why, failure
        return failure

    def full(self) -> Failed:
        """The failure returned when the queue is full."""
        return self._full

    def replied(self, began: float, reply: Any, late: float = 0.0) -> None:
        """Record the reply to a call begun at `began`; for `late` seconds of that the event loop was late.

        Asks the breaker itself: a call less for every reply.
        """
        if reply.__class__ is bytes or not _is_troubled(reply):
            self.breaker.succeeded(began, monotonic() - late)
        else:
            self.breaker.failed(began, monotonic(), str(reply).partition(" ")[0])
        if self.unreported:
            self.report()

    def unanswered(self, began: float, failed: Failed) -> None:
        """Record that no reply came to a call begun at `began`."""
        self.failed(began, monotonic(), str(failed.error))


class Guards:
    """The guards of one store."""

    def __init__(self, settings: RedisSettings, hook: Hook) -> None:
        self._settings, self._hook = settings, hook
        self._guards: dict[Node, RedisGuard] = {}
        self._forced: State | None = None

    def of(self, node: Node) -> RedisGuard:
        """Return the guard of a server."""
        guard = self._guards.get(node)
        if guard is None:
            guard = RedisGuard(node.place, self._settings.breaker, self._settings.waiting, self._hook)
            guard = self._guards.setdefault(node, guard)  # another thread may have been faster
            if self._forced is not None:
                guard.force(self._forced)
        return guard

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget the guards of all other servers."""
        for gone in set(self._guards) - set(nodes):
            self._guards.pop(gone, None)

    def states(self) -> dict[str, str]:
        """Return the state of each server's breaker, by the server's address."""
        return {node.place: guard.breaker.state for node, guard in list(self._guards.items())}

    def force(self, state: State | None) -> None:
        """Force all breakers, also those of servers that are found later."""
        self._forced = state  # first: others may appear meanwhile
        for guard in list(self._guards.values()):
            guard.force(state)


def _is_troubled(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(TROUBLED)

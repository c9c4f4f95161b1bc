"""What is asked of a service, what may come back, and what that says of the service: shared by both kinds of links."""

from __future__ import annotations

import logging
import os
import random
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias
from weakref import WeakSet

from penstock.client.replies import Reply
from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, StoreError, shown
from penstock.events import BreakerChanged, Hook, tell
from penstock.model import Failed
from penstock.stores.redis.breaker import CLOSED, HALF_OPEN, Breaker, Limits, State

DEFAULT_TIMEOUT = 0.25
"""Seconds that a call may take, connecting included."""

LONGEST_TIMEOUT = 3_600
UNWELL = (500, 502, 504)

log = logging.getLogger("penstock.client")


class Question(NamedTuple):
    """One request.

    - `safe`: asking twice does no more than asking once, so a lost answer may be asked for again.
    """

    path: bytes
    body: bytes | None
    safe: bool


class Lost(NamedTuple):
    """No reply came. `ended`: because the connection did, so that another one may do better."""

    why: str
    charged: Literal["no", "unknown"]
    ended: bool = False


Heard: TypeAlias = Reply | Lost


def to_repeat(questions: Sequence[Question], heard: Sequence[Heard]) -> list[int]:
    """Which questions to ask once more: their connection ended, and they were not taken or may be asked twice."""
    return [
        position
        for position, (question, one) in enumerate(zip(questions, heard, strict=True))
        if isinstance(one, Lost) and one.ended and (one.charged == "no" or question.safe)
    ]


class Guard:
    """Watches over the calls to a service: one that keeps failing is not asked for a moment, so that nobody waits."""

    def __init__(self, place: str, timeout: float, hook: Hook) -> None:
        self.place, self._hook = place, hook
        self.timeout = check_timeout(timeout)
        self._untold: deque[tuple[State, State, str]] = deque()
        self.breaker = Breaker(Limits(slow=timeout, probing=max(timeout * 2, 1.0)), self._changed, random.random)
        _alive.add(self)

    def refusal(self, now: float) -> Lost | None:
        """Why not to ask now, if so."""
        if self.breaker.state == CLOSED:
            return None
        admitted = self.breaker.admits(now)
        self._tell()
        return None if admitted else Lost(f"not asked, because of {self.breaker.why}", "no")

    def heard(self, heard: Sequence[Heard], began: float, now: float) -> None:
        """What became of calls that were asked together."""
        lost = next((one.why for one in heard if isinstance(one, Lost)), None)
        unwell = next(
            (f"status {one.status}" for one in heard if isinstance(one, Reply) and one.status in UNWELL), None
        )
        if lost or unwell:
            self.breaker.failed(began, now, lost or unwell or "")
        else:
            self.breaker.succeeded(began, now)
        self._tell()

    def _changed(self, was: State, state: State, why: str) -> None:
        self._untold.append((was, state, why))  # and told when the breaker is not locked any more

    def _tell(self) -> None:
        while self._untold:
            try:
                was, state, why = self._untold.popleft()
            except IndexError:  # another thread tells
                return
            level = logging.DEBUG if HALF_OPEN in (was, state) and state != CLOSED else logging.WARNING
            log.log(level, "service at %s: breaker %s, it was %s (%s)", self.place, state, was, why)
            tell(self._hook, BreakerChanged(self.place, was, state, why))

    def within(self, deadline: Micros | None) -> float:
        """How many seconds a call may take."""
        return self.timeout if deadline is None else min(self.timeout, deadline / SECOND)

    def failed(self, lost: Lost) -> Failed:
        """What an operation came to that was lost."""
        return Failed(StoreError(f"service at {self.place}: {lost.why}", transient=True), lost.charged)


def check_timeout(timeout: float) -> float:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout <= LONGEST_TIMEOUT:
        raise InvalidOption(f"timeout {shown(timeout)}: expected seconds, more than 0 and at most {LONGEST_TIMEOUT}")
    return float(timeout)


_alive: WeakSet[Guard] = WeakSet()


def _after_fork_in_child() -> None:
    """Whoever held a lock when the child was forked is not there to give it up."""
    for guard in list(_alive):
        guard.breaker.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""Queues of waiting requests: one per key and quota, and only the head of a queue calls the store.

So a thousand waiters make one call per admission, not a thousand. A queue only keeps the order; `wait` does the
waiting. A queue exists while it has waiters.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable
from threading import Lock
from weakref import WeakSet

from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Decision, Verdict
from penstock.quota import CONCURRENCY

POLL: Micros = 20_000
"""How often to look for a released place: a release is not announced, and may come long before the expiry."""


class Waiter:
    """A waiting request. `wake` is called when it becomes the head, and returns whether it could be woken."""

    __slots__ = ("gone", "name", "wake")

    def __init__(self, name: Hashable, wake: Callable[[], bool]) -> None:
        self.name = name
        self.wake = wake
        self.gone = False


class Line(deque[Waiter]):
    """A queue: waiters in order, and how many of them have left (`gone`). The first one has not."""

    gone = 0


class Lines:
    """All queues of a limiter."""

    def __init__(self) -> None:
        self.clear()
        _alive.add(self)

    def clear(self) -> None:
        """Drop all queues, in a forked child: it has no waiters, and the lock may have been held during the fork."""
        self._lock = Lock()
        self._lines: dict[Hashable, Line] = {}

    def join(self, name: Hashable, wake: Callable[[], bool]) -> Waiter:
        """Add a waiter at the end of a queue."""
        waiter = Waiter(name, wake)
        with self._lock:
            self._lines.setdefault(name, Line()).append(waiter)
        return waiter

    def is_head(self, waiter: Waiter) -> bool:
        with self._lock:
            line = self._lines.get(waiter.name)
            return line is not None and line[0] is waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove `waiter` from its queue. Wake the new head, if there is one, or the next that can be woken."""
        head: Waiter | None = waiter
        while head is not None:
            head = self._remove(head)
            if head is not None and head.wake():
                return

    def _remove(self, waiter: Waiter) -> Waiter | None:
        """Remove `waiter` from its queue; return the waiter that thereby becomes the head.

        A waiter behind the head is only marked: finding it would take a step for each waiter before it.
        """
        with self._lock:
            line = self._lines.get(waiter.name)
            if line is None or waiter.gone:  # removed by another one, which could not wake it
                return None
            was_head = line[0] is waiter
            waiter.gone = True
            line.gone += 1
            if line.gone * 2 > len(line):
                line = self._lines[waiter.name] = Line(waiter for waiter in line if not waiter.gone)
            while line and line[0].gone:
                line.popleft()
                line.gone -= 1
            if not line:
                del self._lines[waiter.name]
            return line[0] if was_head and line else None


def pause(verdict: Verdict, left: Micros | None) -> Micros | None:
    """Return how long to wait before the next attempt after a refusal; None if the `left` time does not suffice."""
    refused = [decision for decision in verdict.decisions if not decision.allowed and not decision.advisory]
    rates = [decision for decision in refused if decision.quota.algorithm != CONCURRENCY]
    needed = max((rate.retry_after_us + _delay_when_full(rate) for rate in rates), default=0)
    if left is not None and (left <= 0 or needed > left):
        return None
    if rates:  # that attempt looks for places too
        return max(rate.retry_after_us for rate in rates)
    soon = min(verdict.retry_after_us, POLL)
    return soon if left is None else min(soon, left)


def _delay_when_full(refused: Decision) -> Micros:
    """Return how long a request will be delayed once there is room for it in a full leaky bucket."""
    quota = refused.quota
    if quota.algorithm != "leaky_bucket":
        return 0
    return -(-(quota.capacity - refused.cost) * quota.period_us // quota.limit)


def turned_away(verdict: Verdict) -> Verdict:
    """Return the refusal of a request whose time does not suffice. The caller has refunded an admission."""
    _, remaining, retry_after, reset_after, more_after, delay, _ = verdict.answer
    answer = False, remaining, max(retry_after, delay, 1), reset_after, more_after, 0, NOT_CHARGED
    return Verdict((answer, *verdict[1:5], (), *((None, verdict.source) if verdict.degraded else ())))


_alive: WeakSet[Lines] = WeakSet()


def _after_fork_in_child() -> None:
    for lines in list(_alive):
        lines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

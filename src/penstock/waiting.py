"""Waiting in line: one line per key and quota, and only its head asks the store.

So a thousand waiters make one call per admission, not a thousand. A line is nothing but an order: the limiters,
blocking and asyncio, do the waiting. Lines exist while somebody stands in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from threading import Lock

from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Decision, Verdict
from penstock.quota import CONCURRENCY

POLL: Micros = 20_000
"""How often to look for a released place: nobody announces it, and expiry is only the latest instant it can come."""


class Waiter:
    """Somebody in a line. `wake` is called when it has become the head, and tells whether that could be done."""

    __slots__ = ("name", "wake")

    def __init__(self, name: Hashable, wake: Callable[[], bool]) -> None:
        self.name = name
        self.wake = wake


class Lines:
    """All lines of a limiter."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lines: dict[Hashable, deque[Waiter]] = {}

    def join(self, name: Hashable, wake: Callable[[], bool]) -> Waiter:
        """Stand in line behind everybody else."""
        waiter = Waiter(name, wake)
        with self._lock:
            self._lines.setdefault(name, deque()).append(waiter)
        return waiter

    def is_head(self, waiter: Waiter) -> bool:
        with self._lock:
            line = self._lines.get(waiter.name)
            return line is not None and line[0] is waiter

    def leave(self, waiter: Waiter) -> None:
        """Step out, from wherever in the line; a new head is woken, or the one behind if it cannot be."""
        head: Waiter | None = waiter
        while head is not None:
            head = self._remove(head)
            if head is not None and head.wake():
                return

    def _remove(self, waiter: Waiter) -> Waiter | None:
        """Take `waiter` out of its line; whoever becomes the head by that."""
        with self._lock:
            line = self._lines.get(waiter.name)
            if line is None or waiter not in line:  # taken out by others, who could not wake it
                return None
            was_head = line[0] is waiter
            line.remove(waiter)
            if not line:
                del self._lines[waiter.name]
            return line[0] if was_head and line else None


def pause(verdict: Verdict, left: Micros | None) -> Micros | None:
    """How long to wait before asking again after a refusal, with `left` to spend; None if it would be in vain."""
    refused = [decision for decision in verdict.decisions if not decision.allowed and not decision.advisory]
    rates = [decision for decision in refused if decision.quota.algorithm != CONCURRENCY]
    needed = max((rate.retry_after_us + _delay_when_full(rate) for rate in rates), default=0)
    if left is not None and (left <= 0 or needed > left):
        return None
    if rates:  # places, too, will be looked for then
        return max(rate.retry_after_us for rate in rates)
    soon = min(verdict.retry_after_us, POLL)
    return soon if left is None else min(soon, left)


def _delay_when_full(refused: Decision) -> Micros:
    """How long a request will be delayed once there is room for it in a full queue."""
    quota = refused.quota
    if quota.algorithm != "leaky_bucket":
        return 0
    return -(-(quota.capacity - refused.cost) * quota.period_us // quota.limit)


def turned_away(verdict: Verdict) -> Verdict:
    """The refusal of somebody who could not wait until it was their turn; of an admission, given back before."""
    _, remaining, retry_after, reset_after, more_after, delay, _ = verdict.answer
    answer = False, remaining, max(retry_after, delay, 1), reset_after, more_after, 0, NOT_CHARGED
    return Verdict((answer, *verdict[1:5], ()))

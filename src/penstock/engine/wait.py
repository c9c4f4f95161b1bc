"""Waiting for an admission, as flows for both limiters.

`limiter` is a `Limiter` or an `AsyncLimiter`. What its methods return is yielded, because the latter's must be awaited.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from penstock.clock import SECOND, Micros
from penstock.engine.flows import Flow
from penstock.engine.operations import Id, QuotaLike, verdict_of
from penstock.engine.queues import pause, turned_away
from penstock.model import Acquire, Key, Verdict


def wait_for_turn(
    limiter: Any, key: Key, quota: QuotaLike, cost: int, timeout: float | None, id: Id | None
) -> Flow[Verdict]:
    """Wait until the request is admitted, first come, first served; or refuse it if its time does not suffice."""
    operations, engine = limiter.operations, limiter.engine
    queues, now = operations.queues, operations.steady
    op, deadline = operations.acquire(key, quota, cost, id=id), operations.deadline(timeout)
    alarm, wake = engine.alarm()
    waiter = queues.join(_queue_of(op), wake)

    def rest(verdict: Verdict) -> Micros | None:
        """Return how long to pause before the next attempt; None if there is none."""
        if verdict or not queues.is_head(waiter):
            return None
        return pause(verdict, None if deadline is None else deadline - now())

    try:
        while not queues.is_head(waiter):
            if not (yield engine.wait(alarm, None if deadline is None else max(deadline - now(), 0) / SECOND)):
                break
            alarm.clear()
        if not queues.is_head(waiter):  # out of time
            return turned_away((yield limiter.peek(key, quota, cost)))
        verdict = verdict_of((yield engine.run((op,)))[0])
        while (micros := rest(verdict)) is not None:
            yield engine.sleep(alarm, micros)
            alarm.clear()
            verdict = verdict_of((yield engine.run((op,)))[0])
        delay = operations.delay_left(verdict)
        if verdict and deadline is not None and delay and now() + delay > deadline:
            yield limiter.refund(verdict)  # before the next waiter takes the place behind
            return turned_away(verdict)
    finally:
        queues.leave(waiter)
    yield from sit_out(limiter, verdict)
    return verdict


def sit_out(limiter: Any, verdict: Verdict) -> Flow[None]:
    """Wait out the delay of an admitted request. If that is interrupted, its charge is refunded."""
    if delay := limiter.operations.delay_left(verdict):
        alarm, _ = limiter.engine.alarm()
        try:
            yield limiter.engine.sleep(alarm, delay)
        except BaseException:
            yield limiter.refund(verdict)
            raise


def _queue_of(op: Acquire) -> Hashable:
    """Return the name of the queue for `op`: requests of the same counters share one."""
    return tuple((ask.key, ask.quota) for ask in op.asks)

"""What unit tests share: both limiters behind one blocking face, a layer that changes nothing, and small helpers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

from penstock import Amended, AsyncLimiter, Limiter, ManualClock, Receipt, Verdict
from penstock.clock import Micros
from penstock.engine.operations import QuotaLike, Request
from penstock.engine.protocols import Local
from penstock.layers import Due, Entered
from penstock.model import Key, Op, Outcome
from penstock.quota import Quota

T = TypeVar("T")


class Calls(Protocol):
    """What both limiters can do, as a blocking caller sees it."""

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    def acquire_many(self, requests: Sequence[Request]) -> list[Verdict]: ...
    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended: ...
    def reset(self, key: Key, quota: QuotaLike) -> None: ...
    def close(self) -> None: ...


def finish(awaitable: Awaitable[T]) -> T:
    """The result of a coroutine that has nothing to wait for; the memory store never makes anyone wait."""
    try:
        next(awaitable.__await__())
    except StopIteration as done:
        result: T = done.value
        return result
    cast("Any", awaitable).close()
    raise AssertionError("the coroutine waited")


class Finished:
    """An AsyncLimiter, each call of which is run to its end at once."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self.limiter = limiter

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        return finish(self.limiter.acquire(key, quota, cost))

    def acquire_many(self, requests: Sequence[Request]) -> list[Verdict]:
        return finish(self.limiter.acquire_many(requests))

    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        return finish(self.limiter.peek(key, quota, cost))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        return finish(self.limiter.refund(charged, units))

    def reset(self, key: Key, quota: QuotaLike) -> None:
        finish(self.limiter.reset(key, quota))

    def close(self) -> None:
        finish(self.limiter.close())


class Passing:
    """A layer that passes everything on. Its presence forces a limiter through operations, layers and store."""

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        return None

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        return Entered(ops)

    def leave(self, token: object, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        return list(outcomes)

    def due(self, now: Micros) -> Due:
        return Due()


KINDS: dict[str, Callable[[ManualClock], Calls]] = {
    "Limiter": lambda clock: Limiter(clock=clock),
    "Limiter with a layer": lambda clock: Limiter(clock=clock, layers=[Passing()]),
    "AsyncLimiter": lambda clock: Finished(AsyncLimiter(clock=clock)),
    "AsyncLimiter with a layer": lambda clock: Finished(AsyncLimiter(clock=clock, layers=[Passing()])),
}
"""Every way from a caller to the memory store."""

"""Holds and reservations: what a caller keeps until a place is given back or a cost is settled.

A `Hold` is a place of a concurrency quota; it comes back when it is released, at the end of its `with` block, or when
its ttl passes without renewal. A `Reservation` is units charged by estimate, settled once the true cost is known;
never settled, it stays charged. Both are true when granted, and a `with` block on one that was refused raises
`RateLimited` instead of running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import nullcontext
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import ref

from penstock.clock import SECOND
from penstock.engine.flows import Flow, drive, drive_async
from penstock.errors import RateLimited, StoreError
from penstock.model import Amended, Verdict
from penstock.quota import CONCURRENCY

RENEWALS_PER_TTL = 3


class Granted:
    """A verdict in the hands of a caller."""

    __slots__ = ("__weakref__", "_limiter", "verdict")

    def __init__(self, limiter: Any, verdict: Verdict) -> None:
        self._limiter = limiter
        self.verdict = verdict

    def __bool__(self) -> bool:
        return self.verdict.allowed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict!r}>"

    def check(self) -> None:
        """Raise `RateLimited` if it was refused."""
        if not self.verdict[0][0]:  # allowed; here and below without the price of a property
            raise RateLimited(self.verdict)


class _Held(Granted):
    """A place that is held. `lost` tells whether a renewal in the background found that it is no longer held."""

    __slots__ = ("_end", "lost")

    def __init__(self, limiter: Any, verdict: Verdict) -> None:
        self._limiter = limiter
        self.verdict = verdict
        self.lost = False
        self._end: Callable[[], object] | None = None

    def let_go(self) -> None:
        """Renew it no longer."""
        if self._end is not None:
            self._end()


class Hold(_Held):
    """A place that is held, for blocking code.

    `lost` tells whether a renewal in the background found that the place is no longer held.
    """

    __slots__ = ()

    def keep(self) -> None:
        """Renew it in a background thread until it is released."""
        if self:
            ended = threading.Event()
            self._end = ended.set
            flow = _renewing(ref(self), ended.wait)
            threading.Thread(target=drive, args=(flow,), name="penstock-renew", daemon=True).start()

    def renew(self) -> bool:
        """Hold on for another ttl. False if the place is no longer held: another caller may have it."""
        return bool(self) and self._limiter.renew(self.verdict)

    def release(self) -> None:
        """Give the place back. Doing so late or twice changes nothing."""
        if self._end is not None:
            self._end()
        verdict = self.verdict  # a ruling is left to the enforcer; a lone place goes back in this process if it can
        if verdict[0][0] and (verdict.__class__ is not Verdict or self._limiter.operations.refunded(verdict) is None):
            self._limiter.release(verdict)

    def __enter__(self) -> Self:
        if not self.verdict[0][0]:
            raise RateLimited(self.verdict)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class AsyncHold(_Held):
    """A place that is held, for asyncio.

    `lost` tells whether a renewal in the background found that the place is no longer held.
    """

    __slots__ = ()

    def keep(self) -> None:
        """Renew it in a background task until it is released."""
        if self:
            self._end = asyncio.create_task(drive_async(_renewing(ref(self), asyncio.sleep))).cancel

    async def renew(self) -> bool:
        """Hold on for another ttl. False if the place is no longer held: another caller may have it."""
        return bool(self) and await self._limiter.renew(self.verdict)

    async def release(self) -> None:
        """Give the place back. Doing so late or twice changes nothing."""
        if self._end is not None:
            self._end()
        verdict = self.verdict  # a ruling is left to the enforcer; a lone place goes back in this process if it can
        if verdict[0][0] and (verdict.__class__ is not Verdict or self._limiter.operations.refunded(verdict) is None):
            await self._limiter.release(verdict)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    def __aexit__(self, *_: object) -> Coroutine[Any, Any, None]:
        return self.release()  # the caller awaits it: a coroutine less


def _renewing(weak: ref[Any], sleep: Callable[[float], Any]) -> Flow[None]:
    """Renew a hold until it is released, lost, or garbage. `sleep` returns true once it is released."""
    hold = weak()
    pause = _renewal_interval(hold.verdict) if hold else 0
    while hold is not None:
        hold = None  # while the flow sleeps it must not keep the hold alive
        if (yield sleep(pause)) or (hold := weak()) is None:
            return
        try:
            held = yield hold.renew()
        except StoreError:
            continue  # there is time for another attempt before the ttl is over
        if not held:
            hold.lost = True
            return


class Reservation(Granted):
    """Units charged by estimate, for blocking code."""

    def settle(self, units: int) -> Amended:
        """Make the cost `units` after all, even if they do not fit. Only the first time counts."""
        return self._limiter.settle(self.verdict, units)  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        """What was not settled stays charged; a place that came with it is given back."""
        if holds_place(self.verdict):
            self._limiter.release(self.verdict)


class AsyncReservation(Granted):
    """Units charged by estimate, for asyncio."""

    async def settle(self, units: int) -> Amended:
        """Make the cost `units` after all, even if they do not fit. Only the first time counts."""
        return await self._limiter.settle(self.verdict, units)  # type: ignore[no-any-return]

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        """What was not settled stays charged; a place that came with it is given back."""
        if holds_place(self.verdict):
            await self._limiter.release(self.verdict)


class _Entered(Protocol):
    def check(self) -> None: ...
    def __aexit__(self, *_: object) -> Coroutine[Any, Any, None]: ...


T = TypeVar("T", bound=_Entered)
H = TypeVar("H", Hold, AsyncHold)


class Opening(Generic[T]):
    """Something on its way: await it to have it in hand, or enter it with `async with`."""

    __slots__ = ("_coming", "_here")

    _here: T  # once it is entered

    def __init__(self, coming: Coroutine[Any, Any, T]) -> None:
        self._coming = coming

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coming.__await__()

    async def __aenter__(self) -> T:
        here = self._here = await self._coming
        here.check()
        return here

    def __aexit__(self, *error: object) -> Coroutine[Any, Any, None]:
        return self._here.__aexit__(*error)  # a coroutine less than awaiting it


def held_during(hold: H, *, renew: bool) -> H | nullcontext[None]:
    """Return what holds a place during a block, if one came with the verdict of `hold`."""
    if not holds_place(hold.verdict):
        return nullcontext()
    if renew:
        hold.keep()
    return hold


def holds_place(verdict: Verdict) -> bool:
    """Return whether a place of a concurrency quota came with the verdict."""
    several = verdict[5]  # by position, because middlewares ask this at every request
    if not several:
        return verdict[3].algorithm == CONCURRENCY  # type: ignore[no-any-return]
    return any([decision[3].algorithm == CONCURRENCY for decision in several])  # noqa: C419


def _renewal_interval(verdict: Verdict) -> float:
    """Return the seconds between renewals: one or two that fail must not lose the place."""
    ttls = [d.quota.period_us for d in verdict.decisions if d.quota.algorithm == CONCURRENCY]
    return min(ttls) / SECOND / RENEWALS_PER_TTL

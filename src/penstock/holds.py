"""What a caller keeps in hand while something is held or reserved.

A `Hold` is a place of a concurrency quota; it comes back when it is released, at the end of its `with` block, or when
its ttl passes without renewal. A `Reservation` is units charged by estimate, settled once the true cost is known;
never settled, it stays charged. Both are true when granted, and a `with` block on one that was refused raises
`RateLimited` instead of running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar
from weakref import ref

from penstock.clock import SECOND
from penstock.errors import RateLimited, StoreError
from penstock.model import Amended, Verdict
from penstock.quota import CONCURRENCY

if TYPE_CHECKING:
    from penstock.limiter import AsyncLimiter, Limiter

RENEWALS_PER_TTL = 3


class Granted:
    """A verdict in somebody's hands."""

    __slots__ = ("__weakref__", "_limiter", "verdict")

    verdict: Verdict

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def __bool__(self) -> bool:
        return self.verdict.allowed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.verdict!r}>"

    def _check(self) -> None:
        if not self.verdict[0][0]:  # allowed; here and below without the price of a property
            raise RateLimited(self.verdict)


class Hold(Granted):
    """A place that is held, for blocking code.

    `lost` tells whether a renewal in the background found that the place is no longer held.
    """

    __slots__ = ("_ended", "lost")

    def __init__(self, limiter: Limiter, verdict: Verdict) -> None:
        self.verdict = verdict
        self.lost = False
        self._limiter = limiter
        self._ended: threading.Event | None = None

    def keep(self) -> None:
        """Renew it in the background until it is released."""
        if self:
            self._ended = threading.Event()
            keeper = threading.Thread(target=_keep, args=(ref(self), self._ended), name="penstock-renew", daemon=True)
            keeper.start()

    def renew(self) -> bool:
        """Hold on for another ttl. False if the place is no longer held: somebody else may have it."""
        return bool(self) and self._limiter.renew(self.verdict)

    def release(self) -> None:
        """Give the place back. Doing so late or twice changes nothing."""
        self.let_go()
        if self.verdict[0][0]:
            self._limiter.release(self.verdict)

    def let_go(self) -> None:
        """Renew it no longer."""
        if self._ended is not None:
            self._ended.set()

    def __enter__(self) -> Self:
        if not self.verdict[0][0]:
            raise RateLimited(self.verdict)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _keep(weak: ref[Hold], ended: threading.Event) -> None:
    """Renew a hold until it is released, lost, or dropped by everybody else."""
    hold = weak()
    pause = _renewal_interval(hold.verdict) if hold else 0
    while hold is not None:
        hold = None  # while this thread sleeps it must not keep the hold alive
        if ended.wait(pause) or (hold := weak()) is None:
            return
        try:
            held = hold.renew()
        except StoreError:
            continue  # there is time for another attempt before the ttl is over
        if not held:
            hold.lost = True
            return


class AsyncHold(Granted):
    """A place that is held, for asyncio.

    `lost` tells whether a renewal in the background found that the place is no longer held.
    """

    __slots__ = ("_keeper", "lost")

    def __init__(self, limiter: AsyncLimiter, verdict: Verdict) -> None:
        self.verdict = verdict
        self.lost = False
        self._limiter = limiter
        self._keeper: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Renew it in the background until it is released."""
        if self:
            self._keeper = asyncio.create_task(_keep_async(ref(self)))

    async def renew(self) -> bool:
        """Hold on for another ttl. False if the place is no longer held: somebody else may have it."""
        return bool(self) and await self._limiter.renew(self.verdict)

    async def release(self) -> None:
        """Give the place back. Doing so late or twice changes nothing."""
        self.let_go()
        if self.verdict[0][0]:
            await self._limiter.release(self.verdict)

    def let_go(self) -> None:
        """Renew it no longer."""
        if self._keeper is not None:
            self._keeper.cancel()

    async def __aenter__(self) -> Self:
        self._check()
        return self

    def __aexit__(self, *_: object) -> Coroutine[Any, Any, None]:
        return self.release()  # to be awaited by whom this is returned to: a coroutine less


async def _keep_async(weak: ref[AsyncHold]) -> None:
    """Renew a hold until it is released, lost, or dropped by everybody else."""
    hold = weak()
    pause = _renewal_interval(hold.verdict) if hold else 0
    while hold is not None:
        hold = None  # while this task sleeps it must not keep the hold alive
        await asyncio.sleep(pause)
        if (hold := weak()) is None:
            return
        try:
            held = await hold.renew()
        except StoreError:
            continue  # there is time for another attempt before the ttl is over
        if not held:
            hold.lost = True
            return


class Reservation(Granted):
    """Units charged by estimate, for blocking code."""

    def __init__(self, limiter: Limiter, verdict: Verdict) -> None:
        super().__init__(verdict)
        self._limiter = limiter

    def settle(self, units: int) -> Amended:
        """Make the cost `units` after all, even if they do not fit. Only the first time counts."""
        return self._limiter.settle(self.verdict, units)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        """What was not settled stays charged; a place that came with it is given back."""
        if holds_place(self.verdict):
            self._limiter.release(self.verdict)


class AsyncReservation(Granted):
    """Units charged by estimate, for asyncio."""

    def __init__(self, limiter: AsyncLimiter, verdict: Verdict) -> None:
        super().__init__(verdict)
        self._limiter = limiter

    async def settle(self, units: int) -> Amended:
        """Make the cost `units` after all, even if they do not fit. Only the first time counts."""
        return await self._limiter.settle(self.verdict, units)

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(self, *_: object) -> None:
        """What was not settled stays charged; a place that came with it is given back."""
        if holds_place(self.verdict):
            await self._limiter.release(self.verdict)


class _Entered(Protocol):
    def _check(self) -> None: ...
    def __aexit__(self, *_: object) -> Coroutine[Any, Any, None]: ...


T = TypeVar("T", bound=_Entered)


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
        here._check()
        return here

    def __aexit__(self, *error: object) -> Coroutine[Any, Any, None]:
        return self._here.__aexit__(*error)  # a coroutine less than awaiting it


def holds_place(verdict: Verdict) -> bool:
    """Return whether a place of a concurrency quota came with the verdict."""
    several = verdict[5]  # by position, because middlewares ask this at every request
    if not several:
        return verdict[3].algorithm == CONCURRENCY  # type: ignore[no-any-return]
    return any([decision[3].algorithm == CONCURRENCY for decision in several])  # noqa: C419


def _renewal_interval(verdict: Verdict) -> float:
    """Seconds between renewals: a lost one or two must not lose the place."""
    ttls = [d.quota.period_us for d in verdict.decisions if d.quota.algorithm == CONCURRENCY]
    return min(ttls) / SECOND / RENEWALS_PER_TTL

"""Limiter and AsyncLimiter: decide by key and quota.

Both have the same methods and differ in one word, `await`. They share `Operations`, which does no I/O.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar

from penstock.clock import Clock
from penstock.engine.cancelled import new_id
from penstock.engine.decorator import LimitOptions, decorate, decorate_async
from penstock.engine.engine import AsyncEngine, Engine, clock_over
from penstock.engine.flows import drive, drive_async
from penstock.engine.operations import Id, Operations, QuotaLike, Request, all_renewed, amended_by, listed, verdict_of
from penstock.engine.protocols import Declined
from penstock.engine.wait import wait_for_turn
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, nobody
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, held_during
from penstock.layers import Layer, layers_over
from penstock.model import Acquire, Amended, Inspection, Key, OnFailure, Receipt, Verdict, inspections, new
from penstock.quota import CONCURRENCY, Quota
from penstock.stores import AsyncStore, Store, open_async_store, open_store

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", Store, AsyncStore)
E = TypeVar("E", Engine, AsyncEngine)


class _Limiter(Generic[S, E]):
    """The parts of both limiters: store, layers, engine, operations."""

    _open: Any
    _engine: Any

    def __init__(
        self,
        store: str | S = "memory://",
        *,
        on_failure: OnFailure | None = None,
        hook: Hook = nobody,
        clock: Clock | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        if not isinstance(store, str) and not callable(getattr(store, "run", None)):
            raise InvalidOption(f"store {shown(store)}: expected a URL, or a store with run and close")
        self.store: S = self._open(store, clock, hook) if isinstance(store, str) else store
        layers, on_failure = layers_over(self.store, layers, on_failure, hook)
        self.clock = clock_over(self.store, clock)
        self.engine: E = self._engine(self.store, layers, self.clock, on_failure, hook)
        self.operations = Operations(self.engine)
        self._owns_store = self.store is not store
        self._bound = self.operations.bound
        self._time_ns = self.clock.time_ns


class Limiter(_Limiter[Store, Engine]):
    """Limits for blocking code.

    `store` is a URL or a store of your own; by default the counters live in this process. Most callers want `acquire`:
    it decides and charges. `wait` waits instead of refusing, `hold` limits what runs at once, `reserve` charges an
    estimate that is settled later, and the `limit` decorator does any of these around a function.

    `on_failure` says what happens when a shared store cannot answer: "local" (the default: this process decides for its
    share of the limit), "open", "closed" or "raise". `hook` receives events; see `penstock.events`. `layers`
    replaces the default ones: over a shared store, a deny cache and a fallback.

    >>> limiter = Limiter()
    >>> if not limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    _open, _engine = staticmethod(open_store), Engine

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so: all quotas or none.

        An admitted request with an `id` is remembered for as long as it may count: a repeat with the same id gets the
        same answer, and is not charged again.
        """
        try:
            bound = self._bound[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            bound = self.operations.bind(quota)
        local = bound.local
        if id is None and local is not None:
            time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
            verdict = local(key, cost, time_ns() // 1_000)
            if verdict is not None:
                return verdict
        elif bound.once is not None and (verdict := self.operations.decide(key, quota, cost, id)) is not None:
            return verdict
        op = self.operations.acquire(key, quota, cost, id=id)
        ops = (op,) if id is not None or local is None else Declined((op,))
        return verdict_of(self.engine.run(ops)[0])

    def acquire_many(self, requests: Iterable[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each is decided alone."""
        requests = listed(requests)
        known = self.operations.decide_many(requests)
        if known is not None:
            return known
        return [verdict_of(outcome) for outcome in self.engine.run(self.operations.acquire_many(requests))]

    def acquire_all(self, requests: Iterable[Request], *, id: Id | None = None) -> Verdict:
        """Decide whether all requests may pass together now, each with its own key, quota and cost; charge all or none.

        The verdict is that of the tightest; `decisions` has one per counter, in the order of the requests.
        """
        return self._run(self.operations.acquire_all(requests, id=id))

    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """Return what `acquire` would answer now; charge nothing. A cost of 0 returns the state of the counters."""
        return self._run(self.operations.acquire(key, quota, cost, dry=True))

    def inspect(self, key: Key, quota: QuotaLike) -> list[Inspection]:
        """Return the state of each counter of `quota`, to print or to show. Charges nothing."""
        return inspections(self.peek(key, quota))

    def wait(
        self, key: Key, quota: QuotaLike, cost: int = 1, *, timeout: float | None = None, id: Id | None = None
    ) -> Verdict:
        """Wait until the request is admitted, at most `timeout` seconds. Earlier calls are admitted first.

        Return the refusal as soon as the time cannot suffice. A shaped request (`leaky_bucket`) has also waited out its
        delay.
        """
        return drive(wait_for_turn(self, key, quota, cost, timeout, id))

    def hold(
        self,
        key: Key,
        quota: QuotaLike,
        cost: int = 1,
        *,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Hold:
        """Take a place of a concurrency quota, to be held in a `with` block; rates may stand beside it.

        With a `timeout` it waits up to so many seconds for one. A place is lost when its ttl passes without renewal;
        with `renew` a background thread renews it.
        """
        if quota.__class__ is not Quota or quota.algorithm != CONCURRENCY:
            self.operations.check_places(quota)
        if timeout == 0:
            hold = Hold(self, self.acquire(key, quota, cost, id))
        else:
            hold = Hold(self, self.wait(key, quota, cost, timeout=timeout, id=id))
        if renew:
            hold.keep()
        return hold

    def reserve(self, key: Key, quota: QuotaLike, cost: int, *, id: Id | None = None) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        return Reservation(self, self.acquire(key, quota, cost, new_id() if id is None else id))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it, as far as it is still charged.

        Refund a receipt once: only a request with an id remembers its refund.
        """
        back = self.operations.refunded(charged) if units is None else None
        if back is not None:
            return new(Amended, ((back,),))
        return amended_by(self.engine.run([self.operations.refund(charged, units)])[0])

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Correct the cost of a reservation to `units`, even if they do not fit. Only the first call counts."""
        done = self.operations.settled(charged, units)
        return done or amended_by(self.engine.run([self.operations.settle(charged, units)])[0])

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds. A late or second release changes nothing."""
        lone = charged.__class__ is Verdict and charged[3].algorithm == CONCURRENCY
        back = self.operations.refunded(charged) if lone else None
        if back is not None:
            return new(Amended, ((back,),))
        return amended_by(self.engine.run([self.operations.places("release", charged)])[0])

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Keep places for another ttl. False if they are no longer held."""
        op = self.operations.places("renew", charged)
        return all_renewed(op, amended_by(self.engine.run([op])[0]))

    def reset(self, key: Key, quota: QuotaLike) -> None:
        """Forget what `key` has used of `quota`."""
        for outcome in self.engine.run(self.operations.reset(key, quota)):
            amended_by(outcome)

    def limit(
        self,
        quota: QuotaLike,
        *,
        key: Key | Callable[..., Key] | None = None,
        cost: int | Callable[..., int] = 1,
        name: str | None = None,
        timeout: float | None = 0,
        renew: bool = False,
        settle: Callable[[Any], int] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call is charged first, and raises `RateLimited` when refused.

        `key` and `cost` may be functions of the call's arguments. Each function has counters of its own, by its module
        and name, unless several are given the same `name`. With a `timeout` calls wait up to so many seconds, with None
        for ever. A place of a concurrency quota is held during the call, and with `renew` renewed; the delay of a leaky
        bucket is waited out. `settle` returns the true cost of a call from its result.
        """
        options = LimitOptions(quota, key, cost, name, timeout, renew, settle)
        self.operations.bind(quota)  # an invalid quota raises now, not at the first call
        return partial(decorate, self, options, lambda verdict: held_during(Hold(self, verdict), renew=renew))

    def close(self) -> None:
        """Close the store, if the limiter opened it. Later calls raise `StoreError`."""
        if not self.operations.closed:
            self.engine.finish()
        self.operations.close()
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, op: Acquire) -> Verdict:
        return verdict_of(self.engine.run((op,))[0])


class AsyncLimiter(_Limiter[AsyncStore, AsyncEngine]):
    """Limits for asyncio: the methods of `Limiter`, awaited. One instance serves any number of event loops.

    >>> limiter = AsyncLimiter()
    >>> if not await limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    _open, _engine = staticmethod(open_async_store), AsyncEngine

    async def acquire(self, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so; see `Limiter.acquire`."""
        try:
            bound = self._bound[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            bound = self.operations.bind(quota)
        local = bound.local
        if id is None and local is not None:
            time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
            verdict = local(key, cost, time_ns() // 1_000)
            if verdict is not None:
                return verdict
        elif bound.once is not None and (verdict := self.operations.decide(key, quota, cost, id)) is not None:
            return verdict
        op = self.operations.acquire(key, quota, cost, id=id)
        ops = (op,) if id is not None or local is None else Declined((op,))
        coming = self.engine.start(ops)
        try:
            return verdict_of((await coming)[0])
        except CancelledError:
            self.engine.give_up(ops, coming)
            raise

    async def acquire_many(self, requests: Iterable[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each is decided alone."""
        requests = listed(requests)
        known = self.operations.decide_many(requests)
        if known is not None:
            return known
        return [verdict_of(outcome) for outcome in await self.engine.run(self.operations.acquire_many(requests))]

    async def acquire_all(self, requests: Iterable[Request], *, id: Id | None = None) -> Verdict:
        """Decide whether all requests may pass together now; charge all or none. See `Limiter.acquire_all`."""
        return await self._run(self.operations.acquire_all(requests, id=id))

    async def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """Return what `acquire` would answer now; charge nothing. A cost of 0 returns the state of the counters."""
        return await self._run(self.operations.acquire(key, quota, cost, dry=True))

    async def inspect(self, key: Key, quota: QuotaLike) -> list[Inspection]:
        """Return the state of each counter of `quota`, to print or to show. Charges nothing."""
        return inspections(await self.peek(key, quota))

    async def wait(
        self, key: Key, quota: QuotaLike, cost: int = 1, *, timeout: float | None = None, id: Id | None = None
    ) -> Verdict:
        """Wait until the request is admitted; see `Limiter.wait`. A cancelled call leaves the queue and no charge."""
        return await drive_async(wait_for_turn(self, key, quota, cost, timeout, id))

    def hold(
        self,
        key: Key,
        quota: QuotaLike,
        cost: int = 1,
        *,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Opening[AsyncHold]:
        """Take a place of a concurrency quota, to be held in an `async with` block; see `Limiter.hold`.

        With `renew` a background task renews it.
        """
        if quota.__class__ is not Quota or quota.algorithm != CONCURRENCY:
            self.operations.check_places(quota)
        return Opening(self._hold(key, quota, cost, timeout, id, renew=renew))

    async def _hold(
        self, key: Key, quota: QuotaLike, cost: int, timeout: float | None, id: Id | None, *, renew: bool
    ) -> AsyncHold:
        verdict = self.operations.decide(key, quota, cost, id) if timeout == 0 else None  # spares a coroutine
        if verdict is None and timeout == 0:
            verdict = await self.acquire(key, quota, cost, id)
        elif verdict is None:
            verdict = await self.wait(key, quota, cost, timeout=timeout, id=id)
        hold = AsyncHold(self, verdict)
        if renew:
            hold.keep()
        return hold

    def reserve(self, key: Key, quota: QuotaLike, cost: int, *, id: Id | None = None) -> Opening[AsyncReservation]:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""

        async def reserved() -> AsyncReservation:
            verdict = await self.acquire(key, quota, cost, new_id() if id is None else id)
            return AsyncReservation(self, verdict)

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it; see `Limiter.refund`."""
        back = self.operations.refunded(charged) if units is None else None
        if back is not None:
            return new(Amended, ((back,),))
        return amended_by((await self.engine.run([self.operations.refund(charged, units)]))[0])

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Correct the cost of a reservation to `units`, even if they do not fit. Only the first call counts."""
        done = self.operations.settled(charged, units)
        return done or amended_by((await self.engine.run([self.operations.settle(charged, units)]))[0])

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds. A late or second release changes nothing."""
        lone = charged.__class__ is Verdict and charged[3].algorithm == CONCURRENCY
        back = self.operations.refunded(charged) if lone else None
        if back is not None:
            return new(Amended, ((back,),))
        return amended_by((await self.engine.run([self.operations.places("release", charged)]))[0])

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Keep places for another ttl. False if they are no longer held."""
        op = self.operations.places("renew", charged)
        return all_renewed(op, amended_by((await self.engine.run([op]))[0]))

    async def reset(self, key: Key, quota: QuotaLike) -> None:
        """Forget what `key` has used of `quota`."""
        for outcome in await self.engine.run(self.operations.reset(key, quota)):
            amended_by(outcome)

    def limit(
        self,
        quota: QuotaLike,
        *,
        key: Key | Callable[..., Key] | None = None,
        cost: int | Callable[..., int] = 1,
        name: str | None = None,
        timeout: float | None = 0,
        renew: bool = False,
        settle: Callable[[Any], int] | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate a coroutine function so that each call is charged first; see `Limiter.limit`."""
        options = LimitOptions(quota, key, cost, name, timeout, renew, settle)
        self.operations.bind(quota)  # an invalid quota raises now, not at the first call
        return partial(
            decorate_async, self, options, lambda verdict: held_during(AsyncHold(self, verdict), renew=renew)
        )

    async def close(self) -> None:
        """Close the store, if the limiter opened it. Later calls raise `StoreError`."""
        if not self.operations.closed:
            await self.engine.finish()
        self.operations.close()
        if self._owns_store:
            await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, op: Acquire) -> Verdict:
        return verdict_of((await self.engine.run((op,)))[0])

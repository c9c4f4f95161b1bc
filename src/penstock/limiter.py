"""Limiter and AsyncLimiter: what applications hold in their hands.

Both have the same methods and differ in one word, `await`. What they share is `Operations`, which do no I/O.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, Self, TypeVar, cast

from penstock.clock import Clock
from penstock.engine.engine import AsyncEngine, Engine, clock_over
from penstock.engine.operations import (
    Call,
    How,
    Id,
    Operations,
    QuotaLike,
    Request,
    all_renewed,
    amended_by,
    is_coroutine_function,
    line_of,
    verdict_of,
)
from penstock.engine.protocols import Declined
from penstock.engine.queues import turned_away
from penstock.errors import InvalidOption, RateLimited, shown
from penstock.events import Hook, nobody
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.layers import Layer, layers_over
from penstock.model import Acquire, Amended, Inspection, Key, OnFailure, Receipt, Verdict, inspections
from penstock.quota import CONCURRENCY, Quota
from penstock.stores import AsyncStore, Store, open_async_store, open_store

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

ID_BYTES = 12


class Limiter:
    """Limits for blocking code.

    `store` is a URL or a store of your own; by default the counters live in this process. Most callers want `acquire`:
    it decides and charges. `wait` waits instead of refusing, `hold` limits what runs at once, `reserve` charges an
    estimate that is settled later, and the `limit` decorator does any of these around a function.

    `on_failure` says what happens when a shared store cannot answer: "local" (the default: this process decides for its
    share of the limit), "open", "closed" or "raise". `hook` is told of events; see `penstock.events`. `layers` are
    a deny cache and a fallback over a shared store, unless you have others in mind.

    >>> limiter = Limiter()
    >>> if not limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    def __init__(
        self,
        store: str | Store = "memory://",
        *,
        on_failure: OnFailure | None = None,
        hook: Hook = nobody,
        clock: Clock | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        opened = open_store(store, clock, hook) if isinstance(store, str) else _checked(store)
        layers, on_failure = layers_over(opened, layers, on_failure, hook)
        self.store = opened
        self.clock = clock_over(opened, clock)
        self.engine = Engine(opened, layers, self.clock, on_failure, hook)
        self.operations = Operations(self.engine)
        self._owns_store = opened is not store
        self._bound = self.operations.bound
        self._time_ns = self.clock.time_ns

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so: all quotas or none.

        Once admitted, a request with an `id` is remembered for as long as it may count: asked again with the same id
        it gets the same answer, and is not charged again.
        """
        try:
            bound = self._bound[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            bound = self.operations.bind(quota)
        verdict = None
        if id is None:
            local = bound.local
            if local is not None:
                time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
                verdict = local(key, cost, time_ns() // 1_000)
        elif bound.once is not None:
            verdict = self.operations.decide(key, quota, cost, id)
        if verdict is not None:
            return verdict
        op = self.operations.acquire(key, quota, cost, id=id)
        ops = (op,) if id is not None or bound.local is None else Declined((op,))
        return verdict_of(self.engine.run(ops)[0])

    def acquire_many(self, requests: Iterable[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each stands for itself."""
        requests = requests if isinstance(requests, list | tuple) else list(requests)
        known = self.operations.decide_many(requests)
        if known is not None:
            return known
        return [verdict_of(outcome) for outcome in self.engine.run(self.operations.acquire_many(requests))]

    def acquire_all(self, requests: Iterable[Request], *, id: Id | None = None) -> Verdict:
        """Decide whether all requests may pass together now, each with its own key, quota and cost; charge all or none.

        The verdict is that of the tightest, and `decisions` has one per counter, in the order asked.
        """
        return self._run(self.operations.acquire_all(requests, id=id))

    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """What `acquire` would answer now, charging nothing. A cost of 0 asks only how things stand."""
        return self._run(self.operations.acquire(key, quota, cost, dry=True))

    def inspect(self, key: Key, quota: QuotaLike) -> list[Inspection]:
        """How things stand with each counter behind `quota`, to print or to show. Charges nothing."""
        return inspections(self.peek(key, quota))

    def wait(
        self, key: Key, quota: QuotaLike, cost: int = 1, *, timeout: float | None = None, id: Id | None = None
    ) -> Verdict:
        """Wait until the request is admitted, at most `timeout` seconds, and in the order of asking.

        Returns the refusal as soon as it is clear that the time will not suffice. A shaped request (`leaky_bucket`) has
        waited for its turn when this returns.
        """
        operations = self.operations
        queues, op, deadline = (
            operations.queues,
            operations.acquire(key, quota, cost, id=id),
            operations.deadline(timeout),
        )
        woken = threading.Event()
        waiter = queues.join(line_of(op), partial(_set, woken))
        try:
            while not queues.is_head(waiter) and woken.wait(operations.seconds_left(deadline)):
                woken.clear()
            if not queues.is_head(waiter):  # out of time
                return turned_away(self.peek(key, quota, cost))
            verdict = self._run(op)
            while (rest := operations.pause(verdict, waiter, deadline)) is not None:
                self.clock.wait(woken, rest)
                woken.clear()
                verdict = self._run(op)
            if verdict and operations.comes_too_late(verdict, deadline):
                self.refund(verdict)  # before anybody can take the place behind
                return turned_away(verdict)
        finally:
            queues.leave(waiter)
        self._sit_out(verdict)
        return verdict

    def _sit_out(self, verdict: Verdict) -> None:
        """Wait until it is an admitted request's turn; given up on, its place is given back."""
        if delay := self.operations.delay_left(verdict):
            try:
                self.clock.wait(threading.Event(), delay)
            except BaseException:
                self.refund(verdict)
                raise

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
        with `renew` a background thread sees to that.
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

    def _admit(self, key: Key, quota: QuotaLike, cost: int, timeout: float | None, id: Id | None) -> Verdict:
        if timeout == 0:
            return self.acquire(key, quota, cost, id)
        return self.wait(key, quota, cost, timeout=timeout, id=id)

    def reserve(self, key: Key, quota: QuotaLike, cost: int, *, id: Id | None = None) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        return Reservation(self, self.acquire(key, quota, cost, os.urandom(ID_BYTES) if id is None else id))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it, as far as it is still charged.

        Do it once per receipt: only a request with an id remembers that it was given back.
        """
        done = self.operations.refunded(charged) if units is None else None
        return done or amended_by(self.engine.run([self.operations.refund(charged, units)])[0])

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        done = self.operations.settled(charged, units)
        return done or amended_by(self.engine.run([self.operations.settle(charged, units)])[0])

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds. Doing so late or twice changes nothing."""
        lone = charged.__class__ is Verdict and charged[3].algorithm == CONCURRENCY
        done = self.operations.refunded(charged) if lone else None
        return done or amended_by(self.engine.run([self.operations.places("release", charged)])[0])

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
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

        `key` and `cost` may be functions of the call's arguments. Functions are told apart by module and name, and so
        are their counters, unless several are given the same `name`. With a `timeout` calls wait up to so many
        seconds, with None for ever. A place of a concurrency quota is held during the call, and renewed if asked for;
        the delay of a leaky bucket is sat out. `settle` tells the true cost from what the call returns.
        """
        places = self.operations.has_places(quota)
        how = How(quota, key, cost, name, timeout, renew, settle)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            call = Call(function, how, whole=places or settle is not None)
            if is_coroutine_function(function):
                if timeout != 0 or self.operations.shapes(quota):
                    raise InvalidOption(f"{call.scope}: waiting would block its event loop (expected AsyncLimiter)")

                @wraps(function)
                async def limited_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                    with self._around(call, args, kwargs) as settled:
                        return settled(await cast("Awaitable[Any]", function(*args, **kwargs)))

                return cast("Callable[P, R]", limited_coroutine)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                with self._around(call, args, kwargs) as settled:
                    return settled(function(*args, **kwargs))

            return limited

        return decorate

    @contextmanager
    def _around(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Callable[[R], R]]:
        """What happens before and after a limited call; yields what the call's result goes through."""
        how = call.how
        request_id = os.urandom(ID_BYTES) if how.settle else None
        verdict = self._admit(call.key(args, kwargs), how.quota, call.cost(args, kwargs), how.timeout, request_id)
        if not verdict:
            raise RateLimited(verdict)
        if how.timeout == 0:
            self._sit_out(verdict)

        def settled(result: R) -> R:
            if how.settle:
                self.settle(verdict, how.settle(result))
            return result

        hold = Hold(self, verdict) if holds_place(verdict) else None
        if hold and how.renew:
            hold.keep()
        with hold or nullcontext():
            yield settled

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


class AsyncLimiter:
    """Limits for asyncio: the methods of `Limiter`, awaited. One instance serves any number of event loops.

    >>> limiter = AsyncLimiter()
    >>> if not await limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    def __init__(
        self,
        store: str | AsyncStore = "memory://",
        *,
        on_failure: OnFailure | None = None,
        hook: Hook = nobody,
        clock: Clock | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        opened = open_async_store(store, clock, hook) if isinstance(store, str) else _checked(store)
        layers, on_failure = layers_over(opened, layers, on_failure, hook)
        self.store = opened
        self.clock = clock_over(opened, clock)
        self.engine = AsyncEngine(opened, layers, self.clock, on_failure, hook)
        self.operations = Operations(self.engine)
        self._owns_store = opened is not store
        self._bound = self.operations.bound
        self._time_ns = self.clock.time_ns

    async def acquire(self, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so: all quotas or none.

        Once admitted, a request with an `id` is remembered for as long as it may count: asked again with the same id
        it gets the same answer, and is not charged again.
        """
        try:
            bound = self._bound[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            bound = self.operations.bind(quota)
        verdict = None
        if id is None:
            local = bound.local
            if local is not None:
                time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
                verdict = local(key, cost, time_ns() // 1_000)
        elif bound.once is not None:
            verdict = self.operations.decide(key, quota, cost, id)
        if verdict is not None:
            return verdict
        op = self.operations.acquire(key, quota, cost, id=id)
        ops = (op,) if id is not None or bound.local is None else Declined((op,))
        return verdict_of((await self.engine.run(ops))[0])

    async def acquire_many(self, requests: Iterable[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each stands for itself."""
        requests = requests if isinstance(requests, list | tuple) else list(requests)
        known = self.operations.decide_many(requests)
        if known is not None:
            return known
        return [verdict_of(outcome) for outcome in await self.engine.run(self.operations.acquire_many(requests))]

    async def acquire_all(self, requests: Iterable[Request], *, id: Id | None = None) -> Verdict:
        """Decide whether all requests may pass together now, each with its own key, quota and cost; charge all or none.

        The verdict is that of the tightest, and `decisions` has one per counter, in the order asked.
        """
        return await self._run(self.operations.acquire_all(requests, id=id))

    async def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """What `acquire` would answer now, charging nothing. A cost of 0 asks only how things stand."""
        return await self._run(self.operations.acquire(key, quota, cost, dry=True))

    async def inspect(self, key: Key, quota: QuotaLike) -> list[Inspection]:
        """How things stand with each counter behind `quota`, to print or to show. Charges nothing."""
        return inspections(await self.peek(key, quota))

    async def wait(
        self, key: Key, quota: QuotaLike, cost: int = 1, *, timeout: float | None = None, id: Id | None = None
    ) -> Verdict:
        """Wait until the request is admitted, at most `timeout` seconds, and in the order of asking.

        Returns the refusal as soon as it is clear that the time will not suffice. A shaped request (`leaky_bucket`)
        has waited for its turn when this returns. Cancelled, it leaves the line and nothing behind.
        """
        operations = self.operations
        queues, op, deadline = (
            operations.queues,
            operations.acquire(key, quota, cost, id=id),
            operations.deadline(timeout),
        )
        woken = asyncio.Event()
        waiter = queues.join(line_of(op), partial(_wake, asyncio.get_running_loop(), woken))
        try:
            while not queues.is_head(waiter) and await _woken(woken, operations.seconds_left(deadline)):
                woken.clear()
            if not queues.is_head(waiter):  # out of time
                return turned_away(await self.peek(key, quota, cost))
            verdict = await self._run(op)
            while (rest := operations.pause(verdict, waiter, deadline)) is not None:
                await self.clock.wait_async(woken, rest)
                woken.clear()
                verdict = await self._run(op)
            if verdict and operations.comes_too_late(verdict, deadline):
                await self.refund(verdict)  # before anybody can take the place behind
                return turned_away(verdict)
        finally:
            queues.leave(waiter)
        await self._sit_out(verdict)
        return verdict

    async def _sit_out(self, verdict: Verdict) -> None:
        """Wait until it is an admitted request's turn; given up on, its place is given back."""
        if delay := self.operations.delay_left(verdict):
            try:
                await self.clock.wait_async(asyncio.Event(), delay)
            except BaseException:
                await self.refund(verdict)
                raise

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
        """Take a place of a concurrency quota, to be held in an `async with` block; rates may stand beside it.

        With a `timeout` it waits up to so many seconds for one. A place is lost when its ttl passes without renewal;
        with `renew` a background task sees to that.
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

    async def _admit(self, key: Key, quota: QuotaLike, cost: int, timeout: float | None, id: Id | None) -> Verdict:
        if timeout == 0:
            return await self.acquire(key, quota, cost, id)
        return await self.wait(key, quota, cost, timeout=timeout, id=id)

    def reserve(self, key: Key, quota: QuotaLike, cost: int, *, id: Id | None = None) -> Opening[AsyncReservation]:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""

        async def reserved() -> AsyncReservation:
            verdict = await self.acquire(key, quota, cost, os.urandom(ID_BYTES) if id is None else id)
            return AsyncReservation(self, verdict)

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it, as far as it is still charged.

        Do it once per receipt: only a request with an id remembers that it was given back.
        """
        done = self.operations.refunded(charged) if units is None else None
        return done or amended_by((await self.engine.run([self.operations.refund(charged, units)]))[0])

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        done = self.operations.settled(charged, units)
        return done or amended_by((await self.engine.run([self.operations.settle(charged, units)]))[0])

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds. Doing so late or twice changes nothing."""
        lone = charged.__class__ is Verdict and charged[3].algorithm == CONCURRENCY
        done = self.operations.refunded(charged) if lone else None
        return done or amended_by((await self.engine.run([self.operations.places("release", charged)]))[0])

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
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
        """Decorate a coroutine function so that each call is charged first, and raises `RateLimited` when refused.

        `key` and `cost` may be functions of the call's arguments. Functions are told apart by module and name, and so
        are their counters, unless several are given the same `name`. With a `timeout` calls wait up to so many
        seconds, with None for ever. A place of a concurrency quota is held during the call, and renewed if asked for;
        the delay of a leaky bucket is sat out. `settle` tells the true cost from what the call returns.
        """
        places = self.operations.has_places(quota)
        how = How(quota, key, cost, name, timeout, renew, settle)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            call = Call(function, how, whole=places or settle is not None)
            if not is_coroutine_function(function):
                raise InvalidOption(f"{call.scope}: not a coroutine function (expected one; Limiter limits both kinds)")

            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self._around(call, args, kwargs) as settled:
                    return await settled(await function(*args, **kwargs))

            return limited

        return decorate

    @asynccontextmanager
    async def _around(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[Callable[[R], Awaitable[R]]]:
        """What happens before and after a limited call; yields what the call's result goes through."""
        how = call.how
        request_id = os.urandom(ID_BYTES) if how.settle else None
        verdict = await self._admit(call.key(args, kwargs), how.quota, call.cost(args, kwargs), how.timeout, request_id)
        if not verdict:
            raise RateLimited(verdict)
        if how.timeout == 0:
            await self._sit_out(verdict)

        async def settled(result: R) -> R:
            if how.settle:
                await self.settle(verdict, how.settle(result))
            return result

        hold = AsyncHold(self, verdict) if holds_place(verdict) else None
        if hold and how.renew:
            hold.keep()
        async with hold or nullcontext():
            yield settled

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


def _checked(store: S) -> S:
    if not callable(getattr(store, "run", None)):
        raise InvalidOption(f"store {shown(store)}: expected a URL, or a store with run and close")
    return store


def _set(woken: threading.Event) -> bool:
    """Wake a waiter in another thread, which always can be done."""
    woken.set()
    return True


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> bool:
    """Wake a waiter, from whatever thread; False if its loop is no more."""
    try:
        loop.call_soon_threadsafe(woken.set)
    except RuntimeError:
        return False
    return True


async def _woken(event: asyncio.Event, seconds: float | None) -> bool:
    try:
        async with asyncio.timeout(seconds):  # not wait_for, which in Python 3.11 can swallow a cancellation
            return await event.wait()
    except TimeoutError:
        return False

"""Limiter and AsyncLimiter: what applications hold in their hands.

Both have the same methods and differ in one word, `await`. What they share (reading quotas, checking input, making
operations, reading outcomes) is `_Front`, which neither waits nor keeps counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar, cast

from penstock.clock import Clock, SystemClock
from penstock.drivers import AsyncDriver, Driver
from penstock.errors import InvalidCost, InvalidOption, InvalidReceipt, InvalidRequest, RateLimited, StoreError
from penstock.layers.base import Layer
from penstock.model import (
    MAX_KEY_PART,
    Acquire,
    Amend,
    Amended,
    Ask,
    Failed,
    Key,
    Op,
    Outcome,
    Receipt,
    Reset,
    Verdict,
    check_asks,
    check_cost,
    check_key,
    check_units,
)
from penstock.quota import Quota
from penstock.stores import AsyncStore, InProcess, LoneAsk, Store, open_async_store, open_store

QuotaLike: TypeAlias = str | Quota | Sequence[str | Quota]
"""A quota, its text, a text of several, or several of either."""

Request: TypeAlias = tuple[Key, QuotaLike] | tuple[Key, QuotaLike, int]
"""(key, quota), or (key, quota, cost)."""

KeyOf: TypeAlias = Key | Callable[..., Key] | None

P = ParamSpec("P")
R = TypeVar("R")

MAX_REMEMBERED = 4_096


class _Front:
    """Everything about a limiter that does not wait."""

    def __init__(self, store: Store | AsyncStore, clock: Clock | None, layers: Sequence[Layer]) -> None:
        in_process = store if isinstance(store, InProcess) else None
        if in_process is not None and clock not in (None, in_process.clock):
            raise InvalidOption("clock: the store has a clock of its own (expected none, or the same one)")
        self._bind_lone = None if in_process is None or layers else in_process.bind
        self._clock = clock or (SystemClock() if in_process is None else in_process.clock)
        self._time_ns = self._clock.time_ns
        self._lone: dict[object, LoneAsk | None] = {}  # what answers a quota as callers write it; None: the driver does
        self._parts: dict[object, tuple[Quota, ...]] = {}  # the counters behind it
        self._closed = False

    def _quotas(self, quota: QuotaLike) -> tuple[Quota, ...]:
        """The counters to ask for `quota`; texts are read once and remembered."""
        if self._closed:
            raise StoreError("the limiter is closed", transient=False)
        name = tuple(quota) if isinstance(quota, list) else quota
        try:
            return self._parts[name]
        except (KeyError, TypeError):  # not seen before; or nothing that could be a quota, which _read tells
            parts = tuple(part for whole in _read(quota) for part in whole.parts)
        if len(self._parts) >= MAX_REMEMBERED:
            self._parts.clear()
        self._parts[name] = parts
        return parts

    def _lone_ask(self, quota: QuotaLike) -> LoneAsk | None:
        """The store's own function for `quota`, if it has one: a single counter, charged what the request costs."""
        parts = self._quotas(quota)
        ask = self._bind_lone(parts[0]) if self._bind_lone and len(parts) == 1 and not parts[0].flat else None
        if not isinstance(quota, list):
            if len(self._lone) >= MAX_REMEMBERED:
                self._lone.clear()
            self._lone[quota] = ask
        return ask

    def _lone_asks(self, requests: Sequence[Request]) -> list[LoneAsk] | None:
        """The store's own functions for all `requests`, if it has one for each and nothing needs a closer look."""
        asks = []
        for request in requests:
            if request.__class__ is not tuple or len(request) != 2:
                return None
            key, quota = request
            try:
                ask = self._lone[quota]
            except (KeyError, TypeError):
                ask = self._lone_ask(quota)
            if ask is None or key.__class__ is not str or not (key.isascii() and 0 < len(key) <= MAX_KEY_PART):
                return None
            asks.append(ask)
        return asks

    def _acquire(self, key: Key, quota: QuotaLike, cost: int, *, dry: bool = False) -> Acquire:
        key = check_key(key)
        least = 0 if dry else 1
        parts = self._quotas(quota)
        asks = tuple(
            Ask(
                key,
                part,
                min(check_units("cost", cost, least=least), 1) if part.flat else check_cost(cost, part, least=least),
            )
            for part in parts
        )
        return Acquire(check_asks(asks), dry)

    def _acquire_all(self, requests: Sequence[Request]) -> list[Op]:
        for position, request in enumerate(requests):
            if not isinstance(request, tuple) or not 2 <= len(request) <= 3:
                raise InvalidRequest(f"request {position}: expected (key, quota) or (key, quota, cost)")
        return [self._acquire(request[0], request[1], request[2] if len(request) == 3 else 1) for request in requests]

    def _refund(self, charged: Verdict | Receipt, units: int | None) -> Amend:
        if not isinstance(charged, Verdict | Receipt):
            raise InvalidReceipt(f"refund of {type(charged).__name__}: expected a verdict or its receipt")
        receipt = charged if isinstance(charged, Receipt) else charged.receipt
        if receipt is None:
            raise InvalidReceipt("refund of a verdict that charged nothing (expected one that was allowed)")
        if units is not None and check_units("units", units, least=1) > receipt.cost:
            raise InvalidCost(f"units {units}: expected at most {receipt.cost}, which is what was charged")
        return Amend(receipt, "refund", units)

    def _reset(self, key: Key, quota: QuotaLike) -> list[Op]:
        key = check_key(key)
        return [Reset(key, part) for part in self._quotas(quota)]


class Limiter(_Front):
    """Limits for blocking code.

    `store` is a URL or a store of your own; by default the counters live in this process. Most callers want `acquire`;
    `peek` asks without charging, and the `limit` decorator raises `RateLimited` instead of answering.

    >>> limiter = Limiter()
    >>> if not limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    def __init__(
        self, store: str | Store = "memory://", *, clock: Clock | None = None, layers: Sequence[Layer] = ()
    ) -> None:
        opened = open_store(store, clock) if isinstance(store, str) else store
        super().__init__(opened, clock, layers)
        self._store = opened
        self._owns_store = opened is not store
        self._driver = Driver(opened, layers, self._clock)

    def acquire(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so: all quotas or none."""
        try:
            ask = self._lone[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            ask = self._lone_ask(quota)
        if ask is None:
            return _verdict(self._driver.run([self._acquire(key, quota, cost)])[0])
        return ask(key, cost, self._time_ns() // 1_000)

    def acquire_many(self, requests: Sequence[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each stands for itself."""
        asks = self._lone_asks(requests)
        if asks is None:
            return [_verdict(outcome) for outcome in self._driver.run(self._acquire_all(requests))]
        now = self._time_ns() // 1_000
        return [ask(request[0], 1, now) for ask, request in zip(asks, requests, strict=True)]

    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """What `acquire` would answer now, charging nothing. A cost of 0 asks only how things stand."""
        return _verdict(self._driver.run([self._acquire(key, quota, cost, dry=True)])[0])

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it, as far as it is still charged. Do it once a receipt."""
        return _amended(self._driver.run([self._refund(charged, units)])[0])

    def reset(self, key: Key, quota: QuotaLike) -> None:
        """Forget what `key` has used of `quota`."""
        for outcome in self._driver.run(self._reset(key, quota)):
            _amended(outcome)

    def limit(
        self, quota: QuotaLike, *, key: KeyOf = None, cost: int | Callable[..., int] = 1, name: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call is charged first, and raises `RateLimited` when refused.

        `key` and `cost` may be functions of the call's arguments. Each decorated function has counters of its own,
        unless several are given the same `name`.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            target = _Target(function, name, key, cost)
            self._quotas(quota)  # a bad quota should fail here rather than on the first call

            def admit(*args: Any, **kwargs: Any) -> None:
                verdict = self.acquire(target.key(*args, **kwargs), quota, cost=target.cost(*args, **kwargs))
                if not verdict:
                    raise RateLimited(verdict)

            if inspect.iscoroutinefunction(function):

                @wraps(function)
                async def limited_coroutine(*args: P.args, **kwargs: P.kwargs) -> Any:
                    admit(*args, **kwargs)
                    return await function(*args, **kwargs)

                return cast("Callable[P, R]", limited_coroutine)

            @wraps(function)
            def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                admit(*args, **kwargs)
                return function(*args, **kwargs)

            return limited

        return decorate

    def close(self) -> None:
        """Close the store, if the limiter opened it. Later calls raise `StoreError`."""
        self._closed = True
        self._lone.clear()
        self._parts.clear()
        if self._owns_store:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLimiter(_Front):
    """Limits for asyncio: the methods of `Limiter`, awaited. One instance serves any number of event loops.

    >>> limiter = AsyncLimiter()
    >>> if not await limiter.acquire("alice", "100/minute"):
    ...     ...  # refuse
    """

    def __init__(
        self, store: str | AsyncStore = "memory://", *, clock: Clock | None = None, layers: Sequence[Layer] = ()
    ) -> None:
        opened = open_async_store(store, clock) if isinstance(store, str) else store
        super().__init__(opened, clock, layers)
        self._store = opened
        self._owns_store = opened is not store
        self._driver = AsyncDriver(opened, layers, self._clock)

    async def acquire(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """Decide whether `key` may spend `cost` units now, and charge them if so: all quotas or none."""
        try:
            ask = self._lone[quota]
        except (KeyError, TypeError):  # not seen before; or a list, which has no hash
            ask = self._lone_ask(quota)
        if ask is None:
            return _verdict((await self._driver.run([self._acquire(key, quota, cost)]))[0])
        return ask(key, cost, self._time_ns() // 1_000)

    async def acquire_many(self, requests: Sequence[Request]) -> list[Verdict]:
        """Decide on many requests in one batch, in order and at one instant; each stands for itself."""
        asks = self._lone_asks(requests)
        if asks is None:
            return [_verdict(outcome) for outcome in await self._driver.run(self._acquire_all(requests))]
        now = self._time_ns() // 1_000
        return [ask(request[0], 1, now) for ask, request in zip(asks, requests, strict=True)]

    async def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict:
        """What `acquire` would answer now, charging nothing. A cost of 0 asks only how things stand."""
        return _verdict((await self._driver.run([self._acquire(key, quota, cost, dry=True)]))[0])

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a verdict charged, or `units` of it, as far as it is still charged. Do it once a receipt."""
        return _amended((await self._driver.run([self._refund(charged, units)]))[0])

    async def reset(self, key: Key, quota: QuotaLike) -> None:
        """Forget what `key` has used of `quota`."""
        for outcome in await self._driver.run(self._reset(key, quota)):
            _amended(outcome)

    def limit(
        self, quota: QuotaLike, *, key: KeyOf = None, cost: int | Callable[..., int] = 1, name: str | None = None
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate a coroutine function so that each call is charged first, and raises `RateLimited` when refused.

        `key` and `cost` may be functions of the call's arguments. Each decorated function has counters of its own,
        unless several are given the same `name`.
        """

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            if not inspect.iscoroutinefunction(function):
                raise InvalidOption(
                    f"{function!r}: AsyncLimiter limits coroutine functions (expected one; Limiter limits both kinds)"
                )
            target = _Target(function, name, key, cost)
            self._quotas(quota)  # a bad quota should fail here rather than on the first call

            @wraps(function)
            async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
                verdict = await self.acquire(target.key(*args, **kwargs), quota, cost=target.cost(*args, **kwargs))
                if not verdict:
                    raise RateLimited(verdict)
                return await function(*args, **kwargs)

            return limited

        return decorate

    async def close(self) -> None:
        """Close the store, if the limiter opened it. Later calls raise `StoreError`."""
        self._closed = True
        self._lone.clear()
        self._parts.clear()
        if self._owns_store:
            await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Target:
    """A decorated function's name, and how the key and the cost of a call follow from its arguments."""

    def __init__(
        self, function: Callable[..., object], name: str | None, key: KeyOf, cost: int | Callable[..., int]
    ) -> None:
        scope = name or f"{function.__module__}.{function.__qualname__}"

        def key_of(*args: Any, **kwargs: Any) -> Key:
            own = key(*args, **kwargs) if callable(key) else key
            if own is None:
                return scope
            return (scope, *own) if isinstance(own, tuple) else (scope, own)

        def cost_of(*args: Any, **kwargs: Any) -> int:
            return cost(*args, **kwargs) if callable(cost) else cost

        self.key = key_of
        self.cost = cost_of


def _read(quota: QuotaLike) -> tuple[Quota, ...]:
    if isinstance(quota, Quota):
        return (quota,)
    if isinstance(quota, list | tuple):
        return tuple(single for item in quota for single in _read(item))
    return Quota.parse_all(cast("str", quota))


def _verdict(outcome: Outcome) -> Verdict:
    if isinstance(outcome, Failed):
        raise outcome.error
    return cast("Verdict", outcome)


def _amended(outcome: Outcome) -> Amended:
    if isinstance(outcome, Failed):
        raise outcome.error
    return cast("Amended", outcome)

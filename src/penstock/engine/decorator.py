"""Decorated functions: what a call is charged for, and under which key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

from penstock.engine.cancelled import new_id
from penstock.engine.flows import Flow, drive, drive_async
from penstock.engine.operations import QuotaLike
from penstock.engine.wait import sit_out
from penstock.errors import InvalidOption, RateLimited
from penstock.model import Key, Verdict


class LimitOptions(NamedTuple):
    """The options of the `limit` decorator."""

    quota: QuotaLike
    key: Key | Callable[..., Key] | None
    cost: int | Callable[..., int]
    name: str | None
    timeout: float | None
    renew: bool
    settle: Callable[[Any], int] | None


class LimitedFunction:
    """A decorated function, and how the key and the cost of a call follow from its arguments."""

    def __init__(self, limiter: Any, function: Callable[..., object], options: LimitOptions) -> None:
        self.options = options
        named: Any = function
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        self.scope = options.name or f"{named.__module__}.{named.__qualname__}"
        whole = options.settle is not None or limiter.operations.has_places(options.quota)
        if whole and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise InvalidOption(f"{self.scope}: a generator runs after its call has ended (expected a plain function)")

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        """Return the scope of the function and the caller's own key, as parts that never run together."""
        key = self.options.key
        own = key(*args, **kwargs) if callable(key) else key
        if own is None:
            return self.scope
        return (self.scope, *own) if isinstance(own, tuple) else (self.scope, own)

    def cost(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the cost of a call."""
        cost = self.options.cost
        return cost(*args, **kwargs) if callable(cost) else cost


def is_coroutine_function(function: Callable[..., object]) -> bool:
    """Return whether calling it makes a coroutine; objects with an asynchronous `__call__` included."""
    called = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def decorate(limiter: Any, options: LimitOptions, held: Callable[[Verdict], Any], function: Any) -> Any:
    """Return `function` with each call charged to a blocking limiter, and its place `held` during the call."""
    limited, settle = LimitedFunction(limiter, function, options), options.settle
    if is_coroutine_function(function):
        if options.timeout != 0 or limiter.operations.shapes(options.quota):
            raise InvalidOption(f"{limited.scope}: waiting would block its event loop (expected AsyncLimiter)")

        @wraps(function)
        async def call_coroutine(*args: Any, **kwargs: Any) -> Any:
            verdict = drive(_admit(limiter, limited, args, kwargs))
            with held(verdict):
                result = await function(*args, **kwargs)
                if settle is not None:
                    limiter.settle(verdict, settle(result))
                return result

        return call_coroutine

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        verdict = drive(_admit(limiter, limited, args, kwargs))
        with held(verdict):
            result = function(*args, **kwargs)
            if settle is not None:
                limiter.settle(verdict, settle(result))
            return result

    return call


def decorate_async(limiter: Any, options: LimitOptions, held: Callable[[Verdict], Any], function: Any) -> Any:
    """Return the coroutine function `function` with each call charged, and its place `held` during the call."""
    limited, settle = LimitedFunction(limiter, function, options), options.settle
    if not is_coroutine_function(function):
        raise InvalidOption(f"{limited.scope}: not a coroutine function (expected one; Limiter limits both kinds)")

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        verdict = await drive_async(_admit(limiter, limited, args, kwargs))
        async with held(verdict):
            result = await function(*args, **kwargs)
            if settle is not None:
                await limiter.settle(verdict, settle(result))
            return result

    return call


def _admit(limiter: Any, function: LimitedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[Verdict]:
    """Charge a call of a decorated function and wait for its turn; raise `RateLimited` if it is refused."""
    options = function.options
    key, cost = function.key(args, kwargs), function.cost(args, kwargs)
    id = new_id() if options.settle else None
    if options.timeout == 0:
        verdict: Verdict = yield limiter.acquire(key, options.quota, cost, id)
        yield from sit_out(limiter, verdict)
    else:
        verdict = yield limiter.wait(key, options.quota, cost, timeout=options.timeout, id=id)
    if not verdict:
        raise RateLimited(verdict)
    return verdict

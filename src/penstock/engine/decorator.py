"""Decorated functions: what a call is charged for, and under which key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.engine.operations import QuotaLike
from penstock.errors import InvalidOption
from penstock.model import Key


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
    """A decorated function, and how the key and the cost of a call follow from its arguments.

    `whole` calls matter until they end, and a generator's call ends before it has begun.
    """

    def __init__(self, function: Callable[..., object], options: LimitOptions, *, whole: bool) -> None:
        self.options = options
        named: Any = function
        while isinstance(named, partial):
            named = named.func
        named = named if hasattr(named, "__qualname__") else type(named)
        self.scope = options.name or f"{named.__module__}.{named.__qualname__}"
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

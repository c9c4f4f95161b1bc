"""`limits_off`: a switch under which nothing in this process is limited.

It replaces methods of the classes that decide, so it costs nothing while it is not used. Every verdict is made as if
the store could not answer and `on_failure` were "open": it is allowed, its source is "open", it charged nothing, and
it can be settled, refunded and released like any other, also after the switch is back on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from penstock.client import AsyncClient, Client
from penstock.client.codec import unanswered
from penstock.clock import Micros, SystemClock
from penstock.enforcer import AsyncEnforcer, Enforcer, RuleFront, pairs_of
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.fail_modes import instead
from penstock.engine.operations import Id, Operations, QuotaLike
from penstock.engine.protocols import Done, Gone
from penstock.limiter import AsyncLimiter, Limiter
from penstock.middleware.passage import AsyncGate, BlockingGate
from penstock.model import Acquire, Amend, Key, Op, Outcome, check_units
from penstock.rules.plan import Plan, course_of
from penstock.rules.ruling import Ruling, passed, ruled

_lock = threading.Lock()
_uses = 0
_replaced: list[tuple[type, str, Any]] = []
"""What the classes had by the names that are replaced now."""


@contextmanager
def limits_off() -> Iterator[None]:
    """Admit every request in this process while the block runs, in all threads and tasks.

    Limiters, clients, enforcers, decorators and middlewares are all off; so are deny rules and shedding. Blocks may be
    nested and may overlap in threads: limits are back when the last of them ends. Mistakes in keys, quotas and costs
    are raised as always. A method that was looked up before the block (`allowed = limiter.acquire`) stays limited; one
    that was looked up in it is limited again after it.
    """
    global _uses
    with _lock:
        _uses += 1
        if _uses == 1:
            _replace()
    try:
        yield
    finally:
        with _lock:
            _uses -= 1
            if not _uses:
                _restore()


def _replace() -> None:
    for owner, replacements in _OFF.items():
        for name, off in replacements.items():
            _replaced.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, _while_off(off, getattr(owner, name)))


def _while_off(off: Callable[..., Any], on: Callable[..., Any]) -> Callable[..., Any]:
    """Return `off`, or `on` once limits are back: an object made in the block may keep a method that it found."""

    @wraps(on)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (off if _uses else on)(*args, **kwargs)

    return either


def _restore() -> None:
    while _replaced:
        owner, name, on = _replaced.pop()
        if on is None:  # it is inherited
            delattr(owner, name)
        else:
            setattr(owner, name, on)


# ---------------------------------------------------------------- engines


def _split(ops: Sequence[Op], now: Micros) -> tuple[list[Outcome | None], list[Op]]:
    """The outcome of each operation that is not run, and the operations that are: changes of real charges."""
    free = [isinstance(op, Acquire) or (isinstance(op, Amend) and op.receipt.source == "open") for op in ops]
    outcomes = [instead(op, now, closed=False) if is_free else None for op, is_free in zip(ops, free, strict=True)]
    return outcomes, [op for op, is_free in zip(ops, free, strict=True) if not is_free]


def _merged(outcomes: Sequence[Outcome | None], ran: Iterable[Outcome]) -> list[Outcome]:
    rest = iter(ran)
    return [next(rest) if outcome is None else outcome for outcome in outcomes]


def _now(engine: Engine | AsyncEngine) -> Micros:
    return engine.clock.time_ns() // 1_000


_run, _run_async, _submit = Engine.run, AsyncEngine.run, AsyncEngine.submit


def _run_off(self: Engine, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
    outcomes, rest = _split(ops, _now(self))
    return _merged(outcomes, _run(self, rest, deadline) if rest else ())


async def _run_async_off(self: AsyncEngine, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
    outcomes, rest = _split(ops, _now(self))
    return _merged(outcomes, await _run_async(self, rest, deadline) if rest else ())


def _submit_off(
    self: AsyncEngine, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None
) -> None:
    outcomes, rest = _split(ops, _now(self))

    def merged(ran: list[Outcome] | Exception) -> None:
        done(ran if isinstance(ran, Exception) else _merged(outcomes, ran))

    if rest:
        _submit(self, rest, deadline, merged, gone)
    else:
        merged([])


# ---------------------------------------------------------------- limiters, middlewares


def _undecided(*_: Any) -> None:
    """Decide nothing by a short way, so that the engine is asked."""


def _acquire_off(self: Limiter, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None) -> Outcome:
    return _run_off(self.engine, [self.operations.acquire(key, quota, cost, id=id)])[0]


async def _acquire_async_off(
    self: AsyncLimiter, key: Key, quota: QuotaLike, cost: int = 1, id: Id | None = None
) -> Outcome:
    return (await _run_async_off(self.engine, [self.operations.acquire(key, quota, cost, id=id)]))[0]


# ---------------------------------------------------------------- enforcers


def _passed(self: RuleFront[Any, Any, Any], cost: int) -> Ruling:
    check_units("cost", cost, least=1)
    return ruled(passed(cost, SystemClock().time_ns() // 1_000), Plan(course_of((), self.rules.version), (), ()))


def _check_off(self: RuleFront[Any, Any, Any], descriptor: Any, cost: int = 1, *_: Any, **__: Any) -> Ruling:
    return _passed(self, cost)


async def _check_async_off(self: AsyncEnforcer, descriptor: Any, cost: int = 1, **_: Any) -> Ruling:
    return _passed(self, cost)


def _check_many_off(self: Enforcer, requests: Iterable[Any]) -> list[Ruling]:
    return [_passed(self, cost) for _, cost in pairs_of(requests)]


async def _check_many_async_off(self: AsyncEnforcer, requests: Iterable[Any]) -> list[Ruling]:
    return _check_many_off(self, requests)  # type: ignore[arg-type]


# ---------------------------------------------------------------- clients

_peek, _peek_async = Client.peek, AsyncClient.peek


def _asked_off(self: Client | AsyncClient, descriptor: Any, cost: int = 1, **_: Any) -> Any:
    check_units("cost", cost, least=1)
    return unanswered(cost, self.operations.now(), closed=False)


async def _asked_async_off(self: AsyncClient, descriptor: Any, cost: int = 1, **_: Any) -> Any:
    return _asked_off(self, descriptor, cost)


def _asked_many_off(self: Client | AsyncClient, requests: Iterable[Any]) -> list[Any]:
    return [_asked_off(self, descriptor, cost) for descriptor, cost in pairs_of(requests)]


async def _asked_many_async_off(self: AsyncClient, requests: Iterable[Any]) -> list[Any]:
    return _asked_many_off(self, requests)


def _peek_off(self: Client, *args: Any, descriptor: Any = None, **kwargs: Any) -> Any:
    return _peek(self, *args, **kwargs) if descriptor is None else _asked_off(self, descriptor, **kwargs)


async def _peek_async_off(self: AsyncClient, *args: Any, descriptor: Any = None, **kwargs: Any) -> Any:
    return await _peek_async(self, *args, **kwargs) if descriptor is None else _asked_off(self, descriptor, **kwargs)


_OFF: dict[type, dict[str, Callable[..., Any]]] = {
    Engine: {"run": _run_off},
    AsyncEngine: {"run": _run_async_off, "submit": _submit_off},
    Operations: {"decide": _undecided, "decide_many": _undecided},
    Limiter: {"acquire": _acquire_off},
    AsyncLimiter: {"acquire": _acquire_async_off},
    BlockingGate: {"decided_at_once": _undecided},
    AsyncGate: {"decided_at_once": _undecided},
    RuleFront: {"begin": _check_off},
    Enforcer: {"check": _check_off, "check_many": _check_many_off},
    AsyncEnforcer: {"check": _check_async_off, "check_many": _check_many_async_off},
    Client: {"check": _asked_off, "check_many": _asked_many_off, "peek": _peek_off},
    AsyncClient: {"check": _asked_async_off, "check_many": _asked_many_async_off, "peek": _peek_async_off},
}
"""Every way to a decision, and what takes its place."""

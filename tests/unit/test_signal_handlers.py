"""Exceptions that signal handlers raise, such as soft time limits, pass through: they are no failure of the store."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock
from penstock.clock import Micros
from penstock.engine.protocols import Entered
from penstock.errors import is_from_signal_handler
from penstock.layers import DenyCache, Due, Fallback, Layer
from penstock.model import Op, Outcome
from tests.unit.flaky import AsyncFlaky, Flaky
from tests.unit.support import Passing


class TimeLimitExceeded(Exception):
    """As task queues raise it."""


def raise_it(*_: Any) -> None:
    raise TimeLimitExceeded


class Limits:
    """Handlers that are no plain functions."""

    def method(self, *_: Any) -> None:
        raise TimeLimitExceeded

    def __call__(self, *_: Any) -> None:
        raise_it()


HANDLERS: dict[str, Callable[..., None]] = {
    "a function": raise_it,
    "a method": Limits().method,
    "an object": Limits(),
    "a partial": partial(partial(raise_it, 1), 2),
    "a lambda": lambda *_: raise_it(),
}


@pytest.fixture(params=HANDLERS)
def interrupt(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Send this process a signal whose handler raises `TimeLimitExceeded`."""
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield partial(signal.raise_signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


class Interrupted(Passing):
    """A layer during which a signal arrives: on the way down or up, or when it is asked what is due."""

    def __init__(self, where: str, interrupt: Callable[[], None]) -> None:
        self.where, self.interrupt = where, interrupt

    def _maybe(self, where: str) -> None:
        if self.where == where:
            self.interrupt()

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        self._maybe("down")
        return super().enter(ops, now)

    def leave(self, token: object, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        self._maybe("up")
        return super().leave(token, outcomes, now)

    def due(self, now: Micros) -> Due:
        self._maybe("due")
        return super().due(now)


class InterruptedStore(Flaky):
    def __init__(self, clock: ManualClock, interrupt: Callable[[], None]) -> None:
        super().__init__(clock)
        self.interrupt = interrupt

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        if threading.current_thread() is threading.main_thread():  # not for what a layer has done by another one
            self.interrupt()
        return super().run(ops, deadline)


@pytest.mark.parametrize("where", ["down", "up", "due"])
def test_signal_during_a_layer_reaches_the_caller(
    where: str, interrupt: Callable[[], None], clock: ManualClock
) -> None:
    layers: list[Layer] = [Interrupted(where, interrupt), Fallback("open")]
    with pytest.raises(TimeLimitExceeded):
        Limiter(Flaky(clock), layers=layers, clock=clock).acquire("ann", "5/minute")
    with pytest.raises(TimeLimitExceeded):
        asyncio.run(AsyncLimiter(AsyncFlaky(Flaky(clock)), layers=layers, clock=clock).acquire("ann", "5/minute"))


@pytest.mark.parametrize("on_failure", ["local", "open", "closed", "raise"])
def test_signal_during_a_call_of_the_store_reaches_the_caller(
    on_failure: Any, interrupt: Callable[[], None], clock: ManualClock
) -> None:
    store = InterruptedStore(clock, interrupt)
    with pytest.raises(TimeLimitExceeded):
        Limiter(store, clock=clock, on_failure=on_failure).acquire("ann", "5/minute")
    with pytest.raises(TimeLimitExceeded):
        asyncio.run(AsyncLimiter(AsyncFlaky(store), clock=clock, on_failure=on_failure).acquire("ann", "5/minute"))


def test_signal_during_a_hook_reaches_the_caller(interrupt: Callable[[], None], clock: ManualClock) -> None:
    store = Flaky(clock)
    store.up = False
    with pytest.raises(TimeLimitExceeded):
        Limiter(store, clock=clock, hook=lambda event: interrupt()).acquire("ann", "5/minute")


def test_signal_during_a_look_for_refusals_reaches_the_caller(
    interrupt: Callable[[], None], clock: ManualClock
) -> None:
    class Slow(str):
        def __hash__(self) -> int:
            interrupt()
            return super().__hash__()

    with pytest.raises(TimeLimitExceeded):
        Limiter(Flaky(clock), layers=[DenyCache()], clock=clock).acquire(Slow("ann"), "5/minute")


def test_signal_while_a_limiter_closes_reaches_the_caller(interrupt: Callable[[], None], clock: ManualClock) -> None:
    store = InterruptedStore(clock, lambda: None)
    limiter = Limiter(store, clock=clock)
    limiter.acquire("ann", "5/minute")
    clock.advance(2)
    store.up = False
    limiter.acquire("ann", "5/minute")
    clock.advance(2)
    store.interrupt = interrupt
    with pytest.raises(TimeLimitExceeded):
        limiter.close()


def test_error_of_a_function_that_is_no_handler_is_told_apart() -> None:
    with pytest.raises(TimeLimitExceeded) as raised:
        raise_it()
    assert not is_from_signal_handler(raised.value)


def test_errors_of_enumerations_are_told_apart() -> None:
    """Default handlers are members of one."""
    with pytest.raises(ValueError, match="not a valid") as raised:
        signal.Handlers(99)
    assert not is_from_signal_handler(raised.value)


def test_error_that_was_never_raised_is_told_apart() -> None:
    assert not is_from_signal_handler(ValueError())


def test_a_limiter_is_usable_after_a_signal(interrupt: Callable[[], None], clock: ManualClock) -> None:
    store = InterruptedStore(clock, interrupt)
    limiter = Limiter(store, clock=clock)
    with pytest.raises(TimeLimitExceeded):
        limiter.acquire("ann", "5/minute")
    store.interrupt = lambda: None
    assert limiter.acquire("ann", "5/minute").source == "store"

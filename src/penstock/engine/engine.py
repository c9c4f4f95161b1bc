"""Engines run operations through the layers and the store: one blocks, one is for asyncio.

An engine takes three steps: down through the layers, the store, up through the layers. Only the middle one waits; the
layers are in `chain.py`, which does no I/O. Background work of layers runs beside the callers: the first call after it
is due starts it, or the ticker does. No caller waits for it.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.engine.cancelled import CHARGES, refund_of
from penstock.engine.chain import NEVER, Chain, Work
from penstock.engine.flows import Flow, drive, drive_async
from penstock.engine.protocols import (
    AsyncStore,
    BoundQuota,
    Done,
    Gone,
    InProcess,
    Layer,
    Local,
    Store,
    Submit,
    V,
)
from penstock.engine.ticker import LoopTimer, call_after
from penstock.errors import InvalidInput, InvalidOption, is_from_signal_handler
from penstock.events import Hook, nobody
from penstock.model import OnFailure, Op, Outcome, Posed
from penstock.quota import Quota

FINISHING: Micros = SECOND
"""How long background work may take when a limiter is closed."""


Caller: TypeAlias = asyncio.Future[list[Outcome]]
"""The future of a caller that awaits outcomes."""


def resolve(caller: Caller, outcomes: list[Outcome] | Exception) -> None:
    """Resolve the future of a caller, unless it is done."""
    if caller.done():
        return
    if isinstance(outcomes, Exception):
        caller.set_exception(outcomes)
    else:
        caller.set_result(outcomes)


class Decide(Protocol):
    """Decide checked asks at an instant, all or none; None if only the store can decide."""

    def __call__(self, asks: tuple[Posed, ...], now: Micros, kind: type[V], /) -> V | None: ...


def _elsewhere(asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V | None:
    return None


def clock_over(store: Store | AsyncStore, clock: Clock | None) -> Clock:
    """Return the clock of a limiter over `store`."""
    if not isinstance(store, InProcess):
        return clock or SystemClock()
    if clock not in (None, store.clock):
        raise InvalidOption("clock: the store has a clock of its own (expected none, or the same one)")
    return store.clock


class _Engine:
    """What both engines share.

    - `in_process`: whether all requests are decided in this process.
    - `decide`: decides checked asks in this process, or returns None.
    """

    def __init__(
        self, store: Any, layers: Sequence[Layer], clock: Clock, on_failure: OnFailure = "raise", hook: Hook = nobody
    ) -> None:
        self.clock, self.on_failure = clock, on_failure
        self._store = store
        self._chain = Chain(layers, clock, on_failure, hook)
        self.in_process = isinstance(store, InProcess) and not layers
        self.decide: Decide = store.decide if self.in_process else _elsewhere

    def bind(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        """Prepare requests of one key for `quotas`, which are `Quota.parts`."""
        if self.in_process:
            return self._store.bind(quotas)  # type: ignore[no-any-return]
        local: Local | None = None
        for layer in reversed(self._chain.layers):
            local = layer.bind(quotas, local)
        return BoundQuota(quotas, local)

    def tick(self) -> Micros | None:
        """Start due work, called by the ticker. Return after how long to call again; None if that is not needed."""
        self._start_due()
        return self._chain.next_tick()

    def _come_by(self) -> None:
        """Start due work on behalf of a caller, and have the ticker start what is due next."""
        chain = self._chain
        self._start_due()
        if chain.ticks and chain.due_at != NEVER:
            self._call_after(chain.due_at - chain.steady())

    def _start_due(self) -> None:
        raise NotImplementedError

    def _call_after(self, after: Micros) -> None:
        raise NotImplementedError

    def _running_due(self) -> Flow[Micros | None]:
        chain = self._chain
        yield from self._doing(chain.due())
        return None if chain.due_at == NEVER else chain.due_at

    def _doing(self, work: Work) -> Flow[None]:
        """Run due work. After an error, `work` still has what was not done, or has an unknown result."""
        chain = self._chain
        while work:
            position, due = work[0]
            passed, tokens = chain.down(due.ops, chain.now(), position + 1)
            outcomes = chain.up(due.ops, (yield self._store.run(passed)) if passed else [], tokens)
            del work[0]
            chain.layers[position].leave(due.token, outcomes, chain.now())

    def _finishing(self) -> Flow[None]:
        """Run the background work that must not be left undone; no round begins after `FINISHING`."""
        chain = self._chain
        chain.finished = True
        self.decide = _elsewhere
        try:
            until = chain.steady() + FINISHING
            if chain.is_pending():
                yield from self._running_due()
            while chain.is_in_a_hurry(until):
                yield from self._running_due()
        except Exception as error:
            if is_from_signal_handler(error):
                raise


class Engine(_Engine):
    """Runs operations for blocking callers."""

    _store: Store

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """Return the outcomes of `ops`, through all layers; the store may take `deadline` microseconds."""
        chain = self._chain
        if not chain.layers:
            return self._store.run(ops, deadline)
        if chain.steady_ns() // 1_000 >= chain.due_at:
            self._come_by()
        now = chain.time_ns() // 1_000
        try:
            passed, tokens = chain.down(ops, now)
            return chain.up(ops, self._store.run(passed, deadline) if passed else [], tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in(ops, error)

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        """Run `ops` and call `done` with their outcomes, or with an error, before this returns."""
        outcomes: list[Outcome] | Exception
        try:
            outcomes = self.run(ops, deadline)
        except Exception as error:
            outcomes = error
        done(outcomes)

    def alarm(self) -> tuple[threading.Event, Callable[[], bool]]:
        """Return an event to wait for, and a function that sets it from any thread and returns whether it could."""
        event = threading.Event()
        return event, partial(_set, event)

    def wait(self, alarm: threading.Event, seconds: float | None) -> bool:
        """Wait until `alarm` is set; return whether it is."""
        return alarm.wait(seconds)

    def sleep(self, alarm: threading.Event, micros: Micros) -> None:
        """Wait `micros` by the clock, or until `alarm` is set."""
        self.clock.wait(alarm, micros)

    def run_due(self) -> Micros | None:
        """Run the due work of the layers. Return the instant at which more is due."""
        return drive(self._running_due())

    def finish(self) -> None:
        """Run the background work that must not be left undone, and stop deciding in this process."""
        drive(self._finishing())

    def _call_after(self, after: Micros) -> None:
        call_after(self, after)

    def _start_due(self) -> None:
        work = self._chain.begin_due()
        if work:
            try:
                _thread.start_new_thread(self._do_due, (work,))
            except RuntimeError:  # no thread is left, or the interpreter is about to end
                self._chain.end_due(work, charged="no")

    def _do_due(self, work: Work) -> None:
        error = None
        try:
            drive(self._doing(work))
        except Exception as fault:
            error = fault
        self._chain.end_due(work, error)


class AsyncEngine(_Engine):
    """Runs operations for asyncio.

    Over a store with `submit`, the layers receive the outcomes even if the caller was cancelled, and its charge is
    given back.
    """

    _store: AsyncStore

    def __init__(
        self,
        store: AsyncStore,
        layers: Sequence[Layer],
        clock: Clock,
        on_failure: OnFailure = "raise",
        hook: Hook = nobody,
    ) -> None:
        super().__init__(store, layers, clock, on_failure, hook)
        self._send: Submit | None = getattr(store, "submit", None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = LoopTimer()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """Return the outcomes of `ops`, through all layers; the store may take `deadline` microseconds.

        All operations that are run in one turn of the event loop are sent together.
        """
        coming = self.start(ops, deadline)
        return coming if self._send is None else self._attended(ops, coming)

    async def _attended(self, ops: Sequence[Op], coming: Awaitable[list[Outcome]]) -> list[Outcome]:
        try:
            return await coming
        except asyncio.CancelledError:
            self.give_up(ops, coming)
            raise

    def start(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """Do the same for a caller that calls `give_up` if it is cancelled, which spares it a coroutine."""
        if self._send is None:
            return self._run(ops, deadline) if self._chain.layers else self._store.run(ops, deadline)
        caller: Caller = asyncio.get_running_loop().create_future()
        # Amendments, which never come with requests, are sent even if the caller is gone by the end of this turn.
        gone = caller.done if not ops or ops[0].__class__ in CHARGES else _stays
        self.submit(ops, deadline, partial(self._resolve, caller, ops), gone)
        return caller

    def give_up(self, ops: Sequence[Op], coming: Awaitable[list[Outcome]]) -> None:
        """Give back what `ops` charge: the caller that awaited `coming` was cancelled."""
        if not isinstance(coming, asyncio.Future) or coming.cancel() or coming.cancelled():
            return  # what comes later goes to `_resolve`
        if coming.exception() is None:  # it came in the same turn of the loop
            self._give_back(ops, coming.result())

    def _resolve(self, caller: Caller, ops: Sequence[Op], outcomes: list[Outcome] | Exception) -> None:
        """Resolve the future of a caller; if it was cancelled, give back what `ops` charged."""
        if isinstance(outcomes, Exception):
            resolve(caller, outcomes)
        elif caller.done():
            self._give_back(ops, outcomes)
        else:
            caller.set_result(outcomes)

    def _give_back(self, ops: Sequence[Op], outcomes: Sequence[Outcome]) -> None:
        refunds = [refund for refund in map(refund_of, ops, outcomes) if refund is not None]
        if refunds:
            self.submit(refunds, None, _ignore)

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        """Run `ops` and call `done` with their outcomes, or with an error, perhaps before this returns.

        Without `gone` they are sent at once. With `gone` they are sent at the end of this turn of the event loop,
        unless `gone` returns true by then.
        """
        if self._send is None:
            self._start(self._run_for(ops, deadline, done))
            return
        chain, passed = self._chain, ops
        tokens: list[Any] = []
        if chain.steady_ns() // 1_000 >= chain.due_at:
            self._come_by()
        now = chain.time_ns() // 1_000
        try:
            for layer in chain.layers:  # as in `chain.down`, without its call
                passed, token = layer.enter(passed, now)
                tokens.append(token)
            if passed:
                self._send(passed, deadline, partial(self._left, ops, tokens, done), gone)
                return
        except Exception as error:
            self._left(ops, tokens, done, error)
        else:
            self._left(ops, tokens, done, [])

    def _left(self, ops: Sequence[Op], tokens: list[Any], done: Done, outcomes: list[Outcome] | Exception) -> None:
        """Pass the outcomes up through the layers, and call `done` with the result."""
        try:
            if isinstance(outcomes, Exception):
                raise outcomes
            outcomes = self._chain.up(ops, outcomes, tokens)
        except InvalidInput as error:
            outcomes = error
        except Exception as error:
            try:
                outcomes = self._chain.stand_in(ops, error)
            except Exception as raised:
                outcomes = raised
        done(outcomes)

    async def _run(self, ops: Sequence[Op], deadline: Micros | None) -> list[Outcome]:
        """Run `ops` over a store that only has `run`."""
        chain = self._chain
        if chain.steady_ns() // 1_000 >= chain.due_at:
            self._come_by()
        now = chain.time_ns() // 1_000
        try:
            passed, tokens = chain.down(ops, now)
            return chain.up(ops, await self._store.run(passed, deadline) if passed else [], tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in(ops, error)

    async def _run_for(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        """Submit `ops` to a store that only has `run`."""
        outcomes: list[Outcome] | Exception
        try:
            outcomes = await self.run(ops, deadline)
        except Exception as error:
            outcomes = error
        done(outcomes)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def alarm(self) -> tuple[asyncio.Event, Callable[[], bool]]:
        """Return an event to wait for, and a function that sets it from any thread and returns whether it could."""
        event = asyncio.Event()
        return event, partial(_set_soon, asyncio.get_running_loop(), event)

    async def wait(self, alarm: asyncio.Event, seconds: float | None) -> bool:
        """Wait until `alarm` is set; return whether it is."""
        try:
            async with asyncio.timeout(seconds):  # not wait_for, which in Python 3.11 can swallow a cancellation
                return await alarm.wait()
        except TimeoutError:
            return False

    def sleep(self, alarm: asyncio.Event, micros: Micros) -> Awaitable[None]:
        """Wait `micros` by the clock, or until `alarm` is set."""
        return self.clock.wait_async(alarm, micros)

    async def run_due(self) -> Micros | None:
        """Run the due work of the layers. Return the instant at which more is due."""
        return await drive_async(self._running_due())

    async def finish(self) -> None:
        """Run the background work that must not be left undone, and stop deciding in this process."""
        await drive_async(self._finishing())

    def _call_after(self, after: Micros) -> None:
        self._timer.call_after(self, after)

    def _start_due(self) -> None:
        work = self._chain.begin_due()
        if work:
            self._start(drive_async(self._doing(work))).add_done_callback(partial(self._did, work))

    def _did(self, work: Work, task: asyncio.Task[None]) -> None:
        """End due work, also if its task was cancelled, even before it began."""
        self._chain.end_due(work, None if task.cancelled() else task.exception())


def _stays() -> bool:
    """Return that the caller is not gone."""
    return False


def _ignore(outcomes: list[Outcome] | Exception) -> None:
    """Take the outcomes of refunds: layers do again later what failed and can be repeated."""


def _set(event: threading.Event) -> bool:
    event.set()
    return True


def _set_soon(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> bool:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:  # the loop is closed
        return False
    return True

"""Drivers run operations through the layers and the store: one blocking, one for asyncio.

Whatever the two share is a pure function here, so that neither repeats the other: a driver is three steps, and only the
middle one waits. What the layers want done of their own accord is done beside the callers: whoever comes by when it is
due starts it, and so does the ticker; nobody waits for it.

A fault in a layer or store answers like a store that cannot: nobody is refused, or everybody, as `on_failure` says
(everybody passes where it says `local`: whoever would decide locally may be at fault). It is logged and told of, and
never raised, unless `on_failure` is None.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.engine.fail_modes import instead
from penstock.engine.protocols import AsyncStore, BoundQuota, Due, ForOne, InProcess, Layer, Local, Store, V
from penstock.engine.ticker import SOONEST, LoopTimer, call_after, ticks_by
from penstock.errors import InvalidInput, InvalidOption, StoreError, fault
from penstock.events import Hook, LayerFailed, nobody, tell
from penstock.model import Acquire, Failed, OnFailure, Op, Outcome, Posed, Verdict
from penstock.quota import Quota

if TYPE_CHECKING:
    from penstock.limiter import AsyncLimiter, Limiter

NEVER: Micros = 2**63
BUSY: Micros = 10 * SECOND
"""For how long due work that is under way keeps others from starting more: whoever does it may have been ended."""

FINISHING: Micros = SECOND
"""How long telling the store what it has to hear may take when a limiter is closed."""

LOG_EVERY: Micros = 10 * SECOND

Charged: TypeAlias = Literal["no", "unknown"]
Work: TypeAlias = list[tuple[int, Due]]
"""What layers want done, with each layer's position."""

log = logging.getLogger("penstock.drivers")


class _Chain:
    """The layers of a driver, from the caller down to the store."""

    def __init__(self, layers: Sequence[Layer], clock: Clock, on_failure: OnFailure, hook: Hook) -> None:
        self.layers = tuple(layers)
        self._upwards = tuple(reversed(self.layers))
        self.short = bool(layers) and all(isinstance(layer, ForOne) for layer in layers)
        self.clock = clock
        self._time_ns = clock.time_ns
        self._on_failure = None if on_failure == "raise" else on_failure
        self._hook = hook
        self.due_at: Micros = 0 if layers else NEVER
        self._busy_until: Micros = 0
        self.ticks = ticks_by(clock)
        self.finished = False
        self.faults = 0
        self._logged_at = -LOG_EVERY

    def now(self) -> Micros:
        return self._time_ns() // 1_000

    def down(self, ops: Sequence[Op], now: Micros, below: int = 0) -> tuple[Sequence[Op], list[Any]]:
        """What reaches the store of `ops` that enter at layer `below`, and the layers' tokens."""
        tokens = []
        for layer in self.layers[below:] if below else self.layers:
            ops, token = layer.enter(ops, now)
            tokens.append(token)
        return ops, tokens

    def up(self, outcomes: list[Outcome], tokens: list[Any]) -> list[Outcome]:
        """The outcomes as the caller sees them; there are tokens of all layers that were passed."""
        now = self._time_ns() // 1_000
        for layer in self._upwards:
            if not tokens:
                break
            outcomes = layer.leave(tokens.pop(), outcomes, now)
        return outcomes

    def down_one(self, op: Acquire, now: Micros) -> list[Any]:
        """The layers' tokens for a lone request; the last one is a verdict if it was answered."""
        tokens = []
        for layer in self.layers:
            token = layer.enter_one(op, now)  # type: ignore[attr-defined]
            tokens.append(token)
            if token.__class__ is Verdict:
                break
        return tokens

    def up_one(self, op: Acquire, outcome: Outcome, tokens: list[Any]) -> Outcome:
        """What the layers that were passed make of a refusal or failure."""
        now = self._time_ns() // 1_000
        for position in range(len(tokens) - 1, -1, -1):
            outcome = self.layers[position].leave_one(tokens[position], op, outcome, now)  # type: ignore[attr-defined]
        return outcome

    def due(self, now: Micros) -> Work:
        """The layers' own work. `due_at` is the next instant at which there may be more."""
        work = [(position, layer.due(now)) for position, layer in enumerate(self.layers)]
        self.due_at = min([due.next_at for _, due in work if due.next_at is not None], default=NEVER)
        return [(position, due) for position, due in work if due.ops]

    def begin_due(self, now: Micros) -> Work:
        """The same for somebody who passes by, unless somebody is at it. `end_due` must follow."""
        if 0 <= self._busy_until - now <= BUSY:
            return []
        try:
            work = self.due(now)
        except Exception as error:
            self.due_at = now + SECOND
            self._note(error, now)
            return []
        if work:
            self._busy_until = now + BUSY
        return work

    def is_pending(self) -> bool:
        """Whether a layer has something to say to the store before it is too late."""
        return any(getattr(layer, "pending", False) for layer in self.layers)

    def next_tick(self) -> Micros | None:
        """After how long the ticker should come by, if it should: no layer waits to be heard once all is finished."""
        if self.finished or not self.is_pending():
            return None
        return max(self.due_at - self.now(), SOONEST)

    def end_due(self, undone: Work, error: BaseException | None = None, charged: Charged = "unknown") -> None:
        """The layers hear of what is `undone`, so that it is not lost."""
        self._busy_until = 0
        failed = Failed(StoreError("not done", transient=True), charged)
        try:
            for position, due in undone:
                self.layers[position].leave(due.token, [failed] * len(due.ops), self.now())
        except Exception as fault:
            error = error or fault
        if error is not None:
            self._note(error, self.now())

    def is_in_a_hurry(self, until: Micros) -> bool:
        """Whether a layer has more to say to the store at once, and there is time for it."""
        now = self.now()
        return self.is_pending() and self.due_at <= now < until

    def stand_in(self, ops: Sequence[Op], error: Exception) -> list[Outcome]:
        """What is answered after a fault of our own; that itself is raised if there is nobody to stand in."""
        if self._on_failure is None:
            raise error
        now = self.now()
        self._note(error, now)
        failed = Failed(StoreError(f"an unexpected error ({type(error).__name__})", transient=False), "unknown")
        answers = [instead(op, now, closed=self._is_closed(op)) for op in ops]
        return [failed if answer is None else answer for answer in answers]

    def _is_closed(self, op: Op) -> bool:
        return (op.on_failure if isinstance(op, Acquire) and op.on_failure else self._on_failure) == "closed"

    def _note(self, error: BaseException, now: Micros) -> None:
        self.faults += 1
        tell(self._hook, LayerFailed("driver", type(error).__name__))
        if not 0 <= now - self._logged_at < LOG_EVERY:
            self._logged_at = now
            log.error("a fault of our own (%d so far): %s", self.faults, fault(error))


class _Layered:
    """What both engines share."""

    def __init__(
        self, store: Any, layers: Sequence[Layer], clock: Clock, on_failure: OnFailure = "raise", hook: Hook = nobody
    ) -> None:
        self.clock, self.on_failure = clock, on_failure
        self._store = store
        self._chain = _Chain(layers, clock, on_failure, hook)
        self.in_process = isinstance(store, InProcess) and not layers
        """Whether all requests are decided in this process."""
        self.decide: Decide = store.decide if self.in_process else _elsewhere
        """Decide checked asks in this process; None where that cannot be done."""

    def bind(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        """Prepare requests of one key for `quotas`, which are `Quota.parts`."""
        if self.in_process:
            return self._store.bind(quotas)  # type: ignore[no-any-return]
        local: Local | None = None
        for layer in reversed(self._chain.layers):
            local = layer.bind(quotas, local)
        return BoundQuota(quotas, local)


class Decide(Protocol):
    """Decides on all asks of a request, which have been checked, at an instant; charges all or none."""

    def __call__(self, asks: tuple[Posed, ...], now: Micros, kind: type[V], /) -> V | None: ...


def _elsewhere(asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V | None:
    return None


def clock_over(store: Store | AsyncStore, clock: Clock | None) -> Clock:
    """Return the clock by which a limiter over `store` goes."""
    if not isinstance(store, InProcess):
        return clock or SystemClock()
    if clock not in (None, store.clock):
        raise InvalidOption("clock: the store has a clock of its own (expected none, or the same one)")
    return store.clock


class Engine(_Layered):
    """Runs operations for blocking callers."""

    _store: Store

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """What the store says of `ops`, within `deadline` microseconds, through all layers."""
        chain = self._chain
        if not chain.layers:
            return self._store.run(ops, deadline)
        now = chain._time_ns() // 1_000
        if now >= chain.due_at:
            self._come_by(now)
        try:
            passed, tokens = chain.down(ops, now)
            return chain.up(self._store.run(passed, deadline) if passed else [], tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in(ops, error)

    def ask(self, op: Acquire) -> Outcome:
        """What the store says of one request, through all layers; by the short way if they have one."""
        chain = self._chain
        if not chain.short or op[1] or op[2] is not None:
            return self.run((op,))[0]
        now = chain._time_ns() // 1_000
        if now >= chain.due_at:
            self._come_by(now)
        try:
            tokens = chain.down_one(op, now)
            if tokens[-1].__class__ is Verdict:
                return chain.up_one(op, tokens.pop(), tokens)
            outcome = self._store.run((op,))[0]
            if outcome.__class__ is Verdict and outcome[0][0]:
                return outcome
            return chain.up_one(op, outcome, tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in((op,), error)[0]

    def run_due(self) -> Micros | None:
        """Do what the layers want done; the answer is when to come again."""
        chain = self._chain
        self._do(chain.due(chain.now()))
        return None if chain.due_at == NEVER else chain.due_at

    def tick(self) -> Micros | None:
        """Start what is due without a caller; the answer is after how long to do so again, if at all."""
        self._start_due(self._chain.now())
        return self._chain.next_tick()

    def finish(self) -> None:
        """Do what must not be left undone when nobody comes by any more, as far as it can be done at once."""
        self._chain.finished = True
        self.decide = _elsewhere
        with suppress(Exception):
            until = self._chain.now() + FINISHING
            if self._chain.is_pending():
                self.run_due()
            while self._chain.is_in_a_hurry(until):
                self.run_due()

    def _come_by(self, now: Micros) -> None:
        """Start what is due for a caller; the ticker sees to what is due next."""
        self._start_due(now)
        if self._chain.ticks and self._chain.due_at != NEVER:
            call_after(self, self._chain.due_at - now)

    def _start_due(self, now: Micros) -> None:
        work = self._chain.begin_due(now)
        if work:
            try:
                _thread.start_new_thread(self._do_due, (work,))
            except RuntimeError:  # no thread is left, or the interpreter is about to end
                self._chain.end_due(work, charged="no")

    def _do_due(self, work: Work) -> None:
        error = None
        try:
            self._do(work)
        except Exception as fault:
            error = fault
        self._chain.end_due(work, error)

    def _do(self, work: Work) -> None:
        """Do all of it; what is left in `work` when an error is raised was not done, or nobody knows."""
        chain = self._chain
        while work:
            position, due = work[0]
            passed, tokens = chain.down(due.ops, chain.now(), position + 1)
            outcomes = chain.up(self._store.run(passed) if passed else [], tokens)
            del work[0]
            chain.layers[position].leave(due.token, outcomes, chain.now())


class AsyncEngine(_Layered):
    """Runs operations for asyncio."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = LoopTimer()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """What the store says of `ops`, within `deadline` microseconds, through all layers; without any it is the
        store's own coroutine, a hop less.
        """
        return self._run(ops, deadline) if self._chain.layers else self._store.run(ops, deadline)

    async def _run(self, ops: Sequence[Op], deadline: Micros | None) -> list[Outcome]:
        chain = self._chain
        now = chain._time_ns() // 1_000
        if now >= chain.due_at:
            self._come_by(now)
        try:
            passed, tokens = chain.down(ops, now)
            return chain.up(await self._store.run(passed, deadline) if passed else [], tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in(ops, error)

    async def ask(self, op: Acquire) -> Outcome:
        """What the store says of one request, through all layers; by the short way if they have one."""
        chain = self._chain
        if not chain.short or op[1] or op[2] is not None:
            return (await self.run((op,)))[0]
        now = chain._time_ns() // 1_000
        if now >= chain.due_at:
            self._come_by(now)
        try:
            tokens = chain.down_one(op, now)
            if tokens[-1].__class__ is Verdict:
                return chain.up_one(op, tokens.pop(), tokens)
            outcome = (await self._store.run((op,)))[0]
            if outcome.__class__ is Verdict and outcome[0][0]:
                return outcome
            return chain.up_one(op, outcome, tokens)
        except InvalidInput:
            raise
        except Exception as error:
            return chain.stand_in((op,), error)[0]

    async def run_due(self) -> Micros | None:
        """Do what the layers want done; the answer is when to come again."""
        chain = self._chain
        await self._do(chain.due(chain.now()))
        return None if chain.due_at == NEVER else chain.due_at

    def tick(self) -> Micros | None:
        """Start what is due without a caller; the answer is after how long to do so again, if at all."""
        self._start_due(self._chain.now())
        return self._chain.next_tick()

    async def finish(self) -> None:
        """Do what must not be left undone when nobody comes by any more, as far as it can be done at once."""
        self._chain.finished = True
        self.decide = _elsewhere
        with suppress(Exception):
            until = self._chain.now() + FINISHING
            if self._chain.is_pending():
                await self.run_due()
            while self._chain.is_in_a_hurry(until):
                await self.run_due()

    def _come_by(self, now: Micros) -> None:
        """Start what is due for a caller; the ticker sees to what is due next."""
        self._start_due(now)
        if self._chain.ticks and self._chain.due_at != NEVER:
            self._timer.call_after(self, self._chain.due_at - now)

    def _start_due(self, now: Micros) -> None:
        work = self._chain.begin_due(now)
        if work:
            task = asyncio.get_running_loop().create_task(self._do(work))
            self._tasks.add(task)
            task.add_done_callback(partial(self._did, work))

    def _did(self, work: Work, task: asyncio.Task[None]) -> None:
        """Also if it was cancelled, even before it began."""
        self._tasks.discard(task)
        self._chain.end_due(work, None if task.cancelled() else task.exception())

    async def _do(self, work: Work) -> None:
        """Do all of it; what is left in `work` when an error is raised was not done, or nobody knows."""
        chain = self._chain
        while work:
            position, due = work[0]
            passed, tokens = chain.down(due.ops, chain.now(), position + 1)
            outcomes = chain.up(await self._store.run(passed) if passed else [], tokens)
            del work[0]
            chain.layers[position].leave(due.token, outcomes, chain.now())


# ---------------------------------------------------------------- running


# How operations are run for whoever answers calls: at once where the store is in this process, else soon.
#
# A handler never waits. It hands operations over, with what is to be done with their outcomes: over memory that is done
# before `run` returns, over a shared store when the store has answered.


Done: TypeAlias = Callable[[list[Outcome]], None]


class Runner(Protocol):
    """Runs operations as one batch: `done` gets one outcome per operation, in their order, and must not raise."""

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None: ...


class Now:
    """Over a store that answers without waiting. `bind` makes the store's own way to ask a single quota, if it has one:
    a fifth of what an operation costs.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._run = limiter.engine.run
        self.bind = limiter.engine.bind if limiter.engine.in_process else None

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        done(self._run(ops, deadline))


class Soon:
    """Over a store that has to be waited for."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._run = limiter.engine.run
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._await(ops, deadline, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        outcomes: list[Outcome]
        try:
            outcomes = await self._run(ops, deadline)
        except Exception as error:  # a fault of our own: whoever waits must hear of it
            outcomes = [Failed(StoreError(f"an unexpected error ({type(error).__name__})", transient=False), "unknown")]
            outcomes *= len(ops)
        done(outcomes)

"""The layers of an engine: batches on their way through them, and their background work. No I/O.

An internal error in a layer or store is logged and reported, and answered as `on_failure` says: with "closed" the
requests are refused, with "open" they pass. With "local" they pass too, because the layer that decides locally may be
the one that failed. Only with "raise" is the error raised. An exception of a signal handler is no
internal error, and passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from penstock.clock import SECOND, Clock, Micros, steady_ns_of
from penstock.engine.fail_modes import instead
from penstock.engine.protocols import Due, Layer
from penstock.engine.ticker import SOONEST, ticks_by
from penstock.errors import StoreError, fault, is_from_signal_handler
from penstock.events import Hook, LayerFailed, tell
from penstock.model import Acquire, Failed, OnFailure, Op, Outcome, Verdict

NEVER: Micros = 2**63
BUSY: Micros = 10 * SECOND
"""How long work under way keeps more from being started; after that, its thread or task is taken for dead."""

LOG_EVERY: Micros = 10 * SECOND

Charged: TypeAlias = Literal["no", "unknown"]
Work: TypeAlias = list[tuple[int, Due]]
"""The due work of layers, with the position of each."""

log = logging.getLogger("penstock.drivers")


class Chain:
    """The layers of an engine."""

    def __init__(self, layers: Sequence[Layer], clock: Clock, on_failure: OnFailure, hook: Hook) -> None:
        self.layers = tuple(layers)
        self._upwards = tuple(reversed(self.layers))
        self._ignores_admissions = all([getattr(layer, "ignores_admissions", False) for layer in layers])  # noqa: C419
        self.time_ns, self.steady_ns = clock.time_ns, steady_ns_of(clock)
        self._on_failure, self._hook = on_failure, hook
        self.due_at: Micros = 0 if layers else NEVER
        self._busy_until: Micros = 0
        self.ticks = ticks_by(clock)
        self.finished = False
        self.faults = 0
        self._logged_at = -LOG_EVERY

    def now(self) -> Micros:
        return self.time_ns() // 1_000

    def steady(self) -> Micros:
        """Return the time by which intervals are measured: stepping the clock back delays no work."""
        return self.steady_ns() // 1_000

    # A batch

    def down(self, ops: Sequence[Op], now: Micros, below: int = 0) -> tuple[Sequence[Op], list[Any]]:
        """Pass `ops` through the layers from number `below` on; return what is left for the store, and their tokens."""
        tokens = []
        for layer in self.layers[below:] if below else self.layers:
            ops, token = layer.enter(ops, now)
            tokens.append(token)
        return ops, tokens

    def up(self, ops: Sequence[Op], outcomes: list[Outcome], tokens: list[Any]) -> list[Outcome]:
        """Return the outcomes of `ops` as the layers leave them to the caller; `tokens` are what `down` returned."""
        if len(ops) == 1 and len(outcomes) == 1 and self._ignores_admissions:
            (outcome,) = outcomes
            if outcome.__class__ is Verdict and outcome[0][0]:
                return outcomes
        now = self.time_ns() // 1_000
        for layer in self._upwards:
            if not tokens:
                break
            outcomes = layer.leave(tokens.pop(), outcomes, now)
        return outcomes

    def stand_in(self, ops: Sequence[Op], error: Exception) -> list[Outcome]:
        """Return the outcomes after an internal error; raise it if `on_failure` is "raise"."""
        if self._on_failure == "raise":
            raise error
        now = self.now()
        self._note(error)
        failed = Failed(StoreError(f"an unexpected error ({type(error).__name__})", transient=False), "unknown")
        answers = [instead(op, now, closed=self._is_closed(op)) for op in ops]
        return [failed if answer is None else answer for answer in answers]

    def _is_closed(self, op: Op) -> bool:
        return (op.on_failure if isinstance(op, Acquire) and op.on_failure else self._on_failure) == "closed"

    def _note(self, error: BaseException) -> None:
        """Report an internal error; raise it if it is none."""
        if is_from_signal_handler(error):
            raise error
        self.faults += 1
        tell(self._hook, LayerFailed("driver", type(error).__name__))
        now = self.steady()
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.error("an internal error (%d so far): %s", self.faults, fault(error))

    # Background work of the layers

    def due(self) -> Work:
        """Return the due work, and set `due_at` to the next steady instant at which there may be more."""
        now, steady = self.now(), self.steady()
        work = [(position, self._due_of(layer, now)) for position, layer in enumerate(self.layers)]
        pauses = [due.next_at - now for _, due in work if due.next_at is not None]
        self.due_at = steady + min(pauses) if pauses else NEVER
        return [(position, due) for position, due in work if due.ops]

    def _due_of(self, layer: Layer, now: Micros) -> Due:
        """Return the due work of a layer; an error costs the other layers nothing."""
        try:
            return layer.due(now)
        except Exception as error:
            self._note(error)
            return Due(next_at=now + SECOND)

    def begin_due(self) -> Work:
        """Return the due work, unless some is under way. The caller starts it, and `end_due` must follow."""
        if self.steady() < self._busy_until:
            return []
        work = self.due()
        if work:
            self._busy_until = self.steady() + BUSY
        return work

    def end_due(self, undone: Work, error: BaseException | None = None, charged: Charged = "unknown") -> None:
        """End due work. Its layers receive what is `undone` as failed, so that nothing is lost."""
        self._busy_until = 0
        failed = Failed(StoreError("not done", transient=True), charged)
        try:
            for position, due in undone:
                self.layers[position].leave(due.token, [failed] * len(due.ops), self.now())
        except Exception as fault:
            error = error or fault
        if error is not None:
            self._note(error)

    def is_pending(self) -> bool:
        """Return whether a layer has something that the store still has to receive."""
        for layer in self.layers:
            try:
                if getattr(layer, "pending", False):
                    return True
            except Exception as error:  # must not end the thread of the ticker, which all engines share
                self._note(error)
        return False

    def is_in_a_hurry(self, until: Micros) -> bool:
        """Return whether a layer has more work due now, and `until` has not passed."""
        return self.is_pending() and self.due_at <= self.steady() < until

    def next_tick(self) -> Micros | None:
        """Return after how long the ticker has to call again; None if that is not needed."""
        if self.finished or not self.is_pending():
            return None
        return max(self.due_at - self.steady(), SOONEST)

"""Batch: the operations of many calls, sent to the store together.

    batch = Batch(engine, observer)
    batch.add((op,), deadline, then)       # once for each call
    batch.run()

`run` hands the operations to the engine, one group for each deadline, so that the short deadline of one call does not
apply to others. `then` receives the outcomes of its own operations: before `run` returns if the store is in this
process, else when the store has replied. `run` never waits: calls read in one turn of the event loop are sent in it.

The observer is called once for the decisions made in this process, and once for each group.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from penstock.clock import SECOND, Micros, monotonic
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.protocols import Observer, Unobserved
from penstock.errors import StoreError, fault
from penstock.model import Failed, Op, Outcome, Verdict

log = logging.getLogger("penstock.service")

RESERVE: Micros = 1_000
"""Reserved from the time of a call for sending the reply."""

STEP: Micros = 1_000
"""Deadlines of callers are rounded down to a multiple of this, so that a batch has few groups."""

INTERNAL_FAILURE = Failed(StoreError("an internal error", transient=False), "unknown")
"""The outcome of operations whose reply failed with an internal error."""

Then: TypeAlias = Callable[[Sequence[Outcome]], None]
"""Receives the outcomes of the operations that were added with it."""


class Batch:
    """The operations of a batch of calls, and what the observer has yet to receive.

    - `decided`: verdicts.
    - `statuses`: statuses of replies, by route.
    """

    __slots__ = ("_began", "_engine", "_groups", "_observer", "_sent", "decided", "statuses")

    def __init__(self, engine: Engine | AsyncEngine, observer: Observer) -> None:
        self._engine = engine
        self._observer = None if observer.__class__ is Unobserved else observer
        self._began = self._sent = monotonic()
        self._groups: dict[Micros, tuple[list[Op], list[tuple[Then, int]]]] = {}
        self.decided: list[Verdict] = []
        self.statuses: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, ops: Sequence[Op], deadline: Micros, then: Then) -> None:
        """Add `ops` to the batch; the store may take `deadline` microseconds, and `then` receives the outcomes."""
        group = self._groups.get(deadline)
        if group is None:
            group = self._groups[deadline] = ([], [])
        group[0].extend(ops)
        group[1].append((then, len(ops)))

    def run(self) -> None:
        """Send the operations, and report the calls that were decided in this process."""
        if self._observer is not None and (self.decided or self.statuses):
            now = monotonic()
            self._report(now, now)
        if self._groups:
            groups, self._groups = self._groups, {}
            self._sent = monotonic()
            for deadline, (ops, parts) in groups.items():
                self._engine.submit(ops, deadline, partial(self._done, parts))

    def _done(self, parts: Sequence[tuple[Then, int]], outcomes: list[Outcome] | Exception) -> None:
        decided_at = monotonic()
        if isinstance(outcomes, Exception):
            error = StoreError(f"an internal error ({type(outcomes).__name__})", transient=False)
            outcomes = [Failed(error, "unknown")] * sum([number for _, number in parts])
        at = 0
        for then, number in parts:
            try:
                then(outcomes[at : at + number])
            except Exception as error:  # the other calls need their replies, and so does this one
                log.error("an internal error while answering: %s", fault(error))
                with suppress(Exception):
                    then([INTERNAL_FAILURE] * number)
            at += number
        if self._observer is not None:
            self._report(decided_at, monotonic())

    def _report(self, decided_at: float, now: float) -> None:
        """Report the decisions and answers since the last report. An error costs no caller its answer."""
        observer: Any = self._observer
        decided, self.decided = self.decided, []
        answered, self.statuses = self.statuses, defaultdict(list)
        try:
            if decided:
                observer.decided(decided, round((decided_at - self._sent) * SECOND))
            took = round((now - self._began) * SECOND)
            for route, statuses in answered.items():
                observer.answered(route, statuses, took)
        except Exception as error:
            log.error("an internal error while reporting: %s", fault(error))


class Gather:
    """Collects the results of several parts. With the last one, `done` receives all of them in order."""

    __slots__ = ("_done", "_missing", "_results")

    def __init__(self, parts: int, done: Callable[[list[Any]], None]) -> None:
        self._results: list[Any] = [None] * parts
        self._missing, self._done = parts, done
        if not parts:
            done(self._results)

    def put(self, position: int, result: Any) -> None:
        """Record the result of a part. After `done` has failed, a part may be put again; the later result counts."""
        self._results[position] = result
        self._missing -= 1
        if self._missing <= 0:
            self._done(self._results)


def time_left(budget: Micros, expires: float | None) -> Micros:
    """Return how long the store may take: `budget`, or less if the caller gives up before, at `expires`."""
    if expires is None:
        return budget
    left = round((expires - monotonic()) * SECOND) - RESERVE
    return budget if left >= budget else max(left - left % STEP, STEP)

"""Batch: operations of many calls, which go to the store together.

    batch = Batch(engine, observer)
    batch.add((op,), deadline, then)       # as often as there are requests
    batch.run()

`run` hands the operations to the engine, one group for each deadline, so that a short deadline of one caller does not
shorten those of others. `then` receives the outcomes of its own operations: over memory before `run` returns, over a
shared store when it has replied. `run` never waits, so the calls that were read in one turn of the event loop are sent
to the store in the same turn.

The observer is called once for the decisions in this process, and once for each group.
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
"""The part of a caller's time that is kept for sending the answer."""

STEP: Micros = 1_000
"""Deadlines of callers are rounded down to multiples of this, so that few of them differ."""

INTERNAL_FAILURE = Failed(StoreError("an internal error", transient=False), "unknown")
"""The outcome of operations whose answer could not be made."""

Then: TypeAlias = Callable[[Sequence[Outcome]], None]
"""Receives the outcomes of the operations that were added with it."""


class Batch:
    """The operations of a batch of calls, and their results for the observer.

    - `decided`: verdicts that were not reported yet.
    - `statuses`: statuses of answers that were not reported yet, by route.
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
        """Run `ops` with the batch; the store may take `deadline` microseconds."""
        group = self._groups.get(deadline)
        if group is None:
            group = self._groups[deadline] = ([], [])
        group[0].extend(ops)
        group[1].append((then, len(ops)))

    def run(self) -> None:
        """Send the operations, and report the calls that were answered without the store."""
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
            except Exception as error:  # must keep neither the others from their answers, nor this caller waiting
                log.error("an internal error while answering: %s", fault(error))
                with suppress(Exception):
                    then([INTERNAL_FAILURE] * number)
            at += number
        if self._observer is not None:
            self._report(decided_at, monotonic())

    def _report(self, decided_at: float, now: float) -> None:
        """Report the decisions and answers since the last report."""
        observer: Any = self._observer
        if self.decided:
            decided, self.decided = self.decided, []
            observer.decided(decided, round((decided_at - self._sent) * SECOND))
        took = round((now - self._began) * SECOND)
        for route, statuses in self.statuses.items():
            observer.answered(route, statuses, took)
        self.statuses.clear()


class Gather:
    """Results that belong together and come one by one: `done` receives all of them, in order, with the last."""

    __slots__ = ("_done", "_missing", "_results")

    def __init__(self, parts: int, done: Callable[[list[Any]], None]) -> None:
        self._results: list[Any] = [None] * parts
        self._missing, self._done = parts, done
        if not parts:
            done(self._results)

    def put(self, position: int, result: Any) -> None:
        """Take the result of a part. A part that comes again, because `done` failed, replaces the first."""
        self._results[position] = result
        self._missing -= 1
        if self._missing <= 0:
            self._done(self._results)


def time_left(budget: Micros, expires: float | None) -> Micros:
    """Return how long the store may take: `budget`, but no longer than a caller waits that gives up at `expires`."""
    if expires is None:
        return budget
    left = round((expires - monotonic()) * SECOND) - RESERVE
    return budget if left >= budget else max(left - left % STEP, STEP)

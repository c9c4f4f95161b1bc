"""A long line of waiters on one key: in which order they are admitted, and how often the store is asked.

Only the head of a line asks. So an admission takes one call, and one more for each time the head had to sleep and ask
again; N waiters that all asked would take N² / 2. Time is a `ManualClock`: whoever waits moves it, and nobody sleeps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bench.measure import FULL, Effort
from bench.report import Figure, Report, Table, Target
from penstock import AsyncLimiter, Limiter, ManualClock
from penstock.clock import Micros
from penstock.model import Op, Outcome
from penstock.stores.memory.store import MemoryStore

CALLS = Target("store calls of a line of waiters, against one per admission and one per wake-up", bar=1, at_least=False)
ORDER = Target("waiters admitted before somebody who came earlier", bar=0, unit="waiters", at_least=False)
WAITERS = 10_000
FEW_WAITERS = 500
"""For a quick look, and for threads: a machine has better uses for ten thousand of them."""

KEY = "crawler"
QUOTAS = ("100/second gcra burst 1", "100/second fixed_window", "100/second queue 9")


class CountingClock(ManualClock):
    """A clock that knows how often somebody slept."""

    sleeps = 0

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        self.sleeps += 1
        super().wait(woken, micros)

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        self.sleeps += 1
        await super().wait_async(woken, micros)


class CountingStore:
    """A store without short cuts, which counts its calls; shut until everybody stands in line."""

    def __init__(self, clock: ManualClock) -> None:
        self._inner = MemoryStore(clock=clock)
        self.calls = 0
        self.open = threading.Event()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.open.wait()
        self.calls += 1
        return self._inner.run(ops, deadline)

    def close(self) -> None:
        self._inner.close()


class AsyncCountingStore:
    """The same for asyncio, where every call lets others run first."""

    def __init__(self, store: CountingStore) -> None:
        self._store = store

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        await asyncio.sleep(0)
        return self._store.run(ops, deadline)

    async def close(self) -> None:
        self._store.close()


class Admitted(NamedTuple):
    """Who was admitted, by number in line, and whether there was a delay to sit out after leaving it."""

    number: int
    delayed: bool


class Line(NamedTuple):
    """How it went."""

    admitted: Sequence[Admitted]
    calls: int
    sleeps: int
    cpu_us: float

    @property
    def wake_ups(self) -> int:
        """How often the head of the line slept before asking again."""
        return self.sleeps - sum(one.delayed for one in self.admitted)

    @property
    def out_of_order(self) -> int:
        return sum(later.number < earlier.number for earlier, later in pairwise(self.admitted))


def measure(effort: Effort) -> Report:
    report = Report()
    full = effort.calls >= FULL.calls
    rows: list[list[str]] = []
    for name, line_up, waiters in (
        ("AsyncLimiter", _tasks, WAITERS if full else FEW_WAITERS),
        ("Limiter", _threads, FEW_WAITERS),
    ):
        rows += [_row(name, quota, waiters, line_up(waiters, quota), report) for quota in QUOTAS]
    columns = [
        "limiter",
        "quota",
        "waiters",
        "calls per admission",
        "wake-ups",
        "÷ (admissions + wake-ups)",
        "out of order",
        "CPU µs per admission",
    ]
    notes = [
        f"{WAITERS:,} tasks, or {FEW_WAITERS} threads, that wait for one key.",
        "In a queue whoever is admitted has a delay to sit out, but has left the line by then.",
    ]
    report.tables.append(Table("Waiting in line", columns, rows, notes))
    return report


def _row(name: str, quota: str, waiters: int, line: Line, report: Report) -> list[str]:
    ratio = line.calls / (len(line.admitted) + line.wake_ups)
    report.figures.append(Figure(CALLS, f"{name}, {quota}", ratio))
    report.figures.append(Figure(ORDER, f"{name}, {quota}", line.out_of_order))
    return [
        name,
        quota,
        f"{waiters:,}",
        f"{line.calls / len(line.admitted):.2f}",
        f"{line.wake_ups:,}",
        CALLS.verdict(ratio),
        ORDER.verdict(line.out_of_order),
        f"{line.cpu_us / waiters:.0f}",
    ]


def _tasks(waiters: int, quota: str) -> Line:
    clock = CountingClock()
    store = CountingStore(clock)
    store.open.set()
    limiter = AsyncLimiter(AsyncCountingStore(store), clock=clock, layers=())
    admitted: list[Admitted] = []

    async def wait(number: int) -> None:
        verdict = await limiter.wait(KEY, quota)
        if verdict:
            admitted.append(Admitted(number, delayed=verdict.delay_us > 0))

    async def all_wait() -> None:
        await asyncio.gather(*(wait(number) for number in range(waiters)))

    return _timed(lambda: asyncio.run(all_wait()), admitted, store, clock)


def _threads(waiters: int, quota: str) -> Line:
    clock = CountingClock()
    store = CountingStore(clock)
    limiter = Limiter(store, clock=clock, layers=())
    admitted: list[Admitted] = []

    def wait(number: int) -> None:
        verdict = limiter.wait(KEY, quota)
        if verdict:
            admitted.append(Admitted(number, delayed=verdict.delay_us > 0))

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(waiters)]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        while sum(map(len, limiter.operations.queues._lines.values())) < number:  # who starts first shall stand first
            time.sleep(0)

    def admit_all() -> None:
        store.open.set()
        for thread in threads:
            thread.join()

    return _timed(admit_all, admitted, store, clock)


def _timed(work: Callable[[], None], admitted: list[Admitted], store: CountingStore, clock: CountingClock) -> Line:
    start = time.process_time_ns()
    work()
    return Line(admitted, store.calls, clock.sleeps, (time.process_time_ns() - start) / 1_000)

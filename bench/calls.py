"""The same decision asked in other ways: in batches, awaited, with several quotas, with a quota as text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bench.contenders import DAY, ROOM, asking
from bench.keys import batches_of, keys, shuffled, visits
from bench.measure import Effort, Run, Visit, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import AsyncLimiter, Limiter, Quota
from penstock.engine.operations import Request
from penstock.stores.memory.store import AsyncMemoryStore, MemoryStore

BATCH = 64
NOT_DEARER = Target(f"cost of acquire_many of {BATCH} per decision, against single calls", bar=1.0, at_least=False)
TEXT = "1000000/day"
QUOTA = Quota.parse(TEXT)
TWO = (QUOTA, Quota(1_000_000, DAY, "gcra"))

Batch = list[Request]


def measure(effort: Effort) -> Report:
    report = Report()
    for count in (BATCH, effort.many_keys):
        runs = _ways(count, effort)
        spreads = interleaved(list(runs.values()), effort.rounds)
        single, batch = (spread.median for spread in spreads[:2])
        rows = [
            [name, str(spread), f"{spread.median / single:.2f} x"] for name, spread in zip(runs, spreads, strict=True)
        ]
        rows[1][2] = NOT_DEARER.verdict(batch / single)
        columns = ["CPU ns per request", f"{count:,} keys", "÷ single call"]
        notes = ["sliding_window, allowed; keys and batches are prepared before. The second of two quotas is gcra."]
        report.tables.append(Table(f"Ways of asking, {count:,} keys", columns, rows, notes))
        report.figures.append(Figure(NOT_DEARER, f"{count:,} keys", batch / single))
    return report


def _ways(count: int, effort: Effort) -> dict[str, Run]:
    turns = visits(shuffled(keys(count)), effort.rounds, effort.calls // BATCH * BATCH)
    batches: list[list[Batch]] = [
        [[(key, QUOTA) for key in batch] for batch in batches_of(BATCH, turn)] for turn in turns
    ]
    stores = [MemoryStore(max_keys=ROOM) for _ in range(5)]
    ask = asking(Limiter(stores[0]), QUOTA)
    ask_many = _asking_many(Limiter(stores[1]))
    await_each = _awaiting(AsyncLimiter(AsyncMemoryStore(stores[2])))
    ask_as_text = asking(Limiter(stores[3]), TEXT)
    ask_two = asking(Limiter(stores[4]), TWO)
    for visit in (*(asking(Limiter(store), QUOTA) for store in stores[:4]), ask_two):
        visit(keys(count))
    return {
        "acquire(key, quota)": cpu_ns_of_each(ask, turns),
        f"acquire_many of {BATCH}": cpu_ns_of_each(ask_many, batches, per_turn=BATCH),
        "await AsyncLimiter.acquire(key, quota)": cpu_ns_of_each(await_each, turns),
        f'acquire(key, "{TEXT}")': cpu_ns_of_each(ask_as_text, turns),
        "acquire(key, (quota, quota))": cpu_ns_of_each(ask_two, turns),
    }


def _asking_many(limiter: Limiter) -> Callable[[Iterable[Batch]], None]:
    acquire_many = limiter.acquire_many

    def visit(batches: Iterable[Batch]) -> None:
        for batch in batches:
            acquire_many(batch)

    return visit


def _awaiting(limiter: AsyncLimiter) -> Visit:
    runner = asyncio.Runner()
    acquire = limiter.acquire

    async def ask_for_all(some: Iterable[str]) -> None:
        for key in some:
            await acquire(key, QUOTA)

    return lambda some: runner.run(ask_for_all(some))

"""What it costs to hold a place and give it back, and to settle a reservation, against a plain acquire."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from bench.contenders import DAY, ROOM, asking
from bench.keys import keys, shuffled, visits
from bench.measure import Effort, Run, Spread, cpu_ns, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import AsyncLimiter, Limiter, Quota, Verdict
from penstock.stores.memory.store import AsyncMemoryStore, MemoryStore

HOLD = Target("hold + release, against an acquire", bar=3, at_least=False)
SETTLE = Target("settle, against an acquire", bar=2, at_least=False)
RATE = Quota(1_000_000, DAY)
PLACES = Quota(10, 60, "concurrency")
ESTIMATE = 5
FEW_KEYS = 64

TARGETS = {"hold + release": HOLD, "settle for less": SETTLE, "settle for more": SETTLE}


def measure(effort: Effort) -> Report:
    report = Report()
    for count in (FEW_KEYS, effort.many_keys):
        rows = []
        for limiter, ways in (("Limiter", _blocking(count, effort)), ("AsyncLimiter", _awaited(count, effort))):
            spreads = dict(zip(ways, interleaved(list(ways.values()), effort.rounds), strict=True))
            rows += _rows(f"{limiter}, {count:,} keys", spreads, report)
        columns = ["CPU ns per call", "", f"{count:,} keys", "÷ acquire"]
        notes = [
            "acquire: sliding_window, allowed. hold + release: `with limiter.hold(...)`, and the object in between.",
            "Keys are known before the rounds, but not to hold and the second acquire: of many, most are new to them.",
            "reserve: an acquire with an id of its own, which leaves a record.",
            "What a settlement settles was reserved before, untimed; in reserve + settle it is timed.",
        ]
        report.tables.append(Table(f"Holding and settling, {count:,} keys", columns, rows, notes))
    return report


def _rows(limiter: str, spreads: dict[str, Spread], report: Report) -> list[list[str]]:
    acquire = spreads["acquire"].median
    rows = []
    for way, spread in spreads.items():
        ratio, target = spread.median / acquire, TARGETS.get(way)
        rows.append([limiter, way, str(spread), f"{ratio:.2f} x" if target is None else target.verdict(ratio)])
        if target is not None:
            report.figures.append(Figure(target, f"{limiter}, {way}", ratio))
    return rows


def _turns(count: int, effort: Effort) -> list[list[str]]:
    return visits(shuffled(keys(count)), effort.rounds, effort.calls)


def _blocking(count: int, effort: Effort) -> dict[str, Run]:
    turns = _turns(count, effort)
    rates, fresh, places, once, reserving, less, more = (Limiter(MemoryStore(max_keys=ROOM)) for _ in range(7))
    for limiter in (rates, once, reserving, less, more):
        asking(limiter, RATE)(keys(count))

    def hold_each(some: Iterable[str]) -> None:
        for key in some:
            with places.hold(key, PLACES):
                pass

    def reserve_each(some: Iterable[str]) -> None:
        for key in some:
            once.reserve(key, RATE, cost=ESTIMATE)

    def settle_own(some: Iterable[str]) -> None:
        for key in some:
            with reserving.reserve(key, RATE, cost=ESTIMATE) as reservation:
                reservation.settle(1)

    def reserved(limiter: Limiter, some: Iterable[str]) -> list[Verdict]:
        return [limiter.reserve(key, RATE, cost=ESTIMATE).verdict for key in some]

    def settle_each(limiter: Limiter, units: int) -> Run:
        def visit(verdicts: Collection[Verdict]) -> None:
            for verdict in verdicts:
                limiter.settle(verdict, units)

        return lambda number: cpu_ns(visit, reserved(limiter, turns[number]))

    return {
        "acquire": cpu_ns_of_each(asking(rates, RATE), turns),
        "acquire, keys not known before": cpu_ns_of_each(asking(fresh, RATE), turns),
        "hold + release": cpu_ns_of_each(hold_each, turns),
        "reserve": cpu_ns_of_each(reserve_each, turns),
        "reserve + settle": cpu_ns_of_each(settle_own, turns),
        "settle for less": settle_each(less, ESTIMATE - 1),
        "settle for more": settle_each(more, ESTIMATE + 1),
    }


def _awaited(count: int, effort: Effort) -> dict[str, Run]:
    turns = _turns(count, effort)
    runner = asyncio.Runner()
    rates, places, once, less, more = (AsyncLimiter(AsyncMemoryStore(MemoryStore(max_keys=ROOM))) for _ in range(5))

    async def acquire_each(limiter: AsyncLimiter, some: Iterable[str]) -> None:
        for key in some:
            await limiter.acquire(key, RATE)

    for limiter in (rates, once, less, more):
        runner.run(acquire_each(limiter, keys(count)))

    async def hold_each(some: Iterable[str]) -> None:
        for key in some:
            async with places.hold(key, PLACES):
                pass

    async def reserve_each(some: Iterable[str]) -> None:
        for key in some:
            await once.reserve(key, RATE, cost=ESTIMATE)

    async def reserved(limiter: AsyncLimiter, some: Iterable[str]) -> list[Verdict]:
        return [(await limiter.reserve(key, RATE, cost=ESTIMATE)).verdict for key in some]

    def settle_each(limiter: AsyncLimiter, units: int) -> Run:
        async def settle(verdicts: Iterable[Verdict]) -> None:
            for verdict in verdicts:
                await limiter.settle(verdict, units)

        return lambda number: cpu_ns(
            lambda verdicts: runner.run(settle(verdicts)), runner.run(reserved(limiter, turns[number]))
        )

    return {
        "acquire": cpu_ns_of_each(lambda some: runner.run(acquire_each(rates, some)), turns),
        "hold + release": cpu_ns_of_each(lambda some: runner.run(hold_each(some)), turns),
        "reserve": cpu_ns_of_each(lambda some: runner.run(reserve_each(some)), turns),
        "settle for less": settle_each(less, ESTIMATE - 1),
        "settle for more": settle_each(more, ESTIMATE + 1),
    }

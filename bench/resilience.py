"""What resilience costs when all is well, and what it saves when a key is over its limit.

The price of layers and guard is measured over a store that answers at once, because beside a server's answer it would
drown in noise. What a repeated refusal saves is measured on a real server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from bench.keys import batches_of, keys, visits
from bench.measure import Effort, Run, Spread, cpu_ns_of_each, interleaved
from bench.redis_rig import a_server, described, together
from bench.report import Figure, Report, Table, Target
from penstock import AsyncLimiter, Limiter, Quota, Verdict
from penstock.clock import Micros, monotonic
from penstock.engine.breaker import Limits
from penstock.model import Acquire, Op, Outcome
from penstock.stores.redis.guard import RedisGuard

BATCH = 64
QUOTA = Quota.parse("1000000/day fixed_window")
LIMIT = 100
SCARCE = Quota.parse(f"{LIMIT}/day fixed_window")

LONE = Target("layers and guard, one decision", bar=2_000, unit="ns", at_least=False)
BATCHED = Target(f"layers and guard, per decision in batches of {BATCH}", bar=400, unit="ns", at_least=False)
DENIED = Target("a hot key at ten times its limit: decisions/s with the deny cache, against without", bar=20)
ASKED = Target("the same: calls of the store per second", bar=1.1, unit="", at_least=False)


class AtOnce:
    """A store that says yes, at once."""

    def __init__(self) -> None:
        self._yes = Verdict(((True, 9, 0, 0, 0, 0, 5), 1, "k", QUOTA, 1, ()))
        self.asked = 0

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.asked += 1
        return [self._yes] * len(ops)

    def close(self) -> None:
        """Nothing to give back."""


class AwaitedAtOnce(AtOnce):
    """The same for asyncio."""

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:  # type: ignore[override]
        return [self._yes] * len(ops)

    async def close(self) -> None:  # type: ignore[override]
        """Nothing to give back."""


def measure(effort: Effort) -> Report:
    report = Report()
    _price(effort, report)
    _denied(effort, report)
    return report


def _price(effort: Effort, report: Report) -> None:
    turns = visits(keys(1_000), effort.rounds, effort.calls // BATCH * BATCH)
    batches = [[[(key, QUOTA) for key in batch] for batch in batches_of(BATCH, turn)] for turn in turns]
    guard = RedisGuard("nowhere", Limits(), 1_000, lambda event: None)
    runs: dict[str, Run] = {}
    for name, options in {"bare": {"layers": ()}, "with layers": {}}.items():
        blocking = Limiter(AtOnce(), **options)  # type: ignore[arg-type]
        runs[f"acquire, {name}"] = cpu_ns_of_each(_asking(blocking), turns)
        awaited = AsyncLimiter(AwaitedAtOnce(), **options)  # type: ignore[arg-type]
        runs[f"await acquire, {name}"] = cpu_ns_of_each(_awaiting(awaited), turns)
        runs[f"acquire_many of {BATCH}, {name}"] = cpu_ns_of_each(_asking_many(blocking), batches, per_turn=BATCH)
    runs["guard, per call of the server"] = cpu_ns_of_each(_guarding(guard), turns)
    spreads = dict(zip(runs, interleaved(list(runs.values()), effort.rounds), strict=True))
    of_guard = spreads["guard, per call of the server"].median
    rows = [[name, str(spread)] for name, spread in spreads.items()]
    for way, target, share in (
        ("acquire", LONE, 1),
        ("await acquire", LONE, 1),
        (f"acquire_many of {BATCH}", BATCHED, BATCH),
    ):
        price = spreads[f"{way}, with layers"].median - spreads[f"{way}, bare"].median + of_guard / share
        rows.append([f"→ layers and guard, {way}", target.verdict(price)])
        report.figures.append(Figure(target, way, price))
    notes = ["A store that answers at once; 1,000 keys, all admitted. Deny cache, fallback, breaker."]
    report.tables.append(Table("What resilience costs when all is well", ["CPU ns per decision", ""], rows, notes))


def _denied(effort: Effort, report: Report) -> None:
    rows = []
    with a_server(together()) as server:
        url = f"{server.url}?secret=of-the-bench&deadline=5"
        with Limiter(url, layers=()) as bare, Limiter(url) as cached:
            runs = [_hammering(limiter, effort.seconds) for limiter in (bare, cached)]
            without, with_cache = interleaved(runs, effort.rounds)
            calls = _calls_per_second(cached, max(2.0, effort.seconds))
        gain = with_cache.median / without.median
        rows = [
            ["asking each time", _per_second(without)],
            ["with the deny cache", _per_second(with_cache)],
            ["→ gain", DENIED.verdict(gain)],
            ["→ calls of the store per second", ASKED.verdict(calls)],
        ]
        notes = [f"{described(server)}; one thread, on the server's core, one key far over its limit."]
        report.tables.append(Table("A hot key that is refused", ["decisions/s", ""], rows, notes))
    report.figures.append(Figure(DENIED, "blocking", gain))
    report.figures.append(Figure(ASKED, "one process and key", calls))


def _per_second(spread: Spread) -> str:
    return f"{spread.median:,.0f} [{spread.low:,.0f}..{spread.high:,.0f}]"


def _hammering(limiter: Limiter, seconds: float) -> Run:
    for _ in range(LIMIT):
        limiter.acquire("hot", SCARCE)

    def run(number: int) -> float:
        asked, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for _ in range(100):
                limiter.acquire("hot", SCARCE)
            asked += 100
        return asked / spent

    return run


def _calls_per_second(limiter: Limiter, seconds: float) -> float:
    """How often the store is asked about a key that is refused all the while."""
    store, asked = limiter.store, 0
    run = store.run

    def counted(ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        nonlocal asked
        asked += len([op for op in ops if isinstance(op, Acquire) and op.asks[0].key == "hot"])
        return run(ops, deadline)

    store.run = counted  # type: ignore[method-assign]
    _hammering(limiter, seconds)(0)
    return asked / seconds


def _asking(limiter: Limiter) -> Callable[[Collection[str]], None]:
    acquire = limiter.acquire

    def visit(some: Collection[str]) -> None:
        for key in some:
            acquire(key, QUOTA)

    return visit


def _asking_many(limiter: Limiter) -> Callable[[Collection[list[tuple[str, Quota]]]], None]:
    def visit(batches: Collection[list[tuple[str, Quota]]]) -> None:
        for batch in batches:
            limiter.acquire_many(batch)

    return visit


def _awaiting(limiter: AsyncLimiter) -> Callable[[Collection[str]], None]:
    runner = asyncio.Runner()
    acquire = limiter.acquire

    async def ask_for_all(some: Collection[str]) -> None:
        for key in some:
            await acquire(key, QUOTA)

    return lambda some: runner.run(ask_for_all(some))


def _guarding(guard: RedisGuard) -> Callable[[Collection[str]], None]:
    def visit(some: Collection[str]) -> None:
        for _ in some:
            began = monotonic()
            if not guard.shut:
                guard.replied(began, b"")

    return visit

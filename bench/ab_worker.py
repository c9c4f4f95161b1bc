"""One build of Penstock, measured once: `python -m bench.ab_worker BUILD REDIS_URL FIGURE ...`, started by `bench.ab`.

Prints a JSON object with CPU nanoseconds per decision of every figure named, or why a figure cannot be measured. Only
names that have been public for long are imported, each inside the figure that needs it: the build may be an old one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import penstock
from bench.keys import keys, shuffled
from penstock import AsyncLimiter, Limiter, Quota
from penstock.stores import AsyncMemoryStore, MemoryStore

PASSES = 5
CALLS = 10_000
REDIS_CALLS = 2_000
TASKS = 64
MANY = 100_000
FEW = 1_000
QUOTA = Quota(1_000_000, 86_400, "sliding_window")
TWO = (QUOTA, Quota(1_000_000, 86_400, "gcra"))
SECRET = "for benchmarks"
DEADLINE = 30.0

Visit = Callable[[Iterable[str]], None]


def in_process(quota: Any) -> Visit:
    """Return a loop that asks a new memory store."""
    acquire = Limiter(MemoryStore()).acquire

    def visit(some: Iterable[str]) -> None:
        for key in some:
            acquire(key, quota)

    return visit


def awaited(acquire: Callable[[str, Quota], Awaitable[object]], runner: asyncio.Runner, tasks: int) -> Visit:
    """Return a loop that asks from so many tasks at once."""

    async def ask(some: Iterator[str]) -> None:
        for key in some:
            await acquire(key, QUOTA)

    async def together(some: Iterator[str]) -> None:
        await asyncio.gather(*[ask(some) for _ in range(tasks)])

    return lambda some: runner.run(together(iter(some)))


def one_key(_: str) -> float:
    return cpu_ns(in_process(QUOTA), keys(1), CALLS)


def many_keys(_: str) -> float:
    return cpu_ns(in_process(QUOTA), shuffled(keys(MANY)), CALLS)


def two_quotas(_: str) -> float:
    return cpu_ns(in_process(TWO), keys(FEW), CALLS)


def rules(_: str) -> float:
    from penstock.enforcer import Enforcer
    from penstock.rules.model import RuleFile
    from penstock.rules.ruleset import RuleSet

    ample = "4000000000/day fixed_window"
    orders = {"path": {"glob": "/v1/shops/*/orders"}, "method": ["GET", "POST"]}
    declared = [
        {"id": "everybody", "key": [], "quota": ample},
        {"id": "address", "key": "ip", "quota": ample},
        {"id": "orders", "match": orders, "key": "api_key | ip", "quota": ample},
    ]
    check = Enforcer(RuleSet(RuleFile.model_validate({"rules": declared})), Limiter(MemoryStore())).check

    def visit(some: Iterable[str]) -> None:
        for key in some:
            check({"path": "/v1/shops/7/orders", "method": "GET", "api_key": key, "ip": "203.0.113.7"})

    return cpu_ns(visit, keys(FEW), CALLS)


def asyncio_memory(_: str) -> float:
    with asyncio.Runner() as runner:
        limiter = AsyncLimiter(AsyncMemoryStore(MemoryStore()))
        return cpu_ns(awaited(limiter.acquire, runner, 1), keys(FEW), CALLS)


def redis_blocking(url: str) -> float:
    from penstock.stores.redis.store import RedisStore

    store = RedisStore(url, secret=SECRET, deadline=DEADLINE)
    acquire = Limiter(store, on_failure="closed").acquire

    def visit(some: Iterable[str]) -> None:
        for key in some:
            acquire(key, QUOTA)

    try:
        figure = cpu_ns(visit, keys(FEW), REDIS_CALLS)
        insist(acquire(keys(1)[0], QUOTA))
    finally:
        store.close()
    return figure


def redis_asyncio(url: str) -> float:
    return redis_by_tasks(url, TASKS)


def redis_one_task(url: str) -> float:
    return redis_by_tasks(url, 1)


def redis_by_tasks(url: str, tasks: int) -> float:
    import uvloop

    from penstock.stores.redis.store import AsyncRedisStore

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        store = AsyncRedisStore(url, secret=SECRET, deadline=DEADLINE)
        acquire = AsyncLimiter(store, on_failure="closed").acquire
        try:
            figure = cpu_ns(awaited(acquire, runner, tasks), keys(FEW), REDIS_CALLS)
            insist(runner.run(acquire(keys(1)[0], QUOTA)))
        finally:
            runner.run(store.close())
    return figure


def bytes_per_key(_: str) -> float:
    """Return the resident bytes of a key after one admission, its own text included: in a process with a fresh heap."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(grown).result()


def grown() -> float:
    visit = in_process(QUOTA)
    visit(keys(FEW))
    before = resident()
    visit(keys(1, number)[0] for number in range(FEW, FEW + MANY))
    return (resident() - before) / MANY


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def insist(allowed: object) -> None:
    """Only admissions are measured: a server that does not answer makes a fast figure that means nothing."""
    if not allowed:
        raise RuntimeError("denied, where the server should have admitted")


FIGURES = {
    "in process, one quota, one key": one_key,
    f"in process, one quota, {MANY:,} keys": many_keys,
    "in process, two quotas": two_quotas,
    "in process, Enforcer.check by three rules": rules,
    "asyncio on memory": asyncio_memory,
    "Redis, blocking": redis_blocking,
    f"Redis, asyncio, {TASKS} tasks": redis_asyncio,
    "Redis, asyncio, one task": redis_one_task,
    f"bytes per key of {MANY:,} in process (not a time)": bytes_per_key,
}


def cpu_ns(visit: Visit, order: list[str], calls: int) -> float:
    """Return the median of some passes: CPU nanoseconds of this process per call. Every key was visited before."""
    visit(order)
    turns = cycle(order)
    passes = [list(islice(turns, calls)) for _ in range(PASSES)]
    gc.collect()
    gc.freeze()
    figures = []
    for some in passes:
        gc.collect()
        start = time.process_time_ns()
        visit(some)
        figures.append((time.process_time_ns() - start) / calls)
    gc.unfreeze()
    return median(figures)


def main(build: str, url: str, *names: str) -> None:
    logging.getLogger("penstock").setLevel(logging.ERROR)  # what is said of the server is no news here
    if not Path(penstock.__file__).is_relative_to(build):
        raise SystemExit(f"{penstock.__file__}: expected the build in {build}")
    measured: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            measured[name] = FIGURES[name](url)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    print(json.dumps({"figures": measured, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])

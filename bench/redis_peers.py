"""The peers on a server, for `bench.redis_worker`: `python -m bench.redis_peers asyncio|blocking URL PRODUCT`.

Each is set up as its documentation says, and asked by its own method in a loop of its own. PRODUCT is throttled, or
limits with one of the clients it can use: limits-redis, limits-valkey.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import throttled
import throttled.asyncio
from throttled.rate_limiter import per_day

from bench.redis_worker import Async, Blocking, serve_asyncio, serve_blocking

AMPLE = 1_000_000
POOL = 1_024
"""Connections that throttled-py may open: with its default of 100 it fails at 512 tasks."""

STRATEGIES: Mapping[str, str] = {
    "fixed_window": "FixedWindowRateLimiter",
    "sliding_window": "SlidingWindowCounterRateLimiter",
}
ALGORITHMS: Mapping[str, str] = {
    "fixed_window": "fixed_window",
    "sliding_window": "sliding_window",
    "token_bucket": "token_bucket",
    "leaky_bucket": "leaking_bucket",
    "gcra": "gcra",
}
ITEM = limits.RateLimitItemPerDay(AMPLE)
CLIENTS: Mapping[str, str] = {"limits-redis": "redispy", "limits-valkey": "valkey"}


def limits_awaited(url: str, product: str) -> list[Async]:
    storage = limits.aio.storage.RedisStorage(f"async+{url}", implementation=CLIENTS[product])
    return [_awaited_strategy(storage, product, algorithm) for algorithm in STRATEGIES]


def _awaited_strategy(storage: Any, product: str, algorithm: str) -> Async:
    hit = getattr(limits.aio.strategies, STRATEGIES[algorithm])(storage).hit

    async def visit(keys: Iterator[str]) -> None:
        for key in keys:
            await hit(ITEM, key)

    async def allows(key: str) -> bool:
        return bool(await hit(ITEM, key))

    return Async(_name(product, algorithm), algorithm, visit, allows)


def limits_blocking(url: str, product: str) -> list[Blocking]:
    client = product.removeprefix("limits-")
    storage = limits.storage.RedisStorage(url.replace("redis", client, 1))
    return [_blocking_strategy(storage, product, algorithm) for algorithm in STRATEGIES]


def _blocking_strategy(storage: Any, product: str, algorithm: str) -> Blocking:
    hit = getattr(limits.strategies, STRATEGIES[algorithm])(storage).hit

    def visit(keys: Iterator[str]) -> None:
        for key in keys:
            hit(ITEM, key)

    return Blocking(_name(product, algorithm), algorithm, visit, lambda key: bool(hit(ITEM, key)))


def _name(product: str, algorithm: str) -> str:
    strategy = STRATEGIES[algorithm].removesuffix("RateLimiter")
    return f"limits {strategy} ({product.removeprefix('limits-')})"


def throttled_awaited(url: str) -> list[Async]:
    options = {"CONNECTION_POOL_KWARGS": {"max_connections": POOL}}
    store = throttled.asyncio.RedisStore(server=url, options=options)
    return [_awaited_algorithm(store, ours, theirs) for ours, theirs in ALGORITHMS.items()]


def _awaited_algorithm(store: Any, ours: str, theirs: str) -> Async:
    limit = throttled.asyncio.Throttled(using=theirs, quota=per_day(AMPLE), store=store).limit

    async def visit(keys: Iterator[str]) -> None:
        for key in keys:
            await limit(key)

    async def allows(key: str) -> bool:
        return not (await limit(key)).limited

    return Async(f"throttled {theirs}", ours, visit, allows)


def throttled_blocking(url: str) -> list[Blocking]:
    store = throttled.RedisStore(server=url)
    return [_blocking_algorithm(store, ours, theirs) for ours, theirs in ALGORITHMS.items()]


def _blocking_algorithm(store: Any, ours: str, theirs: str) -> Blocking:
    limit = throttled.Throttled(using=theirs, quota=per_day(AMPLE), store=store).limit

    def visit(keys: Iterator[str]) -> None:
        for key in keys:
            limit(key)

    return Blocking(f"throttled {theirs}", ours, visit, lambda key: not limit(key).limited)


def main(kind: str, url: str, product: str) -> None:
    if product == "throttled":
        packages = ["throttled-py", "redis", "hiredis"]
        if kind == "asyncio":
            serve_asyncio(lambda: throttled_awaited(url), *packages)
        else:
            serve_blocking(throttled_blocking(url), *packages)
    else:
        packages = ["limits", "redis", "hiredis"] if product == "limits-redis" else ["limits", "valkey", "libvalkey"]
        if kind == "asyncio":
            serve_asyncio(lambda: limits_awaited(url, product), *packages)
        else:
            serve_blocking(limits_blocking(url, product), *packages)


if __name__ == "__main__":
    main(*sys.argv[1:])

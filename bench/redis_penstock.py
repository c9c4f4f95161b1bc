"""Penstock on a server, for `bench.redis_worker`.

python -m bench.redis_penstock asyncio|blocking URL LIMIT SECONDS ALGORITHM...
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

from bench.redis_worker import Async, Blocking, serve_asyncio, serve_blocking
from penstock import AsyncLimiter, Limiter, Quota
from penstock.stores.redis.store import AsyncRedisStore, RedisStore

SECRET = "for benchmarks"
DEADLINE = 30.0
"""Peers have none; the timer is set all the same."""


def awaited(limiter: AsyncLimiter, quota: Quota) -> Async:
    acquire = limiter.acquire

    async def visit(keys: Iterator[str]) -> None:
        for key in keys:
            await acquire(key, quota)

    async def allows(key: str) -> bool:
        return bool(await acquire(key, quota))

    return Async(f"Penstock {quota.algorithm}", quota.algorithm, visit, allows)


def blocking(limiter: Limiter, quota: Quota) -> Blocking:
    acquire = limiter.acquire

    def visit(keys: Iterator[str]) -> None:
        for key in keys:
            acquire(key, quota)

    return Blocking(f"Penstock {quota.algorithm}", quota.algorithm, visit, lambda key: bool(acquire(key, quota)))


def main(kind: str, url: str, limit: str, seconds: str, *algorithms: str) -> None:
    logging.getLogger("penstock").setLevel(logging.ERROR)  # what it says of the server is not news here
    quotas = [Quota(int(limit), int(seconds), algorithm) for algorithm in algorithms]
    packages = "penstock", "redis", "hiredis"
    if kind == "asyncio":
        limiter = AsyncLimiter(AsyncRedisStore(url, secret=SECRET, deadline=DEADLINE))
        serve_asyncio(lambda: [awaited(limiter, quota) for quota in quotas], *packages)
    else:
        store = RedisStore(url, secret=SECRET, deadline=DEADLINE)
        serve_blocking([blocking(Limiter(store), quota) for quota in quotas], *packages)


if __name__ == "__main__":
    main(*sys.argv[1:])

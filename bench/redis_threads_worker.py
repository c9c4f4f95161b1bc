"""A limiter that threads share, for `bench.redis_threads`: `python -m bench.redis_threads_worker PRODUCT URL`.

It reads an order per line, and answers with a line. PRODUCT is penstock, limits (with redis-py's pool as it comes) or
redis-py (a script on a blocking pool of 32 connections). All have the same deadline.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

DEADLINE = 0.05
AMPLE = 1_000_000_000
USERS = 1_000
POOL = 32
SCRIPT = """
local used = redis.call('INCRBY', KEYS[1], ARGV[1])
if used == tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return used
"""

Ask: TypeAlias = Callable[[str], bool]
"""Asks for one unit; returns whether Redis answered, in time or not."""


def penstock(url: str) -> Ask:
    import logging

    from penstock import Limiter, Quota
    from penstock.stores.redis.store import RedisStore

    logging.getLogger("penstock").setLevel(logging.ERROR)
    limiter = Limiter(RedisStore(url, secret="for benchmarks", deadline=DEADLINE))
    quota = Quota(AMPLE, 86_400, "fixed_window")
    return lambda key: limiter.acquire(key, quota).source == "store"


def limits(url: str) -> Ask:
    import limits
    import limits.storage
    import limits.strategies

    timeouts = {"socket_timeout": DEADLINE, "socket_connect_timeout": DEADLINE}
    storage = limits.storage.RedisStorage(url, **timeouts)
    hit = limits.strategies.FixedWindowRateLimiter(storage).hit
    item = limits.RateLimitItemPerDay(AMPLE)
    return lambda key: hit(item, key)


def redis_py(url: str) -> Ask:
    import redis

    pool = redis.BlockingConnectionPool.from_url(
        url, max_connections=POOL, timeout=DEADLINE, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE
    )
    script = redis.Redis(connection_pool=pool).register_script(SCRIPT)
    return lambda key: script([f"own:{key}"], [1, 86_400_000]) <= AMPLE


PRODUCTS: dict[str, Callable[[str], Ask]] = {"penstock": penstock, "limits": limits, "redis-py": redis_py}


def ask_together(ask: Ask, threads: int, seconds: float) -> dict[str, float]:
    """Return decisions per second from Redis, and the percentage that it did not answer."""
    counts = [(0, 0)] * threads
    begin = threading.Barrier(threads + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        answered = lost = 0
        begin.wait()
        while not stop.is_set():
            try:
                good = ask(f"user {(number * 37 + answered) % USERS}")
            except Exception:
                good = False
            answered += good
            lost += not good
        counts[number] = answered, lost

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    start = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - start
    answered, lost = (sum(each) for each in zip(*counts, strict=True))
    return {"rate": answered / took, "lost": 100 * lost / max(answered + lost, 1)}


def main(product: str, url: str) -> None:
    make = PRODUCTS[product]
    print(json.dumps({"contenders": [], "versions": []}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        ask = make(order.get("url", url))
        if order["warm"]:
            ask_together(ask, order["threads"], order["seconds"] / 2)
        print(json.dumps(ask_together(ask, order["threads"], order["seconds"])), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

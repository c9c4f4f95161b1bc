"""Middlewares that count in one server, as those of several processes do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import AsyncLimiter
from penstock.middleware.asgi import RateLimitMiddleware, Receive, Scope, Send
from penstock.middleware.gate import unless_server_error
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import LONG, PATIENT, opened_async
from tests.rig.servers import Server
from tests.unit.middleware.adapters import AWAITING
from tests.unit.middleware.asgi_support import Response, answering, get, http_scope, nothing_more

QUOTAS = ["5 concurrent ttl 1h", "40/365 days fixed_window"]
ME = "ip=192.0.2.7"


async def test_middlewares_that_share_a_server_share_a_limit_and_leave_no_place_taken(
    running_servers: dict[str, Server],
) -> None:
    stores = [AsyncRedisStore(running_servers["valkey"].url, **PATIENT) for _ in range(2)]
    limiters = [AsyncLimiter(store, on_failure="raise") for store in stores]
    running = most = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1  # the place comes back as soon as the end of the response is ready
        await answering()(scope, receive, send)

    async def client(middleware: RateLimitMiddleware) -> int:
        return [(await get(middleware)).status for _ in range(10)].count(200)

    middlewares = [RateLimitMiddleware(app, limiter=limiter, quota=QUOTAS) for limiter in limiters]
    passed = sum(await asyncio.gather(*[client(middleware) for middleware in middlewares for _ in range(8)]))
    assert 5 <= passed <= 40
    assert most == 5
    places, rate = (await limiters[0].peek(ME, QUOTAS, 0)).decisions
    assert (places.remaining, rate.remaining) == (5, 40 - passed)

    # Cancelled at any moment: before the answer of the server is here, in the handler, while the place is given back.
    holding = RateLimitMiddleware(app, limiter=limiters[0], quota=QUOTAS[0])
    for pause in [0.0] * 6 + [0.001, 0.002, 0.003, 0.004]:
        task = asyncio.create_task(holding(http_scope(), nothing_more, Response().send))
        await asyncio.sleep(0)  # it has begun
        await asyncio.sleep(0)  # its question is under way
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.wait([task])
    for _ in range(1_000):  # what was under way comes to its end
        if (await limiters[0].peek(ME, QUOTAS[0], 0)).remaining == 5:
            break
        await asyncio.sleep(0.005)
    assert (await limiters[0].peek(ME, QUOTAS[0], 0)).remaining == 5
    for limiter, store in zip(limiters, stores, strict=True):
        await limiter.close()
        await store.close()


@pytest.mark.parametrize(("name", "adapter"), AWAITING.items(), ids=AWAITING)
async def test_places_on_a_server_come_back_in_every_framework(
    name: str, adapter: Any, running_servers: dict[str, Server]
) -> None:
    async with opened_async(running_servers["valkey"].url) as store:
        limiter = AsyncLimiter(store, on_failure="raise")
        quota = [f"2 concurrent ttl 1h name {name}", f"5/{LONG} fixed_window name {name}"]
        key = "ip=127.0.0.1" if name in ("aiohttp", "django") else ME
        whose = ("all", key) if name == "fastapi" else key
        async with adapter(limiter=limiter, quota=quota, charge=unless_server_error) as get:
            answers = [(await get(path))[0] for path in ("/", "/fails", "/")]
            together = await asyncio.gather(*[get("/") for _ in range(6)])
            passed = [status for status, _ in together].count(200)
            left = (await limiter.peek(whose, quota, 0)).decisions
        await limiter.close()
    assert answers == [200, 500, 200]
    assert 1 <= passed <= 3
    assert {status for status, _ in together} <= {200, 429}
    assert [decision.remaining for decision in left] == [2, 3 - passed]

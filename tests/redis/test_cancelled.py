"""Callers that are cancelled while Redis is answering: their charges and places come back."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock import AsyncLimiter, Limiter, Quota
from penstock.stores.redis.store import RedisStore
from tests.integration.redis_support import opened, opened_async
from tests.rig.clusters import Cluster
from tests.rig.faults import FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.processes import wait_until

RATE = Quota.parse("100/hour fixed_window")
PLACES = Quota.parse("20 concurrent ttl 1h")

CALLS: list[Callable[[AsyncLimiter], Awaitable[object]]] = [
    lambda limiter: limiter.acquire("ann", RATE, 3),
    lambda limiter: limiter.acquire_all([("ann", RATE), ("ann", PLACES)]),
    lambda limiter: limiter.acquire_many([("ann", RATE), ("ann", RATE)]),
    lambda limiter: limiter.wait("ann", [RATE, PLACES], timeout=30),
    lambda limiter: limiter.hold("ann", PLACES),
    lambda limiter: limiter.reserve("ann", RATE, 5),
]


async def until_used(store: RedisStore, rates: int, places: int = 0) -> None:
    limiter = Limiter(store, layers=[])

    def used(quota: Quota) -> int:
        return quota.capacity - limiter.peek("ann", quota, 0).remaining

    await asyncio.to_thread(wait_until, lambda: (used(RATE), used(PLACES)) == (rates, places), f"{rates} and {places}")


async def test_charges_and_places_of_cancelled_callers_come_back(keyspace: Keyspace) -> None:
    with FaultProxy(keyspace.server.address) as proxy:
        behind = f"redis://{proxy.address[0]}:{proxy.address[1]}"
        async with opened_async(behind, prefix=keyspace.prefix) as store:
            with opened(keyspace.server.url, prefix=keyspace.prefix) as watching:
                await cancel_all(AsyncLimiter(store), proxy, watching)


async def cancel_all(limiter: AsyncLimiter, proxy: FaultProxy, watching: RedisStore) -> None:
    await limiter.peek("ann", RATE)  # connects
    proxy.replies = Flow(held=True)
    tasks = [asyncio.ensure_future(call(limiter)) for call in CALLS]
    tasks.append(asyncio.ensure_future(limiter.acquire("ann", RATE, 7, id="a retry follows")))
    await until_used(watching, 3 + 1 + 2 + 1 + 5 + 7, 3)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    proxy.replies = Flow()
    await until_used(watching, 7)
    assert await limiter.acquire("ann", RATE, 7, id="a retry follows")
    await until_used(watching, 7)


async def test_charges_over_several_partitions_come_back(cluster: Cluster) -> None:
    name = "cancelled callers"
    async with opened_async(cluster.url, namespace=name) as store:
        limiter = AsyncLimiter(store)
        requests = [("ann", RATE), *[(f"key {number}", RATE) for number in range(40)]]
        await limiter.acquire_all([(key, quota) for key, quota in requests])  # connects
        for call in (limiter.acquire_all, limiter.acquire_many):
            task = asyncio.ensure_future(call(requests))
            for _ in range(4):  # then they have been sent
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            await limiter.peek("ann", RATE)  # sent behind them
            with opened(cluster.url, namespace=name) as watching:
                await until_used(watching, 1)

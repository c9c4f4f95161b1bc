"""Event loops that compute: the time for which they were late is not the server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from penstock.clock import monotonic
from penstock.model import Verdict
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import acquire, one_async
from tests.redis.test_faults import url
from tests.rig.faults import FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.processes import DEADLINE

QUOTA = "1000000/day"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
OPTIONS: dict[str, Any] = {"secret": "of these tests", "deadline": 0.05}
BUSY = 0.03
"""Seconds for which a handler computes: two in a turn are more than the deadline."""


def compute(seconds: float = BUSY) -> None:
    until = monotonic() + seconds
    while monotonic() < until:
        pass


async def keep_busy() -> None:
    while True:
        compute()
        compute()
        await asyncio.sleep(0)


@pytest.mark.parametrize("loop", LOOPS)
def test_handlers_that_compute_do_not_open_the_breaker_of_a_healthy_server(loop: str, keyspace: Keyspace) -> None:
    async def serve() -> None:
        store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, **OPTIONS, breaker_calls=4)
        while not isinstance(await one_async(store, acquire(QUOTA)), Verdict):
            pass
        busy = asyncio.create_task(keep_busy())
        outcomes = [await one_async(store, acquire(QUOTA)) for _ in range(8)]
        busy.cancel()
        assert set(store.breakers().values()) == {"closed"}, outcomes
        await store.close()

    run(serve, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_server_that_hangs_opens_the_breaker_of_a_busy_loop(loop: str, keyspace: Keyspace) -> None:
    async def serve() -> None:
        with FaultProxy(keyspace.server.address) as proxy:
            store = AsyncRedisStore(url(proxy), prefix=keyspace.prefix, **OPTIONS, breaker_failures=2)
            while not isinstance(await one_async(store, acquire(QUOTA)), Verdict):
                pass
            proxy.replies = Flow(held=True)
            busy = asyncio.create_task(keep_busy())
            async with asyncio.timeout(DEADLINE):
                while set(store.breakers().values()) == {"closed"}:
                    await one_async(store, acquire(QUOTA))
            busy.cancel()
            await store.close()

    run(serve, loop)


def run(serve: Callable[[], Coroutine[None, None, None]], loop: str) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(serve())

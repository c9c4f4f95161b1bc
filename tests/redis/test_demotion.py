"""A server that was demoted is left for its successor; and an error belongs to one caller."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter
from penstock.errors import StoreError
from tests.integration.redis_support import opened, opened_async
from tests.rig.faults import FaultProxy
from tests.rig.servers import Server


@pytest.fixture
def changing() -> Iterator[tuple[str, Callable[[], None]]]:
    """An address, and what lets another server answer there while the one that did becomes its replica."""
    with Server() as old, Server() as new, FaultProxy(old.address) as proxy:

        def demote() -> None:
            proxy.target = new.address
            old.ask("REPLICAOF", "127.0.0.1", str(new.port))

        host, port = proxy.address
        yield f"redis://{host}:{port}", demote


def test_a_thread_finds_the_new_primary(changing: tuple[str, Callable[[], None]]) -> None:
    url, demote = changing
    with opened(url) as store:
        limiter = Limiter(store, layers=())
        assert limiter.acquire("alice", "10/day")
        demote()
        with pytest.raises(StoreError, match="the server is a replica") as caught:
            limiter.acquire("alice", "10/day")
        assert (caught.value.transient, caught.value.charged) == (True, "no")
        assert limiter.acquire("alice", "10/day")


async def test_a_task_finds_the_new_primary(changing: tuple[str, Callable[[], None]]) -> None:
    url, demote = changing
    async with opened_async(url) as store:
        limiter = AsyncLimiter(store, layers=())
        assert await limiter.acquire("alice", "10/day")
        await asyncio.to_thread(demote)
        with pytest.raises(StoreError, match="the server is a replica"):
            await limiter.acquire("alice", "10/day")
        assert await limiter.acquire("alice", "10/day")


async def test_every_caller_gets_an_error_of_its_own() -> None:
    async with opened_async("redis://127.0.0.1:1") as store:
        limiter = AsyncLimiter(store, layers=())
        asked: list[Any] = [limiter.acquire("alice", "10/day") for _ in range(20)]
        errors = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(error, StoreError) for error in errors)
    assert len({id(error) for error in errors}) == 20

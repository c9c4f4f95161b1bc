"""The Redis store keeps every law where Sentinels name the server, and where a cluster spreads keys over several.

The kit makes a store for each example. Finding the server and connecting would take most of its time, so stores
borrow what another one has: its connections; or, for asyncio, where each has a loop of its own, what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from math import ceil
from typing import ClassVar

import pytest
from hypothesis import settings

from penstock import ManualClock
from penstock.model import Acquire, Op, Outcome
from penstock.stores import AsyncStore, Store
from penstock.stores.redis.commands import Commands
from penstock.stores.redis.config import read_url
from penstock.stores.redis.store import AsyncRedisStore, RedisStore, ServerStore
from penstock.testing import AsyncStoreConformance, StoreConformance
from penstock.testing.conformance import HistoryConformance
from tests.integration.redis_support import is_full
from tests.rig.clusters import Cluster
from tests.rig.sentinels import SentinelSet

SECRET = "of these tests"

_namespaces = count()


def borrow(store: ServerStore, lender: ServerStore, url: str, clock: ManualClock) -> None:
    """Give a store everything that another one has, but a clock and names of its own."""
    vars(store).update(vars(lender))
    store.settings = read_url(url, deadline=30, secret=SECRET, namespace=f"topologies {next(_namespaces)}")
    store.commands = Commands(store.settings, clock)


def spans(store: ServerStore, op: Op) -> bool:
    """Whether the counters of a request are in several partitions."""
    asks = op.asks if isinstance(op, Acquire) else ()
    return len({store.commands.partitions.of_counter(ask.key, ask.quota) for ask in asks}) > 1


class Borrowing(RedisStore):
    spanning: ClassVar[int] = 0  # requests whose counters are in several partitions

    def __init__(self, lender: RedisStore, url: str, clock: ManualClock) -> None:
        borrow(self, lender, url, clock)

    def run(self, ops: Sequence[Op], deadline: int | None = None) -> list[Outcome]:
        Borrowing.spanning += sum(spans(self, op) for op in ops)
        return super().run(ops, deadline)

    def close(self) -> None:
        """The connections are the lender's."""


class AsyncBorrowing(AsyncRedisStore):
    spanning: ClassVar[int] = 0

    def __init__(self, lender: AsyncRedisStore, url: str, clock: ManualClock) -> None:
        borrow(self, lender, url, clock)
        self._loops = {}

    def run(self, ops: Sequence[Op], deadline: int | None = None) -> Awaitable[list[Outcome]]:
        AsyncBorrowing.spanning += sum(spans(self, op) for op in ops)
        return super().run(ops, deadline)

    async def close(self) -> None:
        """What is known is the lender's."""
        await self._here().close()


class Lent:
    """Blocking stores that borrow."""

    share_of_histories: ClassVar[float] = 0.01
    url: ClassVar[str]
    lender: ClassVar[RedisStore]

    @classmethod
    def lend(cls, url: str) -> ExitStack:
        cls.url, cls.lender = url, RedisStore(url, deadline=30, secret=SECRET)
        closing = ExitStack()
        closing.callback(cls.lender.close)
        return closing

    def make_store(self, clock: ManualClock) -> Store:
        return Borrowing(self.lender, self.url, clock)


class AsyncLent:
    """Stores for asyncio that borrow."""

    share_of_histories: ClassVar[float] = 0.01
    url: ClassVar[str]
    lender: ClassVar[AsyncRedisStore]

    @classmethod
    def lend(cls, url: str) -> ExitStack:
        cls.url, cls.lender = url, AsyncRedisStore(url, deadline=30, secret=SECRET)
        closing = ExitStack()
        closing.callback(lambda: asyncio.run(cls.lender.close()))
        return closing

    def make_async_store(self, clock: ManualClock) -> AsyncStore:
        return AsyncBorrowing(self.lender, self.url, clock)


class OnSentinels:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def on_sentinels(cls, running_sentinel_sets: dict[str, SentinelSet]) -> Iterator[None]:
        with cls.lend(running_sentinel_sets["valkey"].url):  # type: ignore[attr-defined]
            yield


class TestOnSentinels(OnSentinels, Lent, HistoryConformance):
    """Sentinels only name the server: once it is known, it is a single server, which the examples use in every run."""


if is_full():

    class TestExamplesOnSentinels(OnSentinels, Lent, StoreConformance): ...

    class TestOnSentinelsAwaited(OnSentinels, AsyncLent, AsyncStoreConformance): ...


class TestOnCluster(Lent, StoreConformance):
    share_of_histories: ClassVar[float] = 0.02

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def on_cluster(cls, running_clusters: dict[str, Cluster]) -> Iterator[None]:
        with cls.lend(running_clusters["valkey"].url):
            yield

    def test_requests_of_histories_span_partitions(self) -> None:
        before = Borrowing.spanning
        self.check_laws("token_bucket", settings(max_examples=ceil(20 / self.share_of_histories)))
        assert Borrowing.spanning > before


class TestOnClusterAwaited(AsyncLent, AsyncStoreConformance):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def on_cluster(cls, running_clusters: dict[str, Cluster]) -> Iterator[None]:
        with cls.lend(running_clusters["valkey"].url):
            yield

    def test_requests_of_histories_span_partitions(self) -> None:
        before = AsyncBorrowing.spanning
        self.check_laws("token_bucket", settings(max_examples=ceil(20 / self.share_of_histories)))
        assert AsyncBorrowing.spanning > before

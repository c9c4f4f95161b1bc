"""The Redis store keeps every law, for blocking callers and for asyncio."""

from itertools import count
from typing import Any, ClassVar

import pytest

from penstock import ManualClock
from penstock.stores import AsyncStore, Store
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from penstock.testing import AsyncStoreConformance, StoreConformance
from tests.rig.servers import Server

_namespaces = count()


class OnServer:
    """A round trip to a server costs many times what the memory store does."""

    share_of_histories: ClassVar[float] = 0.1
    url: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def on_server(cls, running_servers: dict[str, Server]) -> None:
        cls.url = running_servers["valkey"].url

    def options(self) -> dict[str, Any]:
        return {"deadline": 30, "secret": "of these tests", "namespace": f"store {next(_namespaces)}"}


class TestRedisStore(OnServer, StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return RedisStore(self.url, clock=clock, **self.options())


class TestAsyncRedisStore(OnServer, AsyncStoreConformance):
    share_of_histories: ClassVar[float] = 0.02

    def make_async_store(self, clock: ManualClock) -> AsyncStore:
        return AsyncRedisStore(self.url, clock=clock, **self.options())

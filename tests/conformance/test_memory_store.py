"""The memory store is the kit's first customer."""

import pytest

from penstock.clock import ManualClock
from penstock.stores import AsyncMemoryStore, AsyncStore, MemoryStore, Store
from penstock.testing import AsyncStoreConformance, StoreConformance
from penstock.testing.conformance import AsyncHistoryConformance
from tests.integration.redis_support import is_full

pytestmark = pytest.mark.untraced  # unit tests show which lines of the store are run


class TestMemoryStore(StoreConformance):
    def make_store(self, clock: ManualClock) -> Store:
        return MemoryStore(clock=clock)


class Awaited:
    """The same counters, awaited."""

    share_of_histories = 0.05

    def make_async_store(self, clock: ManualClock) -> AsyncStore:
        return AsyncMemoryStore(MemoryStore(clock=clock))


class TestAsyncMemoryStore(Awaited, AsyncHistoryConformance): ...


if is_full():

    class TestExamplesAwaited(Awaited, AsyncStoreConformance): ...

"""What tests of the Redis store on real servers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, overload

from hypothesis import settings

from penstock.engine import lifetime
from penstock.model import Acquire, Ask, Failed, Op, Outcome, Verdict
from penstock.quota import Quota
from penstock.stores.redis.config import Node
from penstock.stores.redis.pipeline import Pipeline
from penstock.stores.redis.pool import RedisPool
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.rig.processes import DEADLINE

UNBROKEN: dict[str, Any] = {"breaker_failures": 1_000_000, "breaker_calls": 1_000_000}
"""Where links are looked at, however often they fail: the breaker has tests of its own."""

PATIENT: dict[str, Any] = {"deadline": 30, "secret": "of these tests"} | UNBROKEN
"""Where exactness is asserted: a machine may stand still for many seconds."""

LONG = "365 days"
"""A period that does not end while we look."""


def is_full() -> bool:
    """Whether the profile is the one that takes its time, however it was chosen."""
    return settings.get_current_profile_name() == "full"


def count(ci: int, full: int) -> int:
    """How many: in the usual run, and under the profile that takes its time."""
    return full if is_full() else ci


def acquire(quota: str, key: str = "alice", cost: int = 1, id: bytes | None = None, dry: bool = False) -> Acquire:
    return Acquire((Ask(key, Quota.parse(quota), cost),), dry=dry, id=id)


@contextmanager
def opened(url: str, **options: Any) -> Iterator[RedisStore]:
    store = RedisStore(url, **(PATIENT | options))
    try:
        yield store
    finally:
        store.close()


@asynccontextmanager
async def opened_async(url: str, **options: Any) -> AsyncIterator[AsyncRedisStore]:
    store = AsyncRedisStore(url, **(PATIENT | options))
    try:
        yield store
    finally:
        await store.close()


def one(store: RedisStore, op: Op) -> Outcome:
    (outcome,) = store.run([op])
    return outcome


async def one_async(store: AsyncRedisStore, op: Op) -> Outcome:
    (outcome,) = await store.run([op])
    return outcome


@overload
def the_link(store: RedisStore) -> RedisPool: ...
@overload
def the_link(store: AsyncRedisStore) -> Pipeline: ...
def the_link(store: RedisStore | AsyncRedisStore) -> RedisPool | Pipeline:
    """The only link of a store, which is that of the running event loop."""
    links: dict[Node, Any] = store._pools if isinstance(store, RedisStore) else store._here()._pipelines
    (link,) = links.values()
    found: RedisPool | Pipeline = link
    return found


async def lost_wire(store: AsyncRedisStore) -> None:
    """Wait until the loop has noticed that its connection is gone."""
    if (wire := the_link(store).connection) is not None:
        await asyncio.wait_for(wire.gone, DEADLINE)


def decided(outcome: Outcome) -> Verdict:
    assert isinstance(outcome, Verdict), outcome
    return outcome


def failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


def used(store: RedisStore, quota: str, key: str = "alice") -> int:
    """Units that are charged."""
    verdict = decided(one(store, acquire(quota, key, dry=True)))
    return verdict.quota.limit - verdict.remaining


# ---------------------------------------------------------------- leaks


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def our_threads() -> int:
    """Return how many connectors run."""
    pools = [one for one in list(lifetime._alive) if isinstance(one, RedisPool)]
    return sum(pool._connector() is not None for pool in pools)


def our_tasks() -> int:
    """Tasks of the running loop beside the one that asks."""
    return len(asyncio.all_tasks()) - 1

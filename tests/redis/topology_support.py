"""What tests of the Redis store on Sentinel sets and clusters share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.model import Acquire, Ask, Op, Outcome
from penstock.quota import Quota
from penstock.stores.redis.store import AsyncRedisStore, RedisStore, ServerStore
from tests.integration.redis_support import LONG, PATIENT, decided
from tests.rig.servers import Server

QUOTA = f"1000/{LONG}"
ANY = Quota.parse(QUOTA)

_namespaces = count()


class Face(Protocol):
    """A store as tests ask it, be it blocking or not."""

    @property
    def store(self) -> ServerStore: ...

    def run(self, ops: Sequence[Op], deadline: int | None = None) -> list[Outcome]: ...

    def close(self) -> None: ...


class Blocking:
    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.store = RedisStore(url, **options)

    def run(self, ops: Sequence[Op], deadline: int | None = None) -> list[Outcome]:
        return self.store.run(ops, deadline)

    def close(self) -> None:
        self.store.close()


class Awaited:
    """A store for asyncio, on a loop that runs only while it is asked."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.store, self._loop = AsyncRedisStore(url, **options), asyncio.Runner()

    def run(self, ops: Sequence[Op], deadline: int | None = None) -> list[Outcome]:
        async def asking() -> list[Outcome]:
            return await self.store.run(ops, deadline)

        return self._loop.run(asking())

    def close(self) -> None:
        self._loop.run(self.store.close())
        self._loop.close()


FACES: dict[str, Callable[[str, dict[str, Any]], Face]] = {"blocking": Blocking, "asyncio": Awaited}
for_both_faces = pytest.mark.parametrize("face", FACES)


@contextmanager
def facing(face: str, url: str, **options: Any) -> Iterator[Face]:
    """A store with names of its own."""
    asked = FACES[face](url, PATIENT | {"namespace": f"facing {next(_namespaces)}"} | options)
    try:
        yield asked
    finally:
        asked.close()


def names_in(store: ServerStore, partition: int, number: int) -> list[str]:
    """Keys that are in a partition."""
    partitions = store.commands.partitions
    names = (f"name {number}" for number in count())
    return [next(name for name in names if partitions.of_counter(name, ANY) == partition) for _ in range(number)]


def name_on(store: ServerStore, server: Server) -> str:
    """A key whose counters a server decides about; the store must have been asked."""
    partitions = store.commands.partitions
    ports = {name: store.topology.node(partitions.of_counter(name, ANY)) for name in map(str, range(500))}
    return next(name for name, node in ports.items() if node is not None and node.port == server.port)


def spanning(*names: str, quota: str = QUOTA, cost: int = 1, id: bytes | None = None, dry: bool = False) -> Acquire:
    """A request about several keys."""
    return Acquire(tuple(Ask(name, Quota.parse(quota), cost) for name in names), dry=dry, id=id)


def charged(asked: Face, name: str, quota: str = QUOTA) -> int:
    """Units that are charged to a key."""
    verdict = decided(asked.run([spanning(name, quota=quota, cost=0, dry=True)])[0])
    return verdict.quota.limit - verdict.remaining


def calls(server: Server, command: str) -> int:
    """How often a server was asked something."""
    return _count(server.ask("INFO", "commandstats"), rf"cmdstat_{re.escape(command)}:calls=(\d+)")


def errors(server: Server, code: str) -> int:
    """How often a server said no."""
    return _count(server.ask("INFO", "errorstats"), rf"errorstat_{code}:count=(\d+)")


def _count(info: bytes, pattern: str) -> int:
    found = re.search(pattern, info.decode())
    return int(found.group(1)) if found else 0


def clients(server: Server, name: str) -> int:
    """How many connections a server has from clients that call themselves so."""
    listed: bytes = server.ask("CLIENT", "LIST")
    return listed.decode().count(f" name={name} ")


def all_threads() -> int:
    """Return all threads of this process."""
    return len(list(Path("/proc/self/task").iterdir()))

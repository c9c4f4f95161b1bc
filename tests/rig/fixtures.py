"""Pytest fixtures: servers of each flavour, shared by all tests of a process, and a key prefix for each test.

Load them in a conftest.py with `pytest_plugins = ["tests.rig.fixtures"]`. A test with one of them runs once per
flavour, and is skipped where a flavour is not installed. Servers start on first use:

| fixture | servers |
|---|---|
| `keyspace` | `server`: one |
| `sentinel_keyspace` | `sentinel_set`: a primary, two replicas, three sentinels |
| `cluster_keyspace` | `cluster`: three primaries with a replica each |

Tests that kill, freeze, reshard or reconfigure servers start their own. The shared ones have longer timeouts, so that
no replica is promoted because the machine stood still.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar

import pytest

from tests.rig.clusters import Cluster
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import FLAVOURS, Server, binary
from tests.rig.topologies import Keyholder

_PATIENCE = 15_000

_numbers = count(1)

T = TypeVar("T")
HolderT = TypeVar("HolderT", bound=Keyholder)
KeyspaceT = TypeVar("KeyspaceT", bound="KeyspaceOn[Any]")


def check_expiries(holder: Keyholder, prefix: str, horizon: float | None = None) -> int:
    """Raise AssertionError if a key that begins with `prefix` never expires, or later than in `horizon` seconds.

    Looks at all primaries of a server or a topology. Returns how many keys there are, because a check of no keys proves
    nothing.
    """
    return sum(_check_expiries(server, prefix, horizon) for server in holder.primaries)


def _check_expiries(server: Server, prefix: str, horizon: float | None) -> int:
    with server.talk() as conversation:
        keys = _keys(server, prefix)
        lives = conversation.ask_all([("PTTL", key) for key in keys])
    for key, life in zip(keys, lives, strict=True):
        assert life != -1, f"{key!r} never expires"
        assert horizon is None or life <= horizon * 1_000, f"{key!r} expires in {life} ms, beyond {horizon} s"
    return len(keys)


def _keys(server: Server, prefix: str) -> list[bytes]:
    pattern = re.sub(r"([][*?\\^])", r"\\\1", prefix) + "*"
    found: set[bytes] = set()
    cursor = b"0"
    with server.talk() as conversation:
        while True:
            cursor, keys = conversation.ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            found.update(keys)
            if cursor == b"0":
                return sorted(found)


@dataclass
class KeyspaceOn(Generic[HolderT]):
    """The keys of one test, which begin with `prefix`, on a server or a topology.

    When the test is over, all of them must expire, and within `horizon` seconds if the test has set it.
    """

    holder: HolderT
    prefix: str
    horizon: float | None = None

    def keys(self) -> list[bytes]:
        return sorted(key for server in self.holder.primaries for key in _keys(server, self.prefix))

    def check(self) -> int:
        return check_expiries(self.holder, self.prefix, self.horizon)

    def clear(self) -> None:
        for server in self.holder.primaries:
            with server.talk() as conversation:
                conversation.ask_all([("DEL", key) for key in _keys(server, self.prefix)])


class Keyspace(KeyspaceOn[Server]):
    """The keys of one test on one server."""

    @property
    def server(self) -> Server:
        return self.holder


class _Running(dict[str, T]):
    """Starts the servers of a flavour on the first look-up."""

    def __init__(self, start: Callable[[str], AbstractContextManager[T]], closing: ExitStack) -> None:
        self._start = start
        self._closing = closing

    def __missing__(self, flavour: str) -> T:
        self[flavour] = self._closing.enter_context(self._start(flavour))
        return self[flavour]


# Those that run are kept by fixtures without parameters: pytest would end one flavour to start the other.


@pytest.fixture(scope="session")
def running_servers() -> Iterator[dict[str, Server]]:
    """The servers started so far, by flavour."""
    with ExitStack() as closing:
        yield _Running(Server, closing)


@pytest.fixture(scope="session")
def running_sentinel_sets() -> Iterator[dict[str, SentinelSet]]:
    """The sentinel sets started so far, by flavour."""
    with ExitStack() as closing:
        yield _Running(lambda flavour: SentinelSet(flavour, down_after=_PATIENCE), closing)


@pytest.fixture(scope="session")
def running_clusters() -> Iterator[dict[str, Cluster]]:
    """The clusters started so far, by flavour."""
    with ExitStack() as closing:
        yield _Running(lambda flavour: Cluster(flavour, node_timeout=_PATIENCE), closing)


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """A flavour that is installed."""
    if binary(request.param) is None:
        pytest.skip(f"{request.param}-server is not installed")
    return str(request.param)


@pytest.fixture
def server(flavour: str, running_servers: dict[str, Server]) -> Server:
    """A running server that all tests share; leave it unchanged."""
    return running_servers[flavour]


@pytest.fixture
def sentinel_set(flavour: str, running_sentinel_sets: dict[str, SentinelSet]) -> SentinelSet:
    """A running sentinel set that all tests share; leave it unchanged."""
    return running_sentinel_sets[flavour]


@pytest.fixture
def cluster(flavour: str, running_clusters: dict[str, Cluster]) -> Cluster:
    """A running cluster that all tests share; leave it unchanged."""
    return running_clusters[flavour]


@pytest.fixture
def keyspace(server: Server) -> Iterator[Keyspace]:
    """A key prefix on the shared server, whose expiries are checked after the test."""
    yield from _lent(Keyspace(server, _prefix()))


@pytest.fixture
def sentinel_keyspace(sentinel_set: SentinelSet) -> Iterator[KeyspaceOn[SentinelSet]]:
    """A key prefix on the shared sentinel set's primary, whose expiries are checked after the test."""
    yield from _lent(KeyspaceOn(sentinel_set, _prefix()))


@pytest.fixture
def cluster_keyspace(cluster: Cluster) -> Iterator[KeyspaceOn[Cluster]]:
    """A key prefix on the shared cluster's primaries, whose expiries are checked after the test."""
    yield from _lent(KeyspaceOn(cluster, _prefix()))


def _prefix() -> str:
    return f"test{next(_numbers)}:"


def _lent(keyspace: KeyspaceT) -> Iterator[KeyspaceT]:
    yield keyspace
    try:
        keyspace.check()
    finally:
        keyspace.clear()

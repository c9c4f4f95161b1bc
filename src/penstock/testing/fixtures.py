"""Pytest fixtures: a server of each flavour, shared by all tests of a process, and a share of its keys for each test.

Load them in a conftest.py with `pytest_plugins = ["penstock.testing.fixtures"]`. A test that asks for `server` or
`keyspace` runs once per flavour; where a flavour is not installed, it is skipped and says so. Servers start when first
asked for. Tests that kill, freeze or reconfigure a server start one of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest

from penstock.testing.servers import FLAVOURS, Server, binary

_numbers = count(1)


def check_expiries(server: Server, prefix: str, horizon: float | None = None) -> int:
    """Raise AssertionError if a key that begins with `prefix` never expires, or later than in `horizon` seconds.

    Returns how many keys there are, because a check of no keys proves nothing.
    """
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
class Keyspace:
    """The keys of one test: those of `server` that begin with `prefix`.

    When the test is over, all of them must expire, and within `horizon` seconds if the test has set it.
    """

    server: Server
    prefix: str
    horizon: float | None = None

    def keys(self) -> list[bytes]:
        return _keys(self.server, self.prefix)

    def check(self) -> int:
        return check_expiries(self.server, self.prefix, self.horizon)


@pytest.fixture(scope="session")
def running_servers() -> Iterator[dict[str, Server]]:
    """The servers started so far, by flavour. Not parametrised itself: pytest would end one to start the other."""
    with ExitStack() as closing:
        yield _Running(closing)


class _Running(dict[str, Server]):
    """Starts a server when it is first looked up."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing

    def __missing__(self, flavour: str) -> Server:
        self[flavour] = self._closing.enter_context(Server(flavour))
        return self[flavour]


@pytest.fixture(params=FLAVOURS)
def server(request: pytest.FixtureRequest, running_servers: dict[str, Server]) -> Server:
    """A running server that all tests share; leave it as you found it."""
    flavour: str = request.param
    if binary(flavour) is None:
        pytest.skip(f"{flavour}-server is not installed")
    return running_servers[flavour]


@pytest.fixture
def keyspace(server: Server) -> Iterator[Keyspace]:
    """Keys of one's own on the shared server, whose expiries are checked after the test."""
    keyspace = Keyspace(server, f"test{next(_numbers)}:")
    yield keyspace
    try:
        keyspace.check()
    finally:
        if keys := keyspace.keys():
            server.ask("DEL", *keys)

"""What tests of failovers share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import pytest

from penstock.model import Acquire, Ask
from penstock.stores.redis.store import RedisStore
from tests.integration.failover_fleet import Fleet
from tests.integration.redis_support import decided, is_full, one
from tests.rig.clusters import Cluster
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import FLAVOURS, binary


def on(flavour: str) -> pytest.MarkDecorator:
    """On one flavour in the usual run, and on all under the profile that takes its time."""
    return pytest.mark.parametrize("fleet", FLAVOURS if is_full() else (flavour,), indirect=True)


class Running(dict[str, Fleet]):
    """Starts servers of a flavour, and a fleet that uses them, when it is first looked up."""

    def __init__(
        self, start: Callable[[str], SentinelSet | Cluster], closing: ExitStack, folders: pytest.TempPathFactory
    ) -> None:
        self._start, self._closing, self._folders = start, closing, folders

    def __missing__(self, flavour: str) -> Fleet:
        if binary(flavour) is None:
            pytest.skip(f"{flavour}-server is not installed")
        topology = self._start(flavour)
        self._closing.enter_context(topology)
        self[flavour] = self._closing.enter_context(Fleet(topology, self._folders.mktemp(flavour)))
        return self[flavour]


def spend(store: RedisStore, asked: Ask) -> int:
    """How many units one more client is admitted."""
    return next(number for number in count() if not decided(one(store, Acquire((asked,)))))

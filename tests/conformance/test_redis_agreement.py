"""Plan and script keep every law, and agree with the Python algorithms on every history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import ClassVar

import pytest

from penstock.clock import ManualClock
from penstock.stores import Store
from penstock.testing import StoreConformance
from tests.conformance.redis_server import PlannedStore, running_server

_namespaces = count()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_server() as port:
        yield port


class TestScript(StoreConformance):
    port: ClassVar[int]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def server(cls, port: int) -> None:
        cls.port = port

    def make_store(self, clock: ManualClock) -> Store:
        return PlannedStore(self.port, clock, namespace=str(next(_namespaces)))

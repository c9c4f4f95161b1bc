"""Plan and script keep every law, and agree with the Python algorithms on every history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import ClassVar

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.clock import ManualClock, Micros
from penstock.quota import ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL
from penstock.stores import Store
from penstock.testing import StoreConformance
from tests.conformance.redis_server import PlannedStore, running_server
from tests.conformance.side_by_side import LIMITS, PERIODS, Move, SideBySide, UnforgettingStore, moves

# A round trip to a server costs many times what the memory store does.
FEWER = max(10, settings().max_examples // 10)

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

    def check_laws(self, algorithm: str, how: settings | None = None) -> None:
        super().check_laws(algorithm, how or settings(max_examples=FEWER, phases=[Phase.generate, Phase.shrink]))


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL])
@settings(max_examples=2 * FEWER)
@given(limit=st.sampled_from(LIMITS), period=st.sampled_from(PERIODS), history=st.lists(moves, max_size=25))
def test_script_and_python_agree_on_every_history(
    port: int, algorithm: str, limit: int, period: Micros, history: list[Move]
) -> None:
    clock = ManualClock()
    with closing(PlannedStore(port, clock, str(next(_namespaces)))) as store:
        both = SideBySide(algorithm, limit, period, clock, UnforgettingStore(clock), store)
        for move in history:
            both.make(move)

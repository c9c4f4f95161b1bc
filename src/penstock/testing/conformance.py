"""The proof of a store: subclass `StoreConformance`, say how to make your store, and run pytest.

    class TestMyStore(StoreConformance):
        def make_store(self, clock: ManualClock) -> Store:
            return MyStore(clock=clock)

It holds examples, whose names are sentences, and one state machine per algorithm, which compares the store with a
brute-force oracle on generated histories. How many histories, and how long, is up to the Hypothesis profile in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import ceil
from types import SimpleNamespace
from typing import ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.clock import ManualClock, Micros
from penstock.engine.protocols import AsyncStore, Store
from penstock.model import Op, Outcome
from penstock.testing.examples.calendars import CalendarExamples
from penstock.testing.examples.grants import GrantExamples
from penstock.testing.examples.ids import IdExamples
from penstock.testing.examples.keys import KeyExamples
from penstock.testing.examples.options import OptionExamples
from penstock.testing.examples.places import PlaceExamples
from penstock.testing.examples.queues import QueueExamples
from penstock.testing.examples.refunds import RefundExamples
from penstock.testing.examples.reports import ReportExamples
from penstock.testing.examples.requests import RequestExamples
from penstock.testing.examples.settlements import SettlingExamples
from penstock.testing.examples.times import TimeExamples
from penstock.testing.kit import Kit
from penstock.testing.machine import Laws

Test = TypeVar("Test", bound=Callable[..., None])


def _generated(test: Test) -> Test:
    """Mark a test that runs Hypothesis without `@given`, so that its pytest plugin shows examples and statistics."""
    test.is_hypothesis_test = True  # type: ignore[attr-defined]
    test.hypothesis = SimpleNamespace(inner_test=test)  # type: ignore[attr-defined]
    return test


class HistoryConformance(Kit):
    """The state machines alone: for a second way into a store whose examples are proven elsewhere."""

    @_generated
    def test_fixed_window_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("fixed_window")

    @_generated
    def test_sliding_window_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("sliding_window")

    @_generated
    def test_rolling_window_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("rolling_window")

    @_generated
    def test_token_bucket_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("token_bucket")

    @_generated
    def test_gcra_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("gcra")

    @_generated
    def test_leaky_bucket_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("leaky_bucket")

    @_generated
    def test_calendar_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("calendar")

    @_generated
    def test_concurrency_keeps_all_laws_on_every_history(self) -> None:
        self.check_laws("concurrency")

    share_of_histories: ClassVar[float] = 1.0
    """For another face of a store that is proven elsewhere (awaited, by another road) a part of them is enough."""

    def check_laws(self, algorithm: str, how: settings | None = None) -> None:
        """Run the state machine of one algorithm, by default with the settings of the profile in force."""
        name = f"{type(self).__name__}_{algorithm}"
        machine = type(name, (Laws,), {"algorithm": algorithm, "make_store": staticmethod(self.make_store)})
        how = how or settings(
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            report_multiple_bugs=False,  # one story, and soon: shrinking several can take minutes
        )
        steps = how.stateful_step_count // 3  # each is several operations
        histories = ceil(how.max_examples * self.share_of_histories)
        run_state_machine_as_test(machine, settings=settings(how, stateful_step_count=steps, max_examples=histories))


class StoreConformance(
    HistoryConformance,
    RequestExamples,
    RefundExamples,
    ReportExamples,
    OptionExamples,
    KeyExamples,
    TimeExamples,
    IdExamples,
    GrantExamples,
    SettlingExamples,
    PlaceExamples,
    QueueExamples,
    CalendarExamples,
):
    """Every law that a store must keep, as tests. Subclasses implement `make_store`.

    The store must take the time from the clock that it is given, because tests move that clock by hand. It is closed
    after use. Operations go straight to `Store.run`, already checked, as a limiter's engine would send them.
    """


class AsyncHistoryConformance(HistoryConformance):
    """The same for a store that is awaited. Subclasses implement `make_async_store`.

    Each store gets an event loop of its own, on which it is made, used and closed.
    """

    def make_async_store(self, clock: ManualClock) -> AsyncStore:
        """Return a new store without counters, whose only source of time is `clock`."""
        raise NotImplementedError(f"{type(self).__name__} must say how to make the store that it tests")

    def make_store(self, clock: ManualClock) -> Store:
        return _Awaited(lambda: self.make_async_store(clock))

    def race(self, batches: Sequence[Sequence[Op]]) -> list[list[Outcome]]:
        assert isinstance(self.store, _Awaited)
        return self.store.race(batches)


class AsyncStoreConformance(AsyncHistoryConformance, StoreConformance):
    """All tests of a store, for one that is awaited."""


class _Awaited:
    """A store for asyncio as a blocking one."""

    def __init__(self, make: Callable[[], AsyncStore]) -> None:
        async def making() -> AsyncStore:
            return make()

        self._loop = asyncio.Runner()
        self._store = self._loop.run(making())

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        async def asking() -> list[Outcome]:
            return await self._store.run(ops, deadline)

        return self._loop.run(asking())

    def race(self, batches: Sequence[Sequence[Op]]) -> list[list[Outcome]]:
        async def together() -> list[list[Outcome]]:
            return await asyncio.gather(*(self._store.run(batch) for batch in batches))

        return self._loop.run(together())

    def close(self) -> None:
        self._loop.run(self._store.close())
        self._loop.close()

"""The built-in signals: what they say, and that nothing is left behind by them."""

import asyncio
import gc
import selectors
import warnings
from math import ceil
from typing import Any

import pytest

from penstock.clock import SECOND, ManualClock
from penstock.errors import InvalidOption
from penstock.shedding import InFlight, LoopLag, Shedder, Utilisation
from penstock.shedding.levels import Smoothed

# ---------------------------------------------------------------- counting


def test_in_flight_is_a_share_of_capacity_and_may_be_more_than_all_of_it() -> None:
    in_flight = InFlight(4)
    running = [in_flight.begin() for _ in range(6)]
    assert (in_flight(), in_flight.now) == (1.5, 6)
    for admission in running[:5]:
        admission.end()
    assert (in_flight(), in_flight.now) == (0.25, 1)


def test_utilisation_follows_slowly() -> None:
    clock = ManualClock()
    utilisation = Utilisation(2, over=10, clock=clock)
    assert utilisation() == 0
    with utilisation.begin(), utilisation.begin():
        seen = []
        for _ in range(600):
            clock.advance(0.1)
            seen.append(utilisation())
        assert seen == sorted(seen)
        assert seen[0] < 0.02
        assert seen[99] == pytest.approx(0.632, abs=0.001)  # 1 - 1/e after 10 s
        assert seen[-1] > 0.99
    clock.advance(10)
    assert utilisation() == pytest.approx(0.367, abs=0.001)


def test_utilisation_of_half_the_workers_half_the_time_is_a_quarter() -> None:
    clock = ManualClock()
    utilisation = Utilisation(2, over=60, clock=clock)
    seen = []
    for _ in range(1_200):
        with utilisation.begin():
            clock.advance(0.5)
            utilisation()
        clock.advance(0.5)
        seen.append(utilisation())
    seen = seen[600:]
    assert sum(seen) / len(seen) == pytest.approx(0.25, abs=0.01)


def test_a_mean_is_the_same_however_often_it_is_taken() -> None:
    seldom, often = Smoothed(SECOND), Smoothed(SECOND)
    seldom.take(0, 0)
    often.take(0, 0)
    for now in range(0, 3 * SECOND + 1, 1_000):
        often.take(2, now)
    assert seldom.take(2, 3 * SECOND) == pytest.approx(often.mean)


def test_a_mean_survives_a_clock_that_is_set_back() -> None:
    mean = Smoothed(SECOND)
    mean.take(0, 10 * SECOND)
    before = mean.take(1, 12 * SECOND)
    assert mean.take(5, 3 * SECOND) == before


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None, "8", 2**33])
def test_invalid_capacities_are_refused(number: object) -> None:
    make: Any
    for make, what in ((InFlight, "capacity"), (Utilisation, "workers")):
        with pytest.raises(InvalidOption) as caught:
            make(number)
        assert str(caught.value) == f"{what} {number!r}: expected a whole number, 1 to 4294967296"


def test_invalid_spans_are_refused() -> None:
    with pytest.raises(InvalidOption) as caught:
        Utilisation(1, over=0)
    assert str(caught.value) == "over 0: expected seconds, 0.001 to 3600"
    with pytest.raises(InvalidOption) as caught:
        LoopLag(worst=float("nan"))
    assert str(caught.value) == "worst nan: expected seconds, 0.001 to 3600"


# ---------------------------------------------------------------- loop lag


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a ManualClock: it never waits, it moves the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(_Skipping(clock))
        self.clock = clock
        self._clock_resolution = 1e-6  # the system clock's nanosecond is lost in a float of this size

    def time(self) -> float:
        return self.clock.micros / SECOND


class _Skipping(selectors.SelectSelector):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        self.clock.micros += ceil((timeout or 0) * SECOND)
        return super().select(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lag(clock: ManualClock) -> LoopLag:
    return LoopLag(worst=0.1, clock=clock)


def run(clock: ManualClock, work: Any) -> Any:
    with asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as runner:
        return runner.run(work)


def test_a_loop_that_keeps_its_timers_has_no_lag(clock: ManualClock, lag: LoopLag) -> None:
    async def idle() -> list[float]:
        seen = []
        for _ in range(50):
            await asyncio.sleep(0.03)
            seen.append(lag())
        return seen

    assert max(run(clock, idle())) < 0.01


def test_a_blocked_loop_shows_in_the_next_reading(clock: ManualClock, lag: LoopLag) -> None:
    async def blocked() -> list[float]:
        lag()
        await asyncio.sleep(0.1)
        clock.advance(0.35)  # something blocks
        seen = [lag()]  # before the timer could ring
        await asyncio.sleep(0)
        seen.append(lag())
        await asyncio.sleep(1)
        return [*seen, lag()]

    at_once, after, recovered = run(clock, blocked())
    assert 3.0 <= at_once <= 3.5  # the timer was set up to 50 ms before
    assert 3.0 <= after <= 3.5
    assert recovered < 0.01


def test_a_loop_has_one_timer_however_often_it_is_asked(clock: ManualClock, lag: LoopLag) -> None:
    async def asked() -> int:
        for _ in range(20):
            lag()
            await asyncio.sleep(0.2)
        return len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    assert run(clock, asked()) == 1


def test_the_watch_ends_with_its_loop_and_without_a_warning(clock: ManualClock, lag: LoopLag) -> None:
    async def asked() -> None:
        lag()
        await asyncio.sleep(1)
        assert len(lag._watches) == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            run(clock, asked())
            gc.collect()
            assert len(lag._watches) == 0
    clock.advance(100)
    assert lag() == 0


def test_the_watch_ends_with_its_signal(clock: ManualClock) -> None:
    async def dropped() -> int:
        lag = LoopLag(clock=clock)
        lag()
        del lag
        await asyncio.sleep(1)
        return len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    assert run(clock, dropped()) == 0


def test_the_latest_of_several_loops_counts_and_a_resting_one_does_not(clock: ManualClock, lag: LoopLag) -> None:
    async def ask() -> float:
        return lag()

    async def ask_late() -> float:
        lag()
        clock.advance(0.25)
        return lag()

    with (
        asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as resting,
        asyncio.Runner(loop_factory=lambda: ManualLoop(clock)) as other,
    ):
        resting.run(ask())
        clock.advance(10)
        assert other.run(ask()) == 0
        assert other.run(ask_late()) == pytest.approx(2, abs=0.1)
        assert len(lag._watches) == 2


def test_the_lag_outside_of_any_loop_is_0(lag: LoopLag) -> None:
    assert lag() == 0
    assert len(lag._watches) == 0


def test_a_shedder_sheds_by_the_lag_of_its_loop(clock: ManualClock, lag: LoopLag) -> None:
    shedder = Shedder(lag, clock=clock)

    async def overloaded() -> int:
        for _ in range(100):
            shedder.admit()
            clock.advance(0.2)  # too much work in each turn
            await asyncio.sleep(0)
        return shedder.level

    assert run(clock, overloaded()) > 10

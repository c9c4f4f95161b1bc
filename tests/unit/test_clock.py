import time

import pytest

from penstock import ManualClock
from penstock.clock import SystemClock
from penstock.errors import InvalidOption


def test_the_system_clock_is_the_interpreters_own() -> None:
    assert SystemClock().time_ns is time.time_ns


def test_a_manual_clock_starts_in_2023_and_stands_still() -> None:
    clock = ManualClock()
    assert clock.time_ns() == clock.time_ns() == 1_700_000_000_000_000_000


def test_a_manual_clock_starts_at_the_given_time() -> None:
    assert ManualClock(12.5).time_ns() == 12_500_000_000


@pytest.mark.parametrize(
    ("seconds", "micros"), [(0, 0), (1, 1_000_000), (1.5, 1_500_000), (0.000_001, 1), (1e-9, 0), (0.1, 100_000)]
)
def test_advancing_lets_seconds_pass_to_the_nearest_microsecond(seconds: float, micros: int) -> None:
    clock = ManualClock()
    before = clock.micros
    clock.advance(seconds)
    assert clock.micros - before == micros


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "advance(-1): expected seconds >= 0; use set() to step the clock back"),
        (float("nan"), "advance(nan): expected seconds >= 0; use set() to step the clock back"),
    ],
)
def test_advancing_never_goes_back(seconds: float, text: str) -> None:
    clock = ManualClock()
    before = clock.micros
    with pytest.raises(InvalidOption) as caught:
        clock.advance(seconds)
    assert str(caught.value) == text
    assert clock.micros == before


@pytest.mark.parametrize("seconds", [0, 1.5, 1_600_000_000])
def test_setting_steps_the_clock_either_way(seconds: float) -> None:
    clock = ManualClock()
    clock.set(seconds)
    assert clock.time_ns() == round(seconds * 1_000_000_000)

"""Limits that follow pressure: between their bounds, in few steps, and without forgetting what was used."""

import pytest

from penstock import Limiter, Quota
from penstock.clock import ManualClock
from penstock.errors import InvalidOption, InvalidQuota
from penstock.events import LimitScaled
from penstock.shedding import InFlight, Scaled
from penstock.shedding.scaled import Slope


class Pressed:
    """A scaled limit with a signal to turn."""

    def __init__(self, most: str = "100/minute", least: str = "20/minute") -> None:
        self.clock = ManualClock()
        self.pressure = 0.0
        self.told: list[object] = []
        self.scaled = Scaled(most, least, self.read, clock=self.clock, hook=self.told.append)

    def read(self) -> float:
        return self.pressure

    def hold(self, pressure: float, seconds: float = 60) -> list[int]:
        """The limits seen while a pressure is kept up."""
        self.pressure = pressure
        seen = []
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            seen.append(self.scaled().limit)
        return seen


@pytest.fixture
def pressed() -> Pressed:
    return Pressed()


def test_the_bounds_are_reached_and_kept(pressed: Pressed) -> None:
    assert set(pressed.hold(0.5)) == {100}
    assert pressed.hold(1.2)[-1] == 20
    assert set(pressed.hold(9)) == {20}
    assert pressed.hold(0.2)[-1] == 100
    assert pressed.scaled() is Quota.parse("100/minute")


def test_half_the_pressure_is_half_the_way(pressed: Pressed) -> None:
    assert pressed.hold(0.85)[-1] == pytest.approx(60, abs=5)


def test_the_limit_moves_a_step_at_a_time_and_each_move_is_an_event(pressed: Pressed) -> None:
    seen = list(dict.fromkeys(pressed.hold(2)))
    assert seen == list(range(100, 15, -5))
    assert pressed.told[0] == LimitScaled("100/minute", "95/minute")
    assert len(pressed.told) == 16


def test_pressure_that_trembles_moves_nothing() -> None:
    slope = Slope(0.0, 1.0, 16)
    step = slope.stepped(7, 8.2 / 16)
    assert step == 8
    assert {step := slope.stepped(step, aim / 16) for aim in (7.3, 8.8, 7.2, 8.85) * 10} == {8}
    assert slope.stepped(8, 7 / 16) == 7


def test_used_units_stay_used_when_the_limit_moves(pressed: Pressed) -> None:
    limiter = Limiter(clock=pressed.clock)
    assert limiter.acquire("alice", pressed.scaled(), cost=30).remaining == 70
    pressed.hold(2, seconds=15)
    refused = limiter.acquire("alice", pressed.scaled())
    assert (bool(refused), refused.remaining, refused.limit) == (False, 0, 20)
    assert limiter.acquire("bob", pressed.scaled()).remaining == 19
    pressed.hold(0, seconds=15)
    assert limiter.acquire("alice", pressed.scaled()).remaining == 69


@pytest.mark.parametrize(
    ("most", "least"),
    [
        ("100/minute burst 50", "10/minute burst 5"),
        ("100/minute gcra burst 50", "10/minute gcra burst 50"),
        ("10/second queue 20", "1/second queue 0"),
        ("100 concurrent ttl 30s", "3 concurrent ttl 30s"),
        ("1000/day calendar Europe/Berlin", "1/day calendar Europe/Berlin"),
        ("9/hour rolling_window penalty 5m name api", "8/hour rolling_window penalty 5m name api"),
        ("9/hour min_interval 1s", "5/hour min_interval 1s"),
        ("7/minute count denied", "5/minute count denied"),
    ],
)
def test_every_kind_of_quota_can_be_scaled(most: str, least: str) -> None:
    pressed = Pressed(most, least)
    assert pressed.scaled() is Quota.parse(most)
    limits = pressed.hold(2)
    assert limits == sorted(limits, reverse=True)
    assert pressed.scaled() is Quota.parse(least)
    assert len({quota.identity for quota in pressed.scaled._quotas}) == 1


def test_a_broken_signal_leaves_the_limit_alone(pressed: Pressed) -> None:
    assert set(pressed.hold(float("nan"))) == {100}
    assert pressed.scaled.faults > 10


def test_several_signals_are_one() -> None:
    clock = ManualClock()
    scaled = Scaled(Quota(8, 1), Quota(4, 1), [InFlight(1), lambda: 1.0], clock=clock)  # type: ignore[arg-type]
    for _ in range(100):
        clock.advance(1)
        scaled()
    assert scaled() is Quota(4, 1)


@pytest.mark.parametrize(
    ("most", "least", "options", "message"),
    [
        ("10/minute", "20/minute", {}, '"10/minute" to "20/minute": expected the larger first, then the smaller'),
        ("10/minute", "10/minute", {}, '"10/minute" to "10/minute": expected the larger first, then the smaller'),
        (
            "10/minute burst 5",
            "5/minute burst 6",
            {},
            '"10/minute burst 5" to "5/minute burst 6": expected the larger first, then the smaller',
        ),
        (
            "10/minute",
            "5/hour",
            {},
            '"10/minute" to "5/hour": expected quotas that differ in limit, burst and queue alone',
        ),
        (
            "10/minute",
            "5/minute gcra",
            {},
            '"10/minute" to "5/minute gcra": expected quotas that differ in limit, burst and queue alone',
        ),
        ("10/minute", "5/minute", {"between": 1}, "between 1: expected two pressures, such as (0.7, 1.0)"),
        (
            "10/minute",
            "5/minute",
            {"between": (1, 1)},
            "between 1, 1: expected two pressures, the lower first, 0 to 10",
        ),
        ("10/minute", "5/minute", {"steps": 0}, "steps 0: expected a whole number, 1 to 64"),
        ("10/minute", "5/minute", {"interval": 0}, "interval 0: expected seconds, 0.001 to 3600"),
        ("10/minute", "5/minute", {"over": -1}, "over -1: expected seconds, 0.001 to 3600"),
        ("10/minute", "5/minute", {"signal": None}, "signals None: expected functions that return pressure"),
    ],
)
def test_invalid_options_are_refused(most: str, least: str, options: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"signal": InFlight(1), **options}
    with pytest.raises(InvalidOption) as caught:
        Scaled(most, least, **settings)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_quota_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidQuota):
        Scaled("10/fortnight", "5/minute", InFlight(1))

"""What a shedder is for, simulated: a server offered far more than it can do, and calm afterwards."""

import random
from dataclasses import dataclass, field

import pytest

from penstock import ManualClock
from penstock.shedding import Admission, InFlight, Shedder
from tests.unit.overload import WORKERS, Door, Server, turns

pytestmark = pytest.mark.untraced  # a minute of traffic runs the same lines again and again

CALM = {"critical": 0.15, "high": 0.1, "normal": 0.15, "low": 0.1}
STORM = {"critical": 0.2, "high": 0.3, "normal": 0.6, "low": 1.5}  # 2.6 times what it can do
PLACES = 2 * WORKERS  # as many wait as are served


def shedding(seed: int, reserve: float = 0.25) -> Server:
    clock = ManualClock()
    shedder = Shedder(InFlight(PLACES), reserve=reserve, clock=clock, draw=random.Random(seed).random)
    return Server(shedder, clock, lambda: shedder.level, seed)


@dataclass
class OpenDoor:
    """Admits every request."""

    def admit(self, priority: str = "normal", /) -> Admission:
        return Admission(True, priority)


@dataclass
class Switch:
    """Refuses all but critical traffic the moment it is full, and nothing the moment it is not: no hysteresis."""

    in_flight: InFlight = field(default_factory=lambda: InFlight(WORKERS))

    @property
    def level(self) -> int:
        return int(self.in_flight() >= 1)

    def admit(self, priority: str = "normal", /) -> Admission:
        if self.level and priority != "critical":
            return Admission(False, priority, "shed", "switch")
        return self.in_flight.begin()


def offered(server: Server, load: dict[str, float], seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """The shares of each class that were answered in time, and that were refused."""
    tallies = server.run(seconds, load)
    server.run(2, CALM)  # whatever is still running comes to an end
    goodput = {priority: tally.goodput for priority, tally in tallies.items()}
    return goodput, {priority: tally.refused / tally.asked for priority, tally in tallies.items()}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_critical_traffic_is_served_through_an_overload_while_low_is_refused(seed: int) -> None:
    server = shedding(seed)
    server.run(10, CALM)
    goodput, refused = offered(server, STORM, 60)
    assert goodput["critical"] >= 0.99
    assert refused["critical"] == 0
    assert refused["low"] >= 0.9
    assert goodput["high"] > goodput["normal"] > 0.5 > goodput["low"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_requests_are_served_again_after_the_overload(seed: int) -> None:
    server = shedding(seed)
    server.run(40, STORM)
    server.run(45, CALM)
    goodput, refused = offered(server, CALM, 20)
    assert refused == dict.fromkeys(refused, 0)
    assert min(goodput.values()) >= 0.99
    assert server.levels[-1] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pressure_alone_comes_too_late_for_a_sudden_overload(seed: int) -> None:
    """Why there is a reserve, which acts at once."""
    server = shedding(seed, reserve=0)
    server.run(10, CALM)
    sudden, _ = offered(server, STORM, 40)
    assert sudden["critical"] < 0.9


def test_no_request_is_served_in_time_without_a_shedder() -> None:
    """The control: the overload is one."""
    server = Server(OpenDoor(), ManualClock(), lambda: 0)
    server.run(10, STORM)
    goodput, _ = offered(server, STORM, 10)
    assert max(goodput.values()) < 0.05


@pytest.mark.parametrize("reserve", [0, 0.25])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_level_does_not_flap(seed: int, reserve: float) -> None:
    server = shedding(seed, reserve)
    server.run(60, STORM)
    server.run(60, CALM)
    assert server.levels[-1] == 0
    assert max(server.levels) > 5
    assert turns(server.levels) <= 12  # in two minutes


def test_a_switch_without_hysteresis_flaps_and_the_checker_notices() -> None:
    """The control: the same load, and a shedder that acts at once."""
    switch: Switch = Switch()
    door: Door = switch
    server = Server(door, ManualClock(), lambda: switch.level)
    server.run(60, STORM)
    server.run(60, CALM)
    assert turns(server.levels) > 1_000


def test_a_level_that_goes_up_and_comes_down_turns_once() -> None:
    assert turns([0, 0, 1, 2, 2, 3, 2, 1, 1, 0]) == 1
    assert turns([0, 1, 0, 1, 0]) == 3
    assert turns([]) == turns([4]) == 0

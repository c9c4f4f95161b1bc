"""The shedder: which requests it refuses, by which mechanism, and that its counts stay right."""

import asyncio
import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.clock import ManualClock, SteadyClock
from penstock.engine import lifetime
from penstock.errors import InvalidOption
from penstock.events import Shedding, SignalFailed
from penstock.shedding import PRIORITIES, Admission, InFlight, LoopLag, Shedder, Utilisation


class Pressed:
    """A shedder with a signal to turn, a draw to choose, and a list of what it tells."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.pressure = 0.0
        self.draw = 0.5
        self.told: list[object] = []
        self.shedder = Shedder(
            self.read, rise=1, fall=4, clock=self.clock, hook=self.told.append, draw=lambda: self.draw
        )

    def read(self) -> float:
        return self.pressure

    def hold(self, pressure: float, seconds: float) -> int:
        """Keep up a pressure, with ten requests a second."""
        self.pressure = pressure
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.shedder.admit("critical")
        return self.shedder.level

    def admits(self, draw: float) -> list[str]:
        self.draw = draw
        return [priority for priority in PRIORITIES if self.shedder.admit(priority)]


@pytest.fixture
def pressed() -> Pressed:
    return Pressed()


# ---------------------------------------------------------------- pressure


def test_all_requests_are_admitted_without_pressure(pressed: Pressed) -> None:
    assert pressed.admits(draw=0) == list(PRIORITIES)
    assert pressed.hold(0.89, seconds=100) == 0


def test_a_growing_share_is_refused_while_pressure_lasts_lowest_class_first(pressed: Pressed) -> None:
    seen = []
    for _ in range(40):
        level = pressed.hold(2, seconds=1)
        seen.append((level, pressed.admits(0.45)))
    assert seen[0][0] == 0  # slow to act
    assert [level for level, _ in seen][-10:] == [30] * 10
    assert list(dict.fromkeys(tuple(admitted) for _, admitted in seen)) == [
        ("critical", "high", "normal", "low"),
        ("critical", "high", "normal"),
        ("critical", "high"),
        ("critical",),
    ]


def test_the_draw_decides_which_of_a_class(pressed: Pressed) -> None:
    while pressed.shedder.level < 14:
        pressed.hold(2, seconds=0.1)
    assert pressed.shedder.shares == {"critical": 0, "high": 0, "normal": 0.4, "low": 1}
    assert pressed.admits(0.39) == ["critical", "high"]
    assert pressed.admits(0.4) == ["critical", "high", "normal"]
    assert pressed.admits(0.999999) == ["critical", "high", "normal"]


def test_between_the_two_pressures_the_level_stays(pressed: Pressed) -> None:
    level = pressed.hold(2, seconds=5)
    assert level > 0
    pressed.hold(0.8, seconds=3)  # the mean has to come down first
    assert pressed.hold(0.8, seconds=100) == pressed.hold(0.8, seconds=100)


def test_the_level_falls_more_slowly_than_it_rises(pressed: Pressed) -> None:
    level = pressed.hold(2, seconds=10)
    assert level - 3 <= pressed.hold(0, seconds=10) < level
    assert pressed.hold(0, seconds=4 * level + 10) == 0


def test_after_a_silence_the_level_has_fallen(pressed: Pressed) -> None:
    level = pressed.hold(2, seconds=10)
    pressed.pressure = 0
    pressed.clock.advance(9)
    assert pressed.shedder.level == level - 2
    pressed.clock.advance(3_600)
    assert pressed.shedder.level == 0


def test_one_high_sample_after_a_silence_sheds_nothing(pressed: Pressed) -> None:
    pressed.hold(0, seconds=1)
    pressed.clock.advance(3_600)
    assert pressed.hold(5, seconds=0.5) == 0


def test_a_refusal_states_when_the_class_would_pass_again_without_pressure(pressed: Pressed) -> None:
    while pressed.shedder.level < 12:
        pressed.hold(2, seconds=0.1)
    pressed.draw = 0
    low, normal = pressed.shedder.admit("low"), pressed.shedder.admit("normal")
    assert (low.admitted, low.priority, low.reason, low.by, low.retry_after) == (False, "low", "shed", "pressure", 48)
    assert normal.retry_after == 8
    assert repr(normal) == "Admission(normal: shed by pressure, retry after 8 s)"


def test_each_change_of_level_is_an_event(pressed: Pressed) -> None:
    pressed.hold(2, seconds=10)
    pressed.hold(0, seconds=100)
    told = [event for event in pressed.told if isinstance(event, Shedding)]
    assert told == pressed.told
    assert told[0].was == told[-1].level == 0
    assert all(abs(event.level - event.was) == 1 for event in told)
    assert (told[0].why, told[0].pressure >= 0.9, told[-1].pressure < 0.7) == ("read", True, True)


def test_a_clock_that_is_set_back_changes_nothing_at_once(pressed: Pressed) -> None:
    level = pressed.hold(2, seconds=10)
    pressed.clock.set(1_000)
    assert pressed.shedder.level == level
    assert pressed.hold(2, seconds=3) > level


def test_the_highest_signal_counts() -> None:
    clock = ManualClock()
    shedder = Shedder([lambda: 0, lambda: 2.0, lambda: 0.3], clock=clock)
    for _ in range(100):
        clock.advance(0.1)
        shedder.admit()
    assert shedder.level > 10


# ---------------------------------------------------------------- signals that fail


@pytest.mark.parametrize("nonsense", [float("nan"), -0.1, float("inf"), None, "much", [1], 10**400])
def test_a_signal_that_returns_nonsense_is_no_pressure(nonsense: object, pressed: Pressed) -> None:
    pressed.hold(nonsense, seconds=20)  # type: ignore[arg-type]
    assert pressed.shedder.level == 0
    assert pressed.shedder.faults > 50


def test_a_signal_that_raises_is_no_pressure_and_is_reported_when_it_begins(pressed: Pressed) -> None:
    pressed.hold(0, seconds=1)
    del pressed.pressure
    pressed.clock.advance(1)
    assert pressed.shedder.admit("low")
    pressed.clock.advance(1)
    assert pressed.shedder.admit("low")
    assert pressed.shedder.faults == 2
    assert pressed.told == [SignalFailed("read", "AttributeError")]
    pressed.hold(0, seconds=1)
    pressed.hold(-1, seconds=1)
    assert pressed.told[1:] == [SignalFailed("read", "ValueError")]


def test_a_failing_signal_is_logged_once_and_without_its_message(
    pressed: Pressed, caplog: pytest.LogCaptureFixture
) -> None:
    pressed.hold("secret", seconds=3)  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.getMessage() == "signal read failed (ValueError) and counts as no pressure; logged once"


def test_a_failing_hook_does_not_affect_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def hook(event: object) -> None:
        raise RuntimeError

    shedder = Shedder(lambda: 2.0, clock=clock, hook=hook)
    for _ in range(50):
        clock.advance(0.1)
        shedder.admit()
    assert shedder.level > 0
    assert "a hook failed on Shedding" in caplog.text


def test_a_signal_that_calls_the_shedder_does_not_recurse() -> None:
    clock = ManualClock()
    asked = []

    def signal() -> float:
        asked.append(shedder.level)
        return 0.0

    shedder = Shedder(signal, clock=clock)
    assert shedder.admit()
    assert asked == [0]


# ---------------------------------------------------------------- the reserve


def test_requests_that_are_not_critical_leave_the_reserve_free() -> None:
    shedder = Shedder(InFlight(10), reserve=0.2, clock=ManualClock())
    running = [shedder.admit(priority) for priority in ("high", "normal", "low", "low") * 2]
    assert all(running)
    for priority in ("high", "normal", "low"):
        refused = shedder.admit(priority)
        assert (bool(refused), refused.reason, refused.by, refused.retry_after) == (False, "shed", "reserve", 2)
    critical = [shedder.admit("critical") for _ in range(5)]  # even beyond capacity
    assert all(critical)
    running[0].end()
    assert shedder.admit("low")


def test_critical_traffic_takes_nothing_from_the_others_room() -> None:
    shedder = Shedder(InFlight(4), reserve=0.5, clock=ManualClock())
    critical = [shedder.admit("critical") for _ in range(4)]
    low = [shedder.admit("low") for _ in range(3)]
    assert [bool(admission) for admission in (*critical, *low)] == [True] * 6 + [False]


def test_refusals_by_the_reserve_are_pressure() -> None:
    clock = ManualClock()
    told: list[object] = []
    shedder = Shedder(InFlight(100), reserve=0.99, clock=clock, hook=told.append)
    busy = shedder.admit("high")
    for _ in range(30):
        clock.advance(0.1)
        assert not shedder.admit("high")
    assert busy
    assert shedder.level > 0
    assert isinstance(told[0], Shedding)
    assert told[0].why == "reserve"


@pytest.mark.parametrize(("capacity", "reserve", "room"), [(10, 0.1, 9), (10, 0.9, 1), (3, 0.1, 2), (100, 0.07, 93)])
def test_the_reserve_is_rounded_up(capacity: int, reserve: float, room: int) -> None:
    shedder = Shedder(InFlight(capacity), reserve=reserve, clock=ManualClock())
    admissions = [shedder.admit() for _ in range(capacity)]
    assert sum(map(bool, admissions)) == room


def test_of_several_the_smallest_capacity_counts() -> None:
    shedder = Shedder([InFlight(100), Utilisation(4)], reserve=0.5, clock=ManualClock())
    assert sum(map(bool, [shedder.admit() for _ in range(10)])) == 2


def test_nothing_is_reserved_unless_asked_for() -> None:
    shedder = Shedder(InFlight(1), clock=ManualClock())
    running = [shedder.admit("low") for _ in range(10)]
    assert all(running)


# ---------------------------------------------------------------- counting


def test_a_request_is_in_flight_until_its_block_ends_however_it_does() -> None:
    in_flight, utilisation = InFlight(10), Utilisation(10)
    shedder = Shedder([in_flight, utilisation], reserve=0.1)
    with shedder.admit("low") as admission:
        assert admission
        assert repr(admission) == "Admission(low: admitted)"
        assert (in_flight.now, utilisation.now) == (1, 1)
        with shedder.admit("critical"):
            assert (in_flight.now, utilisation.now) == (2, 2)
    with pytest.raises(ZeroDivisionError), shedder.admit():
        _ = 1 / 0
    assert (in_flight.now, utilisation.now) == (0, 0)


def test_ending_an_admission_twice_ends_no_other() -> None:
    in_flight = InFlight(10)
    shedder = Shedder(in_flight)
    one, other = shedder.admit(), shedder.admit()
    for _ in range(3):
        one.end()
        with one:
            pass
        copy.copy(one).end()
    assert in_flight.now == 1
    other.end()
    assert in_flight.now == 0


def test_an_admission_that_is_dropped_has_ended() -> None:
    in_flight = InFlight(10)
    shedder = Shedder(in_flight)
    assert shedder.admit()
    gc.collect()
    assert in_flight.now == 0


def test_a_refused_request_is_not_in_flight() -> None:
    in_flight = InFlight(2)
    shedder = Shedder(in_flight, reserve=0.5, clock=ManualClock())
    with shedder.admit(), shedder.admit() as refused:
        assert not refused
        assert in_flight.now == 1
    assert in_flight.now == 0


async def test_a_cancelled_task_leaves_nothing_in_flight() -> None:
    in_flight = InFlight(100)
    shedder = Shedder(in_flight, reserve=0.1)

    async def work(priority: str) -> None:
        with shedder.admit(priority):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(work(priority)) for priority in PRIORITIES * 5]
    await asyncio.sleep(0)
    assert in_flight.now == 20
    for task in tasks[:19]:
        task.cancel()
    await asyncio.gather(*tasks[:19], return_exceptions=True)
    assert in_flight.now == 1
    tasks[19].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert in_flight.now == len(shedder._common) == 0


def test_two_shedders_can_share_a_signal() -> None:
    in_flight = InFlight(10)
    one, other = Shedder(in_flight), Shedder(in_flight)
    with one.admit(), other.admit(), in_flight.begin() as own_work:
        assert own_work
        assert in_flight() == 0.3
    assert in_flight() == 0


# ---------------------------------------------------------------- what is refused


def test_the_default_clock_is_never_set() -> None:
    assert Shedder(InFlight(1))._time_ns is SteadyClock.time_ns


@pytest.mark.parametrize("priority", ["urgent", "", None, 1, ["low"], "Low"])
def test_an_unknown_priority_is_a_mistake_of_the_caller(priority: object) -> None:
    with pytest.raises(InvalidOption) as caught:
        Shedder(InFlight(1)).admit(priority)  # type: ignore[arg-type]
    assert str(caught.value) == f"priority {priority!r}: expected critical, high, normal or low"


async def later() -> float:
    return 0.0


PAIR = "expected two pressures, the lower first, 0 to 10"
SHARE = "expected a share of capacity, at least 0 and less than 1"
SPAN = "expected seconds, 0.001 to 3600"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signals": []}, "signals: none given (expected at least one function that returns pressure)"),
        ({"signals": 5}, "signals 5: expected functions that return pressure"),
        ({"signals": [0.5]}, "signal 0.5: expected a function that returns pressure"),
        ({"reserve": 1}, f"reserve 1: {SHARE}"),
        ({"reserve": -0.1}, f"reserve -0.1: {SHARE}"),
        ({"reserve": float("nan")}, f"reserve nan: {SHARE}"),
        ({"reserve": True}, f"reserve True: {SHARE}"),
        ({"reserve": "20 %"}, f"reserve '20 %': {SHARE}"),
        ({"reserve": 0.95}, "reserve 0.95: leaves nothing of 10 for other requests (expected less)"),
        (
            {"signals": [lambda: 0.0], "reserve": 0.2},
            "reserve 0.2: no signal has a capacity (expected an InFlight or Utilisation)",
        ),
        ({"above": 0.5}, f"below and above 0.7, 0.5: {PAIR}"),
        ({"above": 0.7}, f"below and above 0.7, 0.7: {PAIR}"),
        ({"above": 11}, f"below and above 0.7, 11: {PAIR}"),
        ({"below": -1}, f"below and above -1, 0.9: {PAIR}"),
        ({"below": None}, f"below and above None, 0.9: {PAIR}"),
        ({"above": float("nan")}, f"below and above 0.7, nan: {PAIR}"),
        ({"rise": 0}, f"rise 0: {SPAN}"),
        ({"rise": True}, f"rise True: {SPAN}"),
        ({"fall": -1}, f"fall -1: {SPAN}"),
        ({"fall": 1e9}, f"fall 1000000000.0: {SPAN}"),
        ({"fall": "soon"}, f"fall 'soon': {SPAN}"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"signals": InFlight(10), **options}
    with pytest.raises(InvalidOption) as caught:
        Shedder(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_coroutine_is_no_signal() -> None:
    class Later:
        async def __call__(self) -> float:
            return 0.0

    for signal in (later, Later()):
        with pytest.raises(InvalidOption, match=r"a coroutine cannot be read at once \(expected a plain function\)$"):
            Shedder(signal)  # type: ignore[arg-type]


def test_admissions_read_as_they_are() -> None:
    assert Admission(True, "low")
    assert not Admission(False, "low", "shed", "reserve", 2.0)


# ---------------------------------------------------------------- looking


def test_concurrent_callers_use_the_previous_sample() -> None:
    clock = ManualClock()
    looks: list[Admission] = []

    def signal() -> float:
        with ThreadPoolExecutor(1) as pool:  # a concurrent caller must not wait
            looks.append(pool.submit(shedder.admit, "low").result(timeout=30))
        return 0.0

    shedder = Shedder(signal, clock=clock)
    assert shedder.admit("low")
    assert len(looks) == 1
    assert looks[0]


def test_an_interrupted_sample_does_not_block_the_next() -> None:
    clock = ManualClock()
    interrupts = [KeyboardInterrupt()]

    def signal() -> float:
        if interrupts:
            raise interrupts.pop()
        return 0.0

    shedder = Shedder(signal, clock=clock)
    with pytest.raises(KeyboardInterrupt):
        shedder.admit()
    clock.advance(1)
    with ThreadPoolExecutor(1) as pool:  # another thread, or the lock would not matter
        assert pool.submit(lambda: shedder.level).result(timeout=30) == 0
    assert shedder._schedule.sampled_at == clock.micros


def test_a_forked_child_starts_without_requests_and_locks() -> None:
    """As after a fork, without one: see tests/integration for the real thing."""
    in_flight = InFlight(4)
    shedder = Shedder([in_flight, LoopLag()], reserve=0.5)
    running = shedder.admit("low")
    assert running
    shedder._schedule._turn.acquire()
    lifetime._after_fork_in_child()
    assert in_flight.now == len(shedder._common) == 0
    with ThreadPoolExecutor(1) as pool:
        shedder._schedule.due = 0
        pool.submit(lambda: shedder.level).result(timeout=30)
    assert shedder._schedule.due > 0

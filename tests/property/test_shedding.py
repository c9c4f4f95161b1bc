"""Laws of shedding: which classes are refused first and never, how fast levels move, that requests end."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SECOND, ManualClock, Micros
from penstock.quota import Quota
from penstock.shedding import PRIORITIES, Admission, InFlight, Scaled, Shedder, Utilisation
from penstock.shedding.levels import HIGHEST, LevelState, Pace, shed_share, stepped
from penstock.shedding.scaled import Slope

PRESSURES = st.sampled_from([0.0, 0.7, 0.69, 0.9, 1.0, 5.0]) | st.floats(0, 5)
WAITS = st.sampled_from([0, 1, SECOND // 10, SECOND // 2, SECOND, 2 * SECOND, 60 * SECOND]) | st.integers(0, 3 * SECOND)
# Long stretches of one kind, or the level would rarely leave the ground.
STRETCHES = st.lists(st.tuples(st.integers(1, 20), WAITS, PRESSURES), max_size=5).map(
    lambda stretches: [(wait, pressure) for times, wait, pressure in stretches for _ in range(times)]
)
PACES = st.builds(
    lambda below, room, rise, fall: Pace(below + room, below, rise, fall),
    st.floats(0, 2),
    st.floats(0.01, 2),
    st.integers(1, 2 * SECOND),
    st.integers(1, 2 * SECOND),
)


@given(STRETCHES, PACES)
def test_a_move_of_k_steps_takes_k_intervals(looks: list[tuple[Micros, float]], pace: Pace) -> None:
    now = changed_at = 0
    high_since: Micros | None = None
    state = LevelState()
    for wait, pressure in looks:
        now += wait
        was, state = state, stepped(state, pressure, now, pace)
        high_since = (now if high_since is None else high_since) if pressure >= pace.above else None
        assert 0 <= state.level <= HIGHEST
        move = state.level - was.level
        if move > 0:
            assert high_since is not None
            assert now - high_since >= pace.rise
            assert move == 1
            assert now - changed_at >= pace.rise
        elif move < 0:
            assert pressure < pace.below
            assert now - changed_at >= -move * pace.fall
        if move:
            changed_at = now


@given(st.integers(0, HIGHEST))
def test_a_lower_class_is_always_shed_first(level: int) -> None:
    shares = [shed_share(level, rank) for rank in range(len(PRIORITIES))]
    assert shares == sorted(shares)
    assert shares[0] == 0
    for higher, lower in pairwise(shares):
        assert higher == 0 or lower == 1


@given(
    STRETCHES, st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.1, 0.5]), st.lists(st.sampled_from("abcd"))
)
def test_a_class_is_refused_only_if_every_lower_one_would_be(
    looks: list[tuple[Micros, float]], draw: float, reserve: float, busy: str
) -> None:
    clock = ManualClock()
    pressure = 0.0
    in_flight = InFlight(4)
    shedder = Shedder([lambda: pressure, in_flight], reserve=reserve, clock=clock, draw=lambda: draw)
    running = [shedder.admit(PRIORITIES["abcd".index(letter)]) for letter in busy]
    for wait, pressure in looks:  # noqa: B007
        clock.micros += wait
        answers = []
        for priority in PRIORITIES:
            with shedder.admit(priority) as admission:
                answers.append(bool(admission))
        assert answers[0], "critical was refused"
        assert answers == sorted(answers, reverse=True)
    del running
    assert in_flight.now == 0


STEPS = st.tuples(st.sampled_from(["begin", "begin", "end", "twice", "drop", "raise", "wait"]), st.integers(0, 3))


@given(st.lists(STEPS, max_size=25), st.integers(1, 8), st.floats(0, 0.9), st.integers(0, 99))
def test_the_count_is_right_and_returns_to_zero(
    steps: list[tuple[str, int]], capacity: int, reserve: float, seed: int
) -> None:
    clock = ManualClock()
    in_flight, utilisation = InFlight(2 * capacity), Utilisation(4 * capacity, clock=clock)
    reserve = reserve if reserve * 2 * capacity <= 2 * capacity - 1 else 0.0
    shedder = Shedder([in_flight, utilisation], reserve=reserve, clock=clock, draw=random.Random(seed).random)
    running: list[Admission] = []
    for verb, rank in steps:
        if verb == "begin":
            admission = shedder.admit(PRIORITIES[rank])
            running += [admission] if admission else []
            del admission
        elif verb == "wait":
            clock.advance(0.2 * rank)
        elif verb == "raise":
            try:
                with shedder.admit(PRIORITIES[rank]):
                    raise KeyError
            except KeyError:
                pass
        elif running:
            ended = running.pop(rank % len(running))
            for _ in range({"end": 1, "twice": 2, "drop": 0}[verb]):
                ended.end()
            del ended
        assert in_flight.now == utilisation.now == len(running)
        common = sum(admission.priority != "critical" for admission in running)
        assert not reserve or common <= 2 * capacity * (1 - reserve) + 1e-6
    for admission in running:
        admission.end()
    assert in_flight.now == utilisation.now == len(shedder._common) == 0


@given(STRETCHES, st.integers(1, 500), st.integers(1, 500), st.integers(1, 64))
def test_a_scaled_limit_stays_within_its_bounds_and_moves_a_step_at_a_time(
    looks: list[tuple[Micros, float]], least: int, more: int, steps: int
) -> None:
    clock = ManualClock()
    pressure = 0.0
    most = least + more
    scaled = Scaled(Quota(most, 60), Quota(least, 60), lambda: pressure, steps=steps, clock=clock)
    limit = most
    for wait, pressure in looks:  # noqa: B007
        clock.micros += wait
        was, limit = limit, scaled().limit
        assert least <= limit <= most
        assert abs(limit - was) <= -(-more // steps)
    assert len(set(scaled._quotas)) <= steps + 1


@given(st.lists(PRESSURES, max_size=20), st.integers(1, 64))
def test_a_step_never_turns_back_unless_pressure_does(pressures: list[float], steps: int) -> None:
    slope = Slope(0.7, 1.0, steps)
    step, moved_at, moved = 0, 0.0, 0
    for pressure in pressures:
        was, step = step, slope.stepped(step, pressure)
        move = step - was
        assert abs(move) <= 1
        assert 0 <= step <= steps
        if move and move == -moved:
            assert (pressure - moved_at) * move > 0
        if move:
            moved_at, moved = pressure, move

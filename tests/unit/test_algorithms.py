"""Worked timelines of every algorithm. The laws they share are proven by the conformance kit."""

from typing import Any

import pytest

from penstock import Quota
from penstock.algorithms import BINDERS, bind
from penstock.algorithms.base import MAX_USED, Bound
from penstock.model import NOT_CHARGED
from penstock.quota import ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL, RATES

MINUTE = 1_700_000_040  # the beginning of a minute
SECOND = 1_000_000
every_algorithm = pytest.mark.parametrize("algorithm", RATES)


class Counter:
    """One counter, and the seconds since the beginning of a minute."""

    def __init__(self, quota: Quota | str) -> None:
        self.bound: Bound = bind(quota if isinstance(quota, Quota) else Quota.parse(quota))
        self.state: Any = None

    def at(self, seconds: float, cost: int = 1) -> tuple[bool, int, float, float, float]:
        """Ask at that time: allowed, remaining, and the seconds of retry, reset and more."""
        answer, self.state = self.bound.decide(self.state, cost, round((MINUTE + seconds) * SECOND))
        allowed, remaining, retry, reset, more, delay, mark = answer
        assert delay == 0
        assert (mark == NOT_CHARGED) == (not allowed)
        return allowed, remaining, retry / SECOND, reset / SECOND, more / SECOND

    def peek(self, seconds: float, cost: int = 1) -> tuple[bool, int, float]:
        answer, state = self.bound.peek(self.state, cost, round((MINUTE + seconds) * SECOND))
        assert state is self.state
        assert answer[6] == NOT_CHARGED
        return answer[0], answer[1], answer[2] / SECOND

    def force(self, seconds: float, cost: int) -> None:
        self.state = self.bound.force(self.state, cost, round((MINUTE + seconds) * SECOND))

    def charge(self, seconds: float, cost: int = 1) -> int:
        """Charge, and return the mark."""
        answer, self.state = self.bound.decide(self.state, cost, round((MINUTE + seconds) * SECOND))
        assert answer[0]
        return answer[6]

    def refund(self, seconds: float, units: int, mark: int) -> int:
        back, self.state = self.bound.refund(self.state, units, mark, round((MINUTE + seconds) * SECOND))
        return back

    @property
    def expiry(self) -> float:
        return self.bound.expiry(self.state) / SECOND - MINUTE


def test_every_algorithm_has_a_binder() -> None:
    assert set(BINDERS) == {*ALGORITHMS, CALENDAR, CONCURRENCY, MIN_INTERVAL}


# ---------------------------------------------------------------- worked timelines: (second, cost) -> answer

TIMELINES: dict[str, list[tuple[float, int, tuple[bool, int, float, float, float]]]] = {
    "4/minute fixed_window": [
        (50, 3, (True, 1, 0, 10, 10)),
        (50, 2, (False, 1, 10, 10, 10)),
        (59, 1, (True, 0, 0, 1, 1)),
        (59, 1, (False, 0, 1, 1, 1)),
        (60, 4, (True, 0, 0, 60, 60)),
        (180, 1, (True, 3, 0, 60, 60)),
    ],
    "4/second sliding_window": [
        (0.5, 4, (True, 0, 0, 0.5, 0.75)),
        (0.9, 1, (False, 0, 0.35, 0.1, 0.35)),
        (1.25, 1, (True, 0, 0, 0.75, 0.25)),
        (1.25, 2, (False, 0, 0.5, 0.75, 0.25)),
        (2, 2, (True, 1, 0, 1, 1)),
        (5, 4, (True, 0, 0, 1, 1.25)),
    ],
    "4/minute rolling_window": [
        (0, 1, (True, 3, 0, 60, 60)),
        (30, 3, (True, 0, 0, 30, 30)),
        (59, 1, (False, 0, 1, 1, 1)),
        (59, 2, (False, 0, 31, 1, 1)),
        (60, 1, (True, 0, 0, 30, 30)),
        (90, 3, (True, 0, 0, 30, 30)),
        (300, 4, (True, 0, 0, 60, 60)),
    ],
    "4/minute token_bucket": [
        (0, 4, (True, 0, 0, 60, 15)),
        (14, 1, (False, 0, 1, 46, 1)),
        (15, 1, (True, 0, 0, 60, 15)),
        (40, 2, (False, 1, 5, 35, 5)),
        (300, 1, (True, 3, 0, 15, 15)),
    ],
    "4/minute burst 2": [
        (0, 2, (True, 0, 0, 30, 15)),
        (10, 1, (False, 0, 5, 20, 5)),
        (20, 1, (True, 0, 0, 25, 10)),
        (60, 2, (True, 0, 0, 30, 15)),
    ],
    "4/minute gcra burst 2": [
        (0, 2, (True, 0, 0, 30, 15)),
        (10, 1, (False, 0, 5, 20, 5)),
        (20, 1, (True, 0, 0, 25, 10)),
        (60, 2, (True, 0, 0, 30, 15)),
    ],
    "min_interval 250ms": [
        (0, 1, (True, 0, 0, 0.25, 0.25)),
        (0.1, 1, (False, 0, 0.15, 0.15, 0.15)),
        (0.25, 1, (True, 0, 0, 0.25, 0.25)),
    ],
    "1/minute fixed_window penalty 2m": [
        (0, 1, (True, 0, 0, 60, 60)),
        (10, 1, (False, 0, 120, 120, 120)),
        (70, 1, (False, 0, 60, 60, 60)),
        (130, 1, (True, 0, 0, 50, 50)),
    ],
    "2/minute fixed_window count denied": [
        (0, 2, (True, 0, 0, 60, 60)),
        (10, 1, (False, 0, 50, 50, 50)),
        (60, 1, (True, 1, 0, 60, 60)),
    ],
    "2/minute rolling_window count denied": [
        (0, 2, (True, 0, 0, 60, 60)),
        (10, 1, (False, 0, 50, 50, 50)),
        (65, 2, (False, 0, 60, 60, 60)),
        (125, 1, (True, 1, 0, 60, 60)),
    ],
}


@pytest.mark.parametrize("text", TIMELINES)
def test_the_worked_timeline_of(text: str) -> None:
    counter = Counter(text)
    answers = [(second, cost, counter.at(second, cost)) for second, cost, _ in TIMELINES[text]]
    assert answers == TIMELINES[text]


def test_gcra_and_token_bucket_agree_while_time_runs_forwards() -> None:
    bucket, gcra = Counter("7/minute burst 3"), Counter("7/minute gcra burst 3")
    for step in range(200):
        second, cost = step * 3.7, 1 + step % 3
        assert bucket.at(second, cost) == gcra.at(second, cost)


# ---------------------------------------------------------------- what all have in common


@every_algorithm
def test_a_refusal_keeps_the_very_state(algorithm: str) -> None:
    counter = Counter(Quota(2, 60, algorithm))
    counter.charge(0, 2)
    before = counter.state
    counter.at(1)
    assert counter.state is before


@every_algorithm
def test_a_cost_of_0_describes_a_counter_and_charges_nothing(algorithm: str) -> None:
    counter = Counter(Quota(2, 60, algorithm))
    assert counter.peek(0, 0) == (True, 2, 0)
    counter.charge(0, 2)
    assert counter.peek(0, 0) == (True, 0, 0)
    assert counter.peek(0, 1)[0] is False


@every_algorithm
def test_a_state_equals_none_from_its_expiry_on(algorithm: str) -> None:
    counter = Counter(Quota(3, 60, algorithm))
    counter.charge(0, 3)
    expiry = counter.expiry
    assert 0 < expiry <= 120
    assert counter.at(expiry, 3)[0]


@every_algorithm
def test_an_overdrawn_counter_refuses_until_it_is_paid_back(algorithm: str) -> None:
    counter = Counter(Quota(3, 60, algorithm))
    counter.force(0, 3)
    counter.force(0, 3)
    allowed, remaining, retry, _, _ = counter.at(1)
    assert (allowed, remaining) == (False, 0)
    assert counter.peek(1 + retry)[0]
    assert not counter.peek(1 + retry - 0.000_001)[0]


@every_algorithm
def test_forcing_an_untouched_counter_charges_it(algorithm: str) -> None:
    counter = Counter(Quota(3, 60, algorithm))
    counter.force(0, 2)
    assert counter.peek(0, 0) == (True, 1, 0)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window"])
def test_counters_stop_before_they_lose_exactness(algorithm: str) -> None:
    counter = Counter(Quota(2**32, 60, algorithm))
    for _ in range(5):
        counter.force(0, 2**32)
    assert counter.state[1] == MAX_USED


@every_algorithm
def test_time_going_back_admits_no_more_than_time_standing_still(algorithm: str) -> None:
    counter = Counter(Quota(3, 60, algorithm))
    counter.charge(61, 2)
    assert sum(counter.at(second)[0] for second in (30, 30, 59, 60, 61)) <= 1


@every_algorithm
def test_a_client_that_waits_retry_after_passes_after_a_clock_was_stepped_far_back(algorithm: str) -> None:
    """The full counter lies a day ahead: it must not refuse until that day has come again."""
    counter = Counter(Quota(3, 60, algorithm))
    counter.charge(86_400, 3)
    waited = 0.0
    while not (answer := counter.at(waited))[0] and waited < 600:
        waited += answer[2]
    assert waited <= (120 if algorithm == "sliding_window" else 60)


@every_algorithm
def test_a_clock_stepped_far_ahead_starts_afresh(algorithm: str) -> None:
    counter = Counter(Quota(3, 60, algorithm))
    counter.charge(0, 3)
    assert counter.at(100_000, 3)[0]


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
def test_a_client_that_waits_retry_after_passes_after_a_burst_was_lowered(algorithm: str) -> None:
    counter = Counter(Quota(10, 60, algorithm, burst=100))
    counter.charge(0, 100)
    counter.bound = bind(Quota(10, 60, algorithm, burst=5))
    allowed, _, retry, _, _ = counter.at(0)
    assert not allowed
    assert counter.at(retry)[0]


# ---------------------------------------------------------------- refunds


@every_algorithm
def test_a_refund_at_once_gives_all_back(algorithm: str) -> None:
    counter = Counter(Quota(5, 60, algorithm))
    mark = counter.charge(0, 4)
    assert counter.refund(0, 4, mark) == 4
    assert counter.peek(0, 5)[0]


@every_algorithm
def test_a_refund_in_part_leaves_the_rest(algorithm: str) -> None:
    counter = Counter(Quota(5, 60, algorithm))
    mark = counter.charge(0, 4)
    assert counter.refund(0, 1, mark) == 1
    assert counter.peek(0, 0)[1] == 2


@every_algorithm
def test_units_that_left_the_window_are_not_refunded(algorithm: str) -> None:
    counter = Counter(Quota(5, 60, algorithm))
    mark = counter.charge(0, 4)
    counter.charge(150, 4)
    assert counter.refund(150, 4, mark) == 0
    assert counter.peek(150, 0)[1] == 1


def test_sliding_window_gives_back_to_the_counter_it_went_to() -> None:
    counter = Counter("8/minute sliding_window")
    mark = counter.charge(50, 4)
    counter.charge(60, 2)
    assert counter.refund(60, 4, mark) == 4
    assert counter.peek(60, 0)[1] == 6


def test_rolling_window_gives_back_its_own_entries_alone() -> None:
    counter = Counter("8/minute rolling_window")
    counter.charge(0, 1)
    mark = counter.charge(10, 2)
    counter.charge(10, 1)
    counter.charge(20, 3)
    assert counter.refund(30, 2, mark) == 2
    assert counter.peek(30, 0)[1] == 3
    assert counter.peek(60, 0)[1] == 4
    assert counter.refund(75, 2, mark) == 0


@pytest.mark.parametrize("units", [[2], [1, 1]])
def test_rolling_window_tells_one_entry_of_two_units_from_two_of_one(units: list[int]) -> None:
    """What is refused and counted pushes out whole entries: the older of two, but not half of a single one."""
    bound = bind(Quota.parse("3/10s rolling_window count denied"))
    state: Any = None
    for cost in units:
        _, state = bound.decide(state, cost, 1_000)
    _, state = bound.decide(state, 2, 1_001)
    back, _ = bound.refund(state, 2, 1_000, 1_001)
    assert back == max(units)


def test_rolling_window_lets_each_of_two_entries_go_in_its_time() -> None:
    bound = bind(Quota.parse("2/10us rolling_window"))
    _, state = bound.decide(None, 1, 100)
    _, state = bound.decide(state, 1, 104)
    (allowed, _, retry_after, *_), same = bound.decide(state, 2, 105)
    assert (allowed, retry_after, same is state) == (False, 9, True)
    (_, remaining, _, reset_after, *_), state = bound.decide(state, 1, 110)
    assert (remaining, reset_after) == (0, 4)
    assert bound.refund(state, 1, 110, 111)[0] == 1


def test_rolling_window_forgets_a_log_that_was_given_back() -> None:
    counter = Counter("8/minute rolling_window")
    mark = counter.charge(0, 1)
    counter.refund(0, 1, mark)
    assert counter.state is None


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
def test_a_bucket_gives_back_what_time_has_not(algorithm: str) -> None:
    counter = Counter(Quota(6, 60, algorithm))
    mark = counter.charge(0, 6)
    assert counter.refund(20, 6, mark) == 4
    assert counter.peek(20, 0)[1] == 6


def test_a_penalty_is_not_given_back_with_the_units() -> None:
    counter = Counter("1/minute rolling_window penalty 2m")
    mark = counter.charge(0)
    counter.at(1)
    assert counter.refund(2, 1, mark) == 1
    assert counter.refund(2, 1, mark) == 0
    assert counter.peek(2) == (False, 0, 119)
    assert counter.expiry == 121
    assert counter.at(121)[0]


def test_a_penalty_outlasts_a_clock_that_was_stepped_back_by_no_more_than_itself() -> None:
    counter = Counter("1/minute fixed_window penalty 2m")
    counter.charge(0)
    counter.at(1)
    assert counter.at(-1_000)[2] == 120
    assert counter.at(-940)[2] == 60


def test_a_penalised_counter_can_be_forced() -> None:
    counter = Counter("3/minute fixed_window penalty 2m")
    counter.force(0, 2)
    assert counter.peek(0, 0)[1] == 1
    counter.force(0, 1)
    assert counter.at(0)[2] == 120


# ---------------------------------------------------------------- the log


def test_a_dropped_successor_leaves_the_log_as_it_was() -> None:
    counter = Counter("5/minute rolling_window")
    counter.charge(0, 2)
    kept = counter.state
    counter.charge(1, 3)
    counter.state = kept
    assert counter.at(2, 1)[:2] == (True, 2)
    assert not counter.at(3, 3)[0]


def test_a_log_never_grows_beyond_its_limit_for_long() -> None:
    counter = Counter("5/minute rolling_window")
    for step in range(1_000):
        counter.at(step * 12.1)
    _, _, _, (times, *_) = counter.state
    assert len(times) <= 20


def test_counting_denied_keeps_no_more_than_what_decides() -> None:
    counter = Counter("5/minute rolling_window count denied")
    for step in range(1_000):
        counter.at(step * 0.01)
    _, _, _, (times, *_) = counter.state
    assert len(times) <= 20
    assert counter.at(10)[2] > 59

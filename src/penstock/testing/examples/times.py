"""Time: edges of windows to the microsecond, expiry, numbers near their bounds, clocks that are stepped."""

from __future__ import annotations

import random

from penstock.clock import SECOND
from penstock.quota import MAX_LIMIT, MAX_LOG
from penstock.testing.kit import Kit, for_every_algorithm, for_every_bucket

DAY = 86_400
TEN_YEARS = "3650 days"


class TimeExamples(Kit):
    """Examples of time: edges of windows, waiting, clocks that go back."""

    def test_a_fixed_window_ends_exactly_at_a_multiple_of_its_period(self) -> None:
        quota = "3/10 seconds fixed_window"
        self.clock.advance(9.999999)
        assert self.acquire("alice", quota, cost=3).reset_after == 0.000001
        assert self.acquire("alice", quota).retry_after == 0.000001
        self.clock.micros += 1
        assert self.acquire("alice", quota, cost=3).reset_after == 10

    def test_a_rolling_window_is_open_at_its_old_end_and_closed_at_its_new_one(self) -> None:
        quota = "3/10 seconds rolling_window"
        self.acquire("alice", quota, cost=3)
        self.clock.advance(9.999999)
        assert self.acquire("alice", quota).retry_after == 0.000001
        self.clock.micros += 1
        assert self.acquire("alice", quota, cost=3)

    def test_a_sliding_window_weighs_the_previous_window_by_its_overlap(self) -> None:
        quota = "10/10 seconds sliding_window"
        self.acquire("alice", quota, cost=10)
        self.clock.advance(9.999999)
        assert not self.acquire("alice", quota)
        self.clock.micros += 1
        assert self.acquire("alice", quota).retry_after == 1
        self.clock.advance(5)
        assert self.peek("alice", quota).remaining == 5
        self.clock.advance(4.999999)
        assert self.peek("alice", quota).remaining == 9
        self.clock.micros += 1
        assert self.peek("alice", quota).remaining == 10

    @for_every_bucket
    def test_a_bucket_refills_a_unit_to_the_microsecond(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"  # a unit every 3.333... seconds: no rounding may pile up
        self.acquire("alice", quota, cost=3)
        for wait in (3_333_334, 3_333_333, 3_333_333) * 30:
            assert self.acquire("alice", quota).retry_after_us == wait
            self.clock.micros += wait
            assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_the_last_unit_can_be_had(self, algorithm: str) -> None:
        quota = f"10/10 seconds {algorithm}"
        assert [bool(self.acquire("alice", quota)) for _ in range(11)] == [True] * 10 + [False]

    @for_every_algorithm
    def test_in_time_a_counter_is_as_if_it_had_never_been_used(self, algorithm: str) -> None:
        quota = f"10/10 seconds {algorithm} count denied penalty 20s min_interval 1s"
        self.acquire("alice", quota, cost=10)
        assert not self.acquire("alice", quota, cost=10)
        for wait in (20, 3_600, DAY, 400 * DAY):
            self.clock.advance(wait)
            assert self.acquire("alice", quota, cost=10)

    @for_every_algorithm
    def test_waiting_as_told_is_enough_and_not_too_long(self, algorithm: str) -> None:
        quota = f"7/10 seconds {algorithm}"
        chance = random.Random(7)
        for _ in range(100):
            cost = chance.randint(1, 7)
            told = self.acquire("alice", quota, cost=cost)
            if not told:
                self.clock.micros += told.retry_after_us - 1
                assert not self.acquire("alice", quota, cost=cost)
                self.clock.micros += 1
                assert self.acquire("alice", quota, cost=cost)
            self.clock.micros += chance.choice((0, 1, SECOND, chance.randint(0, 12 * SECOND)))

    @for_every_algorithm
    def test_a_higher_limit_admits_whatever_a_lower_one_admitted(self, algorithm: str) -> None:
        chance = random.Random(6)
        for _ in range(150):
            cost = chance.randint(1, 5)
            if self.acquire("low", f"5/10 seconds {algorithm}", cost=cost):
                assert self.acquire("high", f"{chance.choice((5, 6, 9))}/10 seconds {algorithm} name high", cost=cost)
            self.clock.micros += chance.randint(0, 3 * SECOND)

    def test_token_bucket_and_gcra_decide_alike(self) -> None:
        chance = random.Random(5)
        for _ in range(150):
            cost = chance.randint(1, 9)
            bucket = self.acquire("alice", "7/10 seconds token_bucket burst 9", cost=cost)
            gcra = self.acquire("alice", "7/10 seconds gcra burst 9", cost=cost)
            assert bucket.answer[:6] == gcra.answer[:6]
            self.clock.micros += chance.randint(0, 5 * SECOND)

    @for_every_algorithm
    def test_numbers_at_their_bounds_are_exact(self, algorithm: str) -> None:
        most = MAX_LOG if algorithm == "rolling_window" else MAX_LIMIT
        for limit in (1, most):
            for period in ("1us", "7us", "1 second", TEN_YEARS):
                key, quota, counted = (
                    str(limit),
                    f"{limit}/{period} {algorithm}",
                    f"{limit}/{period} {algorithm} name c",
                )
                for cost in (limit, 1, limit // 2 + 1):
                    self.acquire(key, quota, f"{counted} count denied", cost=cost)
                    self.acquire(key, f"{counted} count denied", cost=limit)
                    self.peek(key, quota, f"{counted} count denied", cost=limit)
                self.clock.micros += self.acquire(key, quota, cost=limit).retry_after_us
                assert self.acquire(key, quota, cost=limit) or limit == 1
                self.acquire(key, f"{counted} count denied", cost=limit)

    @for_every_algorithm
    def test_a_forward_step_of_the_clock_is_time_that_passed(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=3)
        self.clock.set(self.clock.micros / SECOND + 30 * 365 * DAY)
        assert self.acquire("alice", quota, cost=3)

    @for_every_algorithm
    def test_time_going_back_admits_no_more_than_time_standing_still(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.clock.advance(5)
        self.acquire("alice", quota, cost=2)
        for step in (1, SECOND, 5 * SECOND, 3 * SECOND):
            self.clock.micros -= step
            verdict = self.alone("alice", quota, dry=True)
            assert verdict.remaining <= 1
            assert verdict.retry_after <= 20

    @for_every_algorithm
    def test_a_clock_set_back_by_a_day_shuts_no_key_out_for_a_day(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=3)
        self.clock.micros -= DAY * SECOND
        told = self.alone("alice", quota)
        assert told.retry_after <= (20 if algorithm == "sliding_window" else 10)
        self.clock.micros += told.retry_after_us
        assert told or self.alone("alice", quota), "the refusal outlasted what it said"

    @for_every_algorithm
    def test_a_clock_set_back_gives_at_most_one_extra_budget(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=3)
        self.clock.micros -= DAY * SECOND
        assert sum(bool(self.alone("alice", quota)) for _ in range(10)) <= 3

    @for_every_algorithm
    def test_a_penalty_outlasts_a_step_back_by_no_more_than_itself(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm} penalty 30s"
        self.acquire("alice", quota, cost=3)
        assert not self.acquire("alice", quota)
        self.clock.micros -= DAY * SECOND
        told = self.alone("alice", quota)
        assert told.retry_after <= 30
        self.clock.micros += told.retry_after_us
        assert self.alone("alice", quota), "the penalty outlasted what it said"

"""Settling: what was charged by estimate becomes what it really cost, once."""

from __future__ import annotations

import pytest

from penstock.model import MAX_COST
from penstock.testing.kit import Kit, asks, for_everything_countable

for_every_true_cost = pytest.mark.parametrize("quota", ["10/10 seconds fixed_window", "10/10 seconds gcra"])


class SettlingExamples(Kit):
    """Examples of settling: the cost is known only afterwards."""

    @for_everything_countable
    @pytest.mark.parametrize(("actual", "back"), [(0, 4), (1, 3), (4, 0), (7, -3), (10, -6)])
    def test_settling_makes_the_cost_what_it_really_was(self, quota: str, actual: int, back: int) -> None:
        verdict = self.acquire("alice", quota, cost=4, id=b"a")
        assert self.settle(verdict, actual).each == (back,)
        assert self.left("alice", quota) == 10 - actual

    @for_everything_countable
    @pytest.mark.parametrize("actual", [11, 25, MAX_COST])
    def test_what_costs_more_than_there_is_is_charged_all_the_same(self, quota: str, actual: int) -> None:
        verdict = self.acquire("alice", quota, cost=4, id=b"a")
        assert self.settle(verdict, actual).each == (4 - actual,)
        told = self.acquire("alice", quota)
        assert (told.allowed, told.remaining) == (False, 0)
        self.clock.micros += told.retry_after_us - 1
        assert not self.acquire("alice", quota)
        self.clock.micros += 1
        assert self.acquire("alice", quota)

    @for_everything_countable
    def test_only_the_first_settlement_counts(self, quota: str) -> None:
        for key, first in (("less", 2), ("same", 4), ("more", 6)):
            verdict = self.acquire(key, quota, cost=4, id=b"a")
            self.settle(verdict, first)
            for again in (first, 0, 9):
                assert self.settle(verdict, again).each == (0,)
            assert self.left(key, quota) == 10 - first

    @for_everything_countable
    def test_what_is_never_settled_stays_charged(self, quota: str) -> None:
        self.acquire("alice", quota, cost=4, id=b"a")
        assert self.left("alice", quota) == 6
        assert not self.acquire("alice", quota, cost=7)

    def test_a_settled_request_still_answers_to_its_id(self) -> None:
        quota = "10/10 seconds fixed_window"
        verdict = self.acquire("alice", quota, cost=4, id=b"a")
        self.settle(verdict, 2)
        assert self.acquire("alice", quota, cost=4, id=b"a").remaining == 6
        assert self.left("alice", quota) == 8

    def test_a_request_settles_in_all_its_quotas_and_leaves_flat_ones_alone(self) -> None:
        quotas = "10/minute fixed_window min_interval 1s", "100/hour gcra", "3 concurrent"
        for id, actual in ((b"less", 1), (b"more", 6)):
            verdict = self.acquire("alice", *quotas, cost=4, id=id)
            assert self.settle(verdict, actual).each == (4 - actual, 0, 4 - actual, 0)
            self.clock.advance(1)
        assert self.left("alice", "3 concurrent") == 1

    @for_every_true_cost
    def test_a_part_given_back_and_a_settlement_add_up(self, quota: str) -> None:
        verdict = self.acquire("alice", quota, cost=6, id=b"a")
        assert self.refund(verdict, units=2).units == 2
        assert self.settle(verdict, 3).units == 1
        assert self.refund(verdict).units == 3
        assert self.settle(verdict, 0).units == self.refund(verdict).units == 0
        assert self.left("alice", quota) == 10

    def test_what_was_settled_upwards_comes_back_as_far_as_it_was_charged(self) -> None:
        quota = "10/10 seconds fixed_window"
        verdict = self.acquire("alice", quota, cost=4, id=b"a")
        self.settle(verdict, 7)
        assert self.refund(verdict).units == 4
        assert self.left("alice", quota) == 7

    def test_settling_late_charges_the_later_window_but_gives_it_nothing(self) -> None:
        for quota in ("10/10 seconds fixed_window", "10/10 seconds rolling_window"):
            less, more = (self.acquire("alice", quota, cost=3, id=id) for id in (b"less", b"more"))
            self.clock.advance(10)
            self.acquire("alice", quota, cost=2)
            assert self.settle(less, 0).units == 0
            assert self.settle(more, 5).units == -2
            assert self.left("alice", quota) == 6

    def test_a_record_that_expired_settles_nothing(self) -> None:
        quota = "10/10 seconds fixed_window"
        less, more = (self.acquire("alice", quota, cost=3, id=id) for id in (b"less", b"more"))
        self.clock.advance(60)
        self.acquire("alice", quota, cost=2)
        assert self.settle(less, 0).units == self.settle(more, 9).units == 0
        assert self.left("alice", quota) == 8

    def test_settling_under_an_old_limit_forgets_nothing_charged_under_a_new_one(self) -> None:
        reserved = self.acquire("alice", "1/10 seconds rolling_window", id=b"a")
        raised = "10/10 seconds rolling_window"
        for _ in range(4):
            self.clock.micros += 1
            self.acquire("alice", raised, cost=2)
        self.settle(reserved, 2)
        assert self.left("alice", raised) == 0

    def test_advice_that_was_charged_is_settled_like_the_rest(self) -> None:
        shadow, enforced = asks("alice", "9/hour", cost=4, advisory=True), asks("alice", "10/minute gcra", cost=4)
        verdict = self.both.acquire(*enforced, *shadow, id=b"a")
        assert self.settle(verdict, 1).each == (3, 3)

"""Partial grants: as many units as fit, between a least and a most."""

from __future__ import annotations

import pytest

from penstock.model import MAX_COST, Grant, Verdict
from penstock.quota import Quota
from penstock.testing.kit import Kit, for_everything_countable

for_one_window_and_one_bucket = pytest.mark.parametrize("quota", ["10/10 seconds fixed_window", "10/10 seconds gcra"])


class GrantExamples(Kit):
    """Examples of partial grants."""

    @for_everything_countable
    def test_a_grant_is_the_most_if_that_fits(self, quota: str) -> None:
        verdict = self.grant("alice", quota, 2, 7)
        assert (verdict.allowed, verdict.cost, verdict.remaining) == (True, 7, 3)
        assert self.left("alice", quota) == 3

    @for_everything_countable
    @pytest.mark.parametrize("most", [5, 11, MAX_COST])
    def test_a_grant_is_what_fits_if_the_most_does_not(self, quota: str, most: int) -> None:
        self.acquire("alice", quota, cost=6)
        verdict = self.grant("alice", quota, 2, most)
        assert (verdict.allowed, verdict.cost, verdict.remaining) == (True, 4, 0)

    @for_everything_countable
    def test_a_grant_may_be_the_least_and_no_less(self, quota: str) -> None:
        self.acquire("alice", quota, cost=6)
        refused = self.grant("alice", quota, 5, 8)
        assert (refused.allowed, refused.cost, refused.receipt) == (False, 5, None)
        assert self.left("alice", quota) == 4
        assert self.grant("alice", quota, 4, 8).cost == 4

    @for_everything_countable
    def test_a_refused_grant_says_when_the_least_will_fit(self, quota: str) -> None:
        self.acquire("alice", quota, cost=8)
        refused = self.grant("alice", quota, 4, 6)
        self.clock.micros += refused.retry_after_us - 1
        assert not self.grant("alice", quota, 4, 6)
        self.clock.micros += 1
        assert self.grant("alice", quota, 4, 6)

    def test_a_refused_grant_is_counted_as_its_least_where_refusals_are(self) -> None:
        quota = "10/10 seconds fixed_window count denied"
        self.acquire("alice", quota, cost=4)
        assert not self.grant("alice", quota, 7, 9)
        lowered = "12/10 seconds fixed_window count denied"
        assert self.left("alice", lowered) == 1

    @for_one_window_and_one_bucket
    def test_granted_units_can_be_given_back(self, quota: str) -> None:
        self.acquire("alice", quota, cost=6)
        verdict = self.grant("alice", quota, 1, 9)
        assert self.refund(verdict, 3).each == (3,)
        assert self.left("alice", quota) == 3

    @for_one_window_and_one_bucket
    def test_a_repeated_grant_is_answered_with_the_same_units_and_charged_once(self, quota: str) -> None:
        self.acquire("alice", quota, cost=6)
        first = self.grant("alice", quota, 1, 9, id=b"a")
        self.refund(first, 2)
        again = self.grant("alice", quota, 1, 9, id=b"a")
        assert (first.cost, again.cost, again.remaining) == (4, 4, 0)
        assert self.left("alice", quota) == 2

    @for_one_window_and_one_bucket
    def test_a_refused_grant_is_not_remembered(self, quota: str) -> None:
        verdict = self.acquire("alice", quota, cost=8)
        assert not self.grant("alice", quota, 3, 9, id=b"a")
        self.refund(verdict)
        assert self.grant("alice", quota, 3, 9, id=b"a").cost == 9

    @for_one_window_and_one_bucket
    def test_a_grant_is_settled_for_what_it_really_cost(self, quota: str) -> None:
        verdict = self.grant("alice", quota, 1, 9, id=b"a")
        assert self.settle(verdict, 4).each == (5,)
        assert self.left("alice", quota) == 6

    def test_a_place_is_granted_as_it_is_acquired(self) -> None:
        verdict = self.grant("alice", "1 concurrent", 1, 1)
        assert not self.grant("alice", "1 concurrent", 1, 1)
        self.release(verdict)
        assert self.grant("alice", "1 concurrent", 1, 1, id=b"a")

    def test_a_grant_sees_the_operations_before_it_in_its_batch(self) -> None:
        part = Quota.parse("10/10 seconds fixed_window")
        grant = Grant("alice", part, 2, 4)
        verdicts = [outcome for outcome in self.both.run(*[grant] * 4) if isinstance(outcome, Verdict)]
        assert [(verdict.allowed, verdict.cost) for verdict in verdicts] == [
            (True, 4),
            (True, 4),
            (True, 2),
            (False, 2),
        ]

    def test_grants_that_race_never_get_more_than_the_limit(self) -> None:
        grant = Grant("alice", Quota.parse("100/hour fixed_window"), 1, 3)
        outcomes = [outcome for batch in self.race([[grant] * 10] * 8) for outcome in batch]
        granted = [verdict.cost for verdict in outcomes if isinstance(verdict, Verdict) and verdict]
        assert sum(granted) == 100

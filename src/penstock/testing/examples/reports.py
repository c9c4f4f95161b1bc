"""Reporting what was admitted elsewhere: charged whether it fits or not, into the window it happened in."""

from __future__ import annotations

from penstock.model import Amend, Amended, Charge, Receipt
from penstock.quota import RATES, Quota
from penstock.testing.kit import Kit, for_every_algorithm, for_every_bucket, for_everything_countable


class ReportExamples(Kit):
    """Examples of reports: charges for what was admitted elsewhere."""

    @for_everything_countable
    def test_what_is_reported_at_once_counts_like_an_admission(self, quota: str) -> None:
        assert self.report("alice", quota, cost=3).each == (-3,)
        assert self.left("alice", quota) == 7
        assert self.acquire("alice", quota, cost=7)
        assert not self.acquire("alice", quota)

    @for_everything_countable
    def test_what_is_reported_is_charged_even_if_it_does_not_fit(self, quota: str) -> None:
        self.acquire("alice", quota, cost=8)
        assert self.report("alice", quota, cost=5).units == -5
        refused = self.acquire("alice", quota)
        assert not refused
        self.clock.micros += refused.retry_after_us - 1
        assert not self.acquire("alice", quota)
        self.clock.micros += 1
        assert self.acquire("alice", quota)

    @for_everything_countable
    def test_what_lies_ahead_of_the_stores_clock_happened_now(self, quota: str) -> None:
        assert self.report("alice", quota, cost=3, ago=-0.5).units == -3
        assert self.left("alice", quota) == 7

    @for_everything_countable
    def test_what_happened_long_ago_counts_no_more(self, quota: str) -> None:
        self.acquire("alice", quota, cost=4)
        before = self.peek("alice", quota)
        assert self.report("alice", quota, cost=5, ago=3 * 86_400).units == 0
        assert self.peek("alice", quota) == before
        assert self.report("bob", quota, cost=5, ago=3 * 86_400).units == 0
        assert self.left("bob", quota) == 10

    def test_a_fixed_window_counts_what_happened_in_it_and_nothing_of_the_one_before(self) -> None:
        quota = "10/10 seconds fixed_window"
        self.clock.advance(2)
        assert self.report("alice", quota, cost=5, ago=2).units == -5
        assert self.report("alice", quota, cost=4, ago=2.000001).units == 0
        assert self.left("alice", quota) == 5

    def test_a_calendar_counts_what_happened_today_and_nothing_of_yesterday(self) -> None:
        quota = "10/day calendar UTC"
        since_midnight = self.clock.micros % (86_400 * 1_000_000) / 1_000_000
        assert self.report("alice", quota, cost=5, ago=since_midnight).units == -5
        assert self.report("alice", quota, cost=4, ago=since_midnight + 1).units == 0
        assert self.left("alice", quota) == 5

    def test_a_sliding_window_counts_what_happened_in_the_previous_window_by_its_overlap(self) -> None:
        quota = "10/10 seconds sliding_window"
        self.clock.advance(5)
        assert self.report("alice", quota, cost=6, ago=6).units == -6
        assert self.left("alice", quota) == 7
        assert self.report("alice", quota, cost=2, ago=1).units == -2
        assert self.left("alice", quota) == 5
        assert self.report("alice", quota, cost=9, ago=16).units == 0
        self.clock.advance(5)
        assert self.left("alice", quota) == 8

    def test_a_rolling_window_keeps_what_is_reported_until_a_period_after_it_happened(self) -> None:
        quota = "10/10 seconds rolling_window"
        self.acquire("alice", quota, cost=2)
        self.clock.advance(6)
        self.acquire("alice", quota, cost=3)
        assert self.report("alice", quota, cost=4, ago=4).units == -4
        assert self.report("alice", quota, cost=4, ago=10).units == 0
        assert self.left("alice", quota) == 1
        self.clock.advance(4)
        assert self.left("alice", quota) == 3
        self.clock.advance(2)
        assert self.left("alice", quota) == 7

    @for_every_bucket
    def test_a_bucket_is_owed_what_has_not_drained_since(self, algorithm: str) -> None:
        quota = f"10/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=4)
        assert self.report("alice", quota, cost=5, ago=3).units == -2
        assert self.left("alice", quota) == 4
        assert self.report("alice", quota, cost=5, ago=5).units == 0
        assert self.left("alice", quota) == 4

    @for_every_bucket
    def test_a_bucket_takes_the_sum_of_what_was_admitted_since_it_was_empty(self, algorithm: str) -> None:
        """More than it holds, over longer than it takes to fill: what is left of that is what it would be owed."""
        quota = f"10/10 seconds {algorithm}"
        assert self.report("alice", quota, cost=36, ago=30).units == -6
        assert self.left("alice", quota) == 4
        assert self.report("alice", quota, cost=50, ago=30).units == -10, "all of a bucket is the most"
        assert self.left("alice", quota) == 0

    def test_what_is_reported_to_a_queue_stands_at_its_end(self) -> None:
        quota = "10/10 seconds queue 9"
        first = self.acquire("alice", quota, cost=2)
        assert self.report("alice", quota, cost=3).units == -3
        assert self.refund(first).units == 0, "it is the last in the queue no more"
        assert self.acquire("alice", quota).delay == 5

    @for_every_algorithm
    def test_a_report_shuts_no_key_out(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm} penalty 1h"
        self.report("alice", quota, cost=5)
        self.report("alice", quota, cost=5)
        self.clock.advance(20)
        assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_report_ends_no_penalty(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm} penalty 1h"
        self.acquire("alice", quota, cost=5)
        self.acquire("alice", quota)
        self.report("alice", quota, cost=2)
        self.clock.advance(3_599)
        assert not self.acquire("alice", quota)
        self.clock.advance(1)
        assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_report_where_refusals_count_is_charged_once(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm} count denied"
        assert self.report("alice", quota, cost=4).units == -4
        assert self.left("alice", quota) == 1

    def test_a_log_that_counts_refusals_keeps_the_newest_units_of_what_is_reported(self) -> None:
        quota = "5/10 seconds rolling_window count denied"
        for _ in range(3):
            self.acquire("alice", quota, cost=2)
            self.clock.advance(1)
        for ago in (2.5, 1.5, 0.5, 2.5):
            self.report("alice", quota, cost=2, ago=ago)
            assert not self.peek("alice", quota)
        self.clock.advance(8.5)
        assert self.left("alice", quota) == 1

    def test_a_min_interval_begins_when_it_happened(self) -> None:
        quota = "10/minute min_interval 5s"
        assert self.report("alice", quota, cost=4, ago=2).each == (-4, -1)
        assert self.acquire("alice", quota).retry_after == 3

    def test_places_are_not_reported(self) -> None:
        quota = "2 concurrent ttl 10s"
        assert self.report("alice", quota).each == (0,)
        assert self.left("alice", quota) == 2

    def test_a_report_reaches_all_its_counters_and_one_of_them_as_often_as_it_is_named(self) -> None:
        quotas = [Quota.parse(f"10/10 seconds {algorithm}") for algorithm in RATES]
        charges = [Charge(key, quota, 2, self.clock.micros) for key in ("alice", "bob", "alice") for quota in quotas]
        (reported,) = self.both.run(Amend(Receipt(tuple(charges)), "report"))
        assert isinstance(reported, Amended)
        assert reported.each == (-2,) * 15
        for quota in quotas:
            assert [self.left(key, str(quota)) for key in ("alice", "bob")] == [6, 8]

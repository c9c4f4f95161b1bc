"""Giving back: only what is provably still charged, and never more than was. And forgetting: reset."""

from __future__ import annotations

from penstock.quota import RATES
from penstock.testing.kit import Kit, for_every_algorithm, for_every_bucket, for_every_window


class RefundExamples(Kit):
    """Examples of refunds: units that were charged and not used."""

    @for_every_algorithm
    def test_a_whole_refund_is_as_if_nothing_had_been_charged(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm}"
        verdict = self.acquire("alice", quota, cost=5)
        assert self.refund(verdict).units == 5
        assert self.acquire("alice", quota, cost=5)

    @for_every_algorithm
    def test_a_part_of_a_charge_can_be_given_back(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm}"
        verdict = self.acquire("alice", quota, cost=5)
        assert self.refund(verdict, units=2).units == 2
        assert self.peek("alice", quota).remaining == 2

    @for_every_algorithm
    def test_what_has_long_expired_does_not_come_back(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm}"
        old = self.acquire("alice", quota, cost=5)
        self.clock.advance(20)
        self.acquire("alice", quota, cost=5)
        assert self.refund(old).units == 0
        assert not self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_refund_touches_no_other_counter(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm}"
        verdict = self.acquire("alice", quota, cost=5)
        self.acquire("bob", quota, cost=5)
        self.refund(verdict)
        assert self.peek("bob", quota).remaining == 0

    def test_a_refund_reaches_every_counter_of_the_request(self) -> None:
        quotas = [f"5/10 seconds {algorithm}" for algorithm in RATES]
        verdict = self.acquire("alice", *quotas, cost=3)
        assert self.refund(verdict).each == (3, 3, 3, 3, 3)
        assert [self.peek("alice", quota).remaining for quota in quotas] == [5] * 5

    def test_a_fixed_window_takes_nothing_back_into_the_next_window(self) -> None:
        quota = "5/10 seconds fixed_window"
        verdict = self.acquire("alice", quota, cost=5)
        self.clock.advance(10)
        self.acquire("alice", quota, cost=2)
        assert self.refund(verdict).units == 0
        assert self.peek("alice", quota).remaining == 3

    def test_a_sliding_window_takes_back_from_the_counter_the_charge_went_to(self) -> None:
        quota = "10/10 seconds sliding_window"
        verdict = self.acquire("alice", quota, cost=10)
        self.clock.advance(15)  # half of the previous window still counts
        self.acquire("alice", quota, cost=2)
        assert self.refund(verdict, units=6).units == 6
        assert self.peek("alice", quota).remaining == 10 - 2 - 2

    def test_a_rolling_window_takes_back_its_own_entry_and_no_other(self) -> None:
        quota = "10/10 seconds rolling_window"
        first = self.acquire("alice", quota, cost=4)
        self.clock.advance(5)
        self.acquire("alice", quota, cost=4)
        assert self.refund(first).units == 4
        self.clock.advance(5)  # the second entry is still there when the first would have left
        assert self.peek("alice", quota).remaining == 6

    @for_every_bucket
    def test_a_bucket_takes_back_only_what_has_not_drained_since(self, algorithm: str) -> None:
        quota = f"10/10 seconds {algorithm}"
        verdict = self.acquire("alice", quota, cost=5)
        self.clock.advance(3)
        self.acquire("alice", quota, cost=8)
        assert self.refund(verdict).units == 2
        assert self.peek("alice", quota).remaining == 2

    @for_every_window
    def test_refunds_obey_a_changed_limit(self, algorithm: str) -> None:
        verdict = self.acquire("alice", f"10/10 seconds {algorithm}", cost=8)
        assert self.peek("alice", f"9/10 seconds {algorithm}").remaining == 1
        assert self.refund(verdict).units == 8
        assert self.peek("alice", f"9/10 seconds {algorithm}").remaining == 9

    def test_a_min_interval_stays_charged_until_the_whole_request_is_given_back(self) -> None:
        quota = "10/minute min_interval 5s"
        verdict = self.acquire("alice", quota, cost=4)
        assert self.refund(verdict, units=3).each == (3, 0)
        assert self.acquire("alice", quota).retry_after == 5
        self.clock.advance(5)
        verdict = self.acquire("alice", quota, cost=4)
        assert self.refund(verdict).each == (4, 1)
        assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_reset_forgets_what_was_used(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=5)
        self.reset("alice", quota)
        assert self.acquire("alice", quota, cost=5)
        assert not self.acquire("alice", quota), "losing all state gives away one budget, not two"

    @for_every_algorithm
    def test_a_reset_ends_a_penalty(self, algorithm: str) -> None:
        quota = f"5/10 seconds {algorithm} penalty 1h count denied"
        self.acquire("alice", quota, cost=5)
        assert not self.acquire("alice", quota, cost=5)
        self.reset("alice", quota)
        assert self.acquire("alice", quota, cost=5)

    @for_every_algorithm
    def test_a_reset_forgets_no_other_key_and_no_other_quota(self, algorithm: str) -> None:
        quota, other = f"5/10 seconds {algorithm}", f"5/20 seconds {algorithm}"
        self.acquire("alice", quota, other, cost=2)
        self.acquire("bob", quota, cost=3)
        self.reset("alice", quota)
        assert self.peek("alice", other).remaining == 3
        assert self.peek("bob", quota).remaining == 2

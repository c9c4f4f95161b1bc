"""What a quota may say beside its rate: burst, count denied, penalty, min_interval; and what a change of it keeps."""

from __future__ import annotations

from penstock.testing.kit import Kit, for_every_algorithm, for_every_bucket, for_every_window


class OptionExamples(Kit):
    """What a store owes to the words of a quota."""

    @for_every_bucket
    def test_a_bucket_holds_its_burst_and_refills_at_its_rate(self, algorithm: str) -> None:
        quota = f"1/second {algorithm} burst 5"
        assert self.acquire("alice", quota, cost=5).reset_after == 5
        assert self.acquire("alice", quota, cost=5).retry_after == 5
        self.clock.advance(2)
        assert self.acquire("alice", quota, cost=2)
        self.clock.advance(3_600)
        assert self.peek("alice", quota).remaining == 5

    @for_every_algorithm
    def test_count_denied_charges_what_was_refused(self, algorithm: str) -> None:
        quota = f"10/10 seconds {algorithm} count denied"
        self.acquire("alice", quota, cost=8)
        assert self.acquire("alice", quota, cost=4).remaining == 0
        assert not self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_key_that_keeps_requesting_under_count_denied_keeps_waiting(self, algorithm: str) -> None:
        counting, plain = f"10/10 seconds {algorithm} count denied", f"10/10 seconds {algorithm} name plain"
        for quota in (counting, plain):
            self.acquire("alice", quota, cost=10)
        for _ in range(20):
            self.clock.advance(0.4)
            self.acquire("alice", counting)
        waits = [self.peek("alice", quota, cost=10).retry_after for quota in (counting, plain)]
        assert waits[0] >= waits[1]

    def test_count_denied_does_not_count_what_another_quota_refused(self) -> None:
        counting, full = "10/minute fixed_window count denied", "1/minute gcra"
        self.acquire("alice", full)
        assert not self.acquire("alice", counting, full)
        assert self.peek("alice", counting).remaining == 10

    @for_every_algorithm
    def test_a_penalty_shuts_a_key_out_once_it_was_refused(self, algorithm: str) -> None:
        quota = f"2/second {algorithm} penalty 15m"
        self.acquire("alice", quota, cost=2)
        assert self.acquire("alice", quota).retry_after == 900
        self.clock.advance(899.999999)
        assert not self.peek("alice", quota)
        self.clock.micros += 1
        assert self.acquire("alice", quota, cost=2)

    @for_every_algorithm
    def test_asking_while_shut_out_prolongs_nothing(self, algorithm: str) -> None:
        quota = f"2/second {algorithm} penalty 1m"
        self.acquire("alice", quota, cost=2)
        for seconds_left in range(60, 0, -10):
            assert self.acquire("alice", quota).retry_after == seconds_left
            self.clock.advance(10)
        assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_a_penalty_shorter_than_the_wait_does_not_shorten_it(self, algorithm: str) -> None:
        lenient, plain = f"2/hour {algorithm} penalty 1s", f"2/hour {algorithm} name plain"
        self.acquire("alice", lenient, plain, cost=2)
        assert self.acquire("alice", lenient).retry_after == self.acquire("alice", plain).retry_after

    def test_a_dry_run_starts_no_penalty(self) -> None:
        quota = "2/second fixed_window penalty 1h"
        self.acquire("alice", quota, cost=2)
        assert not self.peek("alice", quota)
        self.clock.advance(1)
        assert self.acquire("alice", quota)

    def test_what_another_quota_refused_starts_no_penalty(self) -> None:
        strict, full = "2/second fixed_window penalty 1h", "1/second fixed_window name full"
        self.acquire("alice", full)
        assert not self.acquire("alice", strict, full)
        assert self.acquire("alice", strict)

    @for_every_algorithm
    def test_min_interval_keeps_admissions_apart(self, algorithm: str) -> None:
        quota = f"100/hour {algorithm} min_interval 250ms"
        assert self.acquire("alice", quota, cost=7)
        assert self.acquire("alice", quota).retry_after == 0.25
        self.clock.advance(0.249999)
        assert not self.acquire("alice", quota)
        self.clock.micros += 1
        assert self.acquire("alice", quota, cost=50)

    @for_every_window
    def test_a_window_keeps_the_units_used_when_its_limit_changes(self, algorithm: str) -> None:
        self.acquire("alice", f"10/10 seconds {algorithm}", cost=6)
        assert self.peek("alice", f"4/10 seconds {algorithm}").remaining == 0
        assert self.peek("alice", f"20/10 seconds {algorithm}").remaining == 14

    @for_every_bucket
    def test_a_bucket_keeps_the_units_owed_when_its_limit_changes(self, algorithm: str) -> None:
        self.acquire("alice", f"10/10 seconds {algorithm}", cost=6)
        assert self.peek("alice", f"20/10 seconds {algorithm}").remaining == 14
        assert self.peek("alice", f"10/10 seconds {algorithm} burst 8").remaining == 2
        assert self.acquire("alice", f"20/10 seconds {algorithm}", cost=14).reset_after == 10

    @for_every_bucket
    def test_a_bucket_whose_burst_was_lowered_tells_how_long_to_wait(self, algorithm: str) -> None:
        self.acquire("alice", f"10/10 seconds {algorithm}", cost=10)
        lowered = f"10/10 seconds {algorithm} burst 2"
        told = self.acquire("alice", lowered)
        self.clock.micros += told.retry_after_us - 1
        assert not self.acquire("alice", lowered)
        self.clock.micros += 1
        assert self.acquire("alice", lowered)

    @for_every_bucket
    def test_a_bucket_whose_rate_was_changed_tells_how_long_to_wait(self, algorithm: str) -> None:
        for name, before, after in (
            ("faster", "10/100 seconds", "100/100 seconds burst 10"),
            ("slower", "10/s", "1/s"),
        ):
            self.acquire(name, f"{before} {algorithm}", cost=10)
            told = self.acquire(name, f"{after} {algorithm}")
            self.clock.micros += told.retry_after_us - 1
            assert not self.acquire(name, f"{after} {algorithm}")
            self.clock.micros += 1
            assert self.acquire(name, f"{after} {algorithm}")

    @for_every_algorithm
    def test_what_was_used_outlives_a_limit_that_was_lowered_and_raised_again(self, algorithm: str) -> None:
        high, low = f"10/minute {algorithm} count denied", f"2/minute {algorithm} count denied"
        self.acquire("alice", high, cost=8)
        self.acquire("alice", high, cost=2)
        assert not self.acquire("alice", low)
        # Buckets never owe more than a burst, and a log that counts refusals keeps no more than its limit.
        if algorithm in ("fixed_window", "sliding_window"):
            assert not self.acquire("alice", high)

    def test_names_keep_counters_of_equal_quotas_apart(self) -> None:
        self.acquire("alice", "3/minute name a", cost=3)
        assert self.acquire("alice", "3/minute name b", "3/minute", cost=3)

"""Queues: a leaky bucket lets requests out at an even pace; each verdict has a delay."""

from __future__ import annotations

from penstock.clock import SECOND
from penstock.testing.kit import Kit, asks

QUOTA = "1/second queue 3"


class QueueExamples(Kit):
    """Examples of queues."""

    def test_each_admission_has_its_delay_and_a_full_queue_refuses(self) -> None:
        verdicts = [self.acquire("alice", QUOTA) for _ in range(5)]
        assert [bool(verdict) for verdict in verdicts] == [True, True, True, True, False]
        assert [verdict.delay for verdict in verdicts] == [0, 1, 2, 3, 0]
        assert verdicts[-1].retry_after == 1

    def test_an_admission_starts_an_interval_after_the_one_before_and_not_later(self) -> None:
        quota = "3/10 seconds queue 3"  # an interval of 3.333... seconds: no rounding may pile up
        delays = [self.acquire("alice", quota).delay_us for _ in range(4)]
        assert delays == [0, 3_333_334, 6_666_667, 10_000_000]
        for _ in range(30):
            told = self.acquire("alice", quota)
            self.clock.micros += told.retry_after_us
            assert 9_999_999 <= self.acquire("alice", quota).delay_us <= 10_000_000

    def test_a_costly_request_makes_those_behind_it_wait_longer(self) -> None:
        assert self.acquire("alice", QUOTA, cost=3).delay == 0
        assert self.acquire("alice", QUOTA).delay == 3

    def test_without_a_queue_no_admission_is_delayed(self) -> None:
        assert self.acquire("alice", "1/second queue 0").delay == 0
        assert self.acquire("alice", "1/second queue 0").retry_after == 1

    def test_a_dry_run_tells_the_delay_and_takes_no_place(self) -> None:
        self.acquire("alice", QUOTA, cost=2)
        for _ in range(3):
            assert self.peek("alice", QUOTA).delay == 2

    def test_a_queue_drains_while_no_requests_come(self) -> None:
        self.acquire("alice", QUOTA, cost=4)
        self.clock.advance(2.5)
        assert self.left("alice", QUOTA) == 2
        assert self.acquire("alice", QUOTA).delay == 1.5

    def test_the_longest_delay_of_a_request_counts_and_advisory_asks_delay_nothing(self) -> None:
        slow = "1/minute queue 3"
        assert [self.acquire("alice", QUOTA, slow).delay for _ in range(2)] == [0, 60]
        shadow = asks("alice", slow, advisory=True)
        assert self.both.acquire(*asks("alice", QUOTA), *shadow).delay == 2

    def test_what_another_quota_refused_takes_no_place_in_the_queue(self) -> None:
        full = "1/hour fixed_window"
        self.acquire("alice", full)
        assert not self.acquire("alice", QUOTA, full)
        assert self.acquire("alice", QUOTA).delay == 0

    def test_only_the_last_in_the_queue_can_give_its_place_back(self) -> None:
        first, middle, last = (self.acquire("alice", QUOTA) for _ in range(3))
        assert self.refund(middle).units == 0
        assert self.refund(last).units == 1
        assert self.acquire("alice", QUOTA).delay == 2
        assert self.refund(first).units == 0

    def test_places_are_given_back_from_the_last_one_on(self) -> None:
        verdicts = [self.acquire("alice", QUOTA) for _ in range(3)]
        assert [self.refund(verdict).units for verdict in reversed(verdicts)] == [1, 1, 1]
        assert self.acquire("alice", QUOTA).delay == 0

    def test_what_has_been_served_cannot_be_given_back(self) -> None:
        verdict = self.acquire("alice", QUOTA, cost=3)
        self.clock.advance(1)
        assert self.refund(verdict).units == 2
        late = self.acquire("bob", QUOTA, cost=3)
        self.clock.advance(3)
        assert self.refund(late).units == 0

    def test_a_place_given_back_in_part_never_frees_another(self) -> None:
        """After a part came back, the next one's place may end where this one ended."""
        verdict = self.acquire("alice", QUOTA, cost=2, id=b"a")
        assert self.refund(verdict, units=1).units == 1
        behind = self.acquire("alice", QUOTA)
        assert self.refund(verdict).units == 0
        assert self.acquire("alice", QUOTA).delay == behind.delay + 1

    def test_settling_moves_the_requests_behind(self) -> None:
        for key, actual in (("less", 1), ("more", 3)):
            verdict = self.acquire(key, QUOTA, cost=2, id=b"a")
            self.settle(verdict, actual)
            assert self.acquire(key, QUOTA).delay == actual

    def test_a_changed_limit_keeps_what_is_in_the_queue(self) -> None:
        self.acquire("alice", QUOTA, cost=4)
        assert self.left("alice", "2/second queue 5") == 2
        self.both.check_promises()  # requests beyond the end of a shortened queue are overtaken
        assert self.acquire("alice", "1/second queue 1").retry_after == 1
        self.clock.advance(1)
        assert self.acquire("alice", "1/second queue 1").delay == 1

    def test_time_going_back_starts_no_request_earlier(self) -> None:
        self.clock.advance(5)
        first = self.acquire("alice", QUOTA)
        self.clock.micros -= SECOND
        second = self.alone("alice", QUOTA)
        assert second.at_us + second.delay_us >= first.at_us + SECOND

    def test_a_clock_set_back_by_a_day_makes_no_caller_wait_for_a_day(self) -> None:
        self.acquire("alice", QUOTA, cost=2)
        self.clock.micros -= 86_400 * SECOND
        told = self.alone("alice", QUOTA)
        assert max(told.retry_after, told.delay) <= 4
        self.clock.micros += told.retry_after_us
        assert told or self.alone("alice", QUOTA)

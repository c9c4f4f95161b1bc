"""Ids: a request that was admitted under one is remembered, answered again as before, and charged once."""

from __future__ import annotations

import pytest

from penstock.model import Acquire
from penstock.testing.kit import Kit, asks, for_everything_countable

RATE = "10/10 seconds fixed_window"
PLACE = "1 concurrent ttl 30s"


class IdExamples(Kit):
    """Examples of requests with an id, which may be repeated when a reply was lost."""

    @for_everything_countable
    def test_a_repeated_request_gets_the_same_answer_and_is_charged_once(self, quota: str) -> None:
        first = self.acquire("alice", quota, cost=3, id=b"a")
        self.clock.micros += 5
        self.acquire("alice", quota, cost=2)
        left = self.left("alice", quota)
        self.clock.micros += 5
        again = self.acquire("alice", quota, cost=3, id=b"a")
        assert (again.answer[:6], again.at_us) == (first.answer[:6], first.at_us)
        assert self.left("alice", quota) == left

    def test_a_repeat_in_the_same_batch_is_recognised(self) -> None:
        op = Acquire(asks("alice", RATE, cost=3), id=b"a")
        self.both.run(op, op, op)
        assert self.left("alice", RATE) == 7

    def test_a_repeated_request_of_several_quotas_is_charged_once(self) -> None:
        quotas = "10/minute fixed_window min_interval 1s", "100/hour gcra", "3 concurrent"
        for _ in range(3):
            assert self.acquire("alice", *quotas, cost=4, id=b"a")
        assert [d.remaining for d in self.peek("alice", *quotas, cost=0).decisions] == [6, 0, 96, 2]

    def test_an_admission_stays_one_even_when_the_limit_has_been_reached_since(self) -> None:
        self.acquire("alice", RATE, cost=5, id=b"a")
        self.acquire("alice", RATE, cost=5)
        assert self.acquire("alice", RATE, cost=5, id=b"a")
        assert not self.acquire("alice", RATE, cost=5, id=b"b")

    def test_a_refused_request_is_not_remembered(self) -> None:
        self.acquire("alice", RATE, cost=10)
        assert not self.acquire("alice", RATE, id=b"a")
        self.clock.advance(10)
        assert self.acquire("alice", RATE, id=b"a")
        assert self.left("alice", RATE) == 9

    def test_an_id_means_nothing_to_other_counters(self) -> None:
        for key in ("alice", "bob", ("alice", "bob"), "alicebob"):
            for quota in (RATE, "10/20 seconds fixed_window", "10/10 seconds gcra", f"{RATE} name other"):
                assert self.acquire(key, quota, id=b"a").remaining == 9

    def test_an_id_means_nothing_to_a_request_that_asks_for_more(self) -> None:
        self.acquire("alice", RATE, cost=4, id=b"a")
        assert len(self.acquire("alice", RATE, "10/hour gcra", cost=4, id=b"a").decisions) == 2
        assert self.left("alice", RATE) == 2

    @pytest.mark.parametrize("ids", [(b"a", b"b", b"ab", b"a:b", b"#", b"\x00", b"\x00\x00", b"\xff" * 255)])
    def test_ids_are_told_apart_whatever_they_are_made_of(self, ids: tuple[bytes, ...]) -> None:
        for id in ids:
            assert self.acquire("alice", RATE, id=id)
        assert self.left("alice", RATE) == 10 - len(ids)

    def test_an_id_outlives_a_change_of_the_limit(self) -> None:
        self.acquire("alice", RATE, cost=4, id=b"a")
        changed = "5/10 seconds fixed_window"
        outcomes = self.store.run([Acquire(asks("alice", changed, cost=4), id=b"a")])
        assert all(outcomes)
        assert self.left("alice", changed) == 1

    @pytest.mark.parametrize(
        ("quota", "lasts"),
        [
            ("10/second fixed_window", 60),
            ("10/hour fixed_window", 3_600),
            ("10/hour", 7_200),
            ("10/hour burst 40", 14_400),
            ("10/hour queue 19", 7_200),
            ("10/hour rolling_window", 3_600),
        ],
    )
    def test_a_record_lasts_a_minute_and_as_long_as_its_charge_can_count(self, quota: str, lasts: float) -> None:
        first = self.acquire("alice", quota, id=b"a")
        self.clock.advance(lasts - 0.000001)
        assert self.acquire("alice", quota, id=b"a").at_us == first.at_us
        self.clock.micros += 1
        assert self.acquire("alice", quota, id=b"a").at_us == self.clock.micros

    def test_what_was_given_back_may_be_charged_again_under_its_id(self) -> None:
        first = self.acquire("alice", RATE, cost=4, id=b"a")
        assert [self.refund(first).units for _ in range(2)] == [4, 0]
        second = self.acquire("alice", RATE, cost=4, id=b"a")
        assert self.refund(first).units == 0, "an old receipt reached a new request"
        assert self.settle(first, 0).units == 0, "an old receipt reached a new request"
        assert self.left("alice", RATE) == 6
        assert self.refund(second).units == 4

    def test_parts_given_back_add_up_to_no_more_than_the_cost(self) -> None:
        verdict = self.acquire("alice", RATE, cost=4, id=b"a")
        self.acquire("alice", RATE, cost=4)
        assert [self.refund(verdict, units=3).units for _ in range(3)] == [3, 1, 0]
        assert self.left("alice", RATE) == 6

    def test_what_is_charged_once_stays_charged_until_the_last_part_is_given_back(self) -> None:
        quotas = "1 concurrent", "10/minute fixed_window"
        verdict = self.acquire("alice", *quotas, cost=4, id=b"a")
        self.settle(verdict, 6)
        assert self.refund(verdict, units=4).each == (0, 4)
        assert self.refund(verdict).each == (1, 2)

    def test_requests_with_the_same_id_that_share_a_counter_are_two(self) -> None:
        for other in ("bob", "carol", "dave"):
            self.both.acquire(*asks("alice", RATE), *asks(other, RATE), id=b"a")
        assert [self.left(key, RATE) for key in ("alice", "bob", "carol", "dave")] == [7, 9, 9, 9]

    def test_a_place_is_taken_once_however_often_its_id_asks(self) -> None:
        first = self.acquire("alice", "2 concurrent", id=b"a")
        again = self.acquire("alice", "2 concurrent", id=b"a")
        assert self.left("alice", "2 concurrent") == 1
        assert self.release(again).units == 1
        assert self.release(first).units == 0

    def test_an_id_whose_place_is_gone_is_a_new_request(self) -> None:
        expired = self.acquire("alice", PLACE, id=b"a")
        self.clock.advance(30)
        self.acquire("alice", PLACE)
        assert not self.acquire("alice", PLACE, id=b"a")
        assert self.release(expired).units == 0
        self.release(self.acquire("bob", PLACE, id=b"a"))
        assert self.acquire("bob", PLACE, id=b"a")
        assert self.left("bob", PLACE) == 0

    def test_a_release_does_not_reach_a_later_place_of_the_same_id(self) -> None:
        first = self.acquire("alice", PLACE, id=b"a")
        self.release(first)
        self.acquire("alice", PLACE, id=b"a")
        assert self.release(first).units == self.renew(first).units == 0
        assert self.left("alice", PLACE) == 0

    def test_a_renewed_place_is_remembered_as_long_as_it_is_held(self) -> None:
        first = self.acquire("alice", PLACE, id=b"a")
        for _ in range(10):
            self.clock.advance(29)
            assert self.renew(first).units == 1
        assert self.acquire("alice", PLACE, id=b"a").at_us == first.at_us
        assert self.release(first).units == 1

    def test_advice_that_was_not_charged_makes_no_repeat_a_new_request(self) -> None:
        shadow, enforced = asks("alice", PLACE, advisory=True), asks("alice", RATE, cost=4)
        self.acquire("alice", PLACE)
        for _ in range(3):
            assert self.both.acquire(*enforced, *shadow, id=b"a")
        assert self.left("alice", RATE) == 6

    def test_callers_that_race_under_one_id_are_charged_once(self) -> None:
        op = Acquire(asks("alice", "100/hour fixed_window", cost=3), id=b"a")
        outcomes = [outcome for batch in self.race([[op] * 10] * 4) for outcome in batch]
        assert all(outcomes)
        assert self.alone("alice", "100/hour fixed_window", dry=True).remaining == 97

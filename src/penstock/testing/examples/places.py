"""Places: held by so many at once, renewed, released, expired, and never freed by another holder's release."""

from __future__ import annotations

import sys

from penstock.clock import SECOND
from penstock.model import Acquire, Amend, Op, Verdict
from penstock.testing.kit import Kit, asks

ONE, TWO = "1 concurrent ttl 30s", "2 concurrent ttl 30s"


class PlaceExamples(Kit):
    """Examples of places that are held."""

    def test_no_more_places_are_held_than_there_are(self) -> None:
        op = Acquire(asks("alice", TWO))
        assert [bool(outcome) for outcome in self.both.run(op, op, op)] == [True, True, False]
        assert self.acquire("bob", TWO)

    def test_a_verdict_tells_what_is_left_and_when_the_first_place_expires(self) -> None:
        self.acquire("alice", TWO)
        self.clock.advance(10)
        second = self.acquire("alice", TWO)
        assert (second.remaining, second.reset_after, second.more_after) == (0, 20, 20)
        refused = self.acquire("alice", TWO)
        assert (refused.remaining, refused.retry_after, refused.more_after) == (0, 20, 20)

    def test_a_place_that_is_not_renewed_expires_to_the_microsecond(self) -> None:
        self.acquire("alice", ONE)
        self.clock.advance(29.999999)
        assert not self.acquire("alice", ONE)
        self.clock.micros += 1
        assert self.acquire("alice", ONE)

    def test_a_released_place_is_free_at_once(self) -> None:
        verdict = self.acquire("alice", ONE)
        assert self.release(verdict).units == 1
        assert self.acquire("alice", ONE)

    def test_a_repeated_release_frees_no_other_place(self) -> None:
        """Not even one that was taken in the same microsecond."""
        first = self.acquire("alice", TWO)
        self.release(first)
        self.acquire("alice", TWO)
        self.acquire("alice", TWO)
        assert self.release(first).units == 0
        assert not self.acquire("alice", TWO)

    def test_a_late_release_frees_no_other_place(self) -> None:
        late = self.acquire("alice", ONE)
        self.clock.advance(30)
        self.acquire("alice", ONE)
        assert self.release(late).units == 0
        assert not self.acquire("alice", ONE)

    def test_a_renewed_place_is_held_for_another_ttl(self) -> None:
        verdict = self.acquire("alice", ONE)
        for _ in range(3):
            self.clock.advance(29)
            assert self.renew(verdict).units == 1
        self.clock.advance(29.999999)
        assert not self.acquire("alice", ONE)
        self.clock.micros += 1
        assert self.acquire("alice", ONE)

    def test_renewing_one_place_renews_no_other(self) -> None:
        first, _ = self.acquire("alice", TWO), self.acquire("alice", TWO)
        self.clock.advance(20)
        self.renew(first)
        self.clock.advance(10)
        assert self.left("alice", TWO) == 1

    def test_what_is_no_longer_held_cannot_be_renewed(self) -> None:
        expired, released = self.acquire("alice", ONE), self.acquire("bob", ONE)
        self.release(released)
        self.clock.advance(30)
        assert self.renew(expired).units == self.renew(released).units == 0
        assert self.left("alice", ONE) == self.left("bob", ONE) == 1

    def test_a_place_costs_one_whatever_the_request_costs(self) -> None:
        verdict = self.acquire("alice", TWO, "100/minute fixed_window", cost=50)
        assert [d.remaining for d in verdict.decisions] == [1, 50]

    def test_places_and_rates_are_charged_together_or_not_at_all(self) -> None:
        rate = "3/minute fixed_window"
        assert self.acquire("alice", ONE, rate)
        assert not self.acquire("alice", ONE, rate)
        assert self.left("alice", rate) == 2
        self.acquire("bob", rate, cost=3)
        assert not self.acquire("bob", ONE, rate)
        assert self.left("bob", ONE) == 1

    def test_a_release_leaves_rates_charged_and_a_refund_does_not(self) -> None:
        rate = "3/minute fixed_window"
        released, refunded = self.acquire("alice", TWO, rate), self.acquire("alice", TWO, rate)
        assert self.release(released).each == (1, 0)
        assert self.refund(refunded).each == (1, 1)
        assert (self.left("alice", TWO), self.left("alice", rate)) == (2, 2)

    def test_a_part_given_back_keeps_the_place(self) -> None:
        verdict = self.acquire("alice", ONE, "9/minute fixed_window", cost=4)
        assert self.refund(verdict, units=3).each == (0, 3)
        assert self.left("alice", ONE) == 0

    def test_a_lowered_limit_grants_no_place_until_enough_are_released(self) -> None:
        three = "3 concurrent ttl 30s"
        holders = []
        for _ in range(3):
            holders.append(self.acquire("alice", three))
            self.clock.advance(1)
        assert self.peek("alice", ONE, cost=0).more_after == self.acquire("alice", ONE).retry_after == 29
        self.release(holders[2])
        assert self.acquire("alice", ONE).retry_after == 28

    def test_a_changed_ttl_leaves_holders_their_own(self) -> None:
        self.acquire("alice", "2 concurrent ttl 10s")
        self.acquire("alice", "2 concurrent ttl 30s")
        self.clock.advance(10)
        assert self.left("alice", "2 concurrent ttl 1s") == 1
        self.clock.advance(19.999999)
        assert self.left("alice", "2 concurrent ttl 1s") == 1

    def test_a_penalty_shuts_a_key_out_once_it_found_no_place(self) -> None:
        quota = "1 concurrent ttl 5s penalty 1m"
        self.acquire("alice", quota)
        assert self.acquire("alice", quota).retry_after == 60
        self.clock.advance(59)
        assert not self.acquire("alice", quota)
        self.clock.advance(1)
        assert self.acquire("alice", quota)

    def test_a_reset_frees_all_places(self) -> None:
        self.acquire("alice", TWO)
        self.acquire("alice", TWO)
        self.reset("alice", TWO)
        assert self.left("alice", TWO) == 2

    def test_a_clock_set_back_by_a_day_holds_no_place_for_a_day(self) -> None:
        self.acquire("alice", ONE)
        self.clock.micros -= 86_400 * SECOND
        told = self.alone("alice", ONE)
        assert not told
        assert told.retry_after <= 30
        self.clock.micros += told.retry_after_us
        assert self.alone("alice", ONE)

    def test_a_place_from_before_a_reset_frees_nothing_taken_since(self) -> None:
        (lost,) = self.store.run([Acquire(asks("alice", ONE))])
        self.reset("alice", ONE)
        assert isinstance(lost, Verdict)
        assert lost.receipt is not None
        self.acquire("alice", ONE)
        self.store.run([Amend(lost.receipt, "release"), Amend(lost.receipt, "renew")])
        assert not self.acquire("alice", ONE)

    def test_callers_that_race_for_places_never_hold_more_than_there_are(self) -> None:
        taking: list[Op] = [Acquire(asks("alice", "20 concurrent ttl 1h"))] * 25
        patience = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # let threads cut in wherever they can
        try:
            outcomes = [outcome for batch in self.race([taking] * 4) for outcome in batch]
            held = [v.receipt for v in outcomes if isinstance(v, Verdict) and v.receipt is not None]
            assert len(held) == 20
            freed = [outcome for batch in self.race([[Amend(r, "release") for r in held]] * 4) for outcome in batch]
        finally:
            sys.setswitchinterval(patience)
        assert sum(getattr(amended, "units", 0) for amended in freed) == 20
        assert self.alone("alice", "20 concurrent ttl 1h", dry=True).remaining == 20

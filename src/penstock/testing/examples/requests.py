"""Batches and requests: order, one instant, all or nothing, dry runs, advisory asks, callers that race."""

from __future__ import annotations

import sys

from penstock.clock import ManualClock
from penstock.model import Acquire, Op, Reset, Verdict
from penstock.quota import RATES
from penstock.testing.kit import Kit, asks, for_every_algorithm

MIXED = tuple(f"3/10 seconds {algorithm}" for algorithm in RATES)


class RestlessClock(ManualClock):
    """A clock that moves whenever someone looks at it."""

    def time_ns(self) -> int:
        self.micros += 1
        return super().time_ns()


class RequestExamples(Kit):
    """Examples of requests and batches."""

    @for_every_algorithm
    def test_each_operation_of_a_batch_sees_the_ones_before_it(self, algorithm: str) -> None:
        op = Acquire(asks("alice", f"3/10 seconds {algorithm}"))
        outcomes = self.both.run(op, op, op, op)
        assert [bool(outcome) for outcome in outcomes] == [True, True, True, False]

    @for_every_algorithm
    def test_a_reset_in_a_batch_is_seen_by_what_follows_it(self, algorithm: str) -> None:
        (ask,) = asks("alice", f"3/10 seconds {algorithm}", cost=3)
        outcomes = self.both.run(Acquire((ask,)), Reset(ask.key, ask.quota), Acquire((ask,)), Acquire((ask,)))
        assert [bool(outcome) for outcome in (outcomes[0], *outcomes[2:])] == [True, True, False]

    def test_a_batch_is_decided_at_one_instant(self) -> None:
        store = self.make_store(RestlessClock())
        ops: list[Op] = [Acquire(asks(name, "3/minute")) for name in ("alice", "bob", "carol")]
        ops.append(Acquire(asks("alice", *MIXED), dry=True))
        instants = {
            decision.at_us
            for verdict in store.run(ops)
            if isinstance(verdict, Verdict)
            for decision in verdict.decisions
        }
        store.close()
        assert len(instants) == 1

    def test_outcomes_come_in_the_order_of_their_operations(self) -> None:
        names = [f"user {number}" for number in range(50)]
        outcomes = self.both.run(*(Acquire(asks(name, "3/minute")) for name in names))
        assert [outcome.key for outcome in outcomes if isinstance(outcome, Verdict)] == names

    def test_an_empty_batch_has_no_outcomes(self) -> None:
        assert self.store.run([]) == []

    @for_every_algorithm
    def test_a_request_is_charged_everywhere_or_nowhere(self, algorithm: str) -> None:
        self.acquire("alice", f"3/10 seconds {algorithm}", cost=3)
        assert not self.acquire("alice", *MIXED)
        for quota in MIXED:
            assert self.peek("alice", quota).remaining == (0 if algorithm in quota else 3)

    def test_a_request_may_ask_about_several_keys(self) -> None:
        both = (*asks("alice", "3/minute"), *asks("bob", "2/minute"))
        assert [bool(self.both.acquire(*both)) for _ in range(3)] == [True, True, False]
        assert self.peek("alice", "3/minute").remaining == 1

    def test_a_refused_request_waits_for_the_slowest_of_the_refusing_quotas(self) -> None:
        quotas = "1/second fixed_window", "1/minute gcra", "1/hour gcra name unused"
        self.acquire("alice", *quotas[:2])
        assert self.acquire("alice", *quotas).retry_after == 60

    @for_every_algorithm
    def test_a_dry_run_changes_nothing(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        for _ in range(5):
            assert self.peek("alice", quota, cost=3).remaining == 3
        assert self.acquire("alice", quota, cost=3)
        for _ in range(5):
            assert not self.peek("alice", quota)

    @for_every_algorithm
    def test_a_dry_run_of_no_cost_tells_how_things_stand(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=3)
        verdict = self.peek("alice", quota, cost=0)
        assert verdict
        assert verdict.remaining == 0
        assert verdict.more_after > 0

    @for_every_algorithm
    def test_a_refusal_changes_nothing(self, algorithm: str) -> None:
        quota = f"3/10 seconds {algorithm}"
        self.acquire("alice", quota, cost=2)
        for _ in range(5):
            assert not self.acquire("alice", quota, cost=2)
        assert self.acquire("alice", quota)

    @for_every_algorithm
    def test_an_advisory_ask_never_refuses_and_is_charged_only_if_it_fits(self, algorithm: str) -> None:
        shadow = asks("alice", f"3/10 seconds {algorithm}", cost=2, advisory=True)
        enforced = asks("alice", "100/minute fixed_window")
        verdicts = [self.both.acquire(*enforced, *shadow) for _ in range(3)]
        assert [bool(verdict) for verdict in verdicts] == [True, True, True]
        assert [verdict.decisions[1].allowed for verdict in verdicts] == [True, False, False]
        assert self.peek("alice", f"3/10 seconds {algorithm}").remaining == 1

    def test_an_advisory_ask_is_not_charged_when_an_enforced_one_refuses(self) -> None:
        shadow = asks("alice", "3/minute", advisory=True)
        enforced = asks("alice", "1/minute gcra")
        self.both.acquire(*enforced)
        assert not self.both.acquire(*enforced, *shadow)
        assert self.peek("alice", "3/minute").remaining == 3

    def test_a_request_of_advisory_asks_alone_passes(self) -> None:
        shadow = asks("alice", "1/minute", advisory=True)
        assert [bool(self.both.acquire(*shadow)) for _ in range(3)] == [True, True, True]

    @for_every_algorithm
    def test_callers_that_race_never_get_more_than_the_limit(self, algorithm: str) -> None:
        shared, other = asks("alice", f"100/hour {algorithm}"), asks("bob", f"1000/hour {algorithm}")
        batches: list[list[Op]] = [[Acquire(shared), Acquire((*other, *shared))] * 25 for _ in range(4)]
        patience = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # let threads cut in wherever they can
        try:
            verdicts = [outcome for outcomes in self.race(batches) for outcome in outcomes]
        finally:
            sys.setswitchinterval(patience)
        assert sum(map(bool, verdicts)) == 100
        left = self.alone("bob", f"1000/hour {algorithm}", dry=True).remaining
        assert left == 1000 - sum(isinstance(v, Verdict) and v.allowed and len(v.decisions) == 2 for v in verdicts)

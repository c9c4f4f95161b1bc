"""The state machine: generated histories on which a store must keep every law.

While time moves forward, every field of every outcome must equal the oracle's. Beside that each history checks, without
the oracle: `retry_after` is sufficient and minimal, a dry run and a refusal change nothing, nothing comes back that was
not charged, and in the end each algorithm's promise over every span of what was admitted.

After a step back of the clock the design promises inequalities, so these are checked, and the story goes on with
counters that were reset. While a counter's state lies ahead of now by at most one period, time stands still at the
state's own instant (windows, token bucket) or the level grows up to a full burst (GCRA); state further ahead is pulled
back to now. So a refusal lasts at most one period longer than it would without the step, and not longer at all when
the step was a big one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.clock import ManualClock, Micros
from penstock.model import Acquire, Amend, Ask, Reset, Verdict
from penstock.quota import BUCKETS, MIN_INTERVAL, Quota
from penstock.stores.base import Store
from penstock.testing.agreement import SideBySide
from penstock.testing.world import World, limits, periods, spends, waits


class Laws(RuleBasedStateMachine):
    """One history of one algorithm. Subclasses name the algorithm and make the store."""

    algorithm: ClassVar[str]
    make_store: ClassVar[Callable[[ManualClock], Store]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = type(self).make_store(self.clock)
        self.both = SideBySide(self.store, self.clock)

    @initialize(limit=limits, period=periods)
    def begin(self, limit: int, period: Micros) -> None:
        self.world = World.of(self.algorithm, limit, period)

    def teardown(self) -> None:
        self.both.check_promises()
        self.store.close()

    @rule(spend=spends)
    def acquire(self, spend: int) -> None:
        asks = self.world.asks(spend)
        verdict = self.both.acquire(*asks)
        if not verdict and not any(ask.quota.count_denied or ask.quota.penalty_us for ask in asks):
            # A refusal changes nothing: asked again, the answer is the same down to the last field.
            assert self.both.acquire(*asks).decisions == verdict.decisions

    @rule(first=spends, second=spends, third=spends)
    def batch(self, first: int, second: int, third: int) -> None:
        self.both.run(*(Acquire(self.world.asks(spend)) for spend in (first, second, third)))

    @rule(spend=spends, advisory=st.integers(0, 7))
    def request(self, spend: int, advisory: int) -> None:
        """Three quotas of two keys in one request, some of them advisory."""
        asks = {
            (ask.key, ask.quota.identity): ask
            for number in range(3)
            for ask in self.world.asks((spend + number) % 72, advisory=bool(advisory >> number & 1))
        }
        self.both.acquire(*asks.values())

    @rule(spend=spends, nothing=st.booleans())
    def peek(self, spend: int, nothing: bool) -> None:
        asks = self.world.asks(spend)
        verdict = self.both.acquire(*(ask._replace(cost=0) if nothing else ask for ask in asks), dry=True)
        assert verdict.receipt is None

    @precondition(lambda self: self.both.held)
    @rule(which=st.integers(0, 15), units=st.integers(0, 3))
    def refund(self, which: int, units: int) -> None:
        """Some units of a receipt, or all of them."""
        receipt = self.both.held[which % len(self.both.held)].receipt
        self.both.run(Amend(receipt, "refund", min(units, receipt.cost) if units else None))

    @rule(spend=spends)
    def reset(self, spend: int) -> None:
        asks = self.world.asks(spend)
        self.both.run(*(Reset(ask.key, ask.quota) for ask in asks))
        after = self.both.acquire(*asks, dry=True)
        assert all(d.remaining == d.quota.capacity for d in after.decisions)

    @rule(wait=waits)
    def advance(self, wait: int) -> None:
        self.clock.micros += self.world.duration(wait, self.clock.micros)

    @rule(spend=spends)
    def wait_as_told(self, spend: int) -> None:
        """`retry_after` is minimal (a microsecond earlier it is refused) and sufficient."""
        asks = self.world.asks(spend)
        told = self.both.acquire(*asks)
        if not told:
            self.clock.micros += told.retry_after_us - 1
            assert not self.both.acquire(*asks, dry=True), "retry_after was not minimal"
            self.clock.micros += 1
            assert self.both.acquire(*asks), "retry_after was not sufficient"

    @rule(limit=limits)
    def change_limit(self, limit: int) -> None:
        """All quotas change their amounts. What was used stays used, for the counters are the same."""
        self.world = World.of(self.algorithm, limit, self.world.period)
        if self.algorithm in BUCKETS:
            # A receipt of a bucket says how fast its units drained when they were charged, not since. And a bucket owes
            # at most its burst: lowered and raised again, it may give the difference again.
            self.both.held.clear()
            self.both.check_promises()

    @rule(wait=waits, spend=spends)
    def step_back(self, wait: int, spend: int) -> None:
        asks = self.world.asks(spend)
        standing_still = [self.both.acquire(ask, dry=True) for ask in asks]
        back = self.world.duration(wait, self.clock.micros)
        self.clock.micros = max(0, self.clock.micros - back)
        for ask, before in zip(asks, standing_still, strict=True):
            self._check_after_step_back(ask, before)
        self._check_waiting_after_step_back(self.world.asks(spend))
        self.both.run(*(Reset(ask.key, ask.quota) for ask in self.world.everywhere()))

    def _check_after_step_back(self, ask: Ask, before: Verdict) -> None:
        stepped = self._ahead(ask) > _horizon(ask.quota)
        after = self._alone(ask, dry=True)
        assert 0 <= after.remaining <= ask.quota.capacity
        if not stepped:
            assert after.remaining <= before.remaining, "time going back gave more than time standing still"
            assert before.allowed or not after.allowed, "time going back admitted more than time standing still"
        longest = _longest_refusal(ask.quota) + (0 if stepped else _horizon(ask.quota))
        assert after.retry_after_us <= longest, f"{ask.quota}: refused for {after.retry_after_us} after a step back"
        if after.allowed:
            # However far the clock was stepped, what can be had now is what is said to be left, and no more.
            assert self._alone(ask._replace(cost=after.remaining))
            assert not self._alone(ask._replace(cost=1))

    def _check_waiting_after_step_back(self, asks: tuple[Ask, ...]) -> None:
        """No refusal may outlast what it said, least of all until the clock has caught up."""
        told = self._alone(*asks)
        self.clock.micros += told.retry_after_us
        assert told or self._alone(*asks), f"refused again after {told.retry_after_us}, as told after a step back"

    def _alone(self, *asks: Ask, dry: bool = False) -> Verdict:
        """Ask the store, but not the oracle."""
        (verdict,) = self.store.run([Acquire(asks, dry)])
        assert isinstance(verdict, Verdict)
        return verdict

    def _ahead(self, ask: Ask) -> Micros:
        """How far the counter's state lies ahead of now; an aligned window lies where it begins."""
        written_at = self.both.oracle.counter(ask).written_at
        if written_at is None:
            return 0
        aligned = ask.quota.algorithm in ("fixed_window", "sliding_window")
        return (written_at - written_at % ask.quota.period_us if aligned else written_at) - self.clock.micros


def _horizon(quota: Quota) -> Micros:
    """How far ahead of now a counter's state can lie unless the clock was stepped."""
    if quota.algorithm in (*BUCKETS, MIN_INTERVAL):
        return -(-quota.capacity * quota.period_us // quota.limit)
    return quota.period_us


def _longest_refusal(quota: Quota) -> Micros:
    """How long a refusal can last while time moves forward.

    A sliding window refuses for up to two periods: until the window it is in ends, and then until that is no longer
    the previous one.
    """
    longest = _horizon(quota) * (2 if quota.algorithm == "sliding_window" else 1)
    return max(longest, quota.penalty_us or 0)

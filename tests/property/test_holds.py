"""The law of concurrency: at every instant at most `limit` places are held, whatever holders and clocks do."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from penstock import Limiter, ManualClock, Quota, Verdict
from penstock.clock import Micros

TTLS = (1, 1_000, 2_500_000, 30_000_000)
KEY = "alice"
EXPIRED: Micros = -1  # and stays so, even if the clock is stepped back: its holder has seen the end


@dataclass(slots=True)
class Holder:
    """The hold that a holder may rely on; after a clock step back it lasts at most a ttl from now."""

    verdict: Verdict
    ttl: Micros
    end: Micros
    held: bool = True


class Places(RuleBasedStateMachine):
    """Runs holders against a limiter, and compares with a plain list of who holds a place until when."""

    holders = Bundle[Holder]("holders")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.limiter = Limiter(clock=self.clock)
        self.all: list[Holder] = []
        self.stepped_back = False
        self.limit = 1

    @initialize(limit=st.integers(1, 4))
    def open(self, limit: int) -> None:
        self.limit = limit

    def live(self) -> int:
        return sum(holder.held and holder.end > self.clock.micros for holder in self.all)

    @rule(target=holders, ttl=st.sampled_from(TTLS), fewer=st.integers(0, 1))
    def acquire(self, ttl: Micros, fewer: int) -> Holder:
        limit = max(self.limit - fewer, 1)
        before = self.live()
        verdict = self.limiter.acquire(KEY, Quota(limit, ttl / 1_000_000, "concurrency"))
        if verdict:
            assert before < limit
        elif not self.stepped_back:
            assert before >= limit
        holder = Holder(verdict, ttl, self.clock.micros + ttl, held=bool(verdict))
        self.all.append(holder)
        return holder

    @rule(holder=holders)
    def release(self, holder: Holder) -> None:
        if not holder.verdict:
            return
        was_live = holder.held and holder.end > self.clock.micros
        back = self.limiter.release(holder.verdict).units
        if not self.stepped_back:
            assert back == was_live
        holder.held = False

    @rule(holder=holders)
    def renew(self, holder: Holder) -> None:
        if not holder.verdict:
            return
        was_live = holder.held and holder.end > self.clock.micros
        renewed = self.limiter.renew(holder.verdict)
        assert holder.held or not renewed
        if not self.stepped_back:
            assert renewed == was_live
        if renewed:
            holder.end = self.clock.micros + holder.ttl

    @rule(micros=st.sampled_from((1, 999, 1_000, 2_500_000, 29_999_999, 30_000_000)) | st.integers(0, 60_000_000))
    def advance(self, micros: Micros) -> None:
        self.clock.micros += micros
        for holder in self.all:
            if holder.end <= self.clock.micros:
                holder.end = EXPIRED

    @rule(micros=st.integers(1, 3_600_000_000))
    def step_back(self, micros: Micros) -> None:
        self.clock.micros -= micros
        self.stepped_back = True
        for holder in self.all:
            holder.end = min(holder.end, self.clock.micros + holder.ttl)

    @rule()
    def lose_state(self) -> None:
        self.limiter.reset(KEY, Quota(1, 1, "concurrency"))
        for holder in self.all:
            holder.held = False

    @invariant()
    def at_most_limit_are_held(self) -> None:
        assert self.live() <= self.limit

    @invariant()
    def what_is_left_is_told(self) -> None:
        left = self.limiter.peek(KEY, Quota(self.limit, 1, "concurrency"), cost=0).remaining
        if self.stepped_back:
            assert left <= self.limit - self.live()
        else:
            assert left == self.limit - self.live()


TestPlaces = Places.TestCase


@given(
    st.lists(st.tuples(st.integers(0, 5_000_000), st.sampled_from(TTLS)), max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_the_time_to_retry_suffices_whatever_limits_and_ttls_were_before(
    taken: list[tuple[Micros, Micros]], earlier: int, limit: int
) -> None:
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    for gap, ttl in taken:
        clock.micros += gap
        limiter.acquire(KEY, Quota(earlier, ttl / 1_000_000, "concurrency"))
    verdict = limiter.acquire(KEY, Quota(limit, 30, "concurrency"))
    if not verdict:
        clock.micros += verdict.retry_after_us - 1
        assert not limiter.peek(KEY, Quota(limit, 30, "concurrency"))
        clock.micros += 1
        assert limiter.acquire(KEY, Quota(limit, 30, "concurrency"))

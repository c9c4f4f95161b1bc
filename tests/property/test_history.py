"""The history checker flags no honest limiter, whatever callers could see of it, and misses nothing it could know."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock import Limiter, ManualClock, Quota
from penstock.clock import SECOND, Micros
from penstock.holds import Hold
from penstock.quota import RATES
from penstock.testing.history import CallHistory, CallOutcome, ObservedCall
from penstock.testing.promises import History
from penstock.testing.spans import SpanBound, Stretch, bounds, fullest
from tests.property.generated import START

ALGORITHMS = (*RATES, "leaky_bucket")
PERIOD: Micros = 32


class Ask(NamedTuple):
    """A call: how long after the one before it is decided, at which cost, and how wide callers see it."""

    wait: Micros
    cost: int
    before: Micros
    after: Micros
    heard: bool


asks = st.lists(
    st.builds(
        Ask,
        st.integers(0, PERIOD),
        st.integers(1, 3),
        st.integers(0, 2 * PERIOD),
        st.integers(0, PERIOD),
        st.booleans(),
    ),
    max_size=30,
)
quotas = st.builds(
    lambda limit, algorithm: Quota(limit, PERIOD / SECOND, algorithm), st.integers(3, 6), st.sampled_from(ALGORITHMS)
)


def seen_by_callers(quota: Quota, asks: list[Ask]) -> CallHistory:
    """What an honest limiter's callers see: intervals around each decision, and now and then no answer."""
    clock = ManualClock(START / SECOND)
    limiter = Limiter(clock=clock)
    history = CallHistory()
    for wait, cost, before, after, heard in asks:
        clock.advance(wait / SECOND)
        now = clock.micros
        allowed = limiter.acquire("a", quota, cost=cost).allowed
        outcome: CallOutcome = ("admitted" if allowed else "refused") if heard else "unknown"
        history.calls.append(ObservedCall("a", "n", now - before, now + after, outcome, cost))
    return history


@given(quotas, asks)
def test_an_honest_limiter_is_never_flagged(quota: Quota, asks: list[Ask]) -> None:
    history = seen_by_callers(quota, asks)
    history.check(quota)
    history.check_refusals(quota)


@given(st.integers(1, 4), asks)
def test_holds_of_an_honest_limiter_are_never_flagged(limit: int, asks: list[Ask]) -> None:
    """`cost` says how many earlier holds are given back first, and `after` how late that becomes known."""
    quota = Quota(limit, PERIOD / SECOND, "concurrency")
    clock = ManualClock(START / SECOND)
    limiter = Limiter(clock=clock)
    history = CallHistory()
    held: list[tuple[ObservedCall, Hold]] = []
    for wait, returns, before, after, heard in asks:
        clock.advance(wait / SECOND)
        now = clock.micros
        for _ in range(min(returns - 1, len(held))):
            call, hold = held.pop(0)
            hold.release()
            history.calls.append(call._replace(until=max(call.returned, now - before)))
        hold = limiter.hold("a", quota)
        if hold:
            outcome: CallOutcome = "admitted" if heard else "unknown"
            held.append((ObservedCall("a", "n", now - before, now + after, outcome), hold))
    history.calls += [call for call, _ in held]
    history.check(quota)


@given(quotas, st.lists(st.tuples(st.integers(0, PERIOD), st.integers(1, 3)), max_size=20))
def test_every_breach_is_found_if_instants_are_known(quota: Quota, admissions: list[tuple[Micros, int]]) -> None:
    """Compared with the check of every span, on arbitrary admissions."""
    if quota.algorithm == "leaky_bucket":  # whose promise is about when requests start
        return
    now = START
    history, instants = CallHistory(), History(quota)
    for wait, units in admissions:
        now += wait
        history.calls.append(ObservedCall("a", "n", now, now, "admitted", units))
        instants.admit(quota, units, now)
    if _broken(instants):
        assert any(span.excess > 0 for span in history.worst(quota).values())
    elif quota.algorithm != "sliding_window":  # which is also held to its limit per window
        assert all(span.excess <= 0 for span in history.worst(quota).values())


def _broken(instants: History) -> bool:
    try:
        instants.check()
    except AssertionError:
        return True
    return False


@given(quotas, asks)
def test_the_fullest_span_is_that_of_a_search_through_all(quota: Quota, asks: list[Ask]) -> None:
    now, stretches = START, []
    for wait, units, before, after, _ in asks:
        now += wait
        stretches.append(Stretch(now - before, now + after, units))
    for bound in bounds(quota):
        span = fullest(stretches, bound)
        assert (None if span is None else span.excess) == _by_search(stretches, bound)


def _by_search(stretches: list[Stretch], bound: SpanBound) -> int | None:
    """The excess of the fullest span, rounded up, found by trying every pair of ends."""
    at = bound.position
    excesses = []
    for first in stretches:
        for last in stretches:
            start, end = at(first.invoked), at(last.returned)
            units = sum(s.units for s in stretches if start <= at(s.invoked) and at(s.returned) <= end)
            if units and (bound.below is None or end - start < bound.below):
                excesses.append(units - Fraction(bound.base + bound.slope * (end - start), bound.scale))
    return max((-(-excess.numerator // excess.denominator) for excess in excesses), default=None)

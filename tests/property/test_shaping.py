"""The law of shaping on any quota; what single histories must obey is in the conformance kit."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock import Limiter, ManualClock, Quota
from penstock.clock import Micros

KEY = "alice"


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    limit = draw(st.integers(1, 1_000))
    period = draw(st.sampled_from([1, 7, 1_000, 1_000_000, 60_000_000]) | st.integers(1, 3_600_000_000))
    return Quota(limit, period / 1_000_000, queue=draw(st.integers(0, 20)))


@st.composite
def comings(draw: st.DrawFn, quota: Quota) -> list[tuple[Micros, int]]:
    """When requests come after one another, around the interval at which they may leave, and what they cost."""
    interval = -(-quota.period_us // quota.limit)
    gaps = st.sampled_from([0, 1, interval - 1, interval, interval + 1]) | st.integers(0, 5 * interval)
    return draw(st.lists(st.tuples(gaps, st.integers(1, quota.capacity)), max_size=30))


@given(st.data(), quotas())
def test_every_answer_agrees_with_a_queue_of_exact_fractions(data: st.DataObject, quota: Quota) -> None:
    """`free` is when the queue will be empty. Tails may be given back."""
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    interval = Fraction(quota.period_us, quota.limit)
    free = Fraction(0)
    for gap, cost in data.draw(comings(quota)):
        clock.micros += gap
        owed = max(free - clock.micros, Fraction(0))
        verdict = limiter.acquire(KEY, quota, cost)
        fits = owed + cost * interval <= quota.capacity * interval
        assert verdict.allowed == fits
        if fits:
            assert verdict.delay_us == -(-owed // 1)
            owed += cost * interval
            free = clock.micros + owed
            if data.draw(st.integers(0, 3)) == 0:
                units = data.draw(st.integers(1, cost))
                assert limiter.refund(verdict, units).units == units
                owed -= units * interval
                free = clock.micros + owed
                assert limiter.peek(KEY, quota, cost=0).remaining == (quota.capacity * interval - owed) // interval
                continue
        else:
            assert verdict.retry_after_us == -(-(owed + (cost - quota.capacity) * interval) // 1)
        assert verdict.remaining == (quota.capacity * interval - owed) // interval
        assert verdict.reset_after_us == -(-owed // 1)


@given(st.data(), quotas())
def test_time_going_back_a_little_lets_no_request_start_earlier(data: st.DataObject, quota: Quota) -> None:
    """A little is less than what the queue still has room for: beyond it the clock was stepped."""
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    started: list[tuple[Micros, int]] = []
    for gap, cost in data.draw(comings(quota)):
        room = limiter.peek(KEY, quota, cost=0).remaining * quota.period_us // quota.limit
        clock.micros += data.draw(st.sampled_from([gap, -min(gap, room)]))
        verdict = limiter.acquire(KEY, quota, cost)
        if verdict:
            started.append((clock.micros + verdict.delay_us, cost))
    for (earlier, cost), (later, _) in pairwise(started):
        assert (later - earlier + 1) * quota.limit >= cost * quota.period_us


@given(quotas(), st.sampled_from(["", " min_interval 1s", " penalty 15m", " count denied", " name crawl"]))
def test_quotas_with_a_queue_read_as_they_are_written(quota: Quota, option: str) -> None:
    text = f"{quota}{option}"
    assert str(Quota.parse(text)) == text
    assert Quota.parse(str(Quota.parse(text))) is Quota.parse(text)

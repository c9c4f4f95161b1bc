"""Laws of the accuracy sampler: an exact limiter is never blamed; what goes over is counted to the unit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import Quota, Verdict
from penstock.algorithms import bind
from penstock.clock import SECOND, Micros
from penstock.observability.accuracy import Judge, Observed, Sampler, Seen

PERIOD = 10
START: Micros = 1_700_000_000 * SECOND
steps = st.lists(st.tuples(st.sampled_from((0, 0.1, 1, 4, 9.999999, 10)), st.integers(1, 3)), max_size=16)


def watched(quota: Quota, moves: list[tuple[float, int]]) -> list[Seen]:
    bound, state, now = bind(quota), None, START
    observed = Observed(b"secret", share=1)
    for wait, wanted in moves:
        now += round(wait * SECOND)
        cost = min(wanted, quota.limit)
        answer, state = bound.decide(state, cost, now)
        observed.decided([Verdict((answer, now, "k", quota, cost, ()))], 0)
    return list(observed.seen)


def true_over(all_seen: list[Seen]) -> int:
    """The same by looking at every earlier admission, each time."""
    admitted = [one for one in all_seen if one.admitted]
    over = 0
    for position, one in enumerate(admitted):
        used = sum(earlier.cost for earlier in admitted[:position] if earlier.at > one.at - one.period)
        over += min(one.cost, max(used + one.cost - one.limit, 0))
    return over


@given(st.integers(1, 6), steps)
def test_an_exact_limiter_is_never_blamed(limit: int, moves: list[tuple[float, int]]) -> None:
    judge = Judge(complete=True)
    for one in watched(Quota(limit, PERIOD, "rolling_window"), moves):
        judge.see(one)
    for account in judge.accounts.values():
        assert (account.over, account.under) == (0, 0)


@given(st.sampled_from(("sliding_window", "fixed_window")), st.integers(1, 6), steps)
def test_over_is_counted_to_the_unit(algorithm: str, limit: int, moves: list[tuple[float, int]]) -> None:
    judge = Judge(complete=True)
    all_seen = watched(Quota(limit, PERIOD, algorithm), moves)
    for one in all_seen:
        judge.see(one)
    assert sum(account.over for account in judge.accounts.values()) == true_over(all_seen)


@given(
    st.integers(1, 3), st.lists(st.tuples(st.integers(0, 4 * SECOND), st.booleans(), st.integers(0, 2)), max_size=16)
)
def test_spread_over_workers_it_is_judged_as_if_it_were_one(limit: int, moves: list[tuple[int, bool, int]]) -> None:
    """However decisions are spread over workers, and whenever those publish, the figures come out alike."""
    samplers = [Sampler(b"secret", complete=True, share=1) for _ in range(3)]
    alone, now = Judge(complete=True), START
    leader = samplers[0]
    leader.hear([sampler.publish() for sampler in samplers])
    leader._judged_until = 0
    all_seen = []
    for wait, admitted, worker in moves:
        now += wait + 1
        one = Seen(now, 1, "r", limit, PERIOD * SECOND, 1, admitted)
        all_seen.append(one)
        samplers[worker].observed.seen.append(one)
        leader.hear([sampler.publish() for sampler in samplers])
    leader._judge(now)
    for one in all_seen:
        alone.see(one)
    assert leader.judge.accounts == alone.accounts

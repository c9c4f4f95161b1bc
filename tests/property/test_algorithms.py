"""Laws of the pure algorithms, where no store is needed to state them."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import Quota
from penstock.algorithms import Bound, bind
from penstock.algorithms.base import State
from penstock.clock import SECOND, Micros
from penstock.model import NOT_CHARGED, Answer
from penstock.quota import BUCKETS, RATES
from tests.property.generated import START, Move, Past, histories, live, moves, quotas

later = st.one_of(st.integers(0, 3), st.integers(0, 100_000))


def described(bound: Bound, state: State, now: Micros, cost: int = 1) -> Answer:
    answer, _ = bound.peek(state, cost, now)
    return answer


@given(quotas(), histories, moves)
def test_deciding_twice_from_one_state_gives_one_answer(quota: Quota, history: list[Move], move: Move) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now = past.now + move.wait(quota)
    first, _ = bound.decide(past.state, move.cost(quota), now)
    again, _ = bound.decide(past.state, move.cost(quota), now)
    assert first == again


@given(quotas(), st.lists(st.tuples(moves, moves), max_size=10))
def test_a_step_that_was_dropped_leaves_no_trace(quota: Quota, history: list[tuple[Move, Move]]) -> None:
    """A store drops a step when another ask of the request refuses, so what it had before must stay true."""
    bound = bind(quota)
    straight = live(bound, quota, [kept for kept, _ in history])
    state, now, answers = None, START, []
    for kept, dropped in history:
        now += kept.wait(quota)
        _, successor = bound.decide(state, dropped.cost(quota), now)
        bound.decide(successor, kept.cost(quota), now + dropped.wait(quota))
        bound.force(state, dropped.cost(quota), now)
        answer, state = bound.decide(state, kept.cost(quota), now)
        answers.append(answer)
    assert tuple(answers) == straight.answers


@given(quotas(), histories, st.integers(0, 8))
def test_a_peek_changes_nothing(quota: Quota, history: list[Move], eighths: int) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    answer, state = bound.peek(past.state, quota.capacity * eighths // 8, past.now)
    assert state is past.state
    assert answer[6] == NOT_CHARGED


@given(quotas(bare=True), histories, moves)
def test_a_peek_answers_what_a_decision_would(quota: Quota, history: list[Move], move: Move) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now, cost = past.now + move.wait(quota), move.cost(quota)
    peeked, (asked, _) = described(bound, past.state, now, cost), bound.decide(past.state, cost, now)
    assert (peeked[0], peeked[2]) == (asked[0], asked[2])


@given(quotas(), histories)
def test_remaining_units_lie_between_0_and_the_capacity(quota: Quota, history: list[Move]) -> None:
    for allowed, left, retry_after, reset_after, more_after, delay, mark in live(bind(quota), quota, history).answers:
        assert 0 <= left <= quota.capacity
        assert (retry_after == 0) == allowed == (mark != NOT_CHARGED)
        assert min(reset_after, more_after) >= 0
        assert delay == 0


@given(quotas(), histories, later, st.integers(0, 8))
def test_a_state_dropped_when_it_expires_changes_no_answer(
    quota: Quota, history: list[Move], late: int, eighths: int
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    assume(past.state is not None)
    now = max(past.now, bound.expiry(past.state)) + late
    cost = quota.capacity * eighths // 8
    assert described(bound, past.state, now, cost) == described(bound, None, now, cost)


@given(quotas(), histories)
def test_a_state_lost_before_it_expires_gives_away_at_most_one_budget(quota: Quota, history: list[Move]) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    assert described(bound, None, past.now)[1] <= quota.capacity
    whole, state = bound.decide(None, quota.capacity, past.now)
    assert whole[0]
    assert not described(bound, state, past.now)[0]


@given(quotas(bare=True), histories, moves)
def test_forcing_what_fits_is_charging_it(quota: Quota, history: list[Move], move: Move) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now, cost = past.now + move.wait(quota), move.cost(quota)
    answer, charged = bound.decide(past.state, cost, now)
    forced = bound.force(past.state, cost, now)
    if answer[0]:
        assert described(bound, forced, now) == described(bound, charged, now)
    else:
        assert described(bound, forced, now)[1] == 0


@given(quotas(), histories, moves, later)
def test_reporting_what_happens_now_is_forcing_it(quota: Quota, history: list[Move], move: Move, ahead: int) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now, cost = past.now + move.wait(quota), move.cost(quota)
    charged, reported = bound.report(past.state, cost, now + ahead, now)
    assert charged == cost
    assert described(bound, reported, now) == described(bound, bound.force(past.state, cost, now), now)


@given(quotas(tuple(name for name in RATES if name not in BUCKETS), bare=True), histories, moves, histories, moves)
def test_a_window_counts_what_is_reported_late_as_if_it_had_been_charged_in_time(
    quota: Quota, history: list[Move], move: Move, since: list[Move], pause: Move
) -> None:
    """What comes in between is forced, so that one history does not admit what the other refuses."""
    bound = bind(quota)
    past, twin = live(bound, quota, history), live(bound, quota, history)  # a state has one successor that is kept
    at = now = past.now + move.wait(quota)
    in_time, late = bound.force(past.state, move.cost(quota), at), twin.state
    for other in since:
        now += other.wait(quota)
        in_time, late = (bound.force(state, other.cost(quota), now) for state in (in_time, late))
    now += pause.wait(quota)
    _, late = bound.report(late, move.cost(quota), at, now)
    assert described(bound, late, now) == described(bound, in_time, now)


@given(quotas(BUCKETS, bare=True), histories, moves, moves)
def test_a_bucket_counts_no_more_of_what_is_reported_late_than_had_it_been_admitted_in_time(
    quota: Quota, history: list[Move], move: Move, pause: Move
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    at = past.now + move.wait(quota)
    now, cost = at + pause.wait(quota), move.cost(quota)
    (fits, *_), in_time = bound.decide(past.state, cost, at)
    assume(fits)  # what does not is lost at the brim, and another unit stands in its place since
    charged, late = bound.report(past.state, cost, at, now)
    assert 0 <= charged <= cost
    assert described(bound, in_time, now)[1] <= described(bound, late, now)[1] <= described(bound, past.state, now)[1]
    if past.state is None or bound.expiry(past.state) <= at:
        assert described(bound, late, now) == described(bound, in_time, now), "nothing else was owed since"


@given(quotas(), histories, moves, moves)
def test_a_report_that_counts_no_more_changes_nothing(
    quota: Quota, history: list[Move], move: Move, pause: Move
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now = past.now + pause.wait(quota)
    charged, state = bound.report(past.state, move.cost(quota), now - 2 * quota.horizon_us, now)
    assert (charged, state) == (0, past.state)
    assert state is past.state


@given(quotas(bare=True), histories, moves, st.integers(0, 17))
def test_a_refund_at_once_is_as_if_nothing_had_been_charged(
    quota: Quota, history: list[Move], move: Move, sixteenths: int
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now, cost = past.now + move.wait(quota), move.cost(quota)
    (allowed, *_, mark), charged = bound.decide(past.state, cost, now)
    assume(allowed)
    back, refunded = bound.refund(charged, cost, mark, now)
    assert back == cost
    after = now + quota.period_us * sixteenths // 16
    assert described(bound, refunded, after) == described(bound, past.state, after)


@given(quotas(bare=True), histories, moves, moves, st.integers(1, 8))
def test_a_refund_gives_back_no_more_than_was_charged(
    quota: Quota, history: list[Move], move: Move, pause: Move, eighths: int
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    now, cost = past.now + move.wait(quota), move.cost(quota)
    (allowed, *_, mark), charged = bound.decide(past.state, cost, now)
    assume(allowed)
    units, then = max(1, cost * eighths // 8), now + pause.wait(quota)
    back, refunded = bound.refund(charged, units, mark, then)
    assert 0 <= back <= units
    assert described(bound, refunded, then)[1] <= described(bound, past.state, then)[1], "more than never charged"


@given(quotas(bare=True), histories, st.integers(1, 8))
def test_a_client_that_waits_retry_after_passes_and_not_a_microsecond_earlier(
    quota: Quota, history: list[Move], eighths: int
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    cost = max(1, quota.capacity * eighths // 8)
    allowed, _, retry_after, *_ = described(bound, past.state, past.now, cost)
    assert described(bound, past.state, past.now + retry_after, cost)[0]
    assert allowed or not described(bound, past.state, past.now + retry_after - 1, cost)[0]


@given(quotas(bare=True), histories)
def test_a_unit_more_is_left_after_more_after_and_not_a_microsecond_earlier(quota: Quota, history: list[Move]) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    _, left, _, _, more_after, *_ = described(bound, past.state, past.now)
    if more_after:
        assert described(bound, past.state, past.now + more_after)[1] > left
        assert described(bound, past.state, past.now + more_after - 1)[1] == left
    else:
        assert left == quota.capacity


@given(quotas(BUCKETS, bare=True), histories)
def test_token_bucket_and_gcra_answer_alike(quota: Quota, history: list[Move]) -> None:
    bucket, gcra = (Quota(quota.limit, quota.period_us / SECOND, algorithm, burst=quota.burst) for algorithm in BUCKETS)
    assert live(bind(bucket), quota, history).answers == live(bind(gcra), quota, history).answers


@given(quotas(bare=True), st.integers(1, 8), histories)
def test_a_higher_limit_admits_whatever_a_lower_one_admitted(quota: Quota, times: int, history: list[Move]) -> None:
    higher = Quota(
        min(quota.limit * times, 10_000 if quota.algorithm == "rolling_window" else 2**32),
        quota.period_us / SECOND,
        quota.algorithm,
        burst=quota.burst and max(quota.burst, quota.burst * times // 8),
    )
    low, high = Past(None, START), Past(None, START)
    for move in history:
        now, cost = low.now + move.wait(quota), move.cost(quota)
        answer, state = bind(quota).decide(low.state, cost, now)
        low = Past(state, now)
        if answer[0]:
            answer, state = bind(higher).decide(high.state, cost, now)
            assert answer[0]
            high = Past(state, now)


@given(quotas(bare=True), histories, st.lists(st.integers(1, 8), min_size=2, max_size=6), st.randoms())
def test_the_order_of_asks_at_one_instant_matters_by_less_than_one_ask(
    quota: Quota, history: list[Move], eighths: list[int], chance: object
) -> None:
    bound = bind(quota)
    past = live(bound, quota, history)
    costs = [max(1, quota.capacity * eighth // 8) for eighth in eighths]
    shuffled = sorted(costs, key=lambda _: chance.random())  # type: ignore[attr-defined]
    totals = [admitted(bound, past, order) for order in (costs, shuffled)]
    assert abs(totals[0] - totals[1]) < max(costs)


def admitted(bound: Bound, past: Past, costs: list[int]) -> int:
    state, total = past.state, 0
    for cost in costs:
        answer, state = bound.decide(state, cost, past.now)
        total += cost if answer[0] else 0
    return total

"""The history checker on histories made by hand: some must be flagged, and some must not."""

import pickle
from pathlib import Path

import pytest

from penstock import Limiter, ManualClock, Quota, Verdict
from penstock.clock import SECOND
from penstock.errors import StoreError
from penstock.model import Failed
from penstock.testing.history import CallHistory, CallOutcome, ObservedCall, outcome_of
from penstock.testing.spans import Span

START = 1_700_000_040 * SECOND  # a whole minute


def call(invoked: float, returned: float, outcome: CallOutcome = "admitted", **more: int) -> ObservedCall:
    """A call by alice; instants in seconds from START."""
    return ObservedCall(
        "alice", "n1", START + round(invoked * SECOND), START + round(returned * SECOND), outcome, **more
    )


def held(returned: float, until: float | None = None, invoked: float | None = None) -> ObservedCall:
    """A hold that was granted at `returned` and given back at `until`."""
    end = None if until is None else START + round(until * SECOND)
    return call(returned if invoked is None else invoked, returned)._replace(until=end)


def flags(quota: str, *calls: ObservedCall, extra: int = 0) -> bool:
    """Whether a history is found to break the promise of a quota."""
    try:
        CallHistory(calls).check(Quota.parse(quota), extra=extra)
    except AssertionError:
        return True
    return False


# ---------------------------------------------------------------- too much for certain


def test_nothing_admitted_breaks_nothing() -> None:
    for quota in ("2/minute", "2/minute gcra", "2 concurrent"):
        assert not flags(quota)
        assert not flags(quota, call(0, 1, "refused"), call(0, 1, "failed"), call(0, 1, "unknown", cost=2))


def test_a_fixed_window_may_hold_its_limit_and_not_one_more() -> None:
    within = [call(1, 2), call(50, 59)]
    assert not flags("2/minute fixed_window", *within)
    assert flags("2/minute fixed_window", *within, call(10, 11))


def test_a_call_over_the_edge_of_a_window_may_belong_to_either() -> None:
    within = [call(1, 2), call(50, 59)]
    assert not flags("2/minute fixed_window", *within, call(59, 61))
    assert not flags("2/minute fixed_window", *within, call(59, 61), call(61, 62))
    assert flags("2/minute fixed_window", *within, call(59, 61), call(61, 62), call(63, 64))


def test_two_full_windows_may_meet_in_one_span_of_a_fixed_window() -> None:
    assert not flags("2/minute fixed_window", call(59, 59), call(59, 59), call(60, 60), call(60, 60))


def test_a_sliding_window_admits_less_than_twice_its_limit_in_a_span() -> None:
    three = [call(59, 59), call(60, 60), call(60, 60)]
    assert not flags("2/minute", *three)
    assert flags("2/minute", *three, call(59, 59))


def test_a_sliding_window_admits_at_most_its_limit_in_a_window() -> None:
    assert flags("2/minute", call(1, 2), call(3, 4), call(5, 6))


def test_a_rolling_window_admits_its_limit_in_every_span() -> None:
    assert flags("2/minute rolling_window", call(30, 30), call(59, 59), call(60, 60))
    assert not flags("2/minute rolling_window", call(30, 30), call(59, 59), call(90, 90))  # (t - period, t]


def test_only_what_lies_in_a_span_for_certain_counts() -> None:
    assert flags("2/minute rolling_window", call(0, 0), call(30, 40), call(59.9, 59.999))
    assert not flags("2/minute rolling_window", call(0, 0), call(30, 40), call(59.9, 60))


def test_calls_that_take_longer_than_the_period_still_add_up() -> None:
    """No single one lies in any span of a period, and yet three minutes cannot hold more than eight."""
    slow = [call(0, 180) for _ in range(9)]
    assert flags("2/minute rolling_window", *slow)
    assert not flags("2/minute rolling_window", *slow[:8])


@pytest.mark.parametrize("quota", ["60/minute burst 3", "60/minute gcra burst 3", "60/minute queue 2"])
def test_a_bucket_admits_its_burst_and_what_flows_in_meanwhile(quota: str) -> None:
    assert not flags(quota, call(0, 0, cost=3), call(1, 1), call(3, 3, cost=2))
    assert flags(quota, call(0, 0, cost=3), call(0.999, 0.999))
    assert not flags(quota, call(0, 0, cost=3), call(0.999, 1.001))
    assert flags(quota, call(0, 0, cost=3), call(1, 1), call(3, 3, cost=3))


def test_a_calendar_period_holds_its_limit() -> None:
    midnight = -START % (86_400 * SECOND) / SECOND
    assert flags("2/day calendar UTC", call(midnight - 9, midnight - 8, cost=2), call(midnight - 7, midnight - 6))
    assert not flags("2/day calendar UTC", call(midnight - 9, midnight - 8, cost=2), call(midnight - 7, midnight))
    assert not flags("2/day calendar UTC", call(midnight - 1, midnight - 1, cost=2), call(midnight, midnight, cost=2))


def test_places_are_held_from_the_answer_until_release_is_asked_for() -> None:
    assert flags("2 concurrent ttl 1m", held(0, 10), held(1, 10), held(2, 10))
    assert not flags("2 concurrent ttl 1m", held(0, 10), held(1, 2), held(2, 10))
    assert not flags("2 concurrent ttl 1m", held(0, 10), held(1, 10), held(10, 11, invoked=3))


def test_a_place_that_nobody_gave_back_is_held_for_its_ttl() -> None:
    assert flags("2 concurrent ttl 1m", held(0), held(1), held(59, 90))
    assert not flags("2 concurrent ttl 1m", held(0), held(1), held(60, 90))
    assert not flags("2 concurrent ttl 1m", held(0, 100), held(1, 100), held(60, 90))


def test_units_that_may_have_been_given_back_do_not_count() -> None:
    assert not flags("2/minute rolling_window", call(0, 0, cost=2, given_back=1), call(1, 1))
    assert flags("2/minute rolling_window", call(0, 0, cost=2, given_back=1), call(1, 1), call(2, 2))


def test_what_failed_counts_for_nothing_and_what_is_unknown_neither() -> None:
    full = call(0, 0, cost=2)
    assert not flags("2/minute rolling_window", full, call(1, 1, "failed"), call(1, 1, "unknown"))


def test_keys_are_judged_apart() -> None:
    assert not flags("2/minute rolling_window", call(0, 0, cost=2), call(0, 0, cost=2)._replace(key="bob"))


def test_a_fault_with_a_stated_price_may_cost_that_and_no_more() -> None:
    twice = [call(0, 0, cost=2), call(1, 1, cost=2)]
    assert not flags("2/minute rolling_window", *twice, extra=2)
    assert flags("2/minute rolling_window", *twice, extra=1)


def test_a_violation_is_told_with_all_its_numbers() -> None:
    history = CallHistory([call(0, 0), call(1, 2), call(3, 4)])
    with pytest.raises(AssertionError) as error:
        history.check(Quota.parse("1/minute rolling_window"), extra=1)
    told, *_ = str(error.value).splitlines()  # pytest adds the values where it rewrites the package's assertions
    assert told == (
        "1/minute rolling_window for 'alice': at least 3 units admitted from 1700000040000000 to 1700000044000000 µs, "
        "where at most 1 + 1 are promised"
    )


def test_the_worst_span_is_known_even_if_all_is_well() -> None:
    history = CallHistory([call(0, 0), call(1, 2), call(100, 101)])
    assert history.worst(Quota.parse("5/minute rolling_window")) == {
        "alice": Span(START, START + 2 * SECOND, units=2, allowed=5)
    }


# ---------------------------------------------------------------- too little for certain


def refused_wrongly(quota: str, *calls: ObservedCall) -> bool:
    try:
        CallHistory(calls).check_refusals(Quota.parse(quota))
    except AssertionError:
        return True
    return False


def test_a_refusal_of_a_key_that_nobody_used_is_wrong() -> None:
    assert refused_wrongly("2/minute", call(0, 1, "refused"))
    assert refused_wrongly("2/minute", call(0, 1), call(2, 3, "refused"))


def test_a_refusal_is_right_if_the_limit_may_have_been_reached() -> None:
    for other in (call(0, 1), call(2.5, 9), call(0, 1, "unknown")):
        assert not refused_wrongly("2/minute rolling_window", call(0, 1), other, call(2, 3, "refused"))
    for other in (call(3.5, 9), call(0, 1, "failed"), call(0, 1, "refused")._replace(key="bob", cost=3)):
        assert refused_wrongly("2/minute rolling_window", call(0, 1), other, call(2, 3, "refused"))


def test_what_left_the_window_for_certain_is_no_reason_to_refuse() -> None:
    full = call(0, 1, cost=2)
    assert refused_wrongly("2/minute rolling_window", full, call(61, 62, "refused"))
    assert not refused_wrongly("2/minute rolling_window", full, call(60.9, 62, "refused"))
    assert not refused_wrongly("2/minute sliding_window", full, call(61, 62, "refused"))
    assert not refused_wrongly("2/minute rolling_window", full._replace(outcome="unknown"), call(99, 99, "refused"))


def test_a_larger_cost_may_be_refused_earlier() -> None:
    assert not refused_wrongly("2/minute", call(0, 1), call(2, 3, "refused", cost=2))


@pytest.mark.parametrize("quota", ["2 concurrent", "2/minute penalty 5m", "2/minute count denied"])
def test_quotas_that_refuse_for_other_reasons_are_not_judged(quota: str) -> None:
    with pytest.raises(ValueError, match="more reasons"):
        CallHistory().check_refusals(Quota.parse(quota))


# ---------------------------------------------------------------- totals


def test_a_total_is_exact_if_it_is_known_to_be() -> None:
    quota = Quota.parse("3/day")
    CallHistory([call(0, 1), call(0, 1, cost=2), call(0, 1, "refused")]).check_total(quota)
    CallHistory([call(0, 1, cost=2), call(0, 1, "unknown")]).check_total(quota)
    with pytest.raises(AssertionError, match="2 to 2 units admitted, expected exactly 3"):
        CallHistory([call(0, 1, cost=2), call(0, 1, "failed")]).check_total(quota)
    with pytest.raises(AssertionError, match="4 to 5 units admitted, expected exactly 3"):
        CallHistory([call(0, 1, cost=4), call(0, 1, "unknown")]).check_total(quota)


# ---------------------------------------------------------------- noting, keeping, merging


def test_calls_are_noted_with_the_instants_at_which_they_began_and_ended() -> None:
    clock = ManualClock(1_000)
    history = CallHistory(node="n1", clock=clock)
    invoked = history.now()
    clock.advance(2)
    history.note(("a", "b"), invoked, "admitted", cost=3, given_back=1)
    history.note("a", invoked, "unknown", returned=invoked + 1, until=invoked + 5)
    assert history.calls == [
        ObservedCall(("a", "b"), "n1", 1_000 * SECOND, 1_002 * SECOND, "admitted", 3, 1),
        ObservedCall("a", "n1", 1_000 * SECOND, 1_000 * SECOND + 1, "unknown", 1, 0, 1_000 * SECOND + 5),
    ]


def test_a_clock_that_steps_back_leaves_no_call_that_ended_before_it_began() -> None:
    clock = ManualClock(1_000)
    history = CallHistory(clock=clock)
    invoked = history.now()
    clock.set(900)
    history.note("a", invoked, "admitted")
    assert history.calls[0].returned == invoked


def test_outcomes_have_names(verdicts: tuple[Verdict, Verdict]) -> None:
    error = StoreError("gone", transient=True)
    results = (*verdicts, Failed(error, "no"), Failed(error, "unknown"))
    assert [outcome_of(result) for result in results] == ["admitted", "refused", "failed", "unknown"]


@pytest.fixture
def verdicts() -> tuple[Verdict, Verdict]:
    limiter = Limiter(clock=ManualClock())
    return limiter.acquire("a", "1/minute"), limiter.acquire("a", "1/minute")


def test_histories_of_several_processes_become_one(tmp_path: Path) -> None:
    calls = [call(0, 1), call(2, 3, "unknown")._replace(key=("a", "b\n"), node="n2", until=7)]
    for number, one in enumerate(calls):
        CallHistory([one]).write(tmp_path / f"{number}.jsonl")
    CallHistory(calls[:1]).write(tmp_path / "1.jsonl")
    assert CallHistory.read(tmp_path / "0.jsonl", tmp_path / "1.jsonl").calls == [*calls, calls[0]]
    assert CallHistory.merged(CallHistory(calls[:1]), CallHistory(calls[1:])).calls == calls
    assert pickle.loads(pickle.dumps(calls)) == calls

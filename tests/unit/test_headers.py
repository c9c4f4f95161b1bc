"""What clients read, dialect by dialect, to the letter."""

import json
from typing import Any

import pytest

from penstock import Limiter, ManualClock, Quota, Verdict
from penstock.clock import Micros
from penstock.errors import InvalidInput, InvalidOption
from penstock.headers import DIALECTS, MAX_REMEMBERED, PROBLEM_JSON, QUOTA_EXCEEDED, HeaderWriter
from penstock.model import Acquire, Ask, Decision
from penstock.stores import MemoryStore

SHOWING = ("ietf", "draft6", "x-epoch", "x-seconds")


@pytest.fixture
def clock() -> ManualClock:
    """Stands at the beginning of a minute, so that windows of a minute have just begun."""
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def headers(verdict: Verdict, *dialect: str, hidden: tuple[str, ...] = ()) -> dict[str, str]:
    pairs = HeaderWriter(dialect, hidden=hidden).headers(verdict)
    assert len(dict(pairs)) == len(pairs), "a header stands twice"
    return dict(pairs)


def refused(limiter: Limiter, quota: str) -> Verdict:
    verdict = limiter.acquire("alice", quota)
    while verdict:
        verdict = limiter.acquire("alice", quota)
    return verdict


def policy(quota: str) -> str:
    return headers(Limiter().peek("alice", quota), "ietf")["RateLimit-Policy"]


def verdict_of(*answers: tuple[str, bool, int, Micros, Micros, Micros], advisory: tuple[bool, ...] = ()) -> Verdict:
    """A verdict as a store might give it: (quota, allowed, remaining, retry, reset and more after) of each ask."""
    flags = advisory or (False,) * len(answers)
    return Verdict.of(
        tuple(
            Decision(((allowed, left, retry, reset, more, 0, 1), 0, "alice", Quota.parse(quota), 1, flag))
            for (quota, allowed, left, retry, reset, more), flag in zip(answers, flags, strict=True)
        )
    )


# ---------------------------------------------------------------- dialects


def test_the_structured_dialect_lists_the_policy_and_what_is_left_of_it(limiter: Limiter) -> None:
    assert HeaderWriter("ietf").headers(limiter.acquire("alice", "100/minute fixed_window")) == [
        ("RateLimit-Policy", '"100-per-minute";q=100;w=60'),
        ("RateLimit", '"100-per-minute";r=99;t=60'),
    ]


def test_draft_6_is_a_triple_with_the_reset_in_seconds(limiter: Limiter) -> None:
    assert HeaderWriter("draft6").headers(limiter.acquire("alice", "100/minute fixed_window")) == [
        ("RateLimit-Limit", "100"),
        ("RateLimit-Remaining", "99"),
        ("RateLimit-Reset", "60"),
    ]


def test_x_headers_tell_the_reset_as_an_instant_or_in_seconds(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", "100/minute fixed_window")
    common = {"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99"}
    assert headers(verdict, "x-epoch") == common | {"X-RateLimit-Reset": "1700000100"}
    assert headers(verdict, "x-seconds") == common | {"X-RateLimit-Reset": "60"}


def test_the_dialect_none_adds_no_header_to_an_admitted_response(limiter: Limiter) -> None:
    assert HeaderWriter("none").headers(limiter.acquire("alice", "100/minute")) == []


def test_several_dialects_follow_one_another_in_the_order_given(limiter: Limiter) -> None:
    names = [name for name, _ in HeaderWriter(["x-seconds", "ietf"]).headers(limiter.acquire("alice", "9/minute"))]
    triple = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]
    assert names == [*triple, "RateLimit-Policy", "RateLimit"]


def test_the_structured_dialect_is_the_default(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", "100/minute")
    assert HeaderWriter().headers(verdict) == HeaderWriter("ietf").headers(verdict)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_refusal_has_retry_after_and_must_not_be_cached(dialect: str, limiter: Limiter) -> None:
    pairs = HeaderWriter(dialect).headers(refused(limiter, "3/minute fixed_window"))
    assert pairs[-2:] == [("Retry-After", "60"), ("Cache-Control", "no-store")]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_admitted_request_has_neither_retry_after_nor_cache_control(dialect: str, limiter: Limiter) -> None:
    told = headers(limiter.acquire("alice", "3/minute"), dialect)
    assert not told.keys() & {"Retry-After", "Cache-Control"}


def test_retry_after_is_rounded_up(limiter: Limiter, clock: ManualClock) -> None:
    refused(limiter, "3/minute fixed_window")
    clock.advance(58.000_001)
    assert headers(refused(limiter, "3/minute fixed_window"), "none")["Retry-After"] == "2"


def test_retry_after_is_at_least_a_second(limiter: Limiter) -> None:
    assert headers(refused(limiter, "5/millisecond gcra"), "none")["Retry-After"] == "1"
    nothing_known = verdict_of(("5/minute", False, 0, 0, 0, 0))
    assert headers(nothing_known, "none")["Retry-After"] == "1"


def test_retry_after_is_never_earlier_than_t_of_the_policy_that_decides() -> None:
    contradictory = verdict_of(("5/minute", False, 0, 2_000_000, 9_000_000, 5_000_001))
    told = headers(contradictory, "ietf")
    assert told["RateLimit"] == '"5-per-minute";r=0;t=6'
    assert told["Retry-After"] == "6"


def test_retry_after_is_the_longest_wait_of_the_policies_that_refuse(limiter: Limiter) -> None:
    quotas = "2/minute fixed_window; 2/hour fixed_window"
    assert headers(refused(limiter, quotas), "none")["Retry-After"] == str(3_600 - 1_700_000_040 % 3_600)


@pytest.mark.parametrize("quota", ["2/minute", "2/minute rolling_window", "2/minute gcra", "5/minute burst 2"])
def test_on_a_refusal_the_reset_is_when_the_request_passes(quota: str, limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", quota)
    clock.advance(7)
    verdict = refused(limiter, quota)
    told = headers(verdict, "draft6", "x-seconds")
    assert told["RateLimit-Reset"] == told["X-RateLimit-Reset"] == told["Retry-After"]
    clock.set(int(headers(verdict, "x-epoch")["X-RateLimit-Reset"]))
    assert limiter.acquire("alice", quota)


# ---------------------------------------------------------------- what r, t, q, w and the reset mean


def test_all_answers_of_one_window_name_the_same_instant(limiter: Limiter, clock: ManualClock) -> None:
    instants = set()
    for _ in range(50):
        instants.add(headers(limiter.acquire("alice", "30/minute fixed_window"), "x-epoch")["X-RateLimit-Reset"])
        clock.advance(1.000_037)
    assert instants == {"1700000100"}


def test_t_is_when_more_is_available_once_nothing_is_left(limiter: Limiter) -> None:
    assert headers(refused(limiter, "6/minute token_bucket"), "ietf")["RateLimit"] == '"6-per-minute";r=0;t=10'


def test_t_never_suggests_a_rate_above_the_policy(limiter: Limiter, clock: ManualClock) -> None:
    # A token comes back in 0.6 s and the window ends in 1 s, yet no client may be led to spend 99 units in a second.
    clock.advance(59)
    for quota in ("100/minute token_bucket", "100/minute fixed_window"):
        assert headers(limiter.acquire("alice", quota), "ietf")["RateLimit"] == '"100-per-minute";r=99;t=60'


def test_a_refusal_for_its_cost_does_not_stretch_t(limiter: Limiter) -> None:
    limiter.acquire("alice", "60/minute token_bucket", cost=10)
    told = headers(limiter.acquire("alice", "60/minute token_bucket", cost=51), "ietf")
    assert (told["RateLimit"], told["Retry-After"]) == ('"60-per-minute";r=50;t=1', "1")


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("100/minute", '"100-per-minute";q=100;w=60'),
        ("1000/5 minutes", '"1000-per-5-minutes";q=1000;w=300'),
        ("10/100 ms", '"10-per-100-milliseconds";q=100;w=1'),
        ("100/1500 ms", '"100-per-1500-milliseconds";q=133;w=2'),
        ("10/second burst 20", '"10-per-second-burst-20";q=20;w=2'),
        ("10/second burst 25", '"10-per-second-burst-25";q=30;w=3'),
        ("100/minute burst 10", '"100-per-minute-burst-10";q=100;w=60'),
        ("4294967296/microsecond", '"4294967296-per-microsecond";q=999999999999999;w=1'),
    ],
)
def test_a_policy_tells_the_rate_that_can_be_kept_up_in_whole_seconds(quota: str, expected: str) -> None:
    assert policy(quota) == expected


def test_a_triple_counts_down_from_the_larger_of_limit_and_burst(limiter: Limiter) -> None:
    assert headers(limiter.acquire("alice", "10/second burst 25"), "draft6")["RateLimit-Limit"] == "25"
    assert headers(limiter.acquire("alice", "10/second burst 5"), "draft6")["RateLimit-Limit"] == "10"


# ---------------------------------------------------------------- names


def test_a_quota_is_known_by_its_own_name() -> None:
    assert policy("100/minute name per:user_1.x-y") == '"per:user_1.x-y";q=100;w=60'


def test_names_tell_neither_algorithm_nor_penalty() -> None:
    assert policy("100/minute rolling_window penalty 1h count denied") == policy("100/minute")


def test_equal_names_within_a_request_are_numbered(limiter: Limiter) -> None:
    told = headers(limiter.acquire("alice", "5/minute name api; 9/hour name api; 9/day name api"), "ietf")
    assert told["RateLimit-Policy"] == '"api";q=5;w=60, "api-2";q=9;w=3600, "api-3";q=9;w=86400'


def test_a_numbered_name_never_takes_another_quotas_name(limiter: Limiter) -> None:
    told = headers(limiter.acquire("alice", "5/minute name a-2; 6/minute name a; 7/hour name a"), "ietf")
    assert told["RateLimit-Policy"] == '"a-2";q=5;w=60, "a";q=6;w=60, "a-3";q=7;w=3600'


def test_the_same_quota_of_two_keys_is_two_policies_and_neither_tells_its_key(clock: ManualClock) -> None:
    quota = Quota.parse("5/minute fixed_window")
    (verdict,) = MemoryStore(clock=clock).run([Acquire((Ask("alice", quota), Ask("10.0.0.1", quota, 2)))])
    assert isinstance(verdict, Verdict)
    assert headers(verdict, "ietf") == {
        "RateLimit-Policy": '"5-per-minute";q=5;w=60, "5-per-minute-2";q=5;w=60',
        "RateLimit": '"5-per-minute";r=4;t=60, "5-per-minute-2";r=3;t=60',
    }


# ---------------------------------------------------------------- several policies


def test_the_structured_dialect_tells_all_policies_and_a_triple_the_tightest(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", "100/minute fixed_window; 10/hour fixed_window", cost=4)
    left_of_hour = 3_600 - 1_700_000_040 % 3_600
    assert headers(verdict, "ietf", "draft6") == {
        "RateLimit-Policy": '"100-per-minute";q=100;w=60, "10-per-hour";q=10;w=3600',
        "RateLimit": f'"100-per-minute";r=96;t=60, "10-per-hour";r=6;t={max(left_of_hour, 2_160)}',
        "RateLimit-Limit": "10",
        "RateLimit-Remaining": "6",
        "RateLimit-Reset": str(left_of_hour),
    }


def test_the_tightest_is_the_one_with_the_smallest_share_left() -> None:
    verdict = verdict_of(("1000/hour", True, 20, 0, 9, 9), ("10/minute", True, 8, 0, 9, 9))
    told = headers(verdict, "draft6")
    assert (told["RateLimit-Limit"], told["RateLimit-Remaining"]) == ("1000", "20") == ("1000", str(verdict.remaining))


def test_of_several_refusals_a_triple_tells_the_longest() -> None:
    verdict = verdict_of(
        ("5/minute", False, 0, 2_000_000, 60_000_000, 2_000_000),
        ("7/hour", False, 1, 9_000_000, 60_000_000, 3_000_000),
        ("9/day", True, 0, 0, 60_000_000, 60_000_000),
    )
    assert headers(verdict, "draft6")["RateLimit-Limit"] == "7"
    assert headers(verdict, "draft6")["RateLimit-Remaining"] == "1"


# ---------------------------------------------------------------- min_interval


def test_a_min_interval_of_whole_seconds_is_a_policy_of_its_own(limiter: Limiter) -> None:
    told = headers(limiter.acquire("alice", "100/minute fixed_window min_interval 2s"), "ietf", "draft6")
    assert told["RateLimit-Policy"] == '"100-per-minute";q=100;w=60, "min-interval-2-seconds";q=1;w=2'
    assert told["RateLimit"] == '"100-per-minute";r=99;t=60, "min-interval-2-seconds";r=0;t=2'
    assert (told["RateLimit-Limit"], told["RateLimit-Remaining"]) == ("100", "99"), "the budget, not the interval"


def test_a_min_interval_of_a_named_quota_has_a_name_of_its_own() -> None:
    assert policy("9/minute min_interval 3s name api") == '"api";q=9;w=60, "api-min-interval";q=1;w=3'


def test_a_min_interval_alone_is_listed_in_every_dialect(limiter: Limiter) -> None:
    told = headers(limiter.acquire("alice", "min_interval 10s"), "ietf", "x-seconds")
    assert told["RateLimit"] == '"min-interval-10-seconds";r=0;t=10'
    assert (told["X-RateLimit-Limit"], told["X-RateLimit-Reset"]) == ("1", "10")


def test_a_min_interval_below_a_second_shows_only_in_refusals(limiter: Limiter) -> None:
    quota = "100/minute fixed_window min_interval 250ms"
    assert headers(limiter.acquire("alice", quota), "ietf")["RateLimit"] == '"100-per-minute";r=99;t=60'
    verdict = limiter.acquire("alice", quota)
    told = headers(verdict, "ietf", "draft6")
    assert told["RateLimit"] == '"100-per-minute";r=99;t=60'
    assert (told["RateLimit-Limit"], told["RateLimit-Reset"], told["Retry-After"]) == ("100", "1", "1")
    assert HeaderWriter().problem(verdict)["violated-policies"] == ["min-interval-250-milliseconds"]


@pytest.mark.parametrize("dialect", SHOWING)
def test_headers_without_a_policy_are_left_out(dialect: str, limiter: Limiter) -> None:
    assert headers(limiter.acquire("alice", "min_interval 250ms"), dialect) == {}


# ---------------------------------------------------------------- what is not shown


@pytest.mark.parametrize("dialect", SHOWING)
def test_advisory_decisions_leave_no_trace(dialect: str, clock: ManualClock) -> None:
    enforced, shadow = Quota.parse("9/minute"), Quota.parse("1/minute fixed_window")
    store, writer = MemoryStore(clock=clock), HeaderWriter(dialect)
    alone, beside = Acquire((Ask("alice", enforced),)), Acquire((Ask("bob", shadow, 1, True), Ask("bob", enforced)))
    for turn in range(10):  # the shadow would refuse from the second on, the enforced one refuses the tenth
        expected, seen = store.run([alone, beside])
        assert isinstance(expected, Verdict)
        assert isinstance(seen, Verdict)
        assert writer.headers(seen) == writer.headers(expected)
        if turn == 9:
            assert writer.body(seen) == writer.body(expected)


@pytest.mark.parametrize("dialect", SHOWING)
def test_a_request_of_advisory_asks_alone_shows_nothing(dialect: str) -> None:
    for verdict in (
        verdict_of(("5/minute", False, 0, 9, 9, 9), advisory=(True,)),
        verdict_of(("5/minute", False, 0, 9, 9, 9), ("6/minute", True, 2, 0, 9, 9), advisory=(True, True)),
    ):
        assert headers(verdict, dialect) == {}


def test_an_ask_that_turns_advisory_is_not_mistaken_for_the_enforced_one() -> None:
    writer = HeaderWriter()
    answers = ("5/minute", True, 2, 0, 60_000_000, 60_000_000), ("6/minute", True, 2, 0, 60_000_000, 60_000_000)
    assert len(dict(writer.headers(verdict_of(*answers)))["RateLimit"].split(", ")) == 2
    assert len(dict(writer.headers(verdict_of(*answers, advisory=(False, True))))["RateLimit"].split(", ")) == 1


@pytest.mark.parametrize("dialect", SHOWING)
def test_a_hidden_quota_refuses_without_telling_what_it_is(dialect: str, limiter: Limiter) -> None:
    quotas = "100/minute fixed_window; 3/hour min_interval 1s fixed_window name login-abuse"
    limiter.acquire("alice", quotas)
    verdict = limiter.acquire("alice", quotas)
    writer = HeaderWriter(dialect, hidden=["login-abuse"])
    told = dict(writer.headers(verdict))
    alone = headers(limiter.acquire("bob", "100/minute fixed_window"), dialect)
    assert told.pop("Retry-After") == "1"
    assert told.pop("Cache-Control") == "no-store"
    resets = {name for name in told if name.endswith("-Reset")}
    assert {name: told[name] for name in told.keys() - resets} == {name: alone[name] for name in alone.keys() - resets}
    assert "login-abuse" not in str(writer.problem(verdict))


def test_headers_and_problems_never_contain_the_key(limiter: Limiter) -> None:
    limiter.acquire(("tenant-7", "alice"), "1/minute name api; 5/hour min_interval 2s")
    verdict = limiter.acquire(("tenant-7", "alice"), "1/minute name api; 5/hour min_interval 2s")
    writer = HeaderWriter(["ietf", "draft6", "x-epoch"])
    told = f"{writer.headers(verdict)} {writer.body(verdict)!r}"
    assert "alice" not in told
    assert "tenant-7" not in told


# ---------------------------------------------------------------- the body


def test_the_problem_names_the_policies_that_refused_and_the_wait(limiter: Limiter) -> None:
    assert HeaderWriter().problem(refused(limiter, "3/minute fixed_window; 100/hour")) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Refused by 3-per-minute: try again in 60 seconds.",
        "violated-policies": ["3-per-minute"],
    }


def test_the_problem_names_policies_as_the_headers_do(limiter: Limiter) -> None:
    verdict = refused(limiter, "3/minute name api; 3/hour name api")
    assert HeaderWriter().problem(verdict)["violated-policies"] == ["api", "api-2"]
    assert '"api"' in headers(verdict, "ietf")["RateLimit"]
    assert '"api-2"' in headers(verdict, "ietf")["RateLimit"]


def test_the_problem_without_a_dialect_names_nothing(limiter: Limiter) -> None:
    assert HeaderWriter("none").problem(refused(limiter, "2/second fixed_window")) == {
        "type": QUOTA_EXCEEDED,
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "Refused: try again in 1 second.",
    }


def test_the_body_is_the_problem_as_ascii_json(limiter: Limiter) -> None:
    verdict = refused(limiter, "3/minute")
    body = HeaderWriter().body(verdict)
    assert json.loads(body.decode("ascii")) == HeaderWriter().problem(verdict)
    assert PROBLEM_JSON == "application/problem+json"


def test_an_admitted_request_has_no_problem(limiter: Limiter) -> None:
    with pytest.raises(InvalidInput) as caught:
        HeaderWriter().problem(limiter.acquire("alice", "3/minute"))
    assert str(caught.value) == "problem of an admitted verdict: expected a refusal"


# ---------------------------------------------------------------- memory


def test_a_writer_remembers_a_bounded_number_of_requests(limiter: Limiter) -> None:
    writer = HeaderWriter("draft6")
    for limit in range(1, MAX_REMEMBERED + 10):
        assert dict(writer.headers(limiter.peek("alice", Quota(limit, 60))))["RateLimit-Limit"] == str(limit)
    assert len(writer._remembered) <= MAX_REMEMBERED


# ---------------------------------------------------------------- bad input

CHOICES = "expected one or several of ietf, draft6, x-epoch, x-seconds, none"


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ("IETF", f"dialect 'IETF': {CHOICES}"),
        ("", f"dialect '': {CHOICES}"),
        (None, f"dialect None: {CHOICES}"),
        (6, f"dialect 6: {CHOICES}"),
        ([], f"dialect []: {CHOICES}"),
        (["ietf", "draft7"], f"dialect 'draft7': {CHOICES}"),
        ([["ietf"]], f"dialect ['ietf']: {CHOICES}"),
        ({"ietf"}, f"dialect {{'ietf'}}: {CHOICES}"),
        (["ietf", "ietf"], "dialects ietf, ietf: expected each at most once"),
        (["ietf", "none"], "dialects ietf, none: expected none to stand alone"),
        (
            ("x-seconds", "ietf", "x-epoch"),
            "dialects x-epoch and x-seconds: expected one of them, both write X-RateLimit-Reset",
        ),
    ],
)
def test_a_dialect_that_does_not_exist_is_refused(dialect: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        HeaderWriter(dialect)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ("abuse", "hidden 'abuse': expected a list of names, not str"),
        (None, "hidden None: expected a list of names, not NoneType"),
        (["5/minute"], "hidden '5/minute': expected the name of a quota"),
        ([""], "hidden '': expected the name of a quota"),
        ([7], "hidden 7: expected the name of a quota"),
    ],
)
def test_a_hidden_name_that_no_quota_can_have_is_refused(hidden: Any, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        HeaderWriter(hidden=hidden)
    assert str(caught.value) == message

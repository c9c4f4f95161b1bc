"""Assertions on verdicts: what they accept, and what their messages show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Limiter, ManualClock, RateLimited, Verdict
from penstock.enforcer import Enforcer
from penstock.rules import RuleSet, parse
from penstock.testing import assert_allowed, assert_refused

QUOTA = "2/minute"
RULES = "rules: [{id: orders, key: ip, quota: 1/minute}, {id: closed, action: deny, match: {path: /admin}}]"


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


@pytest.fixture
def refused(limiter: Limiter) -> Verdict:
    limiter.acquire("alice", QUOTA, cost=2)
    return limiter.acquire("alice", QUOTA)


def _message(asserts: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        asserts(*args, **kwargs)
    return str(raised.value)


def test_an_allowed_verdict_is_returned(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", QUOTA)
    assert assert_allowed(verdict) is verdict
    assert assert_allowed(verdict, remaining=1) is verdict


def test_a_refused_verdict_is_returned(refused: Verdict) -> None:
    assert assert_refused(refused) is refused
    assert assert_refused(refused, quota=QUOTA, reason="rate", retry_after=refused.retry_after) is refused
    assert assert_refused(refused, retry_after=pytest.approx(refused.retry_after, rel=0.1)) is refused


def test_what_has_a_verdict_is_taken_for_it(limiter: Limiter, refused: Verdict) -> None:
    assert_refused(RateLimited(refused))
    assert_allowed(limiter.hold("alice", "1 concurrent"))
    assert_refused(limiter.hold("alice", "1 concurrent"), quota="1 concurrent", reason="concurrency")


def test_a_message_shows_the_refusal_and_the_counters(refused: Verdict) -> None:
    assert _message(assert_allowed, refused) == (
        "expected the request to be allowed, but it was refused by 2/minute, retry_after 90 s\n"
        "    2/minute (sliding_window): 2 of 2 used, 0 left, refused for 90 s, reset in 60 s"
    )


def test_a_message_shows_the_counters_of_an_admission(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", [QUOTA, "5/day"])
    assert _message(assert_refused, verdict) == (
        "expected the request to be refused, but it was allowed\n"
        "    2/minute (sliding_window): 1 of 2 used, 1 left, reset in 60 s\n"
        "    5/day (sliding_window): 1 of 5 used, 4 left, reset in 6360 s"
    )
    assert _message(assert_allowed, verdict, remaining=2).startswith("expected 2 units left, but 1 are left\n")


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"quota": "3/minute"}, "a refusal by 3/minute, but it was refused by 2/minute, retry_after 90 s"),
        ({"rule": "api"}, "a refusal by rule api, but it was refused by 2/minute, retry_after 90 s"),
        ({"reason": "shed"}, "the reason shed, but it is rate"),
        ({"retry_after": 30}, "retry_after 30, but it is 90"),
    ],
)
def test_a_refusal_for_another_reason_is_told(refused: Verdict, expected: dict[str, Any], message: str) -> None:
    assert _message(assert_refused, refused, **expected).splitlines()[0] == f"expected {message}"


def test_rulings_are_judged_by_rule_and_reason(limiter: Limiter) -> None:
    enforcer = Enforcer(RuleSet(parse(RULES)), limiter)
    request = {"ip": "192.0.2.7"}
    assert_allowed(enforcer.check(request))
    refused = enforcer.check(request)
    assert_refused(refused, rule="orders", quota="1/minute", reason="rate")
    assert _message(assert_allowed, refused).startswith(
        "expected the request to be allowed, but it was refused by rule orders (1/minute), retry_after "
    )
    blocked = enforcer.check({"path": "/admin"})
    assert_refused(blocked, rule="closed", reason="blocked")
    assert _message(assert_allowed, blocked) == (
        "expected the request to be allowed, but it was refused by rule closed (blocked), retry_after 3600 s"
    )


def test_a_verdict_that_the_store_did_not_give_says_so() -> None:
    class Gone:
        def run(self, *_: Any) -> Any:
            raise OSError

        def close(self) -> None: ...

    verdict = Limiter(cast("Any", Gone()), on_failure="open").acquire("alice", QUOTA)
    assert "    decided by 'open', because the store did not answer" in _message(assert_refused, verdict).splitlines()


@pytest.mark.parametrize("subject", [None, True, SimpleNamespace(verdict=None)])
def test_what_has_no_verdict_fails(subject: Any) -> None:
    for asserts in (assert_allowed, assert_refused):
        assert _message(asserts, subject).startswith("expected a verdict, or what has one, not ")

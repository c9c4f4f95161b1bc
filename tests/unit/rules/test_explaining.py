"""An explanation says which rules apply and why, and how counters stand; it charges nothing and reveals no identity."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Limiter, ManualClock
from penstock.enforcer import Enforcer
from penstock.layers.fallback import Fallback
from penstock.stores.memory.store import MemoryStore
from tests.unit.rules.support import Gone, rule_set

SECRETS = {"api_key": "sk-secret-key", "user": "carol@example.org", "ip": "198.51.100.77"}


def enforcer(*rules: dict[str, Any], **options: Any) -> Enforcer:
    return Enforcer(rule_set(*rules), Limiter(MemoryStore(clock=ManualClock())), **options)


def words(enforced: Enforcer, **descriptor: Any) -> dict[str, str]:
    return {rule.rule: rule.why for rule in enforced.explain(descriptor).rules}


@pytest.mark.parametrize(
    ("match", "descriptor", "why"),
    [
        (
            {"path": {"glob": "/v1/*/orders"}},
            {"path": "/v2/a/orders"},
            "wanted: path fits '/v1/*/orders'; path is text of 12 characters",
        ),
        ({"method": ["POST", "PUT"]}, {}, "wanted: method is one of 'POST', 'PUT'; method is absent"),
        ({"tier": {"present": False}}, {"tier": "7"}, "wanted: tier is absent; tier is a number of 1 character"),
        (
            {"ip": {"cidr": "10.0.0.0/8"}},
            {"ip": "2001:db8::1"},
            "wanted: ip is in 10.0.0.0/8; ip is an IPv6 address",
        ),
        ({"ip": {"cidr": "10.0.0.0/8"}}, {"ip": "nowhere"}, "wanted: ip is in 10.0.0.0/8; ip is absent"),
        ({"path": {"not": "/v1"}}, {"path": "/v1"}, "wanted: not (path is '/v1')"),
        (
            {"any": [{"path": "/a"}, {"path": "/b"}]},
            {"path": "/c"},
            "wanted: path is '/a' or path is '/b'",
        ),
        (
            {"path": {"prefix": "/v1"}, "method": "POST", "user": {"present": True}},
            {"path": "/v1", "method": "GET"},
            "wanted: method is 'POST'; method is text of 3 characters; wanted: user is present; user is absent",
        ),
    ],
)
def test_an_explanation_names_the_value_wanted_and_the_kind_found(
    match: dict[str, Any], descriptor: dict[str, str], why: str
) -> None:
    explained = enforcer({"id": "a", "match": match}).explain(descriptor).rules[0]
    assert (explained.applies, explained.why) == (False, why)


def test_a_rule_that_matches_may_still_not_apply() -> None:
    explained = words(
        enforcer({"id": "off", "mode": "off"}, {"id": "first", "stop": True}, {"id": "second"}), path="/v1"
    )
    assert explained == {
        "off": "its mode is off",
        "first": "it has no condition",
        "second": "first comes before it and has stop",
    }
    decided = words(
        enforcer({"id": "limit"}, {"id": "office", "action": "allow", "match": {"path": "/v1"}}), path="/v1"
    )
    assert decided == {"limit": "office has action allow, which decides alone", "office": "path is '/v1'"}


def test_an_explanation_shows_key_quota_and_counters_and_charges_nothing() -> None:
    enforced = enforcer(
        {"id": "a", "key": ["api_key | ip", "user"], "quota": "3/minute fixed_window", "shared": "s"},
        {"id": "b", "key": [], "quota": "9/hour", "mode": "shadow"},
    )
    for _ in range(2):
        assert enforced.check(SECRETS)
    for _ in range(5):
        enforced.explain(SECRETS)
    explanation = enforced.explain(SECRETS)
    a, b = explanation.rules
    assert a.key == "api_key (text of 13 characters), user (text of 17 characters), shared as s"
    assert b.key == "nothing: one counter for all requests"
    assert [(one.used, one.remaining) for one in a.counters + b.counters] == [(2, 1), (2, 7)]
    assert explanation.outcome == "it may pass"
    assert "b: applies, in shadow mode: it has no condition" in str(explanation)
    assert enforced.check(SECRETS)


@pytest.mark.parametrize("refused", [False, True])
def test_an_explanation_never_repeats_the_value_found(refused: bool) -> None:
    enforced = enforcer(
        {"id": "a", "key": ["api_key", "user"], "quota": "1/minute"},
        {"id": "b", "match": {"user": "dave", "api_key": {"prefix": "pk"}, "ip": {"cidr": "10.0.0.0/8"}}},
    )
    if refused:
        enforced.check(SECRETS)
    text = str(enforced.explain(SECRETS))
    assert ("it is refused by a (rate), and may pass in" in text) is refused
    for secret in SECRETS.values():
        assert secret not in text


def test_an_explanation_states_that_no_rule_applies_or_that_one_blocks() -> None:
    enforced = enforcer({"id": "bad", "action": "deny", "match": {"path": "/bad"}})
    assert enforced.explain({"path": "/good"}).outcome == "no rule applies: it may pass"
    assert enforced.explain({"path": "/bad"}).outcome == "it is refused by bad (blocked)"


def test_an_explanation_asks_no_shedder_and_calls_no_hook() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("asked")

    shedder: Any = type("Shedder", (), {"admit": never})()
    told: list[Any] = []
    enforced = enforcer({"id": "a", "match": {"path": "/v1"}}, shedder=shedder, hook=told.append)
    for path in ("/v1", "/free"):
        assert enforced.explain({"path": path}).outcome.endswith("it may pass")
    assert told == []


@pytest.mark.parametrize(("says", "outcome"), [("open", "it may pass"), ("closed", "it is refused")])
def test_an_explanation_has_no_counters_while_the_store_is_gone(says: Any, outcome: str) -> None:
    enforcer = Enforcer(rule_set({"id": "a"}), Limiter(Gone(), layers=[Fallback(says, hosts=1)]))
    explanation = enforcer.explain({"ip": "192.0.2.7"})
    assert explanation.outcome == f"the store cannot answer: {outcome}"
    assert explanation.rules[0].counters == ()

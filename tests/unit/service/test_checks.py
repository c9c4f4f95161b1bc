"""Checks by rules, and acquires by quota: what is answered, at once and after a store elsewhere has answered."""

import json

import pytest

from tests.unit.service.desk import ByHand, Desk


@pytest.fixture(params=[False, True], ids=["in this process", "shared"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(shared=request.param)


def check(user: str, path: str = "/orders/1", **fields: object) -> dict[str, object]:
    return {"descriptor": {"path": path, "user": user}, **fields}


def test_admitted_request_has_the_rest_and_the_headers_to_copy(desk: Desk) -> None:
    answer = desk.post("/v1/check", check("alice"))
    assert (answer.status, answer.headers) == (200, {b"content-type": b"application/json"})
    assert answer.json == {
        "allowed": True,
        "status": 200,
        "reason": "",
        "rule": "orders",
        "limit": 3,
        "remaining": 2,
        "retry_after": 0.0,
        "reset_after": 40.0,
        "delay": 0.0,
        "source": "store",
        "degraded": False,
        "headers": {"RateLimit-Policy": '"orders";q=3;w=60', "RateLimit": '"orders";r=2;t=100'},
        "version": desk.enforcer.rules.version,
    }


def test_refusal_is_an_answer_with_the_time_to_retry_after(desk: Desk) -> None:
    for _ in range(3):
        assert desk.post("/v1/check", check("alice")).json["allowed"]
    answer = desk.post("/v1/check", check("alice"))
    assert answer.status == 200
    assert answer.json["allowed"] is False
    assert (answer.json["status"], answer.json["reason"]) == (429, "rate")
    assert answer.json["headers"]["Retry-After"] == str(-int(-answer.json["retry_after"] // 1))
    assert desk.post("/v1/check", check("bob")).json["allowed"]


def test_request_without_a_rule_passes_and_shows_no_limit(desk: Desk) -> None:
    answer = desk.post("/v1/check", check("alice", "/elsewhere")).json
    assert (answer["allowed"], answer["rule"], answer["limit"], answer["remaining"]) == (True, "", None, None)
    assert answer["headers"] == {}
    assert desk.post("/v1/check", check("alice", "/health")).json["rule"] == "health"


def test_blocked_request_has_the_message_of_its_rule(desk: Desk) -> None:
    answer = desk.post("/v1/check", check("alice", "/banned")).json
    assert (answer["allowed"], answer["status"], answer["reason"]) == (False, 403, "blocked")
    assert (answer["rule"], answer["message"], answer["limit"]) == ("banned", "Go away.", None)


def test_rules_in_shadow_mode_say_what_they_would_refuse(desk: Desk) -> None:
    assert "would_refuse" not in desk.post("/v1/check", check("alice", "/orders")).json
    assert desk.post("/v1/check", check("alice", "/orders")).json["would_refuse"] == ["trial"]


def test_an_id_seen_again_is_answered_again_and_not_charged_again(desk: Desk) -> None:
    first = desk.post("/v1/check", check("alice", id="7", receipt=True)).json
    assert desk.post("/v1/check", check("alice", id="7", receipt=True)).json == first
    assert desk.post("/v1/check", check("alice")).json["remaining"] == 1


def test_a_cost_counts_as_so_many(desk: Desk) -> None:
    assert desk.post("/v1/check", check("alice", cost=3)).json["remaining"] == 0


def test_a_batch_is_answered_in_order_and_each_fails_alone(desk: Desk) -> None:
    checks = [check("alice"), {"descriptor": 5}, check("alice", cost=4), check("alice", "/banned"), check("alice")]
    answer = desk.post("/v1/check/batch", checks)
    assert answer.status == 200
    first, second, third, fourth, fifth = answer.json["results"]
    assert (first["remaining"], fifth["remaining"], fourth["reason"]) == (2, 1, "blocked")
    assert second["problem"]["detail"] == "descriptor: expected an object, not a whole number"
    assert third["problem"]["code"] == "cost_exceeds_limit"
    assert desk.post("/v1/check/batch", []).json == {"results": []}


def test_a_batch_may_be_large_but_not_larger(desk: Desk) -> None:
    answer = desk.post("/v1/check/batch", [{}] * 1_001)
    assert (answer.status, answer.json["detail"]) == (422, "body: 1001 checks (expected at most 1000)")


def test_a_quota_needs_no_rules(desk: Desk) -> None:
    asked = {"key": ["alice", "search"], "quota": ["2/minute", "100/day"]}
    assert desk.post("/v1/acquire", asked).json["remaining"] == 1
    answer = desk.post("/v1/acquire", asked | {"cost": 2}).json
    assert (answer["allowed"], answer["reason"], answer["rule"]) == (False, "rate", "")
    assert answer["headers"]["RateLimit-Policy"] == '"2-per-minute";q=2;w=60, "100-per-day";q=100;w=86400'


def test_an_acquire_with_an_id_seen_again_is_not_charged_again(desk: Desk) -> None:
    asked = {"key": "alice", "quota": "2/minute", "id": "a", "receipt": True}
    first = desk.post("/v1/acquire", asked).json
    assert desk.post("/v1/acquire", asked).json == first
    assert desk.post("/v1/acquire", asked | {"id": "b"}).json["remaining"] == 0


def test_peeking_charges_nothing_by_rules_or_by_quota(desk: Desk) -> None:
    for _ in range(2):
        assert desk.post("/v1/peek", check("alice", cost=2)).json["remaining"] == 3
        assert desk.post("/v1/peek", {"key": "alice", "quota": "5/minute", "cost": 0}).json["remaining"] == 5
    assert desk.post("/v1/peek", check("alice", "/banned")).json["reason"] == "blocked"
    assert desk.observer.decisions == []


def test_a_reset_forgets_by_rules_and_by_quota(desk: Desk) -> None:
    desk.post("/v1/check", check("alice", "/orders", cost=3))
    assert desk.post("/v1/reset", check("alice", "/orders")).json == {"counters": 2}
    assert desk.post("/v1/check", check("alice")).json["remaining"] == 2
    asked = {"key": "alice", "quota": "2/minute"}
    desk.post("/v1/acquire", asked | {"cost": 2})
    assert desk.post("/v1/reset", asked).json == {"counters": 1}
    assert desk.post("/v1/acquire", asked).json["remaining"] == 1
    assert desk.post("/v1/reset", check("alice", "/elsewhere")).json == {"counters": 0}


def test_an_explanation_names_every_rule_and_how_its_counters_stand(desk: Desk) -> None:
    desk.post("/v1/check", check("alice"))
    answer = desk.post("/v1/explain", check("alice")).json
    assert answer["outcome"] == "it may pass"
    orders, banned = answer["rules"][:2]
    assert (orders["applies"], orders["key"], orders["counters"][0]["used"]) == (True, "user (text of 5 characters)", 1)
    assert (banned["rule"], banned["applies"]) == ("banned", False)
    assert "alice" not in json.dumps(answer)
    assert desk.post("/v1/explain", check("alice", "/banned")).json["outcome"] == "it is refused by banned (blocked)"


def test_a_hold_is_given_back_by_its_receipt(desk: Desk) -> None:
    held = [desk.post("/v1/hold", check("alice", "/reports")).json for _ in range(2)]
    assert desk.post("/v1/hold", check("alice", "/reports")).json["reason"] == "concurrency"
    assert desk.post("/v1/renew", {"receipt": held[0]["receipt"]}).json == {"held": True}
    assert desk.post("/v1/release", {"receipt": held[0]["receipt"]}).json == {"units": 1, "each": [1]}
    assert desk.post("/v1/release", {"receipt": held[0]["receipt"]}).json == {"units": 0, "each": [0]}
    assert desk.post("/v1/renew", {"receipt": held[0]["receipt"]}).json == {"held": False}
    assert desk.post("/v1/hold", check("alice", "/reports")).json["allowed"]


def test_a_hold_without_places_has_nothing_to_give_back(desk: Desk) -> None:
    held = desk.post("/v1/hold", check("alice")).json
    assert desk.post("/v1/renew", {"receipt": held["receipt"]}).json == {"held": True}
    assert desk.post("/v1/release", {"receipt": held["receipt"]}).json == {"units": 0, "each": []}
    free = desk.post("/v1/hold", check("alice", "/elsewhere")).json
    assert desk.post("/v1/refund", {"receipt": free["receipt"]}).json == {"units": 0, "each": []}


def test_a_reservation_is_settled_once(desk: Desk) -> None:
    reserved = desk.post("/v1/reserve", check("alice", "/chat", cost=400)).json
    assert reserved["remaining"] == 600
    assert desk.post("/v1/settle", {"receipt": reserved["receipt"], "units": 150}).json == {"units": 250, "each": [250]}
    assert desk.post("/v1/settle", {"receipt": reserved["receipt"], "units": 900}).json == {"units": 0, "each": [0]}
    assert desk.post("/v1/peek", check("alice", "/chat")).json["remaining"] == 850


def test_a_refund_gives_back_what_is_still_charged(desk: Desk) -> None:
    charged = desk.post("/v1/check", check("alice", cost=3, receipt=True, id="one")).json
    assert desk.post("/v1/refund", {"receipt": charged["receipt"], "units": 1}).json == {"units": 1, "each": [1]}
    assert desk.post("/v1/refund", {"receipt": charged["receipt"]}).json == {"units": 2, "each": [2]}
    assert desk.post("/v1/refund", {"receipt": charged["receipt"]}).json == {"units": 0, "each": [0]}
    assert desk.post("/v1/check", check("alice")).json["remaining"] == 2


def test_receipt_is_given_on_demand_and_to_admitted_requests_only(desk: Desk) -> None:
    assert "receipt" not in desk.post("/v1/check", check("alice")).json
    assert "receipt" in desk.post("/v1/check", check("alice", receipt=True)).json
    assert "receipt" not in desk.post("/v1/check", check("alice", "/banned", receipt=True)).json


def test_calls_of_all_kinds_are_one_batch_and_the_observer_is_called_once() -> None:
    desk = Desk(shared=True)
    calls = [
        ByHand(b"POST", b"/v1/check", json.dumps(check("alice")).encode()),
        ByHand(b"POST", b"/v1/acquire", b'{"key": "k", "quota": "1/s"}'),
        ByHand(b"POST", b"/v1/peek", b'{"key": "k", "quota": "1/s"}'),
        ByHand(b"POST", b"/v1/reset", b'{"key": "j", "quota": "1/s"}'),
        ByHand(b"GET", b"/v1/authz/orders/2"),
    ]
    desk.api.handle([*calls])
    ((ops, deadline, _),) = desk.held.waiting
    assert (len(ops), deadline) == (5, 3_000)
    assert [call.answers for call in calls] == [[]] * 5
    desk.held.go()
    assert [call.answered.status for call in calls] == [200] * 5
    (decided,) = desk.observer.decisions
    assert len(decided) == 3
    routes = ["/v1/check", "/v1/acquire", "/v1/peek", "/v1/reset", "/v1/authz"]
    assert sorted(desk.observer.answers) == sorted((route, [200]) for route in routes)


def test_decisions_of_all_counters_are_given_on_demand(desk: Desk) -> None:
    wanted = check("alice", "/orders", decisions=True)
    first, second = (desk.post("/v1/check", wanted).json["decisions"] for _ in range(2))
    assert [(one["rule"], one["quota"], one["advisory"]) for one in first] == [
        ("orders", "3/minute name orders", False),
        ("trial", "1/minute name trial", True),
    ]
    assert [(one["allowed"], one["charged"], one["remaining"]) for one in second] == [
        (True, True, 1),
        (False, False, 0),
    ]
    assert desk.post("/v1/check", check("alice", "/banned", decisions=True)).json["decisions"] == []
    asked = {"key": "alice", "quota": "5/minute; 2 concurrent ttl 10s", "decisions": True}
    for path, charged in (("/v1/acquire", True), ("/v1/peek", False)):
        answered = desk.post(path, asked).json["decisions"]
        assert [(one["quota"], one["charged"]) for one in answered] == [
            ("5/minute", charged),
            ("2 concurrent ttl 10s", charged),
        ]
    assert "decisions" not in desk.post("/v1/check", check("bob", receipt=True)).json

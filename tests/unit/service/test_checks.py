"""Checks by rules, and acquires by quota: what is answered, at once and after a store elsewhere has answered."""

import pytest

from tests.unit.service.desk import Desk


@pytest.fixture(params=[False, True], ids=["in this process", "shared"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(shared=request.param)


def check(user: str, path: str = "/orders/1", **fields: object) -> dict[str, object]:
    return {"descriptor": {"path": path, "user": user}, **fields}


def test_an_admitted_request_is_told_what_is_left_and_which_headers_to_copy(desk: Desk) -> None:
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


def test_a_refusal_is_an_answer_and_says_when_to_come_again(desk: Desk) -> None:
    for _ in range(3):
        assert desk.post("/v1/check", check("alice")).json["allowed"]
    answer = desk.post("/v1/check", check("alice"))
    assert answer.status == 200
    assert answer.json["allowed"] is False
    assert (answer.json["status"], answer.json["reason"]) == (429, "rate")
    assert answer.json["headers"]["Retry-After"] == str(-int(-answer.json["retry_after"] // 1))
    assert desk.post("/v1/check", check("bob")).json["allowed"]

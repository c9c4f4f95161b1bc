"""`/v1/acquire-all`: requests of several keys, of which all are charged or none."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.service.api.quotas import TOGETHER
from tests.unit.service.desk import Desk

ALICE, ACME = {"key": "alice", "quota": "2/minute"}, {"key": ["org", "acme"], "quota": "10/minute", "cost": 4}


@pytest.fixture(params=[False, True], ids=["memory", "shared"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(shared=request.param)


def _left(desk: Desk) -> list[int]:
    peeks = [{"key": one["key"], "quota": one["quota"]} for one in (ALICE, ACME)]
    return [desk.post("/v1/peek", peek | {"cost": 0}).json["remaining"] for peek in peeks]


def test_all_are_charged_or_none(desk: Desk) -> None:
    body = {"requests": [ALICE, ACME], "decisions": True}
    answers = [desk.post("/v1/acquire-all", body).json for _ in range(3)]
    assert [answer["allowed"] for answer in answers] == [True, True, False]
    assert _left(desk) == [0, 2]
    assert answers[0]["limit"] == 2
    assert [(one["cost"], one["remaining"], one["charged"]) for one in answers[0]["decisions"]] == [
        (1, 1, True),
        (4, 6, True),
    ]
    assert [one["charged"] for one in answers[2]["decisions"]] == [False, False]
    assert [[bool(verdict) for verdict in batch] for batch in desk.observer.decisions] == [[True], [True], [False]]


def test_one_receipt_gives_all_back(desk: Desk) -> None:
    receipt = desk.post("/v1/acquire-all", {"requests": [ALICE, ACME], "receipt": True}).json["receipt"]
    assert desk.post("/v1/refund", {"receipt": receipt}).json == {"units": 4, "each": [1, 4]}
    assert _left(desk) == [2, 10]


def test_an_id_is_charged_once(desk: Desk) -> None:
    body = {"requests": [ALICE, ACME], "id": "one"}
    assert desk.post("/v1/acquire-all", body).json == desk.post("/v1/acquire-all", body).json
    assert _left(desk) == [1, 6]


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        ([], "invalid_request"),
        ([ALICE, ALICE], "invalid_request"),
        ([ALICE, ACME | {"cost": 11}], "cost_exceeds_limit"),
        ([ALICE, ACME | {"quota": "many"}], "invalid_quota"),
        ([ALICE, ACME | {"key": []}], "invalid_key"),
        ([{"key": str(n), "quota": "1/minute"} for n in range(TOGETHER + 1)], "invalid_quota"),
        ([{"key": str(n), "quota": ["1/minute", "1/hour"]} for n in range(TOGETHER)], "invalid_quota"),
    ],
)
def test_mistakes_are_problems_and_nothing_is_charged(desk: Desk, requests: Any, code: str) -> None:
    answer = desk.post("/v1/acquire-all", {"requests": requests})
    assert (answer.status, answer.json["code"]) == (422, code)
    assert _left(desk) == [2, 10]


def test_a_misspelt_field_is_named(desk: Desk) -> None:
    answer = desk.post("/v1/acquire-all", {"requests": [ALICE | {"costs": 2}]})
    assert (answer.status, answer.json["code"], answer.json["field"]) == (400, "unknown_field", "costs")


def test_refused_calls_leave_room_for_quotas_of_others(desk: Desk) -> None:
    for call in range(10):
        lists = [[f"{n}/minute name c{call}_{of}_{n}" for n in range(1, TOGETHER + 1)] for of in range(TOGETHER)]
        answer = desk.post("/v1/acquire-all", {"requests": [{"key": "a", "quota": quotas} for quotas in lists]})
        assert answer.json["code"] == "invalid_quota"
    others = [f"9/minute name other{n}" for n in range(TOGETHER)]
    assert desk.post("/v1/acquire", {"key": "a", "quota": others}).status == 200

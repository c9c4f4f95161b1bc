"""What is wrong with a call is said exactly, names the field, quotes no identity, and touches nothing else."""

import json
import logging
from typing import Any

import pytest

from penstock.errors import StoreError
from penstock.model import Failed
from penstock.service.api.endpoints import Endpoints
from tests.unit.service.desk import ByHand, Desk

SHAPES: list[tuple[str, bytes, str, str, str | None]] = [
    ("/v1/check", b"", "invalid_json", "body: expected a JSON object (input data was truncated)", None),
    ("/v1/check", b"{", "invalid_json", "body: expected a JSON object (input data was truncated)", None),
    (
        "/v1/check",
        b"a=b",
        "invalid_json",
        "body: expected a JSON object (JSON is malformed: invalid character (byte 0))",
        None,
    ),
    (
        "/v1/check",
        b'{"descriptor": {}} {}',
        "invalid_json",
        "body: expected a JSON object (JSON is malformed: trailing characters (byte 20))",
        None,
    ),
    ("/v1/check", b'{"descriptor": {"\xff": 1}}', "invalid_json", "body: expected a JSON object (invalid UTF-8)", None),
    (
        "/v1/check/batch",
        b"[" * 100_000,
        "invalid_json",
        "body: expected a JSON object (nested too deeply)",
        None,
    ),
    ("/v1/check", b"[]", "wrong_type", "body: expected an object, not a list", None),
    ("/v1/check", b"{}", "missing_field", "descriptor: missing", "descriptor"),
    ("/v1/check", b'{"descriptor": {}, "costs": 1}', "unknown_field", "costs: unknown", "costs"),
    (
        "/v1/check",
        b'{"descriptor": {}, "sk_live_8Xq!": 1}',
        "unknown_field",
        "a field of the body: unknown",
        None,
    ),
    (
        "/v1/check",
        b'{"descriptor": {}, "cost": "1"}',
        "wrong_type",
        "cost: expected a whole number, not text",
        "cost",
    ),
    (
        "/v1/check",
        b'{"descriptor": {}, "cost": 1.5}',
        "wrong_type",
        "cost: expected a whole number, not a number",
        "cost",
    ),
    (
        "/v1/check",
        b'{"descriptor": {"user": {}}}',
        "wrong_type",
        "descriptor: expected true or false or a whole number or text or null, not an object",
        "descriptor",
    ),
    ("/v1/check", b'{"descriptor": {}, "id": 7}', "wrong_type", "id: expected text or null, not a whole number", "id"),
    ("/v1/check/batch", b"{}", "wrong_type", "body: expected a list, not an object", None),
    ("/v1/acquire", b'{"key": "k"}', "missing_field", "quota: missing", "quota"),
    ("/v1/refund", b'{"units": 1}', "missing_field", "receipt: missing", "receipt"),
    ("/v1/settle", b'{"receipt": "x"}', "missing_field", "units: missing", "units"),
    ("/v1/reset", b'{"key": "k", "quota": "1/s", "cost": 2}', "unknown_field", "cost: unknown", "cost"),
]

MEANINGS: list[tuple[str, dict[str, Any], str, str, str | None]] = [
    ("/v1/check", {"cost": 0}, "invalid_cost", "cost 0: expected 1 to 9007199254740991", "cost"),
    (
        "/v1/check",
        {"cost": 4},
        "cost_exceeds_limit",
        "cost 4: 3/minute name orders admits at most 3 at once, however long one waits",
        "cost",
    ),
    ("/v1/check", {"id": ""}, "invalid_request", "id of 0 bytes: expected 1 to 255", "id"),
    ("/v1/check", {"id": "x" * 256}, "invalid_request", "id of 256 bytes: expected 1 to 255", "id"),
    ("/v1/acquire", {"key": "", "quota": "1/s"}, "invalid_key", "key: expected text that is not empty", "key"),
    ("/v1/acquire", {"key": [], "quota": "1/s"}, "invalid_key", "key of 0 parts: expected 1 to 32", "key"),
    (
        "/v1/acquire",
        {"key": "k", "quota": []},
        "invalid_request",
        "a request without quotas: expected at least one",
        None,
    ),
    (
        "/v1/hold",
        {"key": "k", "quota": "1/s"},
        "invalid_request",
        'hold: no quota has places to hold (expected one such as "5 concurrent ttl 30s")',
        None,
    ),
    ("/v1/peek", {"key": "k"}, "invalid_request", "body: expected descriptor, or key and quota", None),
    ("/v1/hold", {}, "invalid_request", "body: expected descriptor, or key and quota", None),
    (
        "/v1/reserve",
        {"descriptor": {}, "key": "k", "quota": "1/s"},
        "invalid_request",
        "body: expected descriptor, or key and quota",
        None,
    ),
    (
        "/v1/reset",
        {"descriptor": {}, "key": "k"},
        "invalid_request",
        "body: expected descriptor, or key and quota",
        None,
    ),
]


@pytest.mark.parametrize(("path", "body", "code", "detail", "field"), SHAPES)
def test_a_body_of_another_shape_is_400(path: str, body: bytes, code: str, detail: str, field: str | None) -> None:
    answer = Desk().post(path, body)
    assert answer.headers == {b"content-type": b"application/problem+json"}
    assert answer.json == {
        "title": "Bad Request",
        "status": 400,
        "code": code,
        "detail": detail,
        **({} if field is None else {"field": field}),
    }


@pytest.mark.parametrize(("path", "body", "code", "detail", "field"), MEANINGS)
def test_invalid_body_is_422(path: str, body: dict[str, Any], code: str, detail: str, field: str | None) -> None:
    if path == "/v1/check":
        body = {"descriptor": {"path": "/orders/1", "user": "alice"}, **body}
    answer = Desk().post(path, body)
    expected = {"title": "Unprocessable Entity", "status": 422, "code": code, "detail": detail}
    assert answer.json == expected | ({} if field is None else {"field": field})
    assert answer.status == 422


def test_a_quota_that_cannot_be_read_is_shown_where_it_is_wrong() -> None:
    problem = Desk().post("/v1/acquire", {"key": "k", "quota": "100/fortnight"}).json
    assert (problem["code"], problem["field"]) == ("invalid_quota", "quota")
    assert problem["detail"].startswith('quota "100/fortnight"')


def test_other_methods_are_405_with_those_that_are_allowed() -> None:
    desk = Desk()
    (answer,) = desk.ask(ByHand(b"GET", b"/v1/check"))
    assert (answer.status, answer.headers[b"allow"]) == (405, b"POST")
    assert answer.json["detail"] == "method: expected POST"
    (answer,) = desk.ask(ByHand(b"POST", b"/v1/openapi.json"))
    assert (answer.status, answer.headers[b"allow"]) == (405, b"GET, HEAD")


@pytest.mark.parametrize("path", [b"/v1/", b"/v1/checks", b"/v1/check/", b"/v1/authz", b"/v1/authz-nginx"])
def test_other_paths_are_404(path: bytes) -> None:
    (answer,) = Desk().ask(ByHand(b"POST", path, b"{}"))
    assert (answer.status, answer.json["code"]) == (404, "not_found")


def test_a_call_that_fails_touches_no_other_of_its_batch() -> None:
    desk = Desk()
    good = ByHand(b"POST", b"/v1/check", b'{"descriptor": {"path": "/orders/1", "user": "a"}}')
    again = ByHand(b"POST", b"/v1/check", b'{"descriptor": {"path": "/orders/1", "user": "a"}}')
    first, second, third = desk.ask(good, ByHand(b"POST", b"/v1/check", b"{"), again)
    assert (first.status, second.status, third.status) == (200, 400, 200)
    assert (first.json["remaining"], third.json["remaining"]) == (2, 1)


def test_a_store_that_cannot_answer_is_503_and_says_whether_it_was_charged() -> None:
    desk = Desk(shared=True)
    call = ByHand(b"POST", b"/v1/acquire", b'{"key": "alice", "quota": "1/s"}')
    desk.api.handle([call])
    desk.held.go([Failed(StoreError("alice at 10.0.0.1 is gone", transient=True), "unknown")])
    assert (call.answered.status, call.answered.headers[b"retry-after"]) == (503, b"1")
    assert call.answered.json == {
        "title": "Service Unavailable",
        "status": 503,
        "code": "store_unavailable",
        "detail": "the store cannot answer now: try again",
        "charged": "unknown",
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/refund", {"receipt": ""}),
        ("/v1/renew", {}),
        ("/v1/settle", {"units": 1}),
        ("/v1/release", {}),
        ("/v1/explain", {"descriptor": {"path": "/orders", "user": "alice"}}),
        ("/v1/reset", {"descriptor": {"path": "/orders", "user": "alice"}}),
        ("/v1/peek", {"descriptor": {"path": "/orders", "user": "alice"}}),
        ("/v1/hold", {"descriptor": {"path": "/orders", "user": "alice"}}),
    ],
)
def test_every_call_is_503_if_the_store_cannot_answer(path: str, body: dict[str, Any]) -> None:
    desk = Desk(shared=True)
    if "descriptor" not in body:
        held = {"key": "alice", "quota": "5 concurrent ttl 30s", "id": "1"}
        body = body | {"receipt": desk.post("/v1/hold", held).json["receipt"]}
    call = ByHand(b"POST", path.encode(), json.dumps(body).encode())
    desk.api.handle([call])
    ((ops, _, _),) = desk.held.waiting
    desk.held.go([Failed(StoreError("gone", transient=True), "no")] * len(ops))
    assert (call.answered.status, call.answered.json["charged"]) == (503, "no")


def test_internal_error_is_500_and_its_log_line_quotes_no_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("alice")

    monkeypatch.setattr(Endpoints, "peek", broken)
    with caplog.at_level(logging.ERROR):
        answer = Desk().post("/v1/peek", {"key": "alice", "quota": "1/s"})
    assert (answer.status, answer.json["detail"]) == (500, "a fault of this server")
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "test_problems.py" in record.getMessage()
    assert record.exc_info is None

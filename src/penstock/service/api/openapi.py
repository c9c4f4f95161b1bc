"""The API's own description (OpenAPI 3.1), served at `/v1/openapi.json`. Its schemas are what bodies are read with."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.json import encode, format, schema_components

from penstock.service.api import bodies
from penstock.service.api.problems import Problem

PATH = b"/v1/openapi.json"
VERSION = "1"
Json: TypeAlias = dict[str, Any]

RECEIPT = "AYv5mPZ3n0cJ0i2xQ3kq8w"
"""Where examples have a receipt. A real one is longer."""


class DocumentedCall(NamedTuple):
    """A call: what it is for, what is sent and answered, and an example of what is sent."""

    path: str
    summary: str
    text: str
    sent: Any
    answered: Any
    example: Any


class Results(Struct):
    """The answers to a batch, in its order: a verdict for each check, or the problem with it."""

    results: list[bodies.Verdict]


_DESCRIPTOR = {"path": "/orders/1", "method": "POST", "user": "alice", "ip": "192.0.2.7"}
_PLACES = {"key": "alice", "quota": "5 concurrent ttl 30s"}

CALLS = (
    DocumentedCall(
        "/v1/check",
        "Decide on a request by the rules",
        "All rules that match are charged, or none. A refusal is an answer with status 200 and `allowed: false`; "
        "`status` and `headers` are for the response to your client. With an `id` a request that was admitted is "
        "answered again when it comes again, and not charged again. With `receipt: true` the answer has a token to "
        "refund by, with `decisions: true` the decision of each counter.",
        bodies.Check,
        bodies.Verdict,
        {"descriptor": _DESCRIPTOR, "cost": 1, "id": "9f2c", "receipt": True},
    ),
    DocumentedCall(
        "/v1/check/batch",
        "Decide on up to 1,000 requests",
        "Each stands for itself: where one cannot be decided its result has a `problem`, and the others are decided.",
        list[bodies.Check],
        Results,
        [{"descriptor": _DESCRIPTOR}, {"descriptor": {"path": "/health"}}],
    ),
    DocumentedCall(
        "/v1/acquire",
        "Decide on a request by key and quota, without rules",
        "A key is text or a list of texts, a quota is text such as `100/minute`, or a list of up to 32.",
        bodies.Acquire,
        bodies.Verdict,
        {"key": ["alice", "search"], "quota": "10/second burst 20", "cost": 2},
    ),
    DocumentedCall(
        "/v1/acquire-all",
        "Decide on several requests together: all are charged or none",
        "Each has its own key, quota and cost; together they may name up to 32 quotas. The answer is that of the "
        "tightest. It has one receipt, and with `decisions: true` the decision of each counter, in the order sent.",
        bodies.AcquireAll,
        bodies.Verdict,
        {
            "requests": [
                {"key": "alice", "quota": "10/second"},
                {"key": ["organisation", "acme"], "quota": "100000/day", "cost": 5},
            ]
        },
    ),
    DocumentedCall(
        "/v1/peek",
        "What a request would be answered, charging nothing",
        "By `descriptor`, or by `key` and `quota`. With key and quota a cost of 0 asks only how things stand.",
        bodies.Peek,
        bodies.Verdict,
        {"key": "alice", "quota": "100/minute", "cost": 5},
    ),
    DocumentedCall(
        "/v1/refund",
        "Give back what a request was charged",
        "As far as it is still charged. Do it once per receipt: only a request that had an id remembers.",
        bodies.Refund,
        bodies.Amended,
        {"receipt": RECEIPT, "units": 1},
    ),
    DocumentedCall(
        "/v1/reset",
        "Forget what was used",
        "Of all counters that `descriptor` is counted by, or those of `key` and `quota`.",
        bodies.Reset,
        bodies.Forgotten,
        {"key": "alice", "quota": "100/minute"},
    ),
    DocumentedCall(
        "/v1/hold",
        "Take a place of a concurrency quota",
        "Give it back with its receipt. It is lost when its ttl passes without renewal. With an `id` of your own a "
        "lost answer costs no place: ask again.",
        bodies.Either,
        bodies.Verdict,
        {**_PLACES, "id": "upload-17"},
    ),
    DocumentedCall(
        "/v1/renew",
        "Hold on to places for another ttl",
        "`held` is false if they are no longer held: other requests may have them.",
        bodies.Places,
        bodies.Renewed,
        {"receipt": RECEIPT},
    ),
    DocumentedCall(
        "/v1/release",
        "Give back places",
        "Doing so late or twice changes nothing.",
        bodies.Places,
        bodies.Amended,
        {"receipt": RECEIPT},
    ),
    DocumentedCall(
        "/v1/reserve",
        "Charge an estimate, to be settled later",
        "Never settled, it stays charged.",
        bodies.Either,
        bodies.Verdict,
        {"key": "alice", "quota": "100000/hour", "cost": 4000},
    ),
    DocumentedCall(
        "/v1/settle",
        "Make the cost of a reservation what it was",
        "What was too much comes back; what was too little is charged even if it does not fit. Only the first time "
        "counts.",
        bodies.Settle,
        bodies.Amended,
        {"receipt": RECEIPT, "units": 2750},
    ),
    DocumentedCall(
        "/v1/explain",
        "What the rules make of a request, and why",
        "Charges nothing. Names entries and kinds of values, never a value.",
        bodies.Explain,
        bodies.Explanation,
        {"descriptor": _DESCRIPTOR},
    ),
)

_AUTHZ = {
    "/v1/authz/{path}": "The request is this call's method and the rest of its path (Envoy's `ext_authz`).",
    "/v1/authz-original": "The request is in `X-Original-Method` and `X-Original-URI` (nginx's `auth_request`). A "
    "refusal is 403, and its true status is in `X-Penstock-Status`.",
    "/v1/authz-forwarded": "The request is in `X-Forwarded-Method` and `X-Forwarded-Uri` (Traefik, Caddy).",
}


def document() -> Json:
    """The description as plain values."""
    types = [kind for call in CALLS for kind in (call.sent, call.answered)] + [Problem]
    schemas, components = schema_components(types, ref_template="#/components/schemas/{name}")
    for component in components.values():
        if "description" in component:  # a docstring, whose indentation only Python 3.13 removes
            component["description"] = cleandoc(component["description"])
    answers = iter(schemas)
    problem = {"description": "A problem", "content": {"application/problem+json": {"schema": schemas[-1]}}}
    paths = {call.path: {"post": _operation(call, next(answers), next(answers))} for call in CALLS}
    result = components["Results"]["properties"]["results"]
    of_problem = {"type": "object", "required": ["problem"], "properties": {"problem": schemas[-1]}}
    result["items"] = {"anyOf": [result["items"], of_problem]}
    for path, text in _AUTHZ.items():
        paths[path] = {method: _authz(path, method, text) for method in _METHODS}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock decision API",
            "version": VERSION,
            "description": "Asks whether a request may pass. Bodies are JSON, whatever `Content-Type` says.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(components),
            "responses": {"Problem": problem},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


_METHODS = ("get", "post")  # any other is as good
_PROBLEM = {"$ref": "#/components/responses/Problem"}
_HEADERS = {name: {"schema": {"type": "string"}} for name in ("RateLimit-Policy", "RateLimit", "Retry-After")}


def _operation(call: DocumentedCall, sent: Json, answered: Json) -> Json:
    return {
        "operationId": call.path.removeprefix("/v1/").replace("/", "_").replace("-", "_"),
        "summary": call.summary,
        "description": call.text,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": sent, "example": call.example}},
        },
        "responses": {
            "200": {"description": call.summary, "content": {"application/json": {"schema": answered}}},
            "4XX": _PROBLEM,
            "503": _PROBLEM,
        },
    }


def _authz(path: str, method: str, text: str) -> Json:
    suffix = {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}}
    refused = {"description": "It may not pass", "headers": _HEADERS, **_problem_content()}
    return {
        "operationId": f"{path.split('/')[2].replace('-', '_')}_{method}",
        "summary": "Decide on a request that a proxy asks about",
        "description": text,
        "parameters": [suffix] if "{path}" in path else [],
        "responses": {
            "200": {"description": "It may pass", "headers": _HEADERS},
            "403": refused,
            **({} if path.endswith("original") else {"429": refused}),
            "503": refused,
        },
    }


def _problem_content() -> Json:
    return {"content": {"application/problem+json": {"schema": {"type": "object"}}}}


DOCUMENT: bytes = format(encode(document()), indent=2)

"""From operations to API requests, and from replies to outcomes. No I/O.

Each operation is one POST with a body of JSON, so a batch may mix them, and each fails alone.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

from penstock.client.http import ApiReply, ApiRequest
from penstock.clock import SECOND, Micros
from penstock.errors import (
    CostExceedsLimit,
    InvalidCost,
    InvalidInput,
    InvalidKey,
    InvalidQuota,
    InvalidReceipt,
    InvalidRequest,
    StoreError,
)
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Answer,
    Charge,
    Decision,
    Explained,
    Explanation,
    Failed,
    Grant,
    Inspection,
    Key,
    Op,
    Outcome,
    Receipt,
    Verdict,
)
from penstock.quota import CONCURRENCY, Quota
from penstock.rules.ruling import UNLIMITED, Reason

COME_BACK: Micros = SECOND
"""The retry time of a refusal because the service is gone: by then it may be back."""


class TokenReceipt(Receipt):
    """A receipt that a service has sealed in a token, which it takes to give a charge back."""

    token: str


class TokenVerdict(Verdict):
    """An admission by a service, which knows by the token how to give the charge back, also if a fallback decided."""

    token: str = ""

    @property
    def receipt(self) -> Receipt | None:
        """The charges, or None if there are none."""
        charges = tuple(Charge(d.key, d.quota, d.cost, d.mark) for d in self.decisions if d.mark != NOT_CHARGED)
        if not charges or not self.token:
            return None
        remembered = len(self) > 6 and self[6] is not None
        receipt = TokenReceipt(charges, self.token if remembered else None)
        receipt.token = self.token
        return receipt


class ServiceRuling(TokenVerdict):
    """The decision of a service on a request by its rules; true when it may pass.

    - `rule`: the id of the rule that refused, or else is the tightest; empty if none applies.
    - `reason`: why it was refused; empty if it was not.
    - `status`: the status of the response: 200, or 429, 403, 503.
    - `headers`: ready to copy to the response; `message`: the rule's text for a refused client.
    - `would_refuse`: the ids of rules in shadow mode that would have refused; `version`: of the rules.
    - `owners`: the id of the rule behind each of the decisions.
    """

    rule: str = ""
    reason: Reason = ""
    status: int = 200
    headers: Mapping[str, str] = {}
    message: str | None = None
    would_refuse: tuple[str, ...] = ()
    version: str = ""
    each: tuple[Decision, ...] = ()
    owners: tuple[str, ...] = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision per counter, in the service's order; none if no counter was asked."""
        return self.each


def verdict_of(
    decisions: tuple[Decision, ...], *, token: str, remembered: bool, source: str, kind: type[Verdict] = Verdict
) -> Any:
    """Return the verdict that follows from the decisions. A refusal is a plain one: there is nothing to give back."""
    verdict = Verdict.of(decisions)
    made = TokenVerdict if token and kind is Verdict else kind
    record = token if remembered and token else None
    rest = (record, source) if source != "store" else () if record is None else (record,)
    found = made((*verdict, *rest))
    if isinstance(found, TokenVerdict):
        found.token = token
    return found


def unanswered(cost: int, now: Micros, *, closed: bool) -> ServiceRuling:
    """Return the ruling on a request that the service could not decide."""
    answer: Answer = (True, UNLIMITED.limit, 0, 0, 0, 0, NOT_CHARGED)
    if closed:
        answer = (False, 0, COME_BACK, COME_BACK, COME_BACK, 0, NOT_CHARGED)
    ruling = bare(answer, cost, now, "closed" if closed else "open")
    if closed:
        ruling.reason, ruling.status = "degraded", 503
        ruling.headers = {"Retry-After": str(COME_BACK // SECOND), "Cache-Control": "no-store"}
    return ruling


def bare(answer: Answer, cost: int, now: Micros, source: str = "store") -> ServiceRuling:
    """Return a ruling for which no counter was asked."""
    shown = Decision((answer, now, "", UNLIMITED, cost, True))
    return ServiceRuling((answer, now, "", UNLIMITED, cost, (shown,), *(() if source == "store" else (None, source))))


ERRORS: Mapping[str, type[InvalidInput]] = {
    "invalid_quota": InvalidQuota,
    "invalid_key": InvalidKey,
    "cost_exceeds_limit": CostExceedsLimit,
    "invalid_cost": InvalidCost,
    "invalid_receipt": InvalidReceipt,
    "invalid_request": InvalidRequest,
}
FORBIDDEN = (401, 403)

UNUSABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a body raises whose fields are missing or of other types than those of a service."""

_encode = json.JSONEncoder(separators=(",", ":")).encode


def request_of(op: Op) -> ApiRequest:
    """Return the API request for an operation."""
    if isinstance(op, Acquire):
        return _acquire(op)
    if isinstance(op, Amend):
        return _amend(op)
    if isinstance(op, Grant):
        raise InvalidRequest("a partial grant: the HTTP API of a service has none (expected an acquire)")
    return request(b"/v1/reset", {"key": op.key, "quota": str(op.quota)}, safe=True)


def _acquire(op: Acquire) -> ApiRequest:
    key = op.asks[0].key
    lone = all(ask.key == key for ask in op.asks) and len({ask.cost for ask in op.asks if not ask.quota.flat}) <= 1
    if any(ask.advisory for ask in op.asks) or (op.dry and not lone):
        raise InvalidRequest(
            "a dry request of several keys, or an advisory one: a service decides these by rules of its own"
        )
    body: dict[str, object] = {"decisions": True}
    if lone:
        body |= {"key": key, "quota": [str(ask.quota) for ask in op.asks], "cost": max(ask.cost for ask in op.asks)}
    else:
        body["requests"] = [{"key": ask.key, "quota": str(ask.quota), "cost": ask.cost} for ask in op.asks]
    if op.dry:
        return request(b"/v1/peek", body, safe=True)
    if op.id is not None:
        body["id"] = id_text(op.id)
    return request(b"/v1/acquire" if lone else b"/v1/acquire-all", body | {"receipt": True}, safe=op.id is not None)


def _amend(op: Amend) -> ApiRequest:
    receipt = op.receipt
    if not isinstance(receipt, TokenReceipt) or op.verb == "report":
        raise InvalidReceipt(f"{op.verb}: not a receipt of a service (expected one that this client handed out)")
    body: dict[str, object] = {"receipt": receipt.token}
    if op.units is not None:
        body["units"] = op.units
    safe = op.verb != "refund" or receipt.record is not None
    return request(b"/v1/" + op.verb.encode(), body, safe=safe)


def check_body(descriptor: Mapping[str, object], cost: int, request_id: bytes | None) -> dict[str, object]:
    """Return the body of a check by rules."""
    body: dict[str, object] = {"descriptor": dict(descriptor), "cost": cost, "receipt": True, "decisions": True}
    return body if request_id is None else body | {"id": id_text(request_id)}


def request(path: bytes, body: object, *, safe: bool) -> ApiRequest:
    """Return a POST of `body`."""
    try:
        return ApiRequest(path, _encode(body).encode(), safe)
    except (TypeError, ValueError):
        raise InvalidRequest("descriptor: expected texts, whole numbers, true, false or None as values") from None


def id_text(request_id: bytes) -> str:
    """Return an id as JSON can carry it: bytes that are no text go as base64."""
    try:
        return request_id.decode()
    except UnicodeDecodeError:
        return f"base64:{urlsafe_b64encode(request_id).decode()}"


def outcome(op: Op, reply: ApiReply, now: Micros, place: str) -> Outcome:
    """Return the outcome of `op` by the reply to its request. Errors of the caller are raised."""
    body = body_of(reply, place)
    if isinstance(body, Failed):
        return body
    try:
        return _outcome(op, body, now)
    except UNUSABLE:
        return unparsable(place)


def _outcome(op: Op, body: Mapping[str, Any], now: Micros) -> Outcome:
    if isinstance(op, Acquire):
        decisions = tuple(
            [_decision(one, now, ask.key, ask.quota) for one, ask in zip(body["decisions"], op.asks, strict=True)]
        )
        token, source = body.get("receipt", ""), body["source"]
        verdict: Verdict = verdict_of(decisions, token=token, remembered=op.id is not None, source=source)
        return verdict
    if not isinstance(op, Amend):
        return Amended()
    charges = op.receipt.charges
    if op.verb == "renew":
        held = bool(body["held"])
        return Amended(tuple([int(held and charge.quota.algorithm == CONCURRENCY) for charge in charges]))
    each = tuple([int(units) for units in body["each"]])
    return Amended(each if len(each) == len(charges) else (0,) * len(charges))


def _decision(one: Mapping[str, Any], now: Micros, key: Key, quota: Quota) -> Decision:
    answer = (
        one["allowed"] is True,
        int(one["remaining"]),
        _micros(one["retry_after"]),
        _micros(one["reset_after"]),
        _micros(one["more_after"]),
        _micros(one["delay"]),
        0 if one["charged"] else NOT_CHARGED,
    )
    return Decision((answer, now, key, quota, int(one["cost"]), one.get("advisory") is True))


def ruling(body: Mapping[str, Any], cost: int, now: Micros, *, remembered: bool) -> ServiceRuling:
    """Return the ruling that a body of the API describes."""
    each = tuple([_decision(one, now, "", quota(one["quota"])) for one in body["decisions"]])
    source, token = body["source"], body.get("receipt", "")
    if each:
        made: ServiceRuling = verdict_of(each, token=token, remembered=remembered, source=source, kind=ServiceRuling)
    else:
        waits = _micros(body["retry_after"]), _micros(body["reset_after"])
        remaining = 0 if not body["allowed"] else bare((True, 2**32, 0, 0, 0, 0, NOT_CHARGED), cost, now).remaining
        answer = (body["allowed"] is True, remaining, *waits, waits[0], _micros(body["delay"]), NOT_CHARGED)
        made = bare(answer, cost, now, source)
    made.each, made.rule, made.reason, made.status = each, body["rule"], body["reason"], body["status"]
    made.owners = tuple([one["rule"] for one in body["decisions"]])
    made.headers, made.version = body["headers"], body.get("version", "")
    made.message, made.would_refuse = body.get("message"), tuple(body.get("would_refuse", ()))
    return made


def explanation(body: Mapping[str, Any]) -> Explanation:
    """Return the explanation that a body of the API describes."""
    rules = [
        Explained(
            one["rule"],
            one["applies"],
            one["why"],
            one["mode"],
            one["action"],
            one["key"],
            tuple([quota(text) for text in one["quotas"]]),
            tuple([_inspection(counter) for counter in one["counters"]]),
        )
        for one in body["rules"]
    ]
    return Explanation(body["version"], body["outcome"], tuple(rules))


def _inspection(body: Mapping[str, Any]) -> Inspection:
    counts = int(body["used"]), int(body["remaining"]), int(body["capacity"])
    return Inspection(quota(body["quota"]), *counts, float(body["blocked_for"]), float(body["reset_after"]))


quota = lru_cache(4_096)(Quota.parse)
"""Parse a quota of a body; each text once."""


def _micros(seconds: float) -> Micros:
    return round(seconds * SECOND)


def body_of(reply: ApiReply, place: str) -> dict[str, Any] | Failed:
    """Return the JSON of a reply, or why there is none. Errors of the caller are raised."""
    try:
        body = json.loads(reply.body)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return unparsable(place) if reply.status == 200 else _failed(f"status {reply.status}", place)
    return body if reply.status == 200 else problem(body, reply.status, place)


def problem(body: Mapping[str, Any], status: int, place: str) -> Failed:
    """Return the failure that problem details describe. Errors of the caller are raised."""
    code, detail = str(body.get("code", "")), str(body.get("detail", f"status {status}"))
    if status in FORBIDDEN:
        return _failed("the token is not accepted (expected another one)", place, transient=False)
    if code in ERRORS or status in (400, 413, 422):
        _raise(code, detail)
    charged = "no" if body.get("charged") == "no" or 400 <= status < 500 else "unknown"
    return _failed(detail, place, transient=status >= 500, charged=charged)


def _raise(code: str, detail: str) -> NoReturn:
    raise ERRORS.get(code, InvalidRequest)(detail)


def unparsable(place: str) -> Failed:
    return _failed("unparsable reply", place)


def _failed(why: str, place: str, *, transient: bool = True, charged: Any = None) -> Failed:
    unknown: Any = "unknown" if charged is None and transient else charged or "no"
    return Failed(StoreError(f"service at {place}: {why}", transient=transient), unknown)

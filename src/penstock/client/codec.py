"""From operations to questions that a service understands, and from its replies to outcomes. No I/O.

A question is JSON in a POST; every operation is one, so a batch may mix them, and each fails alone.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeAlias

from penstock.client.http import Question, Reply
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

# ---------------------------------------------------------------- answers


# What a client hands out: the library's own values, which know the service's token for what was charged.


Reason: TypeAlias = Literal["", "rate", "too_close", "concurrency", "shed", "blocked", "degraded"]

COME_BACK: Micros = SECOND
"""When whoever is refused because the service is gone should try again: by then it may be back."""

# What stands for a quota where none applies.
UNLIMITED = Quota(2**32, 1, "fixed_window", name="unlimited")


class TokenReceipt(Receipt):
    """A receipt that a service has sealed in a token: what it takes to give a charge back."""

    token: str


class TokenVerdict(Verdict):
    """An admission by a service.

    It was charged there, whoever stood in for its store: giving it back is the service's business.
    """

    token: str = ""

    @property
    def receipt(self) -> Receipt | None:
        """What was charged, or None if nothing was."""
        charges = tuple(Charge(d.key, d.quota, d.cost, d.mark) for d in self.decisions if d.mark != NOT_CHARGED)
        if not charges or not self.token:
            return None
        remembered = len(self) > 6 and self[6] is not None
        receipt = TokenReceipt(charges, self.token if remembered else None)
        receipt.token = self.token
        return receipt


class Ruling(TokenVerdict):
    """The service's answer to a request by its rules; true when it may pass.

    - `rule`: the id of the rule that refused, or else is the tightest; empty if none applies.
    - `reason`: why it was refused; empty if it was not.
    - `status`: what to answer a client with: 200, or 429, 403, 503.
    - `headers`: ready to copy to the response; `message`: what the rule wants a refused client to be told.
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
        """One decision per counter that was asked, in the service's order; none if no counter was."""
        return self.each


def verdict_of(
    decisions: tuple[Decision, ...], *, token: str, remembered: bool, source: str, kind: type[Verdict] = Verdict
) -> Any:
    """What follows from the decisions. A refusal is a plain verdict: there is nothing to give back."""
    verdict = Verdict.of(decisions)
    made = TokenVerdict if token and kind is Verdict else kind
    record = token if remembered and token else None
    rest: tuple[object, ...] = () if source == "store" else (record, source)
    if not rest and record is not None:
        rest = (record,)
    found = made((*verdict, *rest))
    if isinstance(found, TokenVerdict):
        found.token = token
    return found


def unanswered(cost: int, now: Micros, *, closed: bool) -> Ruling:
    """The ruling on a request that the service could not be asked about."""
    answer: Answer = (True, UNLIMITED.limit, 0, 0, 0, 0, NOT_CHARGED)
    if closed:
        answer = (False, 0, COME_BACK, COME_BACK, COME_BACK, 0, NOT_CHARGED)
    ruling = bare(answer, cost, now, "closed" if closed else "open")
    if closed:
        ruling.reason, ruling.status = "degraded", 503
        ruling.headers = {"Retry-After": str(COME_BACK // SECOND), "Cache-Control": "no-store"}
    return ruling


def bare(answer: Answer, cost: int, now: Micros, source: str = "store") -> Ruling:
    """A ruling for which no counter was asked."""
    shown = Decision((answer, now, "", UNLIMITED, cost, True))
    return Ruling((answer, now, "", UNLIMITED, cost, (shown,), *(() if source == "store" else (None, source))))


def is_free(charged: Verdict | Receipt) -> bool:
    """Whether it is a ruling that passed without being charged, so that there is nothing to change."""
    return isinstance(charged, Ruling) and charged.allowed and charged.receipt is None


def holds(charged: Verdict | Receipt) -> bool:
    """Whether a place came with it. What is no ruling is left to the limiter to complain about."""
    if isinstance(charged, Ruling):
        receipt = charged.receipt
        return receipt is not None and any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges)
    return True


# ---------------------------------------------------------------- plan


ERRORS: Mapping[str, type[InvalidInput]] = {
    "invalid_quota": InvalidQuota,
    "invalid_key": InvalidKey,
    "cost_exceeds_limit": CostExceedsLimit,
    "invalid_cost": InvalidCost,
    "invalid_receipt": InvalidReceipt,
    "invalid_request": InvalidRequest,
}
FORBIDDEN = (401, 403)

_encode = json.JSONEncoder(separators=(",", ":")).encode


# ---------------------------------------------------------------- questions


def question_of(op: Op) -> Question:
    """What to ask for an operation."""
    if isinstance(op, Acquire):
        return _acquire(op)
    if isinstance(op, Amend):
        return _amend(op)
    if isinstance(op, Grant):
        raise InvalidRequest("a partial grant: the HTTP API of a service has none (expected an acquire)")
    return question(b"/v1/reset", {"key": op.key, "quota": str(op.quota)}, safe=True)


def _acquire(op: Acquire) -> Question:
    key = op.asks[0].key
    if any(ask.advisory or ask.key != key for ask in op.asks):
        raise InvalidRequest(
            "a request of several keys, or an advisory one: a service decides these by rules of its own"
        )
    cost = max(ask.cost for ask in op.asks)
    quotas = [str(ask.quota) for ask in op.asks]
    asked: dict[str, object] = {"key": key, "quota": quotas, "cost": cost, "decisions": True}
    if op.dry:
        return question(b"/v1/peek", asked, safe=True)
    if op.id is not None:
        asked["id"] = id_text(op.id)
    return question(b"/v1/acquire", asked | {"receipt": True}, safe=op.id is not None)


def _amend(op: Amend) -> Question:
    receipt = op.receipt
    if not isinstance(receipt, TokenReceipt) or op.verb == "report":
        raise InvalidReceipt(f"{op.verb}: not a receipt of a service (expected one that this client handed out)")
    asked: dict[str, object] = {"receipt": receipt.token}
    if op.units is not None:
        asked["units"] = op.units
    safe = op.verb != "refund" or receipt.record is not None
    return question(b"/v1/" + op.verb.encode(), asked, safe=safe)


def check(descriptor: Mapping[str, object], cost: int, request_id: bytes | None) -> dict[str, object]:
    """A request by rules."""
    asked: dict[str, object] = {"descriptor": dict(descriptor), "cost": cost, "receipt": True, "decisions": True}
    return asked if request_id is None else asked | {"id": id_text(request_id)}


def question(path: bytes, asked: object, *, safe: bool) -> Question:
    try:
        return Question(path, _encode(asked).encode(), safe)
    except (TypeError, ValueError):
        raise InvalidRequest("descriptor: expected texts, whole numbers, true, false or None as values") from None


def id_text(request_id: bytes) -> str:
    """An id as JSON can carry it: bytes that are no text are spelled out."""
    try:
        return request_id.decode()
    except UnicodeDecodeError:
        return f"base64:{urlsafe_b64encode(request_id).decode()}"


# ---------------------------------------------------------------- outcomes


def outcome(op: Op, reply: Reply, now: Micros, place: str) -> Outcome:
    """What a reply means for the operation that was asked about. What is the caller's fault is raised."""
    told = body_of(reply, place)
    if isinstance(told, Failed):
        return told
    try:
        return _outcome(op, told, now)
    except (KeyError, TypeError, ValueError):
        return senseless(place)


def _outcome(op: Op, told: Mapping[str, Any], now: Micros) -> Outcome:
    if isinstance(op, Acquire):
        decisions = tuple(
            [
                _decision(one, now, ask.key, ask.quota, ask.cost)
                for one, ask in zip(told["decisions"], op.asks, strict=True)
            ]
        )
        token, source = told.get("receipt", ""), told["source"]
        verdict: Verdict = verdict_of(decisions, token=token, remembered=op.id is not None, source=source)
        return verdict
    if not isinstance(op, Amend):
        return Amended()
    charges = op.receipt.charges
    if op.verb == "renew":
        held = bool(told["held"])
        return Amended(tuple([int(held and charge.quota.algorithm == CONCURRENCY) for charge in charges]))
    each = tuple([int(units) for units in told["each"]])
    return Amended(each if len(each) == len(charges) else (0,) * len(charges))


def _decision(one: Mapping[str, Any], now: Micros, key: Key, quota: Quota, cost: int) -> Decision:
    answer = (
        one["allowed"] is True,
        int(one["remaining"]),
        _micros(one["retry_after"]),
        _micros(one["reset_after"]),
        _micros(one["more_after"]),
        _micros(one["delay"]),
        0 if one["charged"] else NOT_CHARGED,
    )
    return Decision((answer, now, key, quota, cost, one.get("advisory") is True))


def ruling(told: Mapping[str, Any], cost: int, now: Micros, *, remembered: bool) -> Ruling:
    """What a service says of a request by its rules."""
    each = tuple([_decision(one, now, "", quota(one["quota"]), int(one["cost"])) for one in told["decisions"]])
    source, token = told["source"], told.get("receipt", "")
    if each:
        made: Ruling = verdict_of(each, token=token, remembered=remembered, source=source, kind=Ruling)
    else:
        waits = _micros(told["retry_after"]), _micros(told["reset_after"])
        remaining = 0 if not told["allowed"] else bare((True, 2**32, 0, 0, 0, 0, NOT_CHARGED), cost, now).remaining
        answer = (told["allowed"] is True, remaining, *waits, waits[0], _micros(told["delay"]), NOT_CHARGED)
        made = bare(answer, cost, now, source)
    made.each, made.rule, made.reason, made.status = each, told["rule"], told["reason"], told["status"]
    made.owners = tuple([one["rule"] for one in told["decisions"]])
    made.headers, made.version = told["headers"], told.get("version", "")
    made.message, made.would_refuse = told.get("message"), tuple(told.get("would_refuse", ()))
    return made


def explanation(told: Mapping[str, Any]) -> Explanation:
    """What a service says of its rules."""
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
        for one in told["rules"]
    ]
    return Explanation(told["version"], told["outcome"], tuple(rules))


def _inspection(told: Mapping[str, Any]) -> Inspection:
    counts = int(told["used"]), int(told["remaining"]), int(told["capacity"])
    return Inspection(quota(told["quota"]), *counts, float(told["blocked_for"]), float(told["reset_after"]))


quota = lru_cache(4_096)(Quota.parse)
"""A quota that a service speaks of."""


def _micros(seconds: float) -> Micros:
    return round(seconds * SECOND)


# ---------------------------------------------------------------- problems


def body_of(reply: Reply, place: str) -> dict[str, Any] | Failed:
    """The JSON of a reply, or why there is none. What is the caller's fault is raised."""
    try:
        told = json.loads(reply.body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        return senseless(place) if reply.status == 200 else _failed(f"status {reply.status}", place)
    return told if reply.status == 200 else problem(told, reply.status, place)


def problem(told: Mapping[str, Any], status: int, place: str) -> Failed:
    """What a service could not answer. What is the caller's fault is raised."""
    code, detail = str(told.get("code", "")), str(told.get("detail", f"status {status}"))
    if status in FORBIDDEN:
        return _failed("it does not know our token (expected another one)", place, transient=False)
    if code in ERRORS or status in (400, 413, 422):
        _raise(code, detail)
    charged = "no" if told.get("charged") == "no" or 400 <= status < 500 else "unknown"
    return _failed(detail, place, transient=status >= 500, charged=charged)


def _raise(code: str, detail: str) -> NoReturn:
    raise ERRORS.get(code, InvalidRequest)(detail)


def senseless(place: str) -> Failed:
    return _failed("a reply that means nothing", place)


def _failed(why: str, place: str, *, transient: bool = True, charged: Any = None) -> Failed:
    unknown: Any = "unknown" if charged is None and transient else charged or "no"
    return Failed(StoreError(f"service at {place}: {why}", transient=transient), unknown)

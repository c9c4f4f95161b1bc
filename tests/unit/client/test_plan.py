"""Operations as API requests, and replies as outcomes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from penstock import Quota
from penstock.client.codec import TokenVerdict, id_text, outcome, request_of, ruling
from penstock.client.http import ApiReply, ApiRequest, Lost, to_retry
from penstock.errors import CostExceedsLimit, InvalidInput, InvalidReceipt, InvalidRequest
from penstock.model import Acquire, Amend, Amended, Ask, Failed, Grant, Op, Reset, Verdict

MINUTE = Quota.parse("100/minute")
PLACE = Quota.parse("5 concurrent ttl 30s")
NOW = 1_700_000_000_000_000
DECISION = {
    "rule": "",
    "quota": "100/minute",
    "cost": 1,
    "allowed": True,
    "remaining": 99,
    "retry_after": 0.0,
    "reset_after": 59.999999,
    "more_after": 0.6,
    "delay": 0.0,
    "advisory": False,
    "charged": True,
}
ANSWER = {
    "allowed": True,
    "status": 200,
    "reason": "",
    "rule": "api",
    "retry_after": 0.0,
    "reset_after": 59.999999,
    "delay": 0.0,
    "source": "store",
    "headers": {"RateLimit": "x"},
    "receipt": "sealed",
    "decisions": [DECISION],
}


def _asked(op: Op) -> tuple[bytes, Any, bool]:
    path, body, safe = request_of(op)
    return path, json.loads(body or b""), safe


def _read(op: Op, told: object, status: int = 200) -> Any:
    return outcome(op, ApiReply(status, {}, json.dumps(told).encode()), NOW, "here:1")


def _charged(op: Acquire) -> TokenVerdict:
    verdict = _read(op, ANSWER)
    assert isinstance(verdict, TokenVerdict)
    return verdict


def test_an_acquire_carries_all_its_quotas() -> None:
    op = Acquire((Ask(("a", "b"), MINUTE, 3), Ask(("a", "b"), PLACE, 1)))
    path, asked, safe = _asked(op)
    assert (path, safe) == (b"/v1/acquire", False)
    assert asked == {
        "key": ["a", "b"],
        "quota": [str(MINUTE), str(PLACE)],
        "cost": 3,
        "decisions": True,
        "receipt": True,
    }


def test_requests_that_may_be_repeated_are_marked_safe() -> None:
    once = Acquire((Ask("a", MINUTE),))
    known = once._replace(id=b"seven")
    assert _asked(known)[1]["id"] == "seven"
    assert [_asked(op)[2] for op in (once, known, once._replace(dry=True), Reset("a", MINUTE))] == [
        False,
        True,
        True,
        True,
    ]
    plain, remembered = _charged(once).receipt, _charged(known).receipt
    assert plain is not None
    assert remembered is not None
    verbs = [Amend(plain, "refund"), Amend(remembered, "refund"), Amend(plain, "release"), Amend(plain, "renew")]
    assert [_asked(op)[2] for op in verbs] == [False, True, True, True]
    assert _asked(Amend(remembered, "settle", 4)) == (b"/v1/settle", {"receipt": "sealed", "units": 4}, True)


def test_ids_of_any_bytes_are_carried() -> None:
    assert id_text(b"seven") == "seven"
    assert id_text(b"\xff\x00") == "base64:_wA="


SEVERAL = (Ask("a", MINUTE), Ask(("b", "c"), MINUTE, 3))


@pytest.mark.parametrize("op", [Acquire(SEVERAL, dry=True), Acquire((Ask("a", MINUTE, advisory=True),))])
def test_dry_requests_of_several_keys_and_advisory_ones_are_refused(op: Acquire) -> None:
    with pytest.raises(InvalidRequest, match="a service decides these by rules of its own"):
        request_of(op)


@pytest.mark.parametrize("asks", [SEVERAL, (Ask("a", MINUTE), Ask("a", PLACE), Ask("a", Quota.parse("9/day"), 3))])
def test_several_keys_or_costs_are_one_request(asks: tuple[Ask, ...]) -> None:
    path, body, safe = _asked(Acquire(asks, id=b"one"))
    assert (path, safe) == (b"/v1/acquire-all", True)
    assert body == {
        "requests": [
            {"key": list(ask.key) if isinstance(ask.key, tuple) else ask.key, "quota": str(ask.quota), "cost": ask.cost}
            for ask in asks
        ],
        "id": "one",
        "decisions": True,
        "receipt": True,
    }
    assert _asked(Acquire((Ask("a", MINUTE, 3), Ask("a", PLACE))))[0] == b"/v1/acquire"


def test_a_partial_grant_is_refused_because_the_api_has_none() -> None:
    with pytest.raises(InvalidRequest, match="a partial grant: the HTTP API of a service has none"):
        request_of(Grant("a", MINUTE, 1, 2))


def test_a_receipt_of_another_store_is_refused() -> None:
    verdict = Verdict((((True, 1, 0, 0, 0, 0, 7)), NOW, "a", MINUTE, 1, ()))
    assert verdict.receipt is not None
    with pytest.raises(InvalidReceipt, match="refund: not a receipt of a service"):
        request_of(Amend(verdict.receipt, "refund"))


def test_a_verdict_reads_as_the_library_s_own() -> None:
    verdict = _charged(Acquire((Ask("a", MINUTE),)))
    assert (verdict.allowed, verdict.remaining, verdict.key, verdict.quota) == (True, 99, "a", MINUTE)
    assert (verdict.reset_after_us, verdict.more_after_us, verdict.at_us) == (59_999_999, 600_000, NOW)
    copy = pickle.loads(pickle.dumps(verdict))
    assert (copy, copy.token, copy.receipt.token) == (verdict, "sealed", "sealed")
    refusal = ANSWER | {"allowed": False, "decisions": [DECISION | {"allowed": False, "charged": False}]}
    del refusal["receipt"]
    refused = _read(Acquire((Ask("a", MINUTE),)), refusal)
    assert (type(refused), refused.receipt) == (Verdict, None)


def test_the_receipt_of_a_degraded_verdict_belongs_to_the_service() -> None:
    verdict = _read(Acquire((Ask("a", MINUTE),)), ANSWER | {"source": "local"})
    assert (verdict.degraded, verdict.source) == (True, "local")
    assert verdict.receipt.source == "store"


def test_amendments_say_what_each_counter_got_back() -> None:
    receipt = _charged(Acquire((Ask("a", MINUTE),))).receipt
    assert receipt is not None
    assert _read(Amend(receipt, "refund"), {"units": 1, "each": [1]}) == Amended((1,))
    assert _read(Amend(receipt, "refund"), {"units": 0, "each": []}) == Amended((0,))
    held = _read(Acquire((Ask("a", PLACE),)), ANSWER).receipt
    assert _read(Amend(held, "renew"), {"held": True}) == Amended((1,))
    assert _read(Amend(held, "renew"), {"held": False}) == Amended((0,))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (422, "cost_exceeds_limit", CostExceedsLimit),
        (422, "invalid_receipt", InvalidReceipt),
        (400, "?", InvalidRequest),
    ],
)
def test_errors_of_the_caller_are_raised_as_the_library_raises_them(
    status: int, code: str, error: type[InvalidInput]
) -> None:
    with pytest.raises(error, match="cost 9"):
        _read(Reset("a", MINUTE), {"code": code, "detail": "cost 9: expected less"}, status)


@pytest.mark.parametrize(
    ("status", "told", "charged", "transient"),
    [
        (503, {"code": "store_unavailable", "detail": "later", "charged": "no"}, "no", True),
        (503, {"code": "store_unavailable", "detail": "later", "charged": "unknown"}, "unknown", True),
        (500, {"code": "internal"}, "unknown", True),
        (502, "<html>", "unknown", True),
        (401, {"code": "unauthorized"}, "no", False),
        (404, {"code": "not_found"}, "no", False),
        (200, ["?"], "unknown", True),
        (200, {"allowed": True}, "unknown", True),
        (200, ANSWER | {"decisions": []}, "unknown", True),
    ],
)
def test_a_reply_without_an_outcome_is_a_failure(status: int, told: object, charged: str, transient: bool) -> None:
    failed = _read(Acquire((Ask("a", MINUTE),)), told, status)
    assert isinstance(failed, Failed)
    assert (failed.charged, failed.error.transient) == (charged, transient)
    assert str(failed.error).startswith("service at here:1: ")


def test_a_ruling_knows_its_rules() -> None:
    shadow = DECISION | {"rule": "trial", "advisory": True, "allowed": False, "charged": False}
    told = ANSWER | {"decisions": [DECISION | {"rule": "api"}, shadow], "would_refuse": ["trial"], "version": "v"}
    found = ruling(told, 1, NOW, remembered=False)
    assert (found.allowed, found.rule, found.owners, found.would_refuse) == (True, "api", ("api", "trial"), ("trial",))
    assert [decision.advisory for decision in found.decisions] == [False, True]
    assert found.receipt is not None
    assert len(found.receipt.charges) == 1


def test_a_ruling_without_counters_has_no_decisions() -> None:
    told = ANSWER | {"allowed": False, "status": 403, "reason": "blocked", "retry_after": 3600.0, "decisions": []}
    found = ruling(told, 1, NOW, remembered=False)
    assert (bool(found), found.status, found.decisions, found.retry_after) == (False, 403, (), 3600)
    assert found.receipt is None


def test_only_safe_requests_are_retried() -> None:
    asked = [ApiRequest(b"/a", b"", False), ApiRequest(b"/b", b"", True)]
    assert to_retry(asked, [Lost("gone", "unknown", ended=True)] * 2) == [1]
    assert to_retry(asked, [Lost("gone", "no", ended=True)] * 2) == [0, 1]
    assert to_retry(asked, [Lost("late", "unknown")] * 2) == []
    assert to_retry(asked, [ApiReply(500, {}, b"")] * 2) == []

"""Assertions on verdicts. Where one fails, its message shows the counters as the verdict found them."""

from __future__ import annotations

from typing import Protocol

from penstock.model import Verdict, inspections
from penstock.quota import Quota
from penstock.rules.ruling import Ruling, reason_of


class HasVerdict(Protocol):
    """A `Hold`, a `Reservation`, a middleware's passage or visit, a `RateLimited` error."""

    @property
    def verdict(self) -> Verdict | None: ...


def assert_allowed(subject: Verdict | HasVerdict, *, remaining: int | None = None) -> Verdict:
    """Fail unless the request may pass; with `remaining`, unless so many units are left. Return the verdict."""
    verdict = _verdict_of(subject)
    _check(verdict.allowed, verdict, "the request to be allowed", _outcome(verdict))
    if remaining is not None:
        _check(verdict.remaining == remaining, verdict, f"{remaining} units left", f"{verdict.remaining} are left")
    return verdict


def assert_refused(
    subject: Verdict | HasVerdict,
    *,
    quota: str | Quota | None = None,
    rule: str | None = None,
    reason: str | None = None,
    retry_after: object = None,
) -> Verdict:
    """Fail unless the request is refused. Return the verdict.

    - `quota`: by this quota; `rule`: by the rule of this id.
    - `reason`: "rate", "too_close", "concurrency", "blocked", "shed" or "degraded".
    - `retry_after`: in seconds, or a `pytest.approx` of them.
    """
    verdict = _verdict_of(subject)
    _check(not verdict.allowed, verdict, "the request to be refused", _outcome(verdict))
    if quota is not None:
        quotas = (quota if isinstance(quota, Quota) else Quota.parse(quota)).parts
        _check(verdict.quota in quotas, verdict, f"a refusal by {quota}", _outcome(verdict))
    if rule is not None:
        _check(_rule_of(verdict) == rule, verdict, f"a refusal by rule {rule}", _outcome(verdict))
    if reason is not None:
        _check(reason_of(verdict) == reason, verdict, f"the reason {reason}", f"it is {reason_of(verdict)}")
    if retry_after is not None:
        found = f"it is {verdict.retry_after:.6g}"
        _check(verdict.retry_after == retry_after, verdict, f"retry_after {retry_after}", found)
    return verdict


def _verdict_of(subject: Verdict | HasVerdict) -> Verdict:
    verdict = subject if isinstance(subject, Verdict) else getattr(subject, "verdict", None)
    if not isinstance(verdict, Verdict):
        raise AssertionError(f"expected a verdict, or what has one, not {type(subject).__name__}")
    return verdict


def _check(holds: bool, verdict: Verdict, expected: str, found: str) -> None:
    if not holds:
        raise AssertionError("\n    ".join([f"expected {expected}, but {found}", *_counters(verdict)]))


def _outcome(verdict: Verdict) -> str:
    rule = _rule_of(verdict)
    if verdict.allowed:
        return f"it was allowed by rule {rule}" if rule else "it was allowed"
    why = str(verdict.quota) if verdict.decisions else reason_of(verdict)
    by = f"rule {rule} ({why})" if rule else why
    return f"it was refused by {by}, retry_after {verdict.retry_after:.6g} s"


def _rule_of(verdict: Verdict) -> str:
    return verdict.rule if isinstance(verdict, Ruling) else ""


def _counters(verdict: Verdict) -> list[str]:
    decided = [f"decided by {verdict.source!r}, because the store did not answer"] if verdict.degraded else []
    return [*decided, *map(str, inspections(verdict))]

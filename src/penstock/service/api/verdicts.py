"""A verdict as callers get it: whether and why, what is left, and headers ready to copy to the response."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET

from penstock.clock import SECOND
from penstock.headers import OK, TOO_MANY, HeaderWriter
from penstock.model import NOT_CHARGED, Verdict
from penstock.rules.refusal import STATUSES
from penstock.rules.ruling import BLOCKED, SHED, UNLIMITED, Ruling, reason_of
from penstock.service.api import bodies
from penstock.service.api.bodies import encode
from penstock.service.receipts import Tokens

_NO_QUOTA = frozenset((UNLIMITED, BLOCKED, SHED))
_KNOWING = ("store", "local")  # others made up their answer


class Extras(NamedTuple):
    """What is told only to who wants it, because it takes time: a token of the receipt, if the request was admitted;
    the decision on each of its asks.
    """

    receipt: bool = False
    decisions: bool = False


NOTHING = Extras()
A_RECEIPT = Extras(receipt=True)


class Verdicts:
    """Writes verdicts."""

    def __init__(self, writer: HeaderWriter, tokens: Tokens) -> None:
        self._write_headers, self._tokens = writer.headers, tokens

    def write(self, verdict: Verdict, extras: Extras = NOTHING) -> bytes:
        """The verdict as JSON, with what else is wanted."""
        # By position and without properties: every check comes through here.
        allowed, remaining, retry_after, reset_after, _, delay, _ = verdict[0]
        quota = verdict[3]
        source = verdict[7] if len(verdict) > 7 else "store"
        reason = "" if allowed else reason_of(verdict)
        ruled = verdict.__class__ is Ruling
        known = quota not in _NO_QUOTA and source in _KNOWING
        shown = verdict.shown() if ruled else verdict  # type: ignore[attr-defined]
        answer = bodies.Verdict(
            allowed,
            OK if allowed else STATUSES.get(reason, TOO_MANY),
            reason,
            "",
            quota.limit if known else None,
            remaining if known else None,
            retry_after / SECOND,
            reset_after / SECOND,
            delay / SECOND,
            source,
            source != "store",
            dict(self._write_headers(shown)),
        )
        if ruled:
            _add_rules(answer, verdict)  # type: ignore[arg-type]
        if extras is not NOTHING:
            if extras.receipt and allowed:
                answer.receipt = self._tokens.seal(verdict.receipt, verdict[1])
            if extras.decisions:
                answer.decisions = _decisions(verdict)
        return encode(answer)


def _decisions(verdict: Verdict) -> list[bodies.Decision]:
    decisions = verdict.decisions
    rules = [rule.id for rule in verdict.plan.owners] if isinstance(verdict, Ruling) else [""] * len(decisions)
    return [
        bodies.Decision(
            rule,
            str(one.quota),
            one.cost,
            one.allowed,
            one.remaining,
            one.retry_after,
            one.reset_after,
            one.more_after,
            one.delay,
            one.advisory,
            one.mark != NOT_CHARGED,
        )
        for one, rule in zip(decisions, rules, strict=False)  # none of them, where no counter was asked
    ]


def _add_rules(answer: bodies.Verdict, ruling: Ruling) -> None:
    course, posed, owners = ruling.plan
    answer.version = course.version
    answer.rule = owners[0].id if len(owners) == 1 and ruling[3] is posed[0][1] else ruling.rule
    if not answer.allowed and (message := ruling.message) is not None:
        answer.message = message
    if course.has_shadows:
        answer.would_refuse = ruling.would_refuse or UNSET

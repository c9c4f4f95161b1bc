"""A verdict as a body: whether and why, what is left, and headers ready to copy to the response."""

from __future__ import annotations

from typing import Any, NamedTuple

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
_COUNTED = ("store", "local")  # the other sources saw no counter


class Extras(NamedTuple):
    """Parts of a body that are written on demand, because they take time.

    - `receipt`: a token of the receipt, if the request was admitted.
    - `decisions`: the decision on each ask.
    """

    receipt: bool = False
    decisions: bool = False


NOTHING = Extras()
A_RECEIPT = Extras(receipt=True)


class Verdicts:
    """Writes verdicts."""

    def __init__(self, writer: HeaderWriter, tokens: Tokens) -> None:
        self._write_headers, self._tokens = writer.headers, tokens

    def write(self, verdict: Any, extras: Extras = NOTHING) -> bytes:
        """Return a verdict or a ruling as JSON, with what else is wanted."""
        # By position and without properties: every check comes through here.
        allowed, remaining, retry_after, reset_after, _, delay, _ = verdict[0]
        quota = verdict[3]
        source = verdict[7] if len(verdict) > 7 else "store"
        reason = "" if allowed else reason_of(verdict)
        ruled = verdict.__class__ is Ruling
        known = quota not in _NO_QUOTA and source in _COUNTED
        shown = verdict.shown() if ruled and verdict.plan[0].hides else verdict
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
        if ruled:  # not in a function of its own, which is a frame more
            course, posed, owners = verdict.plan
            answer.version = course.version
            lone = len(owners) == 1 and quota is posed[0][1]
            answer.rule = owners[0].id if lone else verdict.rule
            if not allowed and (message := verdict.message) is not None:
                answer.message = message
            if course.has_shadows:
                answer.would_refuse = verdict.would_refuse or UNSET
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

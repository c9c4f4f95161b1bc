"""What a client hands out: the library's own values, which know the service's token for what was charged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.model import NOT_CHARGED, Answer, Charge, Decision, Receipt, Verdict
from penstock.quota import CONCURRENCY, Quota

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

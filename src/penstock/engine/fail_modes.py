"""Answers without the store: all requests pass, or all are refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import SECOND, Micros
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Answer,
    Ask,
    Decision,
    Op,
    Outcome,
    Source,
    Verdict,
    new,
)
from penstock.quota import CONCURRENCY

COME_BACK: Micros = SECOND
"""After how long a request may be retried that was refused because the store is gone: it may be back then."""


def marked(verdict: Verdict, source: Source) -> Verdict:
    """Return `verdict` with another source."""
    return new(Verdict, (*verdict[:6], verdict[6] if len(verdict) > 6 else None, source))


def admitted(op: Acquire, now: Micros) -> Verdict:
    """Return an admission. Its receipt charged nothing, but can be refunded like any other."""
    mark = NOT_CHARGED if op.dry else 0

    def answer(ask: Ask) -> Answer:
        return True, ask.quota.capacity - ask.cost, 0, 0, 0, 0, mark

    return _verdict(op, [answer(ask) for ask in op.asks], now, "open")


def refused(op: Acquire, now: Micros, source: Source = "closed") -> Verdict:
    """Return a refusal, whether the request is over a limit or not."""
    answer = False, 0, COME_BACK, COME_BACK, COME_BACK, 0, NOT_CHARGED
    return _verdict(op, [answer] * len(op.asks), now, source)


def left_alone(op: Amend) -> Amended:
    """Return the outcome of an amendment that changed nothing; places count as held."""
    if op.verb == "renew":
        return Amended(tuple([int(charge.quota.algorithm == CONCURRENCY) for charge in op.receipt.charges]))
    return Amended((0,) * len(op.receipt.charges))


def instead(op: Op, now: Micros, *, closed: bool) -> Outcome | None:
    """Return an answer without the store; None for operations that only the store can answer."""
    if isinstance(op, Acquire):
        return refused(op, now) if closed else admitted(op, now)
    return left_alone(op) if isinstance(op, Amend) else None


def _verdict(op: Acquire, answers: Sequence[Answer], now: Micros, source: Source) -> Verdict:
    decisions = [Decision((answer, now, *ask)) for answer, ask in zip(answers, op.asks, strict=True)]
    return marked(Verdict.of(tuple(decisions)), source)

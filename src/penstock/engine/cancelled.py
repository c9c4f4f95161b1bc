"""What a cancelled caller was charged: it never learns of it, so it is given back when the outcome comes. Pure.

A request with an id of the caller's own stays charged, because its retry is answered from the record of the first
attempt: given back, the retry would be admitted without a charge.
"""

from __future__ import annotations

import os

from penstock.model import Acquire, Amend, Grant, Op, Outcome, Verdict

ID_BYTES = 12

CHARGES = frozenset([Acquire, Grant])
"""The operations that charge: these need not be sent for a caller that is gone."""


class GeneratedId(bytes):
    """An id made for one request, which no other request can repeat."""

    __slots__ = ()


def new_id() -> GeneratedId:
    """Return an id for a request whose caller gave none."""
    return GeneratedId(os.urandom(ID_BYTES))


def refund_of(op: Op, outcome: Outcome) -> Amend | None:
    """Return what gives back the charge of a request whose caller was cancelled, if there is one to give back."""
    if not isinstance(op, Acquire | Grant) or not isinstance(outcome, Verdict) or not outcome:
        return None
    if op.id is not None and not isinstance(op.id, GeneratedId):
        return None
    receipt = outcome.receipt
    return None if receipt is None else Amend(receipt, "refund")

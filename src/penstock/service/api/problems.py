"""Answers to calls that fail: problem details (RFC 9457) with a code, and the field at fault.

The words are those of the core's errors, which name the thing, the value and the expected values, and never quote a
key. Messages of the JSON decoder are put into the same form.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError

from penstock.errors import (
    CostExceedsLimit,
    InvalidCost,
    InvalidInput,
    InvalidKey,
    InvalidQuota,
    InvalidReceipt,
    InvalidRequest,
    PenstockError,
    StoreError,
    fault,
)
from penstock.service.api.bodies import encode
from penstock.service.wire.calls import Head, Header
from penstock.service.wire.problems import REASONS

log = logging.getLogger("penstock.service")

UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of the JSON decoder."""

TYPE: Header = (b"content-type", b"application/problem+json")


class Problem(Struct, gc=False):
    """The body of an answer that is an error."""

    title: str
    status: int
    code: str
    detail: str
    field: str | UnsetType = UNSET
    charged: str | UnsetType = UNSET  # "no", or "unknown" if the request may have reached the store


class Unacceptable(PenstockError):
    """The error of a call that cannot be answered, with its status and code."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.field = status, code, field


_KINDS: Sequence[tuple[type[PenstockError], str, str | None]] = (
    (InvalidQuota, "invalid_quota", "quota"),
    (InvalidKey, "invalid_key", "key"),
    (CostExceedsLimit, "cost_exceeds_limit", "cost"),
    (InvalidCost, "invalid_cost", "cost"),
    (InvalidReceipt, "invalid_receipt", "receipt"),
    (InvalidRequest, "invalid_request", None),
    (InvalidInput, "invalid_input", None),
)
_FIELDS = ("cost", "descriptor", "id", "key", "quota", "receipt", "units")
_FIRST_WORD = re.compile(r"[a-z]+")
_PROBLEMS = {
    status: Head(status, [TYPE]) for status in (400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 431, 500, 501, 503)
}
_UNAVAILABLE = Head(503, [TYPE, (b"retry-after", b"1")])


def problem_of(error: Exception) -> Problem:
    """Return the problem of an error."""
    if isinstance(error, UNREADABLE):
        error = _decoding(error)
    if isinstance(error, Unacceptable):
        return _problem(error.status, error.code, str(error), error.field)
    if isinstance(error, StoreError):
        problem = _problem(503, "store_unavailable", "the store cannot answer now: try again", None)
        problem.charged = error.charged
        return problem
    for kind, code, field in _KINDS:
        if isinstance(error, kind):
            detail = str(error)
            named = _FIRST_WORD.match(detail)
            return _problem(422, code, detail, named[0] if named and named[0] in _FIELDS else field)
    return _problem(500, "internal", "a fault of this server", None)


def answer_of(error: Exception) -> tuple[Head, bytes]:
    """Return the answer to a call that failed."""
    problem = problem_of(error)
    return _UNAVAILABLE if problem.status == 503 else _PROBLEMS[problem.status], encode(problem)


def note(where: str, error: Exception) -> None:
    """Log an internal error; errors of callers are not logged."""
    if not isinstance(error, (PenstockError, *UNREADABLE)):
        log.error("%s: internal error: %s", where, fault(error))


def _problem(status: int, code: str, detail: str, field: str | None) -> Problem:
    return Problem(REASONS[status], status, code, detail, UNSET if field is None else field)


# Messages of the decoder

_AT = re.compile(r" - at `\$\.?([A-Za-z_]*)[^`]*`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_WANTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_NAME = re.compile(r"[A-Za-z_]{1,32}")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
}


def _decoding(error: Exception) -> Unacceptable:
    if not isinstance(error, DecodeError):
        why = "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else "nested too deeply"
        return Unacceptable(400, "invalid_json", f"body: expected a JSON object ({why})")
    says = str(error)
    if not isinstance(error, ValidationError):
        return Unacceptable(400, "invalid_json", f"body: expected a JSON object ({_lowered(says)})")
    at = _AT.search(says)
    where = at[1] if at and at[1] else "body"
    field = None if where == "body" else where
    if missing := _MISSING.search(says):
        return Unacceptable(400, "missing_field", f"{missing[1]}: missing", missing[1])
    if unknown := _UNKNOWN.search(_AT.sub("", says)):
        # Quoted only if it looks like a name, because it could be an identity.
        name = unknown[1] if _NAME.fullmatch(unknown[1]) else None
        return Unacceptable(400, "unknown_field", f"{name or 'a field of the body'}: unknown", name)
    if wanted := _WANTED.search(says):
        return Unacceptable(400, "wrong_type", f"{where}: expected {_kinds(wanted[1])}, not {_kinds(wanted[2])}", field)
    return Unacceptable(400, "invalid_body", f"{where}: {_lowered(_AT.sub('', says))}", field)


def _kinds(names: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in names.split(" | "))


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:] if not text.startswith("JSON") else text

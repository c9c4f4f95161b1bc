"""Encode answers as HTTP/1.1."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.service.wire.calls import Head, Header
from penstock.service.wire.http1.head import Http1Request
from penstock.service.wire.problems import REASONS

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

SIZES = 1024


def length(size: int) -> bytes:
    """Return the last header, and the end of the head."""
    return b"content-length: %d\r\n\r\n" % size


LENGTHS = tuple(map(length, range(SIZES)))
"""The last header for all small bodies. Formatting the number costs more than the rest of an answer."""

_BODILESS = frozenset({204, 304})


def _lines(headers: Sequence[Header]) -> bytes:
    """Return headers as lines. A line end within a header would forge another one, so it raises ValueError."""
    joined = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not joined.count(b"\n") == joined.count(b"\r") == len(headers) or b"\0" in joined:
        raise ValueError("a header: expected a value without line ends or NUL")
    return joined


def _start(head: Head) -> bytes:
    """Return the status line and the headers that all answers of a head share."""
    return b"HTTP/1.1 %d %b\r\n" % (head.status, REASONS.get(head.status, "").encode()) + _lines(head.headers)


def encode_answer(request: Http1Request, head: Head, body: bytes, extra: Sequence[Header], date: bytes) -> bytes:
    """Encode an answer of any shape. It caches the start on the head, for the fast path of `Http1Call.answer`."""
    start = head.http1 or _start(head)
    parts = [start, _lines(extra), date]
    if not request.keep:
        parts.append(b"connection: close\r\n")
    elif request.old:
        parts.append(b"connection: keep-alive\r\n")
    if head.status in _BODILESS:
        parts.append(b"\r\n")
        return b"".join(parts)
    head.http1 = start
    parts.append(length(len(body)))
    if request.asked[0] != b"HEAD":
        parts.append(body)
    return b"".join(parts)

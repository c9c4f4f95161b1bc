"""Answers as bytes of HTTP/1.1."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from penstock.service.wire.calls import Head, Header
from penstock.service.wire.requests import Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_BODILESS = frozenset({204, 304})
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


def _lines(headers: Sequence[Header]) -> bytes:
    """Headers as lines. One that would break out of its line is a fault of whoever made it, never sent."""
    joined = b"".join([b"%b: %b\r\n" % header for header in headers])
    if not joined.count(b"\n") == joined.count(b"\r") == len(headers) or b"\0" in joined:
        raise ValueError("a header with a line end in it: expected one line each")
    return joined


def _start(head: Head) -> bytes:
    """Status line and headers, up to those that differ from answer to answer."""
    return b"HTTP/1.1 %d %b\r\n" % (head.status, _PHRASES.get(head.status, "").encode()) + _lines(head.headers)


def encode_answer(request: Request, head: Head, body: bytes, extra: Sequence[Header], date: bytes) -> bytes:
    """An answer of any shape. What it leaves on the head lets `http1` make those of the usual shape in one go."""
    parts = [head.http1 or _start(head), _lines(extra), date]
    if head.status in _BODILESS:
        body = b""
    else:
        head.http1 = parts[0]
        parts.append(b"content-length: %d\r\n" % len(body))
    if not request.keep:
        parts.append(b"connection: close\r\n")
    elif request.old:
        parts.append(b"connection: keep-alive\r\n")
    parts.append(b"\r\n")
    if request.method != b"HEAD":
        parts.append(body)
    return b"".join(parts)

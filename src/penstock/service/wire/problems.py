"""Error answers that the server gives before a handler sees the request: problem details with a code (RFC 9457)."""

from __future__ import annotations

import json
from http import HTTPStatus

from penstock.service.wire.calls import Head
from penstock.service.wire.limits import ServerLimits

REASONS = {status.value: status.phrase for status in HTTPStatus} | {
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    422: "Unprocessable Entity",
}
"""Reason phrases by status, the same on all versions of Python: 3.13 has renamed these."""


class RefusedRequest(Exception):
    """A request that is answered with an error.

    Over HTTP/1.1 the connection closes, because the start of the next request is not known.
    """

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail

    @property
    def head(self) -> Head:
        return Head(self.status, [(b"content-type", b"application/problem+json")])

    @property
    def body(self) -> bytes:
        problem = {"title": REASONS[self.status], "status": self.status, "code": self.code, "detail": self.detail}
        return json.dumps(problem, separators=(",", ":")).encode()


def internal_error() -> RefusedRequest:
    return RefusedRequest(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "a fault of this server")


def malformed(detail: str) -> RefusedRequest:
    """Refuse what is not HTTP, or what two servers could read in two ways."""
    return RefusedRequest(HTTPStatus.BAD_REQUEST, "malformed", detail)


def too_large(limit: int) -> RefusedRequest:
    detail = f"expected a body of at most {limit} bytes"
    return RefusedRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", detail)


def too_slow(seconds: float) -> RefusedRequest:
    detail = f"expected a request to be sent within {seconds:g} seconds"
    return RefusedRequest(HTTPStatus.REQUEST_TIMEOUT, "too_slow", detail)


def head_too_large(start: bytes, limit: int) -> RefusedRequest:
    """Refuse a head by its beginning, which shows whether the request line alone is too long."""
    if b"\r\n" not in start[:limit]:
        detail = f"expected a request line within a head of at most {limit} bytes"
        return RefusedRequest(HTTPStatus.REQUEST_URI_TOO_LONG, "target_too_long", detail)
    return _head_too_large(f"expected a head of at most {limit} bytes")


def fields_too_large(limits: ServerLimits) -> RefusedRequest:
    """Refuse a head of HTTP/2, which has too many fields or too large ones."""
    return _head_too_large(f"expected a head of at most {limits.head} bytes and {limits.headers} headers")


def _head_too_large(detail: str) -> RefusedRequest:
    return RefusedRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", detail)

"""What a server tells a peer whose request it cannot take: a problem with a code and a detail."""

from __future__ import annotations

import json
from http import HTTPStatus

from penstock.service.wire.calls import Head
from penstock.service.wire.http2.streams import Stream
from penstock.service.wire.limits import ServerLimits

# ---------------------------------------------------------------- refusals


# What a peer is told whose request is too large to be taken: in the words of gRPC, if it speaks that.


_GRPC = Head(200, [(b"content-type", b"application/grpc"), (b"grpc-status", b"8")])  # RESOURCE_EXHAUSTED
_PROBLEM = (b"content-type", b"application/problem+json")
_BODY = Head(413, [_PROBLEM])
_HEAD = Head(431, [_PROBLEM])


def refuse_body(stream: Stream, limits: ServerLimits) -> None:
    detail = b"expected a body of at most %d bytes" % limits.body
    if stream.request.grpc:
        stream.answer(_GRPC, b"", [(b"grpc-message", detail)])
    else:
        problem = b'{"title":"Request Entity Too Large","status":413,"code":"body_too_large","detail":"%b"}'
        stream.answer(_BODY, problem % detail)


def refuse_head(stream: Stream, limits: ServerLimits) -> None:
    problem = b'{"title":"Request Header Fields Too Large","status":431,"code":"head_too_large","detail":"%b"}'
    stream.answer(
        _HEAD, problem % b"expected a head of at most %d bytes and %d headers" % (limits.head, limits.headers)
    )


# ---------------------------------------------------------------- refusals


PROBLEM = (b"content-type", b"application/problem+json")


class RefusedRequest(Exception):
    """A request that is not handed on. Its connection closes, because where the next one would begin is not known."""

    def __init__(self, status: HTTPStatus, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail

    @property
    def head(self) -> Head:
        return Head(self.status, [PROBLEM])

    @property
    def body(self) -> bytes:
        problem = {"title": self.status.phrase, "status": self.status, "code": self.code, "detail": self.detail}
        return json.dumps(problem, separators=(",", ":")).encode()


def malformed(detail: str) -> RefusedRequest:
    """Not HTTP, or HTTP that two servers could read in two ways."""
    return RefusedRequest(HTTPStatus.BAD_REQUEST, "malformed", detail)


def too_large(limit: int) -> RefusedRequest:
    return RefusedRequest(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", f"expected a body of at most {limit} bytes"
    )


def too_slow(seconds: float) -> RefusedRequest:
    detail = f"expected a request to be sent within {seconds:g} seconds"
    return RefusedRequest(HTTPStatus.REQUEST_TIMEOUT, "too_slow", detail)


def head_too_large(start: bytes, limit: int) -> RefusedRequest:
    """`start`: the head, as much of it as has come."""
    if b"\r\n" not in start[:limit]:
        detail = f"expected a request line within a head of at most {limit} bytes"
        return RefusedRequest(HTTPStatus.REQUEST_URI_TOO_LONG, "target_too_long", detail)
    detail = f"expected a head of at most {limit} bytes"
    return RefusedRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", detail)

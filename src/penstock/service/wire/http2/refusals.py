"""What a peer is told whose request is too large to be taken: in the words of gRPC, if it speaks that."""

from __future__ import annotations

from penstock.service.wire.calls import Head
from penstock.service.wire.http2.streams import Stream
from penstock.service.wire.limits import Limits

_GRPC = Head(200, [(b"content-type", b"application/grpc"), (b"grpc-status", b"8")])  # RESOURCE_EXHAUSTED
_PROBLEM = (b"content-type", b"application/problem+json")
_BODY = Head(413, [_PROBLEM])
_HEAD = Head(431, [_PROBLEM])


def refuse_body(stream: Stream, limits: Limits) -> None:
    detail = b"expected a body of at most %d bytes" % limits.body
    if stream.request.grpc:
        stream.answer(_GRPC, b"", [(b"grpc-message", detail)])
    else:
        problem = b'{"title":"Request Entity Too Large","status":413,"code":"body_too_large","detail":"%b"}'
        stream.answer(_BODY, problem % detail)


def refuse_head(stream: Stream, limits: Limits) -> None:
    problem = b'{"title":"Request Header Fields Too Large","status":431,"code":"head_too_large","detail":"%b"}'
    stream.answer(
        _HEAD, problem % b"expected a head of at most %d bytes and %d headers" % (limits.head, limits.headers)
    )

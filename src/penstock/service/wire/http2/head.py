"""Header fields to a request, and the rules for well-formed requests: RFC 9113, section 8."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.service.wire.calls import Header
from penstock.service.wire.http2.frames import Code, StreamError

_FORBIDDEN = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_SPECIAL = (*_FORBIDDEN, b"te", b"content-length", b"content-type", b"cookie", b"expect", b"grpc-timeout", b"host")
_KNOWN = {**{name: place for place, name in enumerate(_PSEUDO)}, **dict.fromkeys(_SPECIAL, len(_PSEUDO))}

_timeout = re.compile(rb"(\d{1,8})([HMSmun])").fullmatch
_SECONDS = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Http2Request:
    """The head of a request; calls with the same fields share it.

    - `length`: of the body, from `content-length`.
    - `timeout`: seconds, from `grpc-timeout`.
    - `expects`: whether the peer waits for `100 Continue` before it sends the body.
    - `grpc`: whether errors take the form of gRPC rather than that of HTTP.
    """

    __slots__ = ("expects", "grpc", "headers", "length", "method", "path", "query", "timeout")

    def __init__(self, method: bytes, target: bytes) -> None:
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.headers: tuple[Header, ...] = ()
        self.length: int | None = None
        self.timeout: float | None = None
        self.expects = self.grpc = False


def read(fields: Sequence[Header]) -> Http2Request:
    """Return the request of these fields, each of which has passed `is_sound`."""
    pseudo: list[bytes | None] = [None, None, None, None]
    headers: list[Header] = []
    special: list[Header] = []
    for field in fields:
        name = field[0]
        place = _KNOWN.get(name)
        if place is None:
            if name[0] == 0x3A:  # a colon
                raise StreamError(Code.PROTOCOL_ERROR)
            headers.append(field)
        elif place == 4:
            headers.append(field)
            special.append(field)
        elif headers or pseudo[place] is not None:
            raise StreamError(Code.PROTOCOL_ERROR)
        else:
            pseudo[place] = field[1]
    method, scheme, target, authority = pseudo
    if not scheme or not method or not target or method == b"CONNECT" or target[0] != 0x2F:
        method, target = _unusual(method, scheme, target)
    request = Http2Request(method, target)
    _apply(request, special)
    if authority:
        if any(name == b"host" for name, _ in special):
            headers = _without_host(headers, authority)
        headers.insert(0, (b"host", authority))
    if sum(name == b"cookie" for name, _ in special) > 1:
        headers = _with_whole_cookie(headers)
    request.headers = tuple(headers)
    return request


def _unusual(method: bytes | None, scheme: bytes | None, target: bytes | None) -> tuple[bytes, bytes]:
    """Check a request whose target is no path: only `OPTIONS *` is allowed."""
    if method == b"CONNECT" and target is None and scheme is None:
        raise StreamError(Code.REFUSED_STREAM)  # this server is no proxy
    if method != b"OPTIONS" or target != b"*" or not scheme:
        raise StreamError(Code.PROTOCOL_ERROR)
    return method, target


def _apply(request: Http2Request, special: Sequence[Header]) -> None:
    """Apply the headers that concern the protocol."""
    for name, value in special:
        if name == b"content-type":
            request.grpc = value.startswith(b"application/grpc")
        elif name == b"grpc-timeout":
            request.timeout = _seconds(value)
        elif name == b"content-length":
            request.length = _length(value, request.length)
        elif name == b"expect":
            request.expects = value.lower() == b"100-continue"
        elif name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise StreamError(Code.PROTOCOL_ERROR)


def _without_host(headers: list[Header], authority: bytes) -> list[Header]:
    if any(name == b"host" and value != authority for name, value in headers):
        raise StreamError(Code.PROTOCOL_ERROR)
    return [field for field in headers if field[0] != b"host"]


def _with_whole_cookie(headers: list[Header]) -> list[Header]:
    """Join cookies, which HTTP/2 may split for better compression."""
    parts = [value for name, value in headers if name == b"cookie"]
    return [*(field for field in headers if field[0] != b"cookie"), (b"cookie", b"; ".join(parts))]


def check_trailers(fields: Sequence[Header]) -> None:
    """Check that trailers are well-formed. Their values are ignored."""
    if any(name[:1] == b":" or name in _FORBIDDEN for name, _ in fields):
        raise StreamError(Code.PROTOCOL_ERROR)


def _length(value: bytes, before: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        raise StreamError(Code.PROTOCOL_ERROR)
    return int(value)


def _seconds(value: bytes) -> float | None:
    match = _timeout(value)
    return int(match[1]) * _SECONDS[match[2]] if match else None  # an invalid timeout counts as none

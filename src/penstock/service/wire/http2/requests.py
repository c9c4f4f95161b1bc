"""From fields to a request, and what makes a request malformed: RFC 9113, section 8."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.service.wire.calls import Header
from penstock.service.wire.http2.frames import Code, StreamFault

_FORBIDDEN = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_PSEUDO = frozenset({b":method", b":scheme", b":path", b":authority"})
_SPECIAL = _FORBIDDEN | {b"te", b"content-length", b"content-type", b"cookie", b"expect", b"grpc-timeout", b"host"}

_timeout = re.compile(rb"(\d{1,8})([HMSmun])").fullmatch
_SECONDS = {b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Request:
    """What all calls with the same fields have in common.

    - `length`: of the body, if it was said.
    - `timeout`: seconds that the peer waits, if it said so.
    - `expects`: whether the peer waits for a word before it sends the body.
    - `grpc`: whether it wants gRPC's errors rather than those of HTTP.
    """

    __slots__ = ("expects", "grpc", "headers", "length", "method", "path", "query", "timeout")

    def __init__(self, method: bytes, target: bytes, headers: Sequence[Header]) -> None:
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.headers = tuple(headers)
        self.length: int | None = None
        self.timeout: float | None = None
        self.expects = self.grpc = False


def read(fields: Sequence[Header]) -> Request:
    """The request that these fields make, each of them sound by itself."""
    pseudo: dict[bytes, bytes] = {}
    headers: list[Header] = []
    special: list[Header] = []
    for field in fields:
        name = field[0]
        if name[0] == 0x3A:  # a colon
            if name in pseudo or headers or name not in _PSEUDO:
                raise StreamFault(Code.PROTOCOL_ERROR)
            pseudo[name] = field[1]
        else:
            headers.append(field)
            if name in _SPECIAL:
                special.append(field)
    method, target = _target(pseudo)
    if special:
        headers = _checked(headers, special)
    authority = pseudo.get(b":authority")
    if authority:
        _check_host(authority, special)
        headers = [(b"host", authority), *(field for field in headers if field[0] != b"host")]
    request = Request(method, target, headers)
    for name, value in special:
        if name == b"content-length":
            request.length = _length(value, request.length)
        elif name == b"grpc-timeout":
            request.timeout = _seconds(value)
        elif name == b"expect":
            request.expects = value.lower() == b"100-continue"
        elif name == b"content-type":
            request.grpc = value.startswith(b"application/grpc")
    return request


def check_trailers(fields: Sequence[Header]) -> None:
    """Nobody asks what the trailers of a request say; they have to be well-formed all the same."""
    if any(name[:1] == b":" or name in _FORBIDDEN for name, _ in fields):
        raise StreamFault(Code.PROTOCOL_ERROR)


def _target(pseudo: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    method, target = pseudo.get(b":method"), pseudo.get(b":path")
    if method == b"CONNECT":
        raise StreamFault(Code.REFUSED_STREAM if target is None else Code.PROTOCOL_ERROR)  # we are no proxy
    if not method or not target or not pseudo.get(b":scheme"):
        raise StreamFault(Code.PROTOCOL_ERROR)
    if target[0] != 0x2F and not (target == b"*" and method == b"OPTIONS"):
        raise StreamFault(Code.PROTOCOL_ERROR)
    return method, target


def _checked(headers: list[Header], special: list[Header]) -> list[Header]:
    crumbs = [value for name, value in special if name == b"cookie"]
    for name, value in special:
        if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            raise StreamFault(Code.PROTOCOL_ERROR)
    if len(crumbs) > 1:
        headers = [field for field in headers if field[0] != b"cookie"]
        headers.append((b"cookie", b"; ".join(crumbs)))
    return headers


def _check_host(authority: bytes, special: list[Header]) -> None:
    if any(name == b"host" and value != authority for name, value in special):
        raise StreamFault(Code.PROTOCOL_ERROR)


def _length(value: bytes, said: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or said not in (None, int(value)):
        raise StreamFault(Code.PROTOCOL_ERROR)
    return int(value)


def _seconds(value: bytes) -> float | None:
    match = _timeout(value)
    return int(match[1]) * _SECONDS[match[2]] if match else None  # who cannot say how long it waits, waits

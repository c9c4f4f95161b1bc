"""The head of an HTTP/1.1 request: bytes to a record. Pure, so that records can be cached by their bytes.

The parser is llhttp in its strict mode (by httptools). What it accepts is refused here where two servers in a row could
read it in two ways (request smuggling), or where it is not HTTP/1.1: see `read_request`.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NamedTuple

import httptools

from penstock.service.wire.calls import Header
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.problems import RefusedRequest, head_too_large, malformed, too_large

# One space each, visible ASCII, no fragment. llhttp accepts several spaces, RTSP, and HTTP/0.9 without a version.
_LINE = re.compile(rb"([A-Z-]+) ([!\"$-~]+) HTTP/([0-9]\.[0-9])\r\n")
_VERSIONS = frozenset({b"1.0", b"1.1"})
_OURS = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect", b"connection"})
_ABSOLUTE = re.compile(rb"https?://([^/?@]+)([/?].*)?", re.IGNORECASE)
_LONGEST_LENGTH = 20  # the digits of 2^64
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")


class Http1Request(NamedTuple):
    """The head of a request.

    - `asked`: method, path, query and headers.
    - `length`: of the body; -1 if it comes in chunks.
    - `keep`: whether another request may follow on the connection.
    - `expects`: whether the peer waits for a `100 Continue` before it sends the body.
    - `plain`: its answer has the usual shape: HTTP/1.1, `keep`, and not to HEAD.
    - `old`: HTTP/1.0.
    """

    asked: tuple[bytes, bytes, bytes, tuple[Header, ...]]
    length: int
    keep: bool
    expects: bool
    plain: bool
    old: bool


UNREAD = Http1Request((b"", b"", b"", ()), 0, keep=False, expects=False, plain=False, old=False)
"""Stands for a request that could not be read."""


class EmptyLine(Exception):
    """An empty line before a request, to be ignored (RFC 9112, 2.2)."""


class Requests(dict[bytes, Http1Request]):
    """A cache of requests by the bytes of their heads: clients repeat the same head on most requests.

    A head is cached when it comes for the second time, so that unique heads (with an id in them) displace nothing. The
    cache is bounded in number and in bytes. A look-up raises `RefusedRequest` for an invalid head and `EmptyLine` for
    one that begins with an empty line.
    """

    _MOST = 1024
    _LONGEST = 1024

    __slots__ = ("_limits", "_once")

    def __init__(self, limits: ServerLimits) -> None:
        super().__init__()
        self._limits = limits
        self._once: set[int] = set()  # hashes of heads that have come once

    def __missing__(self, head: bytes) -> Http1Request:
        if head.startswith(b"\r\n"):
            raise EmptyLine
        request = read_request(head, self._limits)
        if len(head) <= self._LONGEST:
            once, mark = self._once, hash(head)
            if mark not in once:
                if len(once) >= self._MOST:
                    once.clear()
                once.add(mark)
            else:
                if len(self) >= self._MOST:
                    self.clear()
                self[head] = request
        return request


class _Fields:
    """Collects the headers that httptools finds; `ours` are those that concern the protocol."""

    __slots__ = ("complete", "headers", "ours")

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.ours: list[Header] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        header = (name.lower(), value.rstrip(b" \t"))
        self.headers.append(header)
        if header[0] in _OURS:
            self.ours.append(header)

    def on_headers_complete(self) -> None:
        self.complete = True


def read_request(head: bytes, limits: ServerLimits) -> Http1Request:
    """Parse a head, from its first byte to the empty line that ends it. Raises `RefusedRequest`."""
    if len(head) > limits.head:
        raise head_too_large(head, limits.head)
    method, target, old = _line(head)
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # a server may ignore the upgrade
    except httptools.HttpParserError as error:
        if fields.complete:
            _framing(fields.ours, limits.body, old=old)  # names an unknown transfer coding in its error
        raise malformed(str(error)) from None
    if len(fields.headers) > limits.headers:
        detail = f"expected at most {limits.headers} headers"
        raise RefusedRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers", detail)
    length, keep, expects = _framing(fields.ours, limits.body, old=old)
    if target[:1] != b"/" and target != b"*":
        authority, target = _absolute(target)
        fields.headers = [(b"host", authority), *(header for header in fields.headers if header[0] != b"host")]
    path, _, query = target.partition(b"?")
    plain = keep and not old and method != b"HEAD"
    return Http1Request((method, path, query, tuple(fields.headers)), length, keep, expects, plain, old)


def _line(head: bytes) -> tuple[bytes, bytes, bool]:
    """Return method, target, and whether the request is HTTP/1.0."""
    line = _LINE.match(head)
    if line is None:
        raise malformed("expected a request line: method, target, HTTP/1.1")
    method, target, version = line.groups()
    if version not in _VERSIONS:
        raise RefusedRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "version", "expected HTTP/1.1 or HTTP/1.0")
    if target == b"*" and method != b"OPTIONS":
        raise malformed("expected a path: * is for OPTIONS alone")
    if method == b"CONNECT":
        raise RefusedRequest(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "CONNECT: this server is no proxy")
    return method, target, version == b"1.0"


def _framing(headers: list[Header], limit: int, *, old: bool) -> tuple[int, bool, bool]:
    """Return `length`, `keep` and `expects` of the request."""
    hosts, length, expects = 0, 0, False
    options: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                raise malformed("Host: expected a name or address, and perhaps a port")
        elif name == b"content-length":
            length = _length(value)
        elif name == b"transfer-encoding":
            length = _chunked(value, old=old)
        elif name == b"connection":
            options += [option.strip(b" \t") for option in value.lower().split(b",")]
        elif value.lower() == b"100-continue":
            expects = not old
        else:
            raise RefusedRequest(HTTPStatus.EXPECTATION_FAILED, "expectation", "Expect: expected 100-continue")
    if hosts != 1 and not (old and hosts == 0):
        raise malformed(f"expected one Host header, got {hosts}")
    if length > limit:
        raise too_large(limit)
    keep = b"close" not in options and (not old or b"keep-alive" in options)
    return length, keep, expects


def _length(value: bytes) -> int:
    """Parse Content-Length. llhttp has checked that it is the only one and below 2^64, but not its leading zeros."""
    if len(value) > _LONGEST_LENGTH:
        raise malformed(f"Content-Length: expected at most {_LONGEST_LENGTH} digits")
    return int(value)


def _chunked(coding: bytes, *, old: bool) -> int:
    if old:
        raise malformed("Transfer-Encoding: expected none in HTTP/1.0")
    if coding.lower() != b"chunked":
        detail = "Transfer-Encoding: expected chunked alone"
        raise RefusedRequest(HTTPStatus.NOT_IMPLEMENTED, "transfer_coding", detail)
    return -1


def _absolute(target: bytes) -> tuple[bytes, bytes]:
    """Return authority and path of a URL. The authority overrides the Host header (RFC 9112, 3.2.2)."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or _HOST.fullmatch(absolute[1]) is None:
        raise malformed("expected a target that is a path, or a URL of http or https")
    path = absolute[2] or b"/"
    return absolute[1], path if path[:1] == b"/" else b"/" + path

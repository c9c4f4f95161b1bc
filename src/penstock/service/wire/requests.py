"""The head of an HTTP/1.1 request: bytes to a record. Pure, so that a head that was seen before need not be read again.

The grammar is llhttp's, in its strict mode (by httptools). What it lets pass is refused here where two servers in a
row could read it in two ways, or where it is not HTTP/1.1: see `read_request`.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import NamedTuple

import httptools

from penstock.service.wire.calls import Header
from penstock.service.wire.limits import Limits
from penstock.service.wire.refusals import Refused, head_too_large, malformed, too_large

# One space each, visible ASCII, no fragment. llhttp would take several spaces, RTSP, and HTTP/0.9 without a version.
_LINE = re.compile(rb"([A-Z-]+) ([!\"$-~]+) HTTP/([0-9])\.([0-9])\r\n")
_ABSOLUTE = re.compile(rb"https?://([^/?@]+)([^?]*)(.*)", re.IGNORECASE)
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]*")


class Request(NamedTuple):
    """What the head of a request says.

    - `length`: of the body; -1 if it comes in chunks.
    - `keep`: whether another request may follow on the connection.
    - `expects`: whether the peer waits for a `100 Continue` before it sends the body.
    - `plain`: HTTP/1.1, `keep`, and not HEAD: there is nothing special about its answer.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: tuple[Header, ...]
    length: int
    keep: bool
    expects: bool
    plain: bool
    old: bool = False  # HTTP/1.0


UNREAD = Request(b"", b"", b"", (), 0, keep=False, expects=False, plain=False)
"""Stands for a request that could not be read."""


class Requests(dict[bytes, Request]):
    """Requests by their heads. Clients send the same head all day, byte for byte: it is read once.

    Bounded in number and in bytes, so that heads which never come again cost little. Looking up one that cannot be
    taken raises `Refused`.
    """

    _MOST = 1024
    _LONGEST = 1024

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def __missing__(self, head: bytes) -> Request:
        request = read_request(head, self._limits)
        if len(head) <= self._LONGEST:
            if len(self) >= self._MOST:
                self.clear()
            self[head] = request
        return request


class _Fields:
    """Gathers what httptools finds."""

    __slots__ = ("complete", "headers")

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True


def read_request(head: bytes, limits: Limits) -> Request:
    """Read a head, from its first byte to the empty line that ends it. Raises `Refused`."""
    if len(head) > limits.head:
        raise head_too_large(head, limits.head)
    method, target, old = _line(head)
    fields = _Fields()
    parser = httptools.HttpRequestParser(fields)
    flaw = ""
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # answered as if no upgrade had been asked for, as a server may
    except httptools.HttpParserError as error:
        flaw = str(error)
        if not fields.complete:
            raise malformed(flaw) from None
    if len(fields.headers) > limits.headers:
        detail = f"expected at most {limits.headers} headers"
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers", detail)
    length = _length(fields.headers, limits.body, old=old)
    if flaw:
        raise malformed(flaw)
    authority, path, query = _target(method, target)
    headers = _with_host(fields.headers, authority, old=old)
    keep = parser.should_keep_alive()
    return Request(
        method,
        path,
        query,
        tuple(headers),
        length,
        keep=keep,
        expects=not old and length != 0 and _expects(headers),
        plain=keep and not old and method != b"HEAD",
        old=old,
    )


def _line(head: bytes) -> tuple[bytes, bytes, bool]:
    """Method, target, and whether it is HTTP/1.0."""
    line = _LINE.match(head)
    if line is None:
        raise malformed("expected a request line: method, target, HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != b"1" or minor > b"1":
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "version", "expected HTTP/1.1 or HTTP/1.0")
    if method == b"CONNECT":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "CONNECT: this server is no proxy")
    return method, target, minor == b"0"


def _target(method: bytes, target: bytes) -> tuple[bytes, bytes, bytes]:
    """Authority (if the target names one), path and query."""
    authority = b""
    if target[:1] != b"/":
        if target == b"*" and method == b"OPTIONS":
            return b"", target, b""
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise malformed("expected a target that is a path, or a URL of http or https")
        authority, path, rest = absolute.groups()
        target = (path or b"/") + rest
    path, _, query = target.partition(b"?")
    return authority, path, query


def _with_host(headers: list[Header], authority: bytes, *, old: bool) -> list[Header]:
    """The headers, checked to name one host; a target's authority stands in its place, as RFC 9112, 3.2.2 has it."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or not (hosts or old):
        raise malformed(f"expected one Host header, got {len(hosts)}")
    if not all(_HOST.fullmatch(host) for host in (*hosts, authority)):
        raise malformed("Host: expected a name or address, and perhaps a port")
    if authority:
        headers = [(b"host", authority), *(header for header in headers if header[0] != b"host")]
    return headers


def _length(headers: list[Header], limit: int, *, old: bool) -> int:
    """The length of the body, or -1 if it comes in chunks."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            if old:
                raise malformed("Transfer-Encoding: expected none in HTTP/1.0")
            if value.lower() != b"chunked":
                detail = "Transfer-Encoding: expected chunked alone"
                raise Refused(HTTPStatus.NOT_IMPLEMENTED, "transfer_coding", detail)
            length = -1
        elif name == b"content-length":
            length = int(value)  # llhttp has seen that it is one, made of digits, and the only one
    if length > limit:
        raise too_large(limit)
    return length


def _expects(headers: list[Header]) -> bool:
    expected = [value.lower() for name, value in headers if name == b"expect"]
    if expected and expected != [b"100-continue"]:
        raise Refused(HTTPStatus.EXPECTATION_FAILED, "expectation", "Expect: expected 100-continue")
    return bool(expected)

"""The client's half of HTTP/1.1 without I/O: requests, replies read from bytes, and what replies say about a service.

Replies come in the order of the requests. A reply that is malformed, too large or without a length ends the connection,
because the start of the next reply would be unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.engine.breaker import Limits
from penstock.engine.guard import Guard
from penstock.errors import InvalidOption, StoreError, shown
from penstock.events import Hook
from penstock.model import Failed

MAX_HEAD = 65_536
MAX_BODY = 16 * 1_048_576
MAX_SIZE_LINE = 1_024
BODILESS = (204, 304)


class BadReply(Exception):
    """The bytes are not HTTP/1.1, or more than a service sends."""


class ApiReply(NamedTuple):
    """One reply; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Replies:
    """Collects bytes until they are replies. `last` is true once the peer announced that it sends no more."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._head: tuple[int, dict[str, str]] | None = None
        self._length: int | None = None  # None: the body comes in chunks
        self._chunks = bytearray()
        self.last = False

    def feed(self, data: bytes) -> list[ApiReply]:
        """Return the replies that `data` completes."""
        self._bytes += data
        found: list[ApiReply] = []
        while not self.last:
            if self._head is None and not self._read_head():
                break
            body = self._read_chunks() if self._length is None else self._read_plain(self._length)
            if body is None or self._head is None:
                break
            status, headers = self._head
            self._head = None
            if status >= 200:  # others are informational: the reply follows
                found.append(ApiReply(status, headers, body))
                self.last = headers.get("connection", "").lower() == "close"
        return found

    def _read_head(self) -> bool:
        end = self._bytes.find(b"\r\n\r\n")
        if end < 0:
            if len(self._bytes) > MAX_HEAD:
                raise BadReply(f"a head of more than {MAX_HEAD} bytes")
            return False
        first, *lines = bytes(self._bytes[:end]).decode("latin-1").split("\r\n")
        del self._bytes[: end + 4]
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit() and len(status) == 3):
            raise BadReply("not HTTP/1.1")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadReply("a header without a name")
            headers[name.lower()] = value.strip()
        self._head = int(status), headers
        self._length = _length(int(status), headers)
        return True

    def _read_plain(self, length: int) -> bytes | None:
        if len(self._bytes) < length:
            return None
        body = bytes(self._bytes[:length])
        del self._bytes[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        """Return the body, once its last chunk is there."""
        while True:
            end = self._bytes.find(b"\r\n", 0, MAX_SIZE_LINE)
            if end < 0:
                if len(self._bytes) >= MAX_SIZE_LINE:
                    raise BadReply("a chunk without a size")
                return None
            size = _chunk_size(bytes(self._bytes[:end]))
            if len(self._chunks) + size > MAX_BODY:
                raise BadReply(f"a body of more than {MAX_BODY} bytes")
            start = end + 2
            if len(self._bytes) < start + size + 2:
                return None
            if self._bytes[start + size : start + size + 2] != b"\r\n":
                raise BadReply("a chunk that does not end (trailers are not understood)")
            self._chunks += self._bytes[start : start + size]
            del self._bytes[: start + size + 2]
            if size == 0:
                body, self._chunks = bytes(self._chunks), bytearray()
                return body


def _length(status: int, headers: dict[str, str]) -> int | None:
    """Return the length of the body; None if it comes in chunks."""
    if status < 200 or status in BODILESS:
        return 0
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
            raise BadReply("a body of unknown coding")
        return None
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise BadReply("a body of unknown length")
    if int(length) > MAX_BODY:
        raise BadReply(f"a body of more than {MAX_BODY} bytes")
    return int(length)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 16 or digits.translate(None, b"0123456789abcdefABCDEF"):
        raise BadReply("a chunk without a size")
    return int(digits, 16)


DEFAULT_TIMEOUT = 0.25
"""Seconds that a call may take, connecting included."""

LONGEST_TIMEOUT = 3_600
UNWELL = (500, 502, 504)

log = logging.getLogger("penstock.client")


class ApiRequest(NamedTuple):
    """One request.

    - `body`: JSON to POST; None to GET.
    - `safe`: the request may be repeated if its reply is lost, because the second time changes nothing.
    """

    path: bytes
    body: bytes | None
    safe: bool


class Lost(NamedTuple):
    """The outcome of a request without a reply. `ended`: the connection ended, so another one may do better."""

    why: str
    charged: Literal["no", "unknown"]
    ended: bool = False


ReplyOrLost: TypeAlias = ApiReply | Lost


def to_retry(requests: Sequence[ApiRequest], replies: Sequence[ReplyOrLost]) -> list[int]:
    """Return the positions to send again: their connection ended, and they were not taken or may be repeated."""
    return [
        position
        for position, (request, reply) in enumerate(zip(requests, replies, strict=True))
        if isinstance(reply, Lost) and reply.ended and (reply.charged == "no" or request.safe)
    ]


class ServiceGuard(Guard):
    """Watches the calls to one service, and limits how long they may take."""

    def __init__(self, place: str, timeout: float, hook: Hook) -> None:
        self.timeout = check_timeout(timeout)
        limits = Limits(slow=timeout, probing=max(timeout * 2, 1.0))
        super().__init__(place, f"service at {place}", limits, hook, log)

    def refusal(self, now: float) -> Lost | None:
        """Return None if a call may be made now, else the reply to return in its place."""
        if not self.shut or self.admits(now):
            return None
        return Lost(f"not asked, because of {self.breaker.why}", "no")

    def record(self, replies: Sequence[ReplyOrLost], began: float, now: float) -> None:
        """Record the replies to requests that were sent together."""
        lost = [one.why for one in replies if isinstance(one, Lost)]
        unwell = [f"status {one.status}" for one in replies if isinstance(one, ApiReply) and one.status in UNWELL]
        if lost or unwell:
            self.failed(began, now, (lost + unwell)[0])
        else:
            self.succeeded(began, now)

    def within(self, deadline: Micros | None) -> float:
        """Return how many seconds a call may take."""
        return self.timeout if deadline is None else min(self.timeout, deadline / SECOND)

    def failure(self, lost: Lost) -> Failed:
        """Return the outcome of an operation that was lost."""
        return Failed(StoreError(f"service at {self.place}: {lost.why}", transient=True), lost.charged)


def check_timeout(timeout: float) -> float:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout <= LONGEST_TIMEOUT:
        raise InvalidOption(f"timeout {shown(timeout)}: expected seconds, more than 0 and at most {LONGEST_TIMEOUT}")
    return float(timeout)

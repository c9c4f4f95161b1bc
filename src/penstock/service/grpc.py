"""Unary gRPC methods over calls: from the framing of messages to batches of them.

A method gets all messages that arrived in one turn of the event loop, and answers or fails each, now or later. A call
without a readable message is answered here, with the status that the gRPC specification demands.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Protocol
from urllib.parse import quote_from_bytes

from penstock.clock import monotonic
from penstock.errors import fault
from penstock.service.wire.calls import Call, Head, Header, Peer

__all__ = ["Grpc", "Message", "Method", "Status"]

log = logging.getLogger("penstock.service")

_PREFIX = Struct(">BI")  # of a message: whether it is compressed, and its length
_prefix, _prefix_of = _PREFIX.pack, _PREFIX.unpack_from


class Status(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class UnreadableMessage(Exception):
    """A body without a readable message, and the status with which the call fails."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def pack(data: bytes) -> bytes:
    """Frame a message."""
    return _prefix(0, len(data)) + data


def pack_gzip(data: bytes) -> bytes:
    """Frame a message, compressed with gzip."""
    packed = gzip.compress(data, 6, mtime=0)
    return _prefix(1, len(packed)) + packed


def encoding_of(headers: Sequence[Header]) -> bytes | None:
    """Return the compression of messages, or None if this is no gRPC call."""
    encoding, grpc = b"identity", False
    for name, value in headers:
        if name == b"content-type":
            grpc = value == b"application/grpc" or value.startswith((b"application/grpc+", b"application/grpc;"))
        elif name == b"grpc-encoding":
            encoding = value
    return encoding if grpc else None


def unpack(body: bytes, encoding: bytes, largest: int) -> bytes:
    """Return the one message of a body. Raises `UnreadableMessage`."""
    if len(body) < 5:
        raise UnreadableMessage(Status.INTERNAL, "expected a message, got none" if not body else "a message ends early")
    packed, length = _prefix_of(body)
    if length > largest:
        raise UnreadableMessage(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes: expected at most {largest}")
    if length + 5 != len(body):
        raise UnreadableMessage(
            Status.INTERNAL, "a message ends early" if length + 5 > len(body) else "expected one message"
        )
    if not packed:
        return body[5:]
    if packed != 1:
        raise UnreadableMessage(Status.INTERNAL, f"a message flagged {packed}: expected 0 or 1")
    if encoding != b"gzip":
        raise UnreadableMessage(Status.INTERNAL, "a compressed message without a grpc-encoding")
    return _gunzip(body[5:], largest)


def _gunzip(data: bytes, largest: int) -> bytes:
    """Decompress up to `largest` bytes, so that a small message cannot grow without bound."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        message = unpacker.decompress(data, largest + 1)
    except zlib.error:
        raise UnreadableMessage(Status.INTERNAL, "a compressed message: expected gzip") from None
    if len(message) > largest:
        raise UnreadableMessage(Status.RESOURCE_EXHAUSTED, f"a decompressed message: expected at most {largest} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise UnreadableMessage(Status.INTERNAL, "a compressed message: expected gzip")
    return message


TYPE = (b"content-type", b"application/grpc")
ANSWER = Head(200, [TYPE], [(b"grpc-status", b"0")])
ANSWER_GZIP = Head(200, [TYPE, (b"grpc-encoding", b"gzip")], [(b"grpc-status", b"0")])
FAILURES = {int(status): Head(200, [TYPE, (b"grpc-status", b"%d" % status)]) for status in Status if status}
NOT_GRPC = Head(415, [(b"content-type", b"text/plain")])
ENCODINGS = (b"grpc-accept-encoding", b"identity,gzip")

MIN_GZIP = 1_024
"""Bytes. A shorter answer is sent uncompressed, even if the request was compressed."""


class Message:
    """A request message, decompressed, and its call."""

    __slots__ = ("_call", "_gzip", "data", "expires")

    def __init__(self, call: Call, data: bytes, gzip: bool) -> None:
        self._call, self.data, self._gzip = call, data, gzip
        self.expires: float | None = call.expires
        """The deadline of the peer, if it sent one, as an instant of `penstock.clock.monotonic`."""

    @property
    def metadata(self) -> Sequence[Header]:
        """The headers of the call. Values of names that end in `-bin` are still in base 64."""
        return self._call.headers

    @property
    def peer(self) -> Peer:
        return self._call.peer

    @property
    def gone(self) -> bool:
        """Whether the peer no longer waits for an answer. An answer is then dropped."""
        return self._call.gone

    def answer(self, data: bytes) -> None:
        """Answer with a message and status OK. Only the first answer or failure counts."""
        if self._gzip and len(data) >= MIN_GZIP:
            self._call.answer(ANSWER_GZIP, pack_gzip(data))
        else:
            self._call.answer(ANSWER, _prefix(0, len(data)) + data)

    def fail(self, status: int, text: str = "") -> None:
        """Answer with a status other than OK. The text must hold no keys and no secrets."""
        fail(self._call, status, text)


class Method(Protocol):
    """A method of a service."""

    @property
    def path(self) -> bytes:
        """The path of the method, such as `/package.Service/Method`."""

    def handle(self, messages: list[Message]) -> None:
        """Answer or fail each message, now or later. Must not block. If it raises, the rest fails as `INTERNAL`."""


class Grpc:
    """A handler of calls over methods. `largest`: the most bytes of a message, decompressed."""

    def __init__(self, methods: Iterable[Method], *, largest: int = 4_194_304) -> None:
        self._methods = {method.path: method for method in methods}
        self._largest = largest
        # The headers of the latest call. Repeated headers of a connection are the same object, so they are read once.
        self._headers: Sequence[Header] = ()
        self._encoding: bytes | None = None

    def handle(self, calls: list[Call]) -> None:
        now = monotonic()
        shares: defaultdict[bytes, list[Message]] = defaultdict(list)
        for call in calls:
            if call.expires is not None and call.expires <= now:
                fail(call, Status.DEADLINE_EXCEEDED, "no time left")
                continue
            message = self._message(call)
            if message is None:
                continue
            shares[call.path].append(message)
        for path, messages in shares.items():
            try:
                self._methods[path].handle(messages)
            except Exception as error:
                log.error("a batch of %s messages: %s", len(messages), fault(error))
                for message in messages:
                    message.fail(Status.INTERNAL, "a fault of this server")  # ignored by those answered already

    def _message(self, call: Call) -> Message | None:
        """Return the message of a call, or answer the call with an error and return None."""
        if call.headers is not self._headers:
            self._headers, self._encoding = call.headers, encoding_of(call.headers)
        encoding = self._encoding
        if encoding is None or call.method != b"POST":
            call.answer(NOT_GRPC, b"expected a POST of application/grpc\n")
        elif call.path not in self._methods:
            fail(call, Status.UNIMPLEMENTED, "unknown method")
        elif encoding not in (b"identity", b"gzip"):
            fail(call, Status.UNIMPLEMENTED, "unknown grpc-encoding", ENCODINGS)
        else:
            try:
                return Message(call, unpack(call.body, encoding, self._largest), encoding == b"gzip")
            except UnreadableMessage as reason:
                fail(call, reason.status, reason.text)
        return None


def fail(call: Call, status: int, text: str, *extra: Header) -> None:
    """Answer a call with a status other than OK. An unknown status becomes `UNKNOWN`."""
    if text:
        extra = (*extra, (b"grpc-message", quote_from_bytes(text.encode(), safe=_PLAIN).encode()))
    call.answer(FAILURES.get(status) or FAILURES[Status.UNKNOWN], b"", extra)


_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))
"""The bytes that a `grpc-message` may hold unencoded; others are percent-encoded."""

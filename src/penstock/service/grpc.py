"""gRPC over calls: unary methods take messages in batches, as handlers take calls.

A method neither sees HTTP nor waits: it gets the messages that came in during one turn of the event loop, and answers
or fails each, now or later. What is wrong with a call before its message can be read is answered here, with the status
that the specification of gRPC over HTTP/2 asks for.
"""

from __future__ import annotations

import gzip
import logging
import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Protocol
from urllib.parse import quote_from_bytes

from penstock.clock import monotonic
from penstock.errors import fault
from penstock.service.wire.calls import Call, Head, Header, Peer

# ---------------------------------------------------------------- grpc framing


# How gRPC puts a message into the body of a call: a flag, a length, and the message, packed or as it is. Pure.


_PREFIX = Struct(">BI")
_prefix, _prefix_of = _PREFIX.pack, _PREFIX.unpack_from


class Status(IntEnum):
    """The codes of gRPC."""

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
    """A body holds no message that we can read: with which status the call fails, and a word on why."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def pack(data: bytes) -> bytes:
    """A message as it is."""
    return _prefix(0, len(data)) + data


def pack_gzip(data: bytes) -> bytes:
    """A message packed by gzip."""
    packed = gzip.compress(data, 6, mtime=0)
    return _prefix(1, len(packed)) + packed


def encoding_of(headers: Sequence[Header]) -> bytes | None:
    """How packed messages are packed; None where this is no call of gRPC at all."""
    encoding, grpc = b"identity", False
    for name, value in headers:
        if name == b"content-type":
            grpc = value == b"application/grpc" or value.startswith((b"application/grpc+", b"application/grpc;"))
        elif name == b"grpc-encoding":
            encoding = value
    return encoding if grpc else None


def unpack(body: bytes, encoding: bytes, largest: int) -> bytes:
    """The one message of a body, or the reason why there is none."""
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
        raise UnreadableMessage(Status.INTERNAL, "a packed message without a grpc-encoding")
    return _gunzip(body[5:], largest)


def _gunzip(data: bytes, largest: int) -> bytes:
    """Unpacks no more than it may, so that a small message cannot grow without bound."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        message = unpacker.decompress(data, largest + 1)
    except zlib.error:
        raise UnreadableMessage(Status.INTERNAL, "a packed message: expected gzip") from None
    if len(message) > largest:
        raise UnreadableMessage(Status.RESOURCE_EXHAUSTED, f"an unpacked message: expected at most {largest} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise UnreadableMessage(Status.INTERNAL, "a packed message: expected gzip")
    return message


# ---------------------------------------------------------------- grpc


__all__ = ["Grpc", "Message", "Method", "Status"]

log = logging.getLogger("penstock.service")

TYPE = (b"content-type", b"application/grpc")
ANSWER = Head(200, [TYPE], [(b"grpc-status", b"0")])
ANSWER_GZIP = Head(200, [TYPE, (b"grpc-encoding", b"gzip")], [(b"grpc-status", b"0")])
FAILURES = {int(status): Head(200, [TYPE, (b"grpc-status", b"%d" % status)]) for status in Status if status}
NOT_GRPC = Head(415, [(b"content-type", b"text/plain")])
ENCODINGS = (b"grpc-accept-encoding", b"identity,gzip")

WORTH_PACKING = 1_024
"""Bytes: a shorter answer is sent as it is, even to who packs its questions."""


class Message:
    """A question to a method. `data` is what was sent, unpacked."""

    __slots__ = ("_call", "_gzip", "data")

    def __init__(self, call: Call, data: bytes, gzip: bool) -> None:
        self._call, self.data, self._gzip = call, data, gzip

    @property
    def metadata(self) -> Sequence[Header]:
        """Whatever headers came with it; the value of a name that ends in `-bin` is still in base 64."""
        return self._call.headers

    @property
    def expires(self) -> float | None:
        """When the peer gives up waiting, if it said so, as an instant of `penstock.clock.monotonic`."""
        return self._call.expires

    @property
    def peer(self) -> Peer:
        return self._call.peer

    @property
    def gone(self) -> bool:
        """Whether nobody waits for an answer any more. Answering all the same does no harm."""
        return self._call.gone

    def answer(self, data: bytes) -> None:
        """Answer with a message and status OK. Only the first answer or failure counts."""
        if self._gzip and len(data) >= WORTH_PACKING:
            self._call.answer(ANSWER_GZIP, pack_gzip(data))
        else:
            self._call.answer(ANSWER, pack(data))

    def fail(self, status: int, text: str = "") -> None:
        """Answer with a status other than OK. The text is for people: no keys, no secrets."""
        fail(self._call, status, text)


class Method(Protocol):
    """Who answers the messages of one method."""

    @property
    def path(self) -> bytes:
        """Such as `/package.Service/Method`."""

    def handle(self, messages: list[Message]) -> None:
        """Answer or fail each of them, now or later. Never blocks. If it raises, the unanswered fail as `INTERNAL`."""


class Grpc:
    """A handler of calls made of methods. `largest` is the most bytes that a message may have, unpacked."""

    def __init__(self, methods: Iterable[Method], *, largest: int = 4_194_304) -> None:
        self._methods = {method.path: method for method in methods}
        self._largest = largest
        # Those of the latest call: a connection that repeats its headers hands them over as the same object.
        self._headers: Sequence[Header] = ()
        self._encoding: bytes | None = None

    def handle(self, calls: list[Call]) -> None:
        now = monotonic()
        shares: dict[bytes, list[Message]] = {}
        for call in calls:
            if call.expires is not None and call.expires <= now:
                fail(call, Status.DEADLINE_EXCEEDED, "no time left")
                continue
            message = self._message(call)
            if message is None:
                continue
            share = shares.get(call.path)
            if share is None:
                share = shares[call.path] = []
            share.append(message)
        for path, messages in shares.items():
            self._hand_over(self._methods[path], messages)

    def _message(self, call: Call) -> Message | None:
        """The message of a call; where there is none that we could hand over, the call is answered instead."""
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

    def _hand_over(self, method: Method, messages: list[Message]) -> None:
        try:
            method.handle(messages)
        except Exception as error:
            log.error("a batch of %s messages: %s", len(messages), fault(error))
            for message in messages:
                message.fail(Status.INTERNAL, "a fault of this server")  # those answered take no second answer


def fail(call: Call, status: int, text: str, *extra: Header) -> None:
    """Answer a call with a status other than OK; one that gRPC does not know becomes `UNKNOWN`."""
    if text:
        extra = (*extra, (b"grpc-message", quote_from_bytes(text.encode(), safe=_PLAIN).encode()))
    call.answer(FAILURES.get(status) or FAILURES[Status.UNKNOWN], b"", extra)


_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))
"""What a `grpc-message` may hold as it is; anything else is percent-encoded."""

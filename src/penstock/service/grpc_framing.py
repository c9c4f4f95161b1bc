"""How gRPC puts a message into the body of a call: a flag, a length, and the message, packed or as it is. Pure."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

from penstock.service.wire.calls import Header

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


class Unreadable(Exception):
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
        raise Unreadable(Status.INTERNAL, "expected a message, got none" if not body else "a message ends early")
    packed, length = _prefix_of(body)
    if length > largest:
        raise Unreadable(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes: expected at most {largest}")
    if length + 5 != len(body):
        raise Unreadable(Status.INTERNAL, "a message ends early" if length + 5 > len(body) else "expected one message")
    if not packed:
        return body[5:]
    if packed != 1:
        raise Unreadable(Status.INTERNAL, f"a message flagged {packed}: expected 0 or 1")
    if encoding != b"gzip":
        raise Unreadable(Status.INTERNAL, "a packed message without a grpc-encoding")
    return _gunzip(body[5:], largest)


def _gunzip(data: bytes, largest: int) -> bytes:
    """Unpacks no more than it may, so that a small message cannot grow without bound."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        message = unpacker.decompress(data, largest + 1)
    except zlib.error:
        raise Unreadable(Status.INTERNAL, "a packed message: expected gzip") from None
    if len(message) > largest:
        raise Unreadable(Status.RESOURCE_EXHAUSTED, f"an unpacked message: expected at most {largest} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise Unreadable(Status.INTERNAL, "a packed message: expected gzip")
    return message

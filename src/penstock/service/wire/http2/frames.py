"""Frames of HTTP/2, its error codes and its settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes that a client sends."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

HEAD = 9
"""Bytes of a frame before its payload."""
FRAME_SIZE = 16_384
"""The largest payload: the default of the protocol, which every peer accepts."""
WINDOW = 65_535
"""The initial window of connections and streams."""
LARGEST = 0x7FFF_FFFF
"""The largest window, and the largest stream number."""

_HEAD = Struct(">IBI")
frame_head = _HEAD.pack
"""Pack `length << 8 | kind`, flags and stream."""
read_head = _HEAD.unpack_from
_PAIR = Struct(">HI")
_NUMBER = Struct(">I")
read_number = _NUMBER.unpack_from


class Code(IntEnum):
    """The error codes of the protocol."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class SettingId(IntEnum):
    """The settings that each side announces."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class SessionError(Exception):
    """A connection error: the peer broke the protocol, and the connection ends."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class StreamError(Exception):
    """A stream error: the peer broke the protocol, and one stream is reset."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload) << 8 | kind, flags, stream) + payload


def settings(pairs: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(*pair) for pair in pairs))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield each setting, checked. Whether a new window overflows those of open streams is left to `Streams`."""
    if len(payload) % _PAIR.size:
        raise SessionError(Code.FRAME_SIZE_ERROR, "SETTINGS: expected whole pairs")
    for name, value in _PAIR.iter_unpack(payload):
        if name == SettingId.ENABLE_PUSH and value > 1:
            raise SessionError(Code.PROTOCOL_ERROR, f"ENABLE_PUSH {value}: expected 0 or 1")
        if name == SettingId.INITIAL_WINDOW_SIZE and value > LARGEST:
            raise SessionError(Code.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {value}: expected at most {LARGEST}")
        if name == SettingId.MAX_FRAME_SIZE and not FRAME_SIZE <= value < 1 << 24:
            raise SessionError(Code.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}: expected {FRAME_SIZE} to {(1 << 24) - 1}")
        yield name, value


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(more))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(last: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + text.encode())


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise SessionError(Code.FRAME_SIZE_ERROR, "padding: expected its length")
    length = len(payload) - payload[0]
    if length < 1:
        raise SessionError(Code.PROTOCOL_ERROR, "padding: expected less than the payload")
    return payload[1:length]

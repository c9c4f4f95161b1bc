"""The other side of a session of HTTP/2: says what a test wants it to say, and reads what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import hpack

from penstock.service.wire.calls import Call, Head, Header, Openers, Peer
from penstock.service.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Code,
    frame,
    read_head,
    read_number,
    settings,
)
from penstock.service.wire.http2.session import Session
from penstock.service.wire.limits import ServerLimits

GET: tuple[Header, ...] = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"here"))
POST: tuple[Header, ...] = ((b":method", b"POST"), *GET[1:])
TEXT = Head(200, [(b"content-type", b"text/plain")])
GREETING = PREFACE + settings([])


class Frame(NamedTuple):
    """A frame that was sent to the peer."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> Code:
        """Of RST_STREAM and GOAWAY."""
        return Code(read_number(self.payload, 4 if self.kind == GOAWAY else 0)[0])


def frames_of(data: bytes) -> list[Frame]:
    """All frames of some bytes, which must be whole."""
    frames, at = [], 0
    while at < len(data):
        sized, flags, stream = read_head(data, at)
        end = at + 9 + (sized >> 8)
        assert end <= len(data), "a frame ends early"
        frames.append(Frame(sized & 0xFF, flags, stream, data[at + 9 : end]))
        at = end
    return frames


def block(fields: Iterable[Header]) -> bytes:
    """Fields as a header block that needs no table and leaves nothing in it."""
    return bytes(hpack.Encoder().encode([(name, value, True) for name, value in fields], huffman=False))


def request(id: int, fields: Iterable[Header] = GET, body: bytes | None = None) -> bytes:
    """A whole request."""
    head = frame(HEADERS, END_HEADERS | (END_STREAM if body is None else 0), id, block(fields))
    return head if body is None else head + frame(DATA, END_STREAM, id, body)


class Answer(NamedTuple):
    """What came back on a stream."""

    headers: dict[bytes, bytes]
    body: bytes
    trailers: dict[bytes, bytes]


class Reader:
    """Reads frames as a client does: one table for all of them."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder()

    def answer(self, frames: Sequence[Frame], id: int) -> Answer:
        """The answer on one stream; all frames that came must be passed once."""
        heads: list[dict[bytes, bytes]] = []
        body, pending, ended = b"", b"", False
        for one in frames:
            if one.stream == id and one.kind == DATA:
                body += one.payload
                ended = bool(one.flags & END_STREAM)
            elif one.kind in (HEADERS, CONTINUATION):
                pending += one.payload
                if one.flags & END_HEADERS:
                    fields = dict(self.decoder.decode(pending, raw=True))
                    pending = b""
                    if one.stream == id:
                        heads.append(fields)
                ended |= one.stream == id and one.kind == HEADERS and bool(one.flags & END_STREAM)
        assert heads, f"no answer on stream {id}: {frames}"
        assert ended, f"stream {id} does not end"
        return Answer(heads[0], body, heads[1] if len(heads) > 1 else {})


class Talk:
    """A session, and what it took and said."""

    def __init__(
        self, limits: ServerLimits | None = None, *, greeted: bool = True, openers: Openers | None = None
    ) -> None:
        self.calls: list[Call] = []
        self.now = 100.0
        self.woken = 0
        self.session = Session(limits or ServerLimits(), Peer(), self.calls.append, self._wrote, self.now, openers)
        self.hello = self.said()
        self.reader = Reader()
        if greeted:
            self.send(GREETING + frame(SETTINGS, 1, 0))
            self.said()

    def _wrote(self) -> None:
        self.woken += 1

    def send(self, data: bytes) -> Talk:
        self.session.receive(data, self.now)
        return self

    def said(self) -> list[Frame]:
        """What there is to write, which is then written."""
        out = self.session.streams.out
        frames = frames_of(b"".join(out))
        out.clear()
        return frames

    def kinds(self) -> list[int]:
        return [one.kind for one in self.said()]

    def end(self) -> Code:
        """With which error the session ended."""
        assert self.session.control.closed, "the session goes on"
        last = self.said()[-1]
        assert last.kind == GOAWAY
        return last.code

    def reset(self, id: int) -> Code:
        """With which error a stream ended; the session goes on."""
        assert not self.session.control.closed, self.said()[-1]
        codes = [one.code for one in self.said() if one.kind == RST_STREAM and one.stream == id]
        assert len(codes) == 1, codes
        return codes[0]

    def answer(self, id: int) -> Answer:
        return self.reader.answer(self.said(), id)

"""A raw client of HTTP/2 on a socket: sends the frames it is given, and reads what comes back, frame by frame."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import hpack

from penstock.service.wire.http2.frames import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    Code,
    frame,
    read_head,
)
from tests.service.harness import Client, Running
from tests.unit.service.http2 import GREETING, Answer, Frame


class Peer:
    """One connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.frames: list[Frame] = []  # all that came
        self._decoder = hpack.Decoder()
        self._heads: dict[int, list[dict[bytes, bytes]]] = {}
        self._bodies: dict[int, bytes] = {}
        self._ended: set[int] = set()

    def send(self, data: bytes) -> Peer:
        self.client.send(data)
        return self

    def push(self, data: bytes) -> Peer:
        """Send it, and do not mind if the server has stopped to listen."""
        with suppress(OSError):
            self.client.send(data)
        return self

    def frame(self) -> Frame:
        """The next frame. EOFError at the end."""
        sized, flags, stream = read_head(self.client.exactly(9))
        one = Frame(sized & 0xFF, flags, stream, self.client.exactly(sized >> 8))
        self.frames.append(one)
        if one.kind == HEADERS:
            self._heads.setdefault(stream, []).append(dict(self._decoder.decode(one.payload, raw=True)))
        elif one.kind == DATA:
            self._bodies[stream] = self._bodies.get(stream, b"") + one.payload
        if one.kind in (HEADERS, DATA) and flags & END_STREAM:
            self._ended.add(stream)
        return one

    def until(self, kind: int, stream: int | None = None) -> Frame:
        """The next frame of a kind, of any stream or of one."""
        while True:
            one = self.frame()
            if one.kind == kind and stream in (None, one.stream):
                return one

    def answer(self, id: int) -> Answer:
        """The answer on a stream, once it is whole."""
        while id not in self._ended:
            one = self.frame()
            assert one.kind != RST_STREAM or one.stream != id, one.code
            assert one.kind != GOAWAY or not one.code, one
        heads = self._heads[id]
        return Answer(heads[0], self._bodies.get(id, b""), heads[1] if len(heads) > 1 else {})

    def alive(self) -> bool:
        """Whether the server still answers pings."""
        self.send(frame(PING, 0, 0, b"are you?"))
        while True:
            one = self.until(PING)
            if one.flags & ACK and one.payload == b"are you?":
                return True

    def end(self) -> Code:
        """With which error the server ends the connection: it says so, and then closes."""
        code = self.until(GOAWAY).code
        assert self.client.closed
        return code


@contextmanager
def connected(running: Running, tls: ssl.SSLContext | None = None, name: str | None = None) -> Iterator[Peer]:
    """A connection that has exchanged settings."""
    with running.client(tls, name) as client:
        peer = Peer(client)
        peer.send(GREETING + frame(SETTINGS, ACK, 0))
        peer.until(SETTINGS)
        yield peer

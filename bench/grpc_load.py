"""Calls of gRPC in which a header differs every time.

    python -m bench.grpc_load PORT CALLS CONNECTIONS STREAMS < question

h2load repeats one head for ever. Here each call has a `traceparent` of its own, written as most clients write it: in
Huffman code, and into the table. All calls are made before the clock starts. Prints the calls per second.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time

from hpack import Encoder

from bench.grpc_question import PATH
from penstock.service.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW,
    SettingId,
    frame,
    read_head,
    settings,
    window_update,
)


class Connection:
    """Its calls, ready to be sent, and how many of them were answered."""

    def __init__(self, port: int, calls: int, body: bytes, seed: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encoder = Encoder()
        self.calls = [_call(encoder, 2 * number + 1, body, seed) for number in range(calls)]
        self.sent = self.answered = 0
        self._rest = b""
        hello = settings([(SettingId.INITIAL_WINDOW_SIZE, LARGEST)]) + window_update(0, LARGEST - WINDOW)
        self.socket.sendall(PREFACE + hello)

    def ask(self, count: int) -> None:
        self.socket.sendall(b"".join(self.calls[self.sent : self.sent + count]))
        self.sent += count

    def read(self) -> None:
        """Take answers, and ask as many more questions."""
        data = self._rest + self.socket.recv(262_144)
        at, answered = 0, 0
        while len(data) - at >= 9:
            sized, flags, _ = read_head(data, at)
            end = at + 9 + (sized >> 8)
            if end > len(data):
                break
            kind = sized & 0xFF
            if kind == HEADERS and flags & END_STREAM:
                answered += 1
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, data[at + 9 : end] if kind == PING else b""))
            elif kind not in (DATA, HEADERS, SETTINGS, PING, 8):
                raise RuntimeError(f"frame {kind}: {data[at:end]!r}")
            at = end
        self._rest = data[at:]
        self.answered += answered
        if answered:
            self.ask(answered)


def _call(encoder: Encoder, id: int, body: bytes, seed: int) -> bytes:
    head = [
        *((":method", "POST"), (":scheme", "http"), (":path", PATH.decode()), (":authority", "127.0.0.1:8081")),
        *(("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "bench"), ("grpc-timeout", "500m")),
        ("traceparent", f"00-{seed << 64 | id * 0x9E37_79B9_7F4A_7C15:032x}-{id * 0x9E37_79B9:016x}-01"[:55]),
    ]
    return frame(HEADERS, END_HEADERS, id, encoder.encode(head)) + frame(DATA, END_STREAM, id, body)


def main() -> None:
    port, calls, connections, streams = map(int, sys.argv[1:])
    body = sys.stdin.buffer.read()
    each = calls // connections
    selector = selectors.DefaultSelector()
    opened = [Connection(port, each, body, seed + 1) for seed in range(connections)]
    for one in opened:
        selector.register(one.socket, selectors.EVENT_READ, one)
    start = time.perf_counter()
    for one in opened:
        one.ask(streams)
    while any(one.answered < each for one in opened):
        for key, _ in selector.select():
            key.data.read()
    print(connections * each / (time.perf_counter() - start))


if __name__ == "__main__":
    main()

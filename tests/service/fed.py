"""One connection without a network: the test decides what each read brings and when the event loop turns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from penstock.service.wire.calls import Handler, Peer
from penstock.service.wire.http1.connection import Http1
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.loop_batch import LoopBatch
from penstock.service.wire.traffic import Traffic


class Tape(asyncio.Transport):
    """Keeps what is written. Closing takes effect with the next turn of the loop, as with a real one."""

    def __init__(self, loop: HandLoop) -> None:
        super().__init__()
        self._loop = loop
        self.written: list[bytes] = []
        self.unsent = 0
        self.reading = True
        self.ended = False  # nothing more will be written
        self.closed = False
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written.append(bytes(data))

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading and not self.closed

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = self.ended = True
            self._loop.call_soon(lambda: self.protocol.connection_lost(None))

    abort = close


class HandLoop:
    """As much of an event loop as turns need."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback in soon:
                callback()


class Fed:
    """A connection, and what it has written."""

    def __init__(self, handler: Handler, limits: ServerLimits | None = None) -> None:
        self.loop = HandLoop()
        self.traffic = Traffic(LoopBatch(handler, self.loop), limits or ServerLimits())  # type: ignore[arg-type]
        self.traffic.date = b""
        self.tape = Tape(self.loop)
        self.connection = Http1(self.traffic, Peer("192.0.2.1"))
        self.tape.protocol = self.connection
        self.connection.connection_made(self.tape)

    def feed(self, *pieces: bytes) -> Fed:
        """Each piece is one read and one turn of the loop."""
        for piece in pieces:
            if self.connection.gone:
                break
            self.connection.data_received(piece)
            self.loop.turn()
        return self

    def end(self) -> Fed:
        """The peer sends no more."""
        if not self.connection.gone:
            if not self.connection.eof_received():
                self.tape.close()
            self.loop.turn()
        return self

    @property
    def output(self) -> bytes:
        return b"".join(self.tape.written)

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.output)]

    def sweep(self, now: float) -> Fed:
        if not self.connection.gone:
            self.connection.sweep(now)
            self.loop.turn()
        return self

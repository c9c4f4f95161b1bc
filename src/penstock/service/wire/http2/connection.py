"""An HTTP/2 session on a transport."""

from __future__ import annotations

import asyncio

from penstock.clock import monotonic
from penstock.service.wire.calls import Connection, Peer
from penstock.service.wire.http2.frames import LARGEST
from penstock.service.wire.http2.session import Session
from penstock.service.wire.traffic import Traffic

LINGER = 1.0
"""Seconds that a peer has to read the last frames. Closing at once, while input is unread, could discard them."""


class Http2(Connection):
    """A connection that speaks HTTP/2."""

    __slots__ = ("_blocked", "_closing", "_control", "_session", "_streams", "_traffic", "_transport", "gone")

    _transport: asyncio.Transport

    def __init__(self, traffic: Traffic, peer: Peer) -> None:
        self._traffic = traffic
        self.gone = False
        self._blocked: float | None = None  # since when the write buffer is full
        self._closing: float | None = None  # since when nothing more is sent
        self._session = Session(
            traffic.limits, peer, traffic.batch.add, self._wrote, monotonic(), traffic.openers, self._date
        )
        self._streams, self._control = self._session.streams, self._session.control

    def _wrote(self) -> None:
        self._traffic.batch.wrote(self)

    def _date(self) -> bytes:
        return self._traffic.date2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._traffic.limits.unsent)
        self._traffic.enter(self)
        if self._traffic.retiring:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._control.closed = True
        self._streams.lose_all()
        self._streams.out.clear()
        self._traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        self._session.receive(data, monotonic())
        if self._control.closed:
            self.flush()

    def eof_received(self) -> bool:
        """Close: an HTTP/2 peer cannot half-close, because it owes window updates and acknowledgements."""
        return False

    def pause_writing(self) -> None:
        self._blocked = monotonic()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def flush(self) -> None:
        out = self._streams.out
        if self.gone or self._transport.is_closing():
            out.clear()
            return
        if out:
            self._transport.write(b"".join(out))
            out.clear()
        if self._control.final_stream != LARGEST:  # it is draining
            self._control.settle()
        if self._control.closed and self._closing is None:
            self._close()

    def _close(self) -> None:
        """Send no more, and give the peer time to close."""
        self._closing = monotonic()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    @property
    def held(self) -> int:
        return self._streams.held

    def drain(self) -> None:
        self._control.drain(monotonic())

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        if self._closing is not None:
            if now - self._closing > LINGER:
                self._transport.abort()
        elif self._blocked is not None and now - self._blocked > self._traffic.limits.stalled:
            self._transport.abort()
        else:
            self._session.sweep(now)
            if self._control.closed:
                self.flush()

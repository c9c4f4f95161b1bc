"""A session on a socket."""

from __future__ import annotations

import asyncio

from penstock.clock import monotonic
from penstock.service.wire.calls import Connection, Peer
from penstock.service.wire.http2.session import Session
from penstock.service.wire.traffic import Traffic

LINGER = 1.0
"""Seconds that a peer has to read why we leave. Closed at once, while more comes in, it might never see it."""


class Http2(Connection):
    """A connection that speaks HTTP/2."""

    __slots__ = ("_blocked", "_closing", "_session", "_streams", "_traffic", "_transport", "gone")

    _transport: asyncio.Transport

    def __init__(self, traffic: Traffic, peer: Peer) -> None:
        self._traffic = traffic
        self.gone = False
        self._blocked: float | None = None  # since when the peer has not taken what was written
        self._closing: float | None = None  # since when all has been said
        self._session = Session(
            traffic.limits, peer, traffic.batch.add, self._wrote, monotonic(), traffic.openers, self._date
        )
        self._streams = self._session.streams

    def _wrote(self) -> None:
        self._traffic.batch.wrote(self)

    def _date(self) -> bytes:
        return self._traffic.date2

    # ---------------------------------------------------------------- the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._traffic.limits.unsent)
        self._traffic.enter(self)
        if self._traffic.retiring:
            self.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._session.closed = True
        self._streams.lose_all()
        self._streams.out.clear()
        self._traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        self._session.receive(data, monotonic())
        if self._session.closed:
            self.flush()

    def eof_received(self) -> bool:
        """The peer has gone: who speaks HTTP/2 never just stops to send, for it owes windows and acknowledgements."""
        return False

    def pause_writing(self) -> None:
        self._blocked = monotonic()
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # ---------------------------------------------------------------- the server tells

    def flush(self) -> None:
        out = self._streams.out
        if self.gone or self._transport.is_closing():
            out.clear()
            return
        if out:
            self._transport.write(b"".join(out))
            out.clear()
        self._session.settle()
        if self._session.closed and self._closing is None:
            self._close()

    def _close(self) -> None:
        """Say no more, and wait for the peer to close, or for a while."""
        self._closing = monotonic()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    @property
    def held(self) -> int:
        return self._session.held

    def drain(self) -> None:
        self._session.drain(monotonic())

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
            if self._session.closed:
                self.flush()

"""A session on a socket."""

from __future__ import annotations

import asyncio

from penstock.clock import monotonic
from penstock.service.wire.calls import Connection, Peer
from penstock.service.wire.http2.session import Openers, Session
from penstock.service.wire.traffic import Traffic


class Http2(Connection):
    """A connection that speaks HTTP/2."""

    __slots__ = ("_blocked", "_session", "_streams", "_traffic", "_transport", "_turns")

    def __init__(self, traffic: Traffic, peer: Peer, openers: Openers | None = None) -> None:
        self._traffic, self._turns = traffic, traffic.turns
        self._transport: asyncio.Transport | None = None
        self._blocked: float | None = None  # since when the peer has not taken what was written
        self._session = Session(traffic.limits, peer, traffic.turns.add, self._wrote, monotonic(), openers)
        self._streams = self._session.streams

    def _wrote(self) -> None:
        self._turns.wrote(self)

    # ---------------------------------------------------------------- the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._traffic.limits.unsent)
        self._traffic.enter(self)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._session.closed = True
        self._streams.lose_all()
        self._streams.out.clear()
        self._traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        session = self._session
        session.receive(data, monotonic())
        if session.closed:
            self.flush()

    def eof_received(self) -> bool:
        """The peer sends no more: neither windows nor acknowledgements, so no answer is sure to arrive."""
        return False

    def pause_writing(self) -> None:
        self._blocked = monotonic()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._blocked = None
        if self._transport is not None:
            self._transport.resume_reading()

    # ---------------------------------------------------------------- the server tells

    def flush(self) -> None:
        transport, out = self._transport, self._streams.out
        if transport is None:
            out.clear()
            return
        if out:
            transport.write(b"".join(out))
            out.clear()
        session = self._session
        if session.leaving:
            session.settle()
        if session.closed:
            transport.close()

    def drain(self) -> None:
        self._session.drain(monotonic())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now: float) -> None:
        if self._blocked is not None and now - self._blocked > self._traffic.limits.stalled:
            self.abort()
            return
        self._session.sweep(now)
        if self._session.closed:
            self.flush()

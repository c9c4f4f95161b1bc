"""Protocol detection: by ALPN in the TLS handshake, else by the first bytes of a connection.

Once detected, the protocol takes the place of the detector on the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.service.wire.calls import Connection, Peer
from penstock.service.wire.http1.connection import Http1
from penstock.service.wire.http2.connection import Http2
from penstock.service.wire.http2.frames import PREFACE
from penstock.service.wire.tls import names_of
from penstock.service.wire.traffic import Traffic


class WireProtocol(NamedTuple):
    """A protocol: its ALPN name, the first bytes that a client sends, and its connection class."""

    alpn: str
    preface: bytes
    speak: Callable[[Traffic, Peer], Connection]


# The first whose preface fits is chosen; the last fits always.
PROTOCOLS: tuple[WireProtocol, ...] = (WireProtocol("h2", PREFACE, Http2), WireProtocol("http/1.1", b"", Http1))

ALPN = tuple(protocol.alpn for protocol in PROTOCOLS)


class ProtocolDetector(Connection):
    """A connection whose protocol is not known yet."""

    __slots__ = ("_first", "_since", "_traffic", "_transport")

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._first = b""
        self._since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        if self._traffic.closed:
            self._transport.abort()
            return
        self._traffic.enter(self)
        tls = transport.get_extra_info("ssl_object")
        agreed = tls.selected_alpn_protocol() if tls is not None else None
        likely = [protocol for protocol in PROTOCOLS if agreed is None or protocol.alpn == agreed]
        if len(likely) == 1:
            self._hand_over(likely[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        self._first += data
        protocol = choose(self._first)
        if protocol is not None:
            self._hand_over(protocol)

    def _hand_over(self, protocol: WireProtocol) -> None:
        connection = protocol.speak(self._traffic, peer_of(self._transport))
        self._traffic.leave(self)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if self._first:
            connection.data_received(self._first)

    def flush(self) -> None:
        """Do nothing: no call was taken."""

    def retire(self) -> None:
        """Do nothing: the detected protocol reads `traffic.retiring`."""

    def drain(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        if self._since is None:
            self._since = now
        limits = self._traffic.limits
        if now - self._since >= (limits.reading if self._first else limits.idle):
            self.abort()


def choose(first: bytes, protocols: Sequence[WireProtocol] | None = None) -> WireProtocol | None:
    """Return the protocol that begins with these bytes, or None if more are needed."""
    for protocol in PROTOCOLS if protocols is None else protocols:
        if first.startswith(protocol.preface):
            return protocol
        if protocol.preface.startswith(first):
            return None
    raise LookupError("no protocol fits: expected the last to have no preface")


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return the peer of a transport."""
    address = transport.get_extra_info("peername")
    certificate = transport.get_extra_info("peercert")
    return Peer(
        address=address[0] if isinstance(address, tuple) else "",
        secure=transport.get_extra_info("ssl_object") is not None,
        names=names_of(certificate) if certificate else (),
    )

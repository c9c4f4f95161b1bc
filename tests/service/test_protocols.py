"""A connection whose first bytes decide what is spoken, between HTTP/1.1 and a protocol made up for this."""

from __future__ import annotations

import asyncio

import pytest

from penstock.service.wire import protocols as entrance
from penstock.service.wire.calls import Connection, Peer
from penstock.service.wire.http1.connection import Http1
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.protocols import WireProtocol
from penstock.service.wire.traffic import Traffic
from tests.service.harness import LOOPS, Echo, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
PREFACE = b"GREETINGS\n"


class Shouting(Connection):
    """Says back what it hears, louder."""

    def __init__(self, traffic: Traffic, peer: Peer) -> None:
        self._traffic = traffic

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._traffic.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._traffic.leave(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data.upper())

    def flush(self) -> None: ...

    def sweep(self, now: float) -> None: ...

    def drain(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


@pytest.fixture(autouse=True)
def protocols(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = (WireProtocol("shouting", PREFACE, Shouting), WireProtocol("http/1.1", b"", Http1))
    monkeypatch.setattr(entrance, "PROTOCOLS", spoken)


@pytest.mark.parametrize("loop", LOOPS)
def test_first_bytes_decide_the_protocol(loop: str) -> None:
    with serving(Echo(), loop=loop) as running:
        assert running.ask(GET).body == b"GET\n/a\n\n"
        with running.client() as client:
            client.send(PREFACE + b"hello.")
            assert client.until(b".") == b"GREETINGS\nHELLO."
            assert running.ask(GET).status == 200
            assert client.send(b"again.").until(b".") == b"AGAIN."


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("whole", [GET, PREFACE + b"hello."])
def test_protocol_is_detected_in_any_pieces(loop: str, whole: bytes) -> None:
    with serving(Echo(), loop=loop) as running, running.client() as client:
        for at in range(len(whole)):
            client.send(whole[at : at + 1])
        if whole is GET:
            assert client.answer().status == 200
        else:
            assert client.until(b".") == b"GREETINGS\nHELLO."


@pytest.mark.parametrize("loop", LOOPS)
def test_connection_without_a_preface_times_out(loop: str) -> None:
    with serving(Echo(), loop=loop, limits=ServerLimits(reading=0.1, idle=0.2)) as running:
        for part in (b"", PREFACE[:3]):
            with running.client() as client:
                assert client.send(part).closed
        running.wait_empty()


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_connection_does_not_delay_a_drain(loop: str) -> None:
    with serving(Echo(), loop=loop) as running, running.client() as silent, running.client() as begun:
        begun.send(PREFACE[:3])
        assert running.ask(GET).status == 200
        running.call(running.server.drain(30))
        assert silent.closed
        assert begun.closed

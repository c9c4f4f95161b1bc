"""HTTP/2 on sockets: beside HTTP/1.1, over TLS, in batches; drained, given up, and silent."""

import asyncio
import ssl
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from penstock.service.wire.calls import Call, Head
from penstock.service.wire.http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Code,
    SettingId,
    frame,
    reset,
    settings,
    window_update,
)
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.tls import ServerTls
from tests.rig.certificates import Certificate
from tests.rig.processes import wait_until
from tests.service.harness import LOOPS, Echo, serving
from tests.service.http2 import Peer, connected
from tests.unit.service.http2 import GET, GREETING, POST, TEXT, block, request

HTTP1 = b"POST /one?two HTTP/1.1\r\nhost: here\r\ncontent-length: 5\r\n\r\nhello"


class Later:
    """Keeps calls until somebody answers them."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def handle(self, calls: list[Call]) -> None:
        self.calls += calls


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("family", ["ipv4", "unix"])
def test_both_protocols_share_a_port_and_a_handler(loop: str, family: str, tmp_path: Path) -> None:
    with serving(Echo(), loop=loop, family=family, folder=str(tmp_path)) as running:
        first = running.ask(HTTP1)
        with connected(running) as peer:
            second = peer.send(request(1, [*POST[:2], (b":path", b"/one?two")], b"hello")).answer(1)
        assert first.body == second.body == b"POST\n/one\ntwo\nhello"
        dates = [parsedate_to_datetime(one) for one in (first.headers["date"], second.headers.pop(b"date").decode())]
        assert dates[1] - dates[0] < timedelta(minutes=5)
        assert second.headers == {b":status": b"200", b"content-type": b"text/plain"}


def test_a_preface_that_comes_byte_by_byte_is_recognised() -> None:
    with serving(Echo()) as running, running.client() as client:
        for at in range(len(GREETING)):
            client.send(GREETING[at : at + 1])
        assert Peer(client).send(request(1)).answer(1).body == b"GET\n/\n\n"


def test_near_preface_is_read_as_http_1() -> None:
    with serving(Echo()) as running, running.client() as client:
        client.send(PREFACE[:10] + b"HTTP/1.1\r\n\r\n")
        assert client.answer().status == 400


def test_alpn_decides_the_protocol_over_tls(tmp_path: Path) -> None:
    certificate = Certificate.make("localhost", tmp_path)
    echo = Echo()
    with serving(echo, tls=ServerTls(certificate.path, certificate.key)) as running:
        for protocol in ("h2", "http/1.1"):
            context = ssl.create_default_context(cafile=str(certificate.path))
            context.set_alpn_protocols([protocol])
            if protocol == "h2":
                with connected(running, context, "localhost") as peer:
                    assert peer.send(request(1)).answer(1).body == b"GET\n/\n\n"
            else:
                with running.client(context, "localhost") as client:
                    assert client.ask(HTTP1).body == b"POST\n/one\ntwo\nhello"
        assert [call.peer.secure for call in echo.calls] == [True, True]


def test_calls_of_one_read_form_one_batch_and_one_write() -> None:
    echo = Echo()
    with serving(echo) as running, connected(running) as peer:
        peer.send(b"".join(request(id, POST, b"%d" % id) for id in range(1, 101, 2)))
        for id in range(1, 101, 2):
            assert peer.answer(id).body == b"POST\n/\n\n%d" % id
        assert len(echo.batches) < 5


def test_large_bodies_go_both_ways_within_the_windows() -> None:
    body = bytes(range(256)) * 3_000
    with serving(Echo()) as running, connected(running) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, block(POST)))
        for at in range(0, len(body), 16_384):
            peer.send(frame(DATA, 0, 1, body[at : at + 16_384]))
        peer.send(frame(DATA, 1, 1) + window_update(1, 1 << 20) + window_update(0, 1 << 20))
        assert peer.answer(1).body == b"POST\n/\n\n" + body


def test_a_fault_of_the_handler_is_an_answer_500_and_the_connection_goes_on() -> None:
    class Faulty:
        def handle(self, calls: list[Call]) -> None:
            calls[0].answer(TEXT, b"fine")
            raise RuntimeError("no")

    with serving(Faulty()) as running, connected(running) as peer:
        peer.send(request(1) + request(3))
        assert peer.answer(1).headers[b":status"] == b"200"
        assert peer.answer(3).headers[b":status"] == b"500"
        assert peer.alive()


def test_answers_come_in_any_order() -> None:
    later = Later()
    with serving(later) as running, connected(running) as peer:
        peer.send(request(1) + request(3))
        wait_until(lambda: len(later.calls) == 2, "two calls")
        running.run(lambda: later.calls[1].answer(TEXT, b"second"))
        assert peer.answer(3).body == b"second"
        running.run(lambda: later.calls[0].answer(TEXT, b"first"))
        assert peer.answer(1).body == b"first"


def test_calls_whose_peer_has_gone_know_it() -> None:
    later = Later()
    with serving(later) as running:
        with connected(running) as peer:
            peer.send(request(1) + request(3))
            wait_until(lambda: len(later.calls) == 2, "two calls")
            peer.send(reset(1, Code.CANCEL))
            assert peer.alive()
            assert [call.gone for call in later.calls] == [True, False]
        wait_until(lambda: later.calls[1].gone, "the connection's end to be seen")
        running.run(lambda: [call.answer(TEXT, b"late") for call in later.calls])
        running.wait_empty()


# ---------------------------------------------------------------- drained


def test_draining_answers_what_is_under_way_and_what_is_on_its_way() -> None:
    later = Later()
    with serving(later) as running, connected(running) as peer:
        peer.send(request(1))
        wait_until(lambda: len(later.calls) == 1, "a call")
        draining = asyncio.run_coroutine_threadsafe(running.server.drain(30.0), running.loop)
        first = peer.until(GOAWAY)
        assert first.payload[:4] == b"\x7f\xff\xff\xff"
        ping = peer.until(PING)
        peer.send(request(3) + frame(PING, ACK, 0, ping.payload))
        assert peer.until(GOAWAY).payload[:4] == b"\0\0\0\3"
        wait_until(lambda: len(later.calls) == 2, "the second call")
        for call in later.calls:
            running.run(lambda call=call: call.answer(TEXT, b"x"))  # type: ignore[misc]
        assert peer.answer(1).body == b"x"
        assert peer.answer(3).body == b"x"
        assert peer.client.closed
        peer.client.close()
        draining.result(30)


# ---------------------------------------------------------------- silent


def test_idle_connection_gets_a_goaway() -> None:
    with serving(Echo(), limits=ServerLimits(idle=0.05)) as running, connected(running) as peer:
        peer.until(GOAWAY)
        peer.send(frame(PING, ACK, 0, peer.until(PING).payload))
        assert peer.end() == Code.NO_ERROR
        running.wait_empty()


def test_a_request_that_does_not_end_is_reset() -> None:
    with serving(Echo(), limits=ServerLimits(reading=0.05)) as running, connected(running) as peer:
        peer.send(frame(HEADERS, END_HEADERS, 1, block(POST)))
        assert peer.until(RST_STREAM).code == Code.CANCEL
        assert peer.alive()


def test_missing_acknowledgement_of_settings_closes_the_connection() -> None:
    with serving(Echo(), limits=ServerLimits(reading=0.05)) as running, running.client() as client:
        assert Peer(client.send(GREETING)).end() == Code.SETTINGS_TIMEOUT


def test_window_that_stays_closed_ends_the_connection() -> None:
    limits = ServerLimits(stalled=0.05)
    with serving(Echo(), limits=limits) as running, connected(running) as peer, connected(running) as other:
        peer.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + request(1))
        assert peer.end() == Code.ENHANCE_YOUR_CALM
        assert other.send(request(1)).answer(1).body == b"GET\n/\n\n"


def test_peer_that_reads_nothing_is_aborted_and_others_are_served() -> None:
    class Large:
        HEAD = Head(200)

        def handle(self, calls: list[Call]) -> None:
            for call in calls:
                call.answer(self.HEAD, bytes(100_000))

    limits = ServerLimits(stalled=0.2, unsent=65_536)
    with serving(Large(), limits=limits) as running, connected(running) as other, running.client() as client:
        client.send(GREETING + frame(SETTINGS, ACK, 0) + window_update(0, 1 << 30))
        client.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 1 << 30)]))
        peer = Peer(client)
        for id in range(1, 2_001, 2):
            peer.push(request(id, GET))
        other.send(window_update(0, 1 << 20) + window_update(0, 1 << 20))
        other.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 1 << 20)]) + request(1))
        assert len(other.answer(1).body) == 100_000
        wait_until(lambda: running.run(lambda: running.server.connections) == 1, "the silent one to be cut off")

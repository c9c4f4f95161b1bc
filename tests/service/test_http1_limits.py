"""Peers that are slow, silent, deaf, or too many: they are cut off, and no other notices."""

from __future__ import annotations

import gc
import socket

import pytest

from penstock.service.wire.calls import Call, Head
from penstock.service.wire.http1.connection import Http1
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.protocols import ProtocolDetector
from tests.rig.processes import wait_until
from tests.service.fed import Fed
from tests.service.harness import LOOPS, Echo, serving
from tests.service.test_http1_reading import CHUNKED, GET, POST, Holding

LIMITS = ServerLimits(reading=10, idle=75, stalled=5, unsent=1000)
PARTS = [GET[:1], GET[:-1], POST[:-1], CHUNKED[:-1], POST[:-5]]


# ---------------------------------------------------------------- time, moved by hand


@pytest.mark.parametrize("part", PARTS)
def test_a_request_that_takes_too_long_is_refused(part: bytes) -> None:
    fed = Fed(Echo(), LIMITS).sweep(0).feed(part).sweep(100).sweep(109)
    assert fed.statuses == []
    fed.sweep(110)
    assert fed.statuses == [408]
    assert fed.tape.ended


@pytest.mark.parametrize("part", PARTS)
def test_trickled_request_is_refused_too(part: bytes) -> None:
    fed = Fed(Echo(), LIMITS)
    for now in range(12):
        fed.feed(b"POST / HTTP/1.1\r\n" if now == 0 else b"X: y\r\n").sweep(now)
    assert fed.statuses == [408]


def test_each_request_has_its_own_time_limit() -> None:
    fed = Fed(Echo(), LIMITS).feed(GET[:5]).sweep(0).sweep(9).feed(GET[5:] + GET[:5]).sweep(10).sweep(19)
    assert fed.statuses == [200]
    assert fed.sweep(20).statuses == [200, 408]


def test_idle_connection_is_closed_without_an_answer() -> None:
    fed = Fed(Echo(), LIMITS).sweep(0).sweep(74)
    assert not fed.tape.closed
    assert fed.sweep(75).tape.closed
    fed = Fed(Echo(), LIMITS).sweep(0).feed(GET).sweep(74).sweep(148)
    assert not fed.tape.closed
    assert fed.sweep(149).tape.closed
    assert fed.statuses == [200]


def test_empty_lines_do_not_extend_the_idle_time() -> None:
    fed = Fed(Echo(), LIMITS).sweep(0)
    for now in range(1, 76):
        fed.feed(b"\r\n").sweep(now)
    assert fed.tape.closed
    assert fed.statuses == []


def test_connection_with_small_chunks_lets_others_be_read() -> None:
    """Each of them takes as long as a small request, and a loop may read from one peer again and again in one turn."""
    handler = Echo()
    fed = Fed(handler)
    fed.connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    fed.connection.data_received(b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
    turns = 0
    while not fed.tape.reading:
        soon, fed.loop._soon = fed.loop._soon, []
        for callback in soon:
            callback()
        turns += 1
    assert turns >= 50
    fed.loop.turn()
    assert [call.body for call in handler.calls] == [b"x" * 10_000]
    assert fed.feed(GET).statuses == [200, 200]


def test_waiting_for_an_answer_has_no_time_limit() -> None:
    handler = Holding()
    fed = Fed(handler, LIMITS).feed(GET)
    for now in range(1000):
        fed.sweep(now)
    assert not fed.tape.closed
    handler.calls[0].answer(Head(200))
    fed.loop.turn()
    assert fed.statuses == [200]
    assert not fed.sweep(1000).sweep(1074).tape.closed
    assert fed.sweep(1075).tape.closed


def test_peer_that_reads_no_answers_is_aborted() -> None:
    fed = Fed(Echo(), LIMITS).feed(GET).sweep(0)
    fed.tape.unsent = 100
    assert not fed.sweep(0).sweep(4).tape.closed
    fed.tape.unsent = 99  # it has taken one byte
    assert not fed.sweep(4).sweep(8).tape.closed
    assert fed.sweep(9).tape.closed


def test_lingering_peer_is_aborted() -> None:
    fed = Fed(Echo(), LIMITS).feed(b"nonsense\r\n\r\n").sweep(0)
    assert fed.tape.ended
    assert not fed.feed(b"and more").sweep(4).tape.closed
    assert fed.feed(b"and more").sweep(5).tape.closed
    assert fed.connection.gone
    assert not fed.traffic.connections


def test_full_write_buffer_pauses_reading_and_writing() -> None:
    handler = Holding()
    fed = Fed(handler, LIMITS).feed(GET * 2)
    fed.connection.pause_writing()
    assert not fed.tape.reading
    for call in handler.calls:
        call.answer(Head(200))
    fed.loop.turn()
    assert fed.statuses == []
    fed.connection.resume_writing()
    assert fed.statuses == [200, 200]
    assert fed.tape.reading


def test_buffered_requests_resume_when_the_peer_reads_again() -> None:
    handler = Holding()
    fed = Fed(handler, ServerLimits(calls=2)).feed(GET * 4)
    fed.connection.pause_writing()
    for call in handler.calls:
        call.answer(Head(200))
    fed.loop.turn()
    assert len(handler.calls) == 2
    fed.connection.resume_writing()
    fed.loop.turn()
    assert len(handler.calls) == 4
    assert not fed.tape.reading


# ---------------------------------------------------------------- over sockets


class Lavish:
    """Answers with a lot."""

    def __init__(self) -> None:
        self.answered = 0

    def handle(self, calls: list[Call]) -> None:
        for call in calls:
            call.answer(Head(200), b"x" * 100_000)
            self.answered += 1


class Terse:
    """Answers, and keeps nothing."""

    def handle(self, calls: list[Call]) -> None:
        for call in calls:
            call.answer(Head(200))


@pytest.mark.parametrize("loop", LOOPS)
def test_slow_peers_over_sockets_are_refused(loop: str) -> None:
    with serving(Echo(), limits=ServerLimits(reading=0.1), loop=loop) as running:
        for part in PARTS:
            with running.client() as client:
                assert client.ask(part).status == 408
                assert client.closed
        running.wait_empty()


@pytest.mark.parametrize("loop", LOOPS)
def test_silent_peers_over_sockets_are_closed(loop: str) -> None:
    with serving(Echo(), limits=ServerLimits(idle=0.1), loop=loop) as running:
        with running.client() as client:
            assert client.closed
        running.wait_empty()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_deaf_peer_is_not_read_from_and_then_cut_off(loop: str) -> None:
    handler = Lavish()
    limits = ServerLimits(unsent=200_000, stalled=0.5, calls=4)
    with serving(handler, limits=limits, loop=loop) as running, running.client() as deaf, running.client() as other:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.settimeout(0.05)
        sent = 0
        try:
            while sent < 100_000_000:
                sent += deaf.socket.send(GET * 1000)
        except (TimeoutError, ConnectionError):
            pass
        assert sent < 50_000_000, "it was read from"
        assert other.ask(GET).status == 200
        other.close()
        running.wait_empty()
        assert handler.answered < 500


@pytest.mark.parametrize("loop", LOOPS)
def test_slow_reader_gets_every_answer(loop: str) -> None:
    with (
        serving(Lavish(), limits=ServerLimits(unsent=10_000, calls=4), loop=loop) as running,
        running.client() as client,
    ):
        client.send(GET * 100)
        for _ in range(100):
            assert len(client.answer().body) == 100_000


@pytest.mark.parametrize("loop", LOOPS)
def test_largest_incomplete_requests_are_aborted_beyond_the_total(loop: str) -> None:
    body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n"
    chunks = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc350\r\n"
    with (
        serving(Echo(), limits=ServerLimits(held=60_000), loop=loop) as running,
        running.client() as small,
        running.client() as large,
        running.client() as larger,
    ):

        def held() -> int:
            traffic = running.server._traffic
            return 0 if traffic is None else sum(connection.held for connection in traffic.connections)

        small.send(POST[:-1])
        larger.send(chunks + b"x" * 45_000)
        wait_until(lambda: running.run(held) >= 45_000, "the larger part to come")
        large.send(body + b"x" * 40_000)
        assert larger.closed
        assert large.ask(b"x" * 10_000).status == 200, "without the largest there was room"
        assert small.ask(POST[-1:]).status == 200


@pytest.mark.parametrize("loop", LOOPS)
def test_connections_beyond_the_limit_are_closed_at_once(loop: str) -> None:
    with serving(Echo(), limits=ServerLimits(connections=2), loop=loop) as running:
        with running.client() as one, running.client() as two:
            assert one.ask(GET).status == two.ask(GET).status == 200
            with running.client() as three:
                assert three.closed
            assert one.ask(GET).status == two.ask(GET).status == 200
        running.wait_empty()
        assert running.ask(GET).status == 200


@pytest.mark.parametrize("loop", LOOPS)
def test_a_call_whose_peer_is_gone_knows_it(loop: str) -> None:
    handler = Holding()
    with serving(handler, loop=loop) as running:
        with running.client() as client:
            client.send(GET)
            wait_until(lambda: len(handler.calls) == 1, "the call")
            assert not handler.calls[0].gone
            client.reset()
        wait_until(lambda: handler.calls[0].gone, "the peer to be gone")
        running.run(lambda: handler.calls[0].answer(Head(200)))
        running.wait_empty()


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_left_of_connections_that_are_over(loop: str) -> None:
    def kept() -> int:
        gc.collect()
        return sum(isinstance(one, Http1 | ProtocolDetector) for one in gc.get_objects())

    before = kept()
    with serving(Terse(), loop=loop) as running:
        for number in range(100):
            with running.client() as client:
                client.send((b"", GET, GET[:9], POST[:-1], CHUNKED, b"nonsense\r\n\r\n", GET * 50)[number % 7])
                if number % 3:
                    client.reset()
        running.wait_empty()
        wait_until(lambda: kept() <= before, "the connections to be forgotten")

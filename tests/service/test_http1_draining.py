"""A server that stops: it takes no more, and what it has taken is answered."""

from __future__ import annotations

import threading

import pytest

from penstock.service.wire.calls import Head
from tests.rig.processes import DEADLINE, wait_until
from tests.service.fed import Fed
from tests.service.harness import LOOPS, Client, Echo, Running, serving
from tests.service.test_http1_reading import CHUNKED, GET, POST, Holding


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def draining(running: Running, seconds: float) -> threading.Thread:
    """A drain that is under way: nobody new is let in any more."""
    thread = threading.Thread(target=lambda: running.call(running.server.drain(seconds)))
    thread.start()

    wait_until(lambda: running.server._traffic is None, "the server to let nobody in")
    return thread


def test_draining_server_accepts_no_connections(loop: str) -> None:
    with serving(Echo(), loop=loop) as running:
        running.call(running.server.drain(1))
        with pytest.raises(ConnectionRefusedError):
            running.ask(GET)


def test_draining_connection_answers_its_calls_and_closes(loop: str) -> None:
    handler = Holding()
    with serving(handler, loop=loop) as running, running.client() as busy, running.client() as idle:
        assert idle.send(b"")
        busy.send(GET + POST)
        wait_until(lambda: len(handler.calls) == 2, "the calls")
        drain = draining(running, DEADLINE)
        assert idle.closed
        running.run(lambda: [call.answer(Head(200), call.path) for call in handler.calls])
        assert busy.answer().body == b"/a"
        last = busy.answer()
        assert (last.body, last.headers["connection"]) == (b"/p", "close")
        assert busy.closed
        drain.join(DEADLINE)
        assert not drain.is_alive()


def test_drain_aborts_connections_after_its_time(loop: str) -> None:
    handler = Holding()
    with serving(handler, loop=loop) as running, running.client() as client:
        client.send(GET)
        wait_until(lambda: len(handler.calls) == 1, "the call")
        running.call(running.server.drain(0.05))
        assert client.closed
        assert handler.calls[0].gone


def test_drain_still_takes_an_incomplete_request(loop: str) -> None:
    for whole in (GET, POST, CHUNKED):
        with serving(Echo(), loop=loop) as running, running.client() as client:
            client.send(whole[:-3])
            wait_until(lambda running=running: _partial(running), "the part")  # type: ignore[misc]
            drain = draining(running, DEADLINE)
            answer = client.ask(whole[-3:])
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert client.closed
            drain.join(DEADLINE)
            assert not drain.is_alive()


def _partial(running: Running) -> bool:
    traffic = running.server._traffic
    assert traffic is not None
    return any(getattr(one, "_partial", False) for one in running.run(lambda: tuple(traffic.connections)))


def test_request_sent_before_the_drain_is_answered(loop: str) -> None:
    """Requests that lie in the system's buffers have been sent, although nobody has read them."""
    with serving(Echo(), loop=loop) as running:
        clients = [Client(running.connect()) for _ in range(50)]
        for client in clients:
            client.ask(GET)
        for client in clients:
            client.send(GET)
        running.call(running.server.drain(DEADLINE))
        for client in clients:
            assert client.answer().status == 200
            assert client.closed
            client.close()


def test_drain_may_be_repeated_and_needs_no_listener() -> None:
    with serving(Echo()) as running:
        running.call(running.server.drain(1))
        running.call(running.server.drain(1))


def test_drain_answers_pipelined_requests() -> None:
    handler = Holding()
    fed = Fed(handler).feed(GET * 3)
    fed.connection.drain()
    fed.feed(GET)
    for call in handler.calls:
        call.answer(Head(200))
    fed.loop.turn()
    assert fed.statuses == [200, 200, 200]
    assert fed.output.count(b"connection: close") == 1
    assert fed.tape.ended

"""Requests as they come: whole, in pieces, several at once, in chunks, with expectations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.service.wire.calls import Call, Head
from penstock.service.wire.limits import ServerLimits
from tests.service.fed import Fed
from tests.service.harness import LOOPS, Echo, Running, serving

GET = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;a=b\r\nhello\r\n7\r\n, world\r\n0\r\nTrailer: x\r\n\r\n"
)
UPGRADE = b"POST /u HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 5\r\n\r\nGET /"
STREAM = GET + POST + b"\r\n" + CHUNKED + UPGRADE + GET + CHUNKED
ASKED = [
    (b"/a", b""),
    (b"/p", b"hello"),
    (b"/c", b"hello, world"),
    (b"/u", b"GET /"),
    (b"/a", b""),
    (b"/c", b"hello, world"),
]


class Holding:
    """Answers when told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def handle(self, calls: list[Call]) -> None:
        self.calls += calls


@pytest.fixture(params=LOOPS)
def echo(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(Echo(), loop=request.param) as running:
        yield running


# ---------------------------------------------------------------- any pieces


def test_requests_cut_at_every_byte_are_read() -> None:
    whole = Fed(Echo()).feed(STREAM)
    for cut in range(1, len(STREAM)):
        handler = Echo()
        fed = Fed(handler).feed(STREAM[:cut], STREAM[cut:])
        assert [(call.path, call.body) for call in handler.calls] == ASKED, cut
        assert fed.output == whole.output, cut
        assert not fed.tape.closed


def test_requests_are_read_byte_by_byte() -> None:
    handler = Echo()
    fed = Fed(handler).feed(*(STREAM[at : at + 1] for at in range(len(STREAM))))
    assert [(call.path, call.body) for call in handler.calls] == ASKED
    assert fed.output == Fed(Echo()).feed(STREAM).output


def test_requests_of_one_read_form_one_batch_and_one_write() -> None:
    handler = Echo()
    fed = Fed(handler).feed(STREAM)
    assert handler.batches == [6]
    assert len(fed.tape.written) == 1


def test_call_has_the_request_and_its_peer() -> None:
    handler = Echo()
    Fed(handler).feed(b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nX-Thing:  some thing \r\n\r\n")
    (call,) = handler.calls
    assert (call.method, call.path, call.query, call.body) == (b"GET", b"/a", b"b=c", b"")
    assert call.header(b"x-thing") == b"some thing"
    assert call.header(b"x-other") is None
    assert call.peer.address == "192.0.2.1"
    assert call.expires is None
    assert not call.gone


def test_a_large_body_in_many_pieces_is_put_together_once() -> None:
    """Doing so with every piece would take a time that grows with the square of its size."""
    handler = Echo()
    fed = Fed(handler).feed(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    for number in range(1, 1000):
        fed.feed(b"x" * 1000)
        assert len(fed.connection._buffer) == number * 1000, "it was taken out to be looked at"
    fed.feed(b"x" * 1000)
    assert [len(call.body) for call in handler.calls] == [1_000_000]


def test_an_empty_line_behind_a_body_may_be_cut_in_two() -> None:
    handler = Echo()
    head = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    Fed(handler).feed(head, b"x" * 500 + b"\r", b"\n" + GET)
    assert [call.path for call in handler.calls] == [b"/p", b"/a"]


# ---------------------------------------------------------------- over sockets


def test_requests_follow_each_other_on_one_connection(echo: Running) -> None:
    with echo.client() as client:
        for number in range(20):
            body = b"x" * number
            answer = client.ask(
                b"POST /%d?q HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (number, number, body)
            )
            assert answer.status == 200
            assert answer.body == b"POST\n/%d\nq\n%b" % (number, body)
            assert answer.headers.keys() == {"content-type", "content-length", "date"}
        assert echo.run(lambda: echo.server.connections) == 1


def test_a_burst_is_answered_in_order(echo: Running) -> None:
    with echo.client() as client:
        client.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(1000)))
        assert [client.answer().body for _ in range(1000)] == [b"GET\n/%d\n\n" % number for number in range(1000)]


def test_chunked_bodies_are_read_over_a_socket(echo: Running) -> None:
    with echo.client() as client:
        for _ in range(3):
            assert client.ask(CHUNKED).body.endswith(b"\nhello, world")


def test_a_peer_that_sends_no_more_is_still_answered(echo: Running) -> None:
    with echo.client() as client:
        client.send(GET + GET).shut()
        assert client.answer().headers.get("connection") is None
        assert client.answer().status == 200
        assert client.closed
    echo.wait_empty()


def test_connection_that_ends_within_a_request_is_closed(echo: Running) -> None:
    for part in (b"", b"G", GET[:-1], POST[:-1], CHUNKED[:-3]):
        with echo.client() as client:
            assert client.send(part).shut().closed
    echo.wait_empty()


# ---------------------------------------------------------------- order, and how many


def test_answers_leave_in_order_whatever_the_order_they_are_given_in() -> None:
    handler = Holding()
    fed = Fed(handler).feed(GET + POST, GET)
    first, second, third = handler.calls
    head = Head(200)
    third.answer(head, b"3")
    second.answer(head, b"2")
    fed.loop.turn()
    assert fed.output == b""
    first.answer(head, b"1")
    fed.loop.turn()
    assert [part[-1:] for part in fed.output.split(b"HTTP/1.1 ")[1:]] == [b"1", b"2", b"3"]
    assert len(fed.tape.written) == 1


def test_a_call_is_answered_once() -> None:
    handler = Holding()
    fed = Fed(handler).feed(GET)
    handler.calls[0].answer(Head(200), b"first")
    handler.calls[0].answer(Head(200), b"second")
    fed.loop.turn()
    handler.calls[0].answer(Head(200), b"third")
    fed.loop.turn()
    assert fed.output.endswith(b"first")


def test_no_more_calls_than_the_limit_are_under_way() -> None:
    handler = Holding()
    fed = Fed(handler, ServerLimits(calls=4)).feed(GET * 9 + GET[:5])
    taken = []
    for number in range(9):
        taken.append(len(handler.calls))
        assert fed.tape.reading is (number > 5)
        handler.calls[number].answer(Head(200), b"%d" % number)
        fed.loop.turn()
    assert taken == [4, 4, 6, 6, 8, 8, 9, 9, 9], "more are taken when half of them are out"
    fed.feed(GET[5:])
    assert len(handler.calls) == 10


# ---------------------------------------------------------------- methods, versions, expectations


def test_answer_to_head_has_no_body(echo: Running) -> None:
    with echo.client() as client:
        answer = client.send(b"HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n").answer(bodiless=True)
        assert answer.headers["content-length"] == str(len("HEAD\n/abc\n\n"))
        assert client.ask(GET).status == 200


def test_an_old_client_is_closed_unless_it_asks_to_be_kept(echo: Running) -> None:
    with echo.client() as client:
        answer = client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert answer.headers["connection"] == "keep-alive"
        answer = client.ask(b"GET / HTTP/1.0\r\n\r\n")
        assert answer.headers["connection"] == "close"
        assert client.closed


def test_connection_close_stops_reading(echo: Running) -> None:
    with echo.client() as client:
        answer = client.ask(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)
        assert answer.headers["connection"] == "close"
        assert client.closed


def test_a_peer_that_waits_for_100_continue_gets_it(echo: Running) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    with echo.client() as client:
        for framing, body in (
            (b"Content-Length: 5\r\n\r\n", b"hello"),
            (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
        ):
            assert client.send(head + framing).until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            for at in range(len(body) - 1):
                client.send(body[at : at + 1])
            assert client.ask(body[-1:]).body == b"POST\n/\n\nhello"
            assert client.ask(head + framing + body).status == 200, "who did not wait is not told to go on"


def test_100_continue_waits_for_earlier_answers() -> None:
    handler = Holding()
    fed = Fed(handler).feed(GET + b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert fed.output == b""
    handler.calls[0].answer(Head(200), b"first")
    fed.loop.turn()
    assert fed.output.endswith(b"first" + b"HTTP/1.1 100 Continue\r\n\r\n")
    fed.feed(b"x")
    handler.calls[1].answer(Head(200), b"second")
    fed.loop.turn()
    assert fed.output.count(b"100 Continue") == 1
    assert fed.output.endswith(b"second")


def test_body_sent_without_waiting_gets_no_100_continue() -> None:
    handler = Holding()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    for framing, body in (
        (b"Content-Length: 5\r\n\r\n", b"hello"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    ):
        handler.calls.clear()
        fed = Fed(handler).feed(GET + head + framing, body)
        for call in handler.calls:
            call.answer(Head(200), b"last")
        fed.loop.turn()
        assert fed.statuses == [200, 200]
        assert fed.output.endswith(b"last")


# ---------------------------------------------------------------- faults of the handler


class Faulty:
    """Answers the first call of a batch and raises."""

    def handle(self, calls: list[Call]) -> None:
        calls[0].answer(Head(200), b"fine")
        raise ZeroDivisionError("secret")


@pytest.mark.parametrize("loop", LOOPS)
def test_exception_in_a_handler_is_answered_with_500(loop: str, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Faulty(), loop=loop) as running, running.client() as client:
        for _ in range(2):
            client.send(GET * 3)
            assert client.answer().body == b"fine"
            for _ in range(2):
                answer = client.answer()
                assert (answer.status, answer.headers["content-type"]) == (500, "application/problem+json")
                assert b"secret" not in answer.body
    assert "ZeroDivisionError" in caplog.text


def test_a_header_that_would_split_the_answer_is_a_fault_of_the_handler() -> None:
    class Splitting:
        def handle(self, calls: list[Call]) -> None:
            for call in calls:
                call.answer(Head(200), b"", [(b"x-key", b"a\r\nset-cookie: b")])

    fed = Fed(Splitting()).feed(GET)
    assert fed.output.startswith(b"HTTP/1.1 500 ")
    assert b"set-cookie" not in fed.output

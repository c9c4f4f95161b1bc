"""What cannot be taken is refused in the protocol's own words; the connection closes, and no other notices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.service.wire.calls import Head
from penstock.service.wire.limits import ServerLimits
from tests.service.fed import Fed
from tests.service.harness import LOOPS, Answer, Echo, Running, serving
from tests.service.test_http1_reading import Holding

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMITS = ServerLimits(head=1000, headers=10, body=1000)
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

SHAPES = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    "a binary byte": (b"\x00", 400),
    "a space first": (b" GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "LF alone": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "LF alone behind the first line": (b"GET / HTTP/1.1\r\nHost: x\n", 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "HTTP/2": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    "a folded line": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    "a space before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "NUL": (b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n", 400),
    "CR alone": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", 400),
    "CONNECT": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "an unknown method": (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "both framings": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
    "a length with a sign": (POST + b"Content-Length: +5\r\n\r\nhello", 400),
    "a hexadecimal length": (POST + b"Content-Length: 0x5\r\n\r\nhello", 400),
    "a negative length": (POST + b"Content-Length: -5\r\n\r\nhello", 400),
    "an endless length": (POST + b"Content-Length: 18446744073709551621\r\n\r\nhello", 400),
    "gzip": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n", 501),
    "an expectation": (POST + b"Expect: the-unexpected\r\nContent-Length: 5\r\n\r\n", 417),
    "a large body": (POST + b"Content-Length: 1001\r\n\r\n", 413),
    "a large body, expecting": (POST + b"Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n", 413),
    "a long target": (b"GET /" + b"a" * 1000, 414),
    "a long head": (POST + b"A: " + b"b" * 1000, 431),
    "many headers": (POST + b"A: b\r\n" * 10 + b"\r\n", 431),
    "a chunk without a size": (CHUNKED + b"\r\n", 400),
    "a chunk of no number": (CHUNKED + b"five\r\n", 400),
    "a chunk too short": (CHUNKED + b"5\r\nhell\r\n0\r\n\r\n", 400),
    "a chunk too long": (CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n", 400),
    "an absurd chunk": (CHUNKED + b"fffffffffffffffff\r\n", 400),
    "a large chunk": (CHUNKED + b"3e9\r\n", 413),
    "many chunks": (CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f4\r\n" + b"x" * 500 + b"\r\n1\r\n", 413),
    "a long extension": (CHUNKED + b"5;" + b"x" * 300, 400),
    "long trailers": (CHUNKED + b"0\r\n" + b"A: bcdefgh\r\n" * 120, 400),
}


@pytest.fixture(params=LOOPS, scope="module")
def echo(request: pytest.FixtureRequest) -> Iterator[Running]:
    with serving(Echo(), limits=LIMITS, loop=request.param) as running:
        yield running


def is_refusal(answer: Answer, status: int) -> bool:
    problem = json.loads(answer.body)
    return (
        answer.status == status == problem["status"]
        and answer.headers["content-type"] == "application/problem+json"
        and answer.headers["connection"] == "close"
        and all(isinstance(problem[key], str) and problem[key] for key in ("title", "code", "detail"))
    )


@pytest.mark.parametrize(("data", "status"), SHAPES.values(), ids=SHAPES)
def test_invalid_request_is_refused_and_other_connections_are_served(echo: Running, data: bytes, status: int) -> None:
    with echo.client() as neighbour, echo.client() as client:
        neighbour.send(GET[:10])
        assert is_refusal(client.ask(data), status)
        assert client.closed
        assert neighbour.ask(GET[10:]).status == 200


@pytest.mark.parametrize(("data", "status"), SHAPES.values(), ids=SHAPES)
def test_invalid_request_is_refused_in_any_pieces(data: bytes, status: int) -> None:
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        handler = Echo()
        fed = Fed(handler, LIMITS).feed(GET, *pieces, GET)
        assert len(handler.calls) == 1
        assert fed.statuses == [200, status]
        assert fed.tape.ended
        assert not fed.connection.calls


def test_a_length_with_more_zeros_than_python_counts_is_refused() -> None:
    handler = Echo()
    fed = Fed(handler).feed(POST + b"Content-Length: " + b"0" * 5000 + b"5\r\n\r\nhello")
    assert fed.statuses == [400]
    assert not handler.calls


def test_empty_lines_without_end_are_refused() -> None:
    """A few are overlooked. To overlook a read full of them takes long enough for others to notice."""
    assert Fed(Echo()).feed(b"\r\n" * 60 + GET).statuses == [200]
    fed = Fed(Echo()).feed(GET + b"\r\n" * 1000 + GET)
    assert fed.statuses == [200, 400]
    assert fed.tape.ended


def test_a_refusal_waits_for_earlier_answers() -> None:
    handler = Holding()
    fed = Fed(handler).feed(GET + b"nonsense\r\n\r\n" + GET)
    assert fed.output == b""
    (call,) = handler.calls
    call.answer(Head(200), b"first")
    fed.loop.turn()
    assert fed.statuses == [200, 400]
    assert fed.tape.ended


def test_peer_that_keeps_sending_can_read_the_refusal(echo: Running) -> None:
    """A server that closes with input unread makes the peer's system throw away what it has not read yet."""
    with echo.client() as client:
        client.send(POST + b"Content-Length: 3000000\r\n\r\n")
        for _ in range(30):
            client.send(b"x" * 100_000)
        assert is_refusal(client.answer(), 413)
        assert client.closed
    echo.wait_empty()


def test_refused_connections_leave_nothing_behind(echo: Running) -> None:
    for data, _ in SHAPES.values():
        with echo.client() as client:
            client.send(data)
            client.reset()
    echo.wait_empty()

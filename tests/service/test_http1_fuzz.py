"""Malformed HTTP, generated: no crash, no fault of ours, nothing that depends on how the bytes were cut, nothing left.

Streams are made of sound requests, of requests with something changed, and of noise. Each is fed to one connection at
once, in generated pieces, and byte by byte: the calls that come of it and the statuses of the answers must be the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.service.wire.calls import Call
from penstock.service.wire.limits import ServerLimits
from tests.service.fed import Fed
from tests.service.harness import Echo, Running, serving

LIMITS = ServerLimits(head=400, headers=8, body=60, calls=3)
EXAMPLES = settings().max_examples // 2
PARTS = 10 if settings.get_current_profile_name() == "full" else 1  # so that 50,000 are tried, and no part takes long

# What may be answered: all else would be our own fault, or no HTTP.
FINE = {200}
REFUSALS = {400, 405, 408, 413, 414, 417, 431, 501, 505}

_methods = st.sampled_from(
    [b"GET", b"POST"] * 8 + [b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"get", b"", b"G ET", b"BREW"]
)
_targets = st.sampled_from(
    [b"/", b"/a?b"] * 8 + [b"*", b"http://h/p", b"x:80", b"", b"/#", b"/\xff", b"/" + b"a" * 450]
)
_versions = st.sampled_from(
    [b"HTTP/1.1"] * 24 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.10", b"http/1.1", b"RTSP/1.0", b""]
)
_fields = st.sampled_from(
    [
        b"Host: a",
        b"Host: b",
        b"Host : a",
        b" folded",
        b"X: y",
        b"X:",
        b"X: \0",
        b"X: " + b"y" * 450,
        b"Content-Length: 0",
        b"Content-Length: 3",
        b"Content-Length: 61",
        b"Content-Length: +3",
        b"Content-Length: 3, 3",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: chunked, identity",
        b"transfer-encoding:chunked ",
        b"Expect: 100-continue",
        b"Expect: more",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: upgrade",
        b"Upgrade: h2c",
    ]
)
_ends = st.sampled_from([b"\r\n"] * 75 + [b"\n", b"\r", b"\r\r\n", b"\r\n\r\n", b""])
_bodies = st.sampled_from(
    [b""] * 3
    + [
        b"abc",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"3;x\r\nabc\r\n0\r\nT: u\r\n\r\n",
        b"3\nabc\n0\n\n",
        b"ff\r\n",
        b"-1\r\n",
    ]
    + [
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"0\r\nX\r\n\r\n",
        b"4\r\nabc\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: smuggled\r\n\r\n",
    ]
)
_sound = st.sampled_from(
    [
        b"GET /s HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /s HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HEAD /s HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n",
    ]
)


@st.composite
def _made(draw: st.DrawFn) -> bytes:
    """A request put together from parts, many of which do not belong together."""
    line = b" ".join([draw(_methods), draw(_targets), draw(_versions)])
    host = draw(st.sampled_from([[b"Host: a"]] * 9 + [[]]))
    lines = [line, *host, *draw(st.lists(_fields, max_size=3)), b""]
    return b"".join(line + draw(_ends) for line in lines) + draw(_bodies)


@st.composite
def _changed(draw: st.DrawFn) -> bytes:
    """A sound request in which some bytes are others, are missing, or come twice."""
    data = draw(_sound)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        till = at + draw(st.integers(0, 3))
        data = (
            data[:at] + draw(st.binary(max_size=2) | st.sampled_from([data[at:till] * 2, b"\r\n", b"\n"])) + data[till:]
        )
    return data


_streams = st.lists(_sound | _made() | _changed() | st.binary(max_size=20), min_size=1, max_size=5).map(b"".join)


def outcome(pieces: list[bytes]) -> tuple[list[tuple[bytes, ...]], list[int], bool]:
    """The calls that a stream led to, the statuses of their answers, and whether the connection was ended."""
    handler = Echo()
    fed = Fed(handler, LIMITS).feed(*pieces)
    statuses = [status for status in fed.statuses if status != 100]
    ended = fed.tape.ended
    assert len(statuses) - len(handler.calls) == any(status in REFUSALS for status in statuses)
    assert all(status in FINE for status in statuses[: len(handler.calls)])
    assert all(status in REFUSALS for status in statuses[len(handler.calls) :])
    assert not fed.connection.calls, "all calls were answered"
    assert ended or fed.tape.reading, "it reads on unless it ends"
    assert len(fed.connection._buffer) <= (0 if ended else LIMITS.head + LIMITS.body)
    fed.end().sweep(0).sweep(1000)
    fed.loop.turn()
    assert fed.connection.gone
    assert not fed.traffic.connections
    assert all(call.gone for call in handler.calls)
    return [(call.method, call.path, call.query, call.body) for call in handler.calls], statuses, ended


@pytest.mark.parametrize("part", range(PARTS))
@settings(max_examples=EXAMPLES)
@given(stream=_streams, cuts=st.lists(st.integers(0, 2000), max_size=6))
def test_any_stream_in_any_pieces_is_handled_alike(part: int, stream: bytes, cuts: list[int]) -> None:
    at = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    whole = outcome([stream])
    pieces = outcome([stream[a:b] for a, b in itertools.pairwise(at)])
    bytewise = outcome([stream[a : a + 1] for a in range(len(stream))])
    # A flaw may be seen before a limit is reached, or the other way round: refused is refused.
    assert whole[0] == pieces[0] == bytewise[0]
    assert len(whole[1]) == len(pieces[1]) == len(bytewise[1])
    assert whole[2] == pieces[2] == bytewise[2]


class Forgetful(Echo):
    """Keeps nothing, however many ask."""

    def handle(self, calls: list[Call]) -> None:
        super().handle(calls)
        self.calls.clear()
        self.batches.clear()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(Forgetful(), limits=LIMITS) as running:
        yield running
        running.wait_empty()


@settings(max_examples=max(20, EXAMPLES // 10))
@given(streams=st.lists(_streams, min_size=1, max_size=4))
def test_any_stream_over_sockets_leaves_other_connections_served(running: Running, streams: list[bytes]) -> None:
    with running.client() as neighbour:
        neighbour.send(b"GET /n HTTP/1.1\r\n")
        for stream in streams:
            with running.client() as client:
                client.send(stream).shut()
                got = client.rest()
                assert b"HTTP/1.1 500 " not in got
                assert not got or got.startswith(b"HTTP/1.1 ")
        assert neighbour.ask(b"Host: a\r\n\r\n").body == b"GET\n/n\n\n"
    assert not running.faults

"""Who floods a server is told to calm down and loses its connection; who shares the server does not notice."""

from collections.abc import Iterator

import pytest

from penstock.service.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PRIORITY,
    Code,
    SettingId,
    frame,
    reset,
    settings,
    window_update,
)
from penstock.service.wire.limits import ServerLimits
from tests.service.harness import Echo, serving
from tests.service.http2 import connected
from tests.unit.service.http2 import GET, POST, block, request

MANY = 3_000


def rapid_reset() -> bytes:
    return b"".join(request(id) + reset(id, Code.CANCEL) for id in range(1, 2 * MANY, 2))


def made_to_reset() -> bytes:
    return b"".join(request(id) + window_update(id, 0) for id in range(1, 2 * MANY, 2))


def malformed_requests() -> bytes:
    return b"".join(request(id, [*GET, (b"A", b"b")]) for id in range(1, 2 * MANY, 2))


def zero_windows() -> bytes:
    start = settings([(SettingId.INITIAL_WINDOW_SIZE, 0)])
    return start + b"".join(request(id, POST, bytes(10_000)) for id in range(1, 200, 2)) + window_update(0, 1) * MANY


def bombs() -> Iterator[bytes]:
    """A field of 4,000 bytes in the table, named a thousand times by every request."""
    start = b"\x82\x86\x84\x40\x01a\x7f\x81\x1e" + b"x" * 3_968
    for id in range(1, 2 * MANY, 2):
        yield frame(HEADERS, END_HEADERS | END_STREAM, id, start if id == 1 else b"\x82\x86\x84" + b"\xbe" * 1_000)


HEAD = frame(HEADERS, 0, 1, block(POST))
OPEN = frame(HEADERS, END_HEADERS, 1, block(POST))
FLOODS = {
    "rapid reset": rapid_reset(),
    "made to reset": made_to_reset(),
    "malformed requests": malformed_requests(),
    "continuations": HEAD + frame(CONTINUATION, 0, 1, bytes(1_000)) * MANY,
    "empty continuations": HEAD + frame(CONTINUATION, 0, 1) * MANY,
    "settings": settings([(SettingId.INITIAL_WINDOW_SIZE, 5)]) * MANY,
    "pings": frame(PING, 0, 0, bytes(8)) * MANY,
    "priorities": frame(PRIORITY, 0, 1, bytes(5)) * MANY,
    "empty data": OPEN + frame(DATA, 0, 1) * MANY,
    "data by the byte": OPEN + frame(DATA, 0, 1, b"x") * MANY,
    "windows": window_update(0, 1) * MANY,
    "zero windows": zero_windows(),
    "header bombs": b"".join(bombs()),
    "unknown frames": frame(0xEE, 0, 0) * MANY,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_ends_with_its_sender(flood: bytes) -> None:
    with serving(Echo()) as running, connected(running) as other:
        with connected(running) as peer:
            peer.push(flood)
            assert other.send(request(1)).answer(1).headers[b":status"] == b"200"
            assert peer.end() == Code.ENHANCE_YOUR_CALM
        assert other.send(request(3)).answer(3).headers[b":status"] == b"200"
        assert other.alive()


def test_header_bombs_are_refused_one_by_one_and_cost_little() -> None:
    with serving(Echo()) as running, connected(running) as peer:
        peer.send(b"".join(list(bombs())[:40]))
        assert peer.answer(1).headers[b":status"] == b"200", "the table may be filled"
        for id in range(3, 81, 2):
            assert peer.answer(id).headers[b":status"] == b"431"
        assert peer.alive()


def test_streams_that_are_opened_and_left_alone_are_refused_beyond_the_limit() -> None:
    limits = ServerLimits(calls=10)
    with serving(Echo(), limits=limits) as running, connected(running) as peer:
        peer.send(b"".join(frame(HEADERS, END_HEADERS, id, block(POST)) for id in range(1, 101, 2)))
        assert peer.alive()
        refused = [one.stream for one in peer.frames if one.kind == 3 and one.code == Code.REFUSED_STREAM]
        assert refused == list(range(21, 101, 2))


def test_regular_load_is_no_flood() -> None:
    """The negative control: as many requests, each answered."""
    with serving(Echo()) as running, connected(running) as peer:
        for start in range(1, 2 * MANY, 200):
            peer.send(b"".join(request(id) for id in range(start, start + 200, 2)) + frame(PING, 0, 0, bytes(8)))
            for id in range(start, start + 200, 2):
                assert peer.answer(id).body == b"GET\n/\n\n"
            peer.send(window_update(0, 1_000))
        assert peer.alive()

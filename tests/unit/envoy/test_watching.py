"""`grpc.health.v1` Watch, over a session without a socket."""

from __future__ import annotations

import gzip

import pytest

from penstock.service.envoy import health
from penstock.service.envoy.health import MAX_QUESTION, HealthWatch
from penstock.service.envoy.protocol import HEALTH_WATCH, HealthCheckRequest
from penstock.service.grpc import pack
from penstock.service.wire.calls import Header
from penstock.service.wire.http2.frames import DATA, END_HEADERS, HEADERS, Code, SettingId, frame, reset, settings
from tests.unit.service.http2 import Talk, block, request

WATCH: tuple[Header, ...] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", HEALTH_WATCH),
    (b"content-type", b"application/grpc"),
)
SERVING, NOT_SERVING, UNKNOWN = pack(b"\x08\x01"), pack(b"\x08\x02"), pack(b"\x08\x03")


class Rig:
    """Watchers on one connection, of a service that is ready until it drains."""

    def __init__(self) -> None:
        self.ready = True
        self.watch = HealthWatch(lambda: self.ready)
        self.talk = Talk(openers={HEALTH_WATCH: self.watch.open})

    def drain(self) -> None:
        self.ready = False
        self.watch.tell()


def question(service: str = "") -> bytes:
    return pack(HealthCheckRequest(service=service).SerializeToString())


@pytest.mark.parametrize(
    ("service", "first", "last"),
    [("", SERVING, NOT_SERVING), ("ratelimit", SERVING, NOT_SERVING), ("other", UNKNOWN, b"")],
)
def test_a_watcher_is_told_at_once_and_when_the_service_drains(service: str, first: bytes, last: bytes) -> None:
    rig = Rig()
    rig.talk.send(request(1, WATCH, question(service)))
    told = rig.talk.said()
    assert [(one.kind, one.payload) for one in told if one.kind == DATA] == [(DATA, first)]
    assert rig.talk.session.streams.open
    rig.drain()
    answer = rig.talk.reader.answer([*told, *rig.talk.said()], 1)
    assert (answer.headers[b":status"], answer.body) == (b"200", first + last)
    assert answer.trailers == {b"grpc-status": b"14", b"grpc-message": b"draining"}
    assert not rig.talk.session.streams.open  # nothing keeps the connection from closing
    assert not rig.watch.watchers


def test_watcher_of_a_draining_service_is_told_and_its_stream_ends() -> None:
    rig = Rig()
    rig.ready = False
    rig.talk.send(request(1, WATCH, question()))
    answer = rig.talk.reader.answer(rig.talk.said(), 1)
    assert (answer.body, answer.trailers[b"grpc-status"]) == (NOT_SERVING, b"14")


def test_watcher_without_a_request_ends_when_the_service_drains() -> None:
    rig = Rig()
    rig.talk.send(frame(HEADERS, END_HEADERS, 1, block(WATCH)) + frame(DATA, 0, 1, question()[:3]))
    rig.drain()
    assert rig.talk.reader.answer(rig.talk.said(), 1).headers[b"grpc-status"] == b"14"
    assert not rig.watch.watchers


def test_a_watcher_that_takes_nothing_is_told_when_it_does() -> None:
    rig = Rig()
    rig.talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + request(1, WATCH, question()))
    rig.drain()
    told = rig.talk.said()
    assert DATA not in [one.kind for one in told]
    rig.talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 100)]))
    assert rig.talk.reader.answer([*told, *rig.talk.said()], 1).body == SERVING + NOT_SERVING


@pytest.mark.parametrize(
    ("fields", "body", "status"),
    [
        (WATCH, b"", b"13"),
        (WATCH, question()[:4], b"13"),
        (WATCH, pack(b"\xff"), b"3"),
        (WATCH, pack(b"\x0a\x7f" + b"x" * 127) + b"x" * MAX_QUESTION, b"8"),
        ((*WATCH, (b"grpc-encoding", b"deflate")), b"\1" + question()[1:], b"13"),
    ],
)
def test_invalid_watch_request_is_refused(fields: tuple[Header, ...], body: bytes, status: bytes) -> None:
    rig = Rig()
    rig.talk.send(request(1, fields, body))
    assert rig.talk.reader.answer(rig.talk.said(), 1).headers[b"grpc-status"] == status
    assert not rig.watch.watchers


def test_watch_request_may_be_compressed() -> None:
    rig = Rig()
    packed = gzip.compress(HealthCheckRequest(service="ratelimit").SerializeToString())
    body = b"\1" + pack(packed)[1:]
    rig.talk.send(request(1, (*WATCH, (b"grpc-encoding", b"gzip")), body))
    assert [one.payload for one in rig.talk.said() if one.kind == DATA] == [SERVING]


def test_watch_without_grpc_is_answered_with_415() -> None:
    rig = Rig()
    rig.talk.send(request(1, WATCH[:3], b"x"))
    assert rig.talk.reader.answer(rig.talk.said(), 1).headers[b":status"] == b"415"
    assert not rig.watch.watchers


def test_watcher_that_has_gone_is_forgotten() -> None:
    rig = Rig()
    rig.talk.send(request(1, WATCH, question()) + request(3, WATCH, question()))
    rig.talk.send(reset(1, Code.CANCEL))
    assert len(rig.watch.watchers) == 1
    rig.talk.session.control.end(Code.NO_ERROR, "")
    assert not rig.watch.watchers
    assert rig.talk.session.streams.abandoned == 0


def test_number_of_watchers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_WATCHERS", 1)
    rig = Rig()
    rig.talk.send(request(1, WATCH, question()))
    rig.talk.said()
    rig.talk.send(request(3, WATCH, question()))
    assert rig.talk.answer(3).headers[b"grpc-status"] == b"12"  # who reads that takes the service for sound
    assert len(rig.watch.watchers) == 1

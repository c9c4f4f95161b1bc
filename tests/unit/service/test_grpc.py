"""gRPC over calls: what becomes of a body, and what a caller is told when it cannot be read."""

import gzip
import struct
from collections.abc import Sequence

import pytest

from penstock.clock import monotonic
from penstock.service.grpc import Grpc, Message, Status, UnreadableMessage, pack, pack_gzip, unpack
from penstock.service.wire.calls import Call, Head, Header, Peer

TYPE = (b"content-type", b"application/grpc")
LARGEST = 1_000


class Asked(Call):
    """A call that writes its answer down."""

    __slots__ = ("body_sent", "extra", "head")

    def __init__(self, body: bytes, *headers: Header, path: bytes = b"/a.B/Echo", method: bytes = b"POST") -> None:
        self.method, self.path, self.query, self.headers, self.body = method, path, b"", headers or (TYPE,), body
        self.peer, self.expires = Peer("192.0.2.1"), None
        self.head: Head | None = None
        self.body_sent, self.extra = b"", dict[bytes, bytes]()

    @property
    def gone(self) -> bool:
        return False

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        if self.head is None:
            self.head, self.body_sent, self.extra = head, body, dict(extra)

    @property
    def status(self) -> int:
        assert self.head is not None
        said = {**dict(self.head.headers), **dict(self.head.trailers), **self.extra}
        return int(said[b"grpc-status"])


class Echo:
    path = b"/a.B/Echo"

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []

    def handle(self, messages: list[Message]) -> None:
        self.batches.append(messages)
        for message in messages:
            message.answer(message.data)


class Faulty:
    path = b"/a.B/Faulty"

    def handle(self, messages: list[Message]) -> None:
        messages[0].answer(b"fine")
        raise RuntimeError("no")


def ask(*calls: Asked) -> Echo:
    echo = Echo()
    Grpc([echo, Faulty()], largest=LARGEST).handle(list(calls))
    return echo


def test_batch_of_calls_becomes_one_batch_of_messages_per_method() -> None:
    calls = [Asked(pack(b"one")), Asked(pack(b""), path=b"/a.B/Faulty"), Asked(pack(b"two"))]
    echo = ask(*calls)
    assert [[message.data for message in batch] for batch in echo.batches] == [[b"one", b"two"]]
    assert [call.body_sent for call in calls] == [pack(b"one"), pack(b"fine"), pack(b"two")]
    assert [call.status for call in calls] == [0, 0, 0]


def test_message_has_the_peer_and_the_metadata_of_its_call() -> None:
    call = Asked(pack(b"x"), TYPE, (b"x-one", b"1"))
    call.expires = monotonic() + 100
    ((message,),) = ask(call).batches
    assert message.metadata == (TYPE, (b"x-one", b"1"))
    assert message.expires == call.expires
    assert message.peer.address == "192.0.2.1"
    assert not message.gone


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y"])
def test_grpc_content_types_are_recognised(kind: bytes) -> None:
    call = Asked(pack(b"x"), (b"content-type", kind))
    ask(call)
    assert call.status == Status.OK


@pytest.mark.parametrize(
    "call",
    [
        Asked(pack(b"x"), (b"content-type", b"application/json")),
        Asked(pack(b"x"), (b"content-type", b"application/grpc-web")),
        Asked(pack(b"x"), (b"accept", b"*/*")),
        Asked(pack(b"x"), method=b"PUT"),
    ],
)
def test_other_calls_are_refused_by_http_status(call: Asked) -> None:
    assert ask(call).batches == []
    assert call.head is not None
    assert call.head.status == 415


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (Asked(pack(b"x"), path=b"/a.B/Nothing"), Status.UNIMPLEMENTED),
        (Asked(b""), Status.INTERNAL),
        (Asked(b"\0\0\0"), Status.INTERNAL),
        (Asked(pack(b"hello")[:-1]), Status.INTERNAL),
        (Asked(pack(b"one") + pack(b"two")), Status.INTERNAL),
        (Asked(pack(bytes(LARGEST + 1))), Status.RESOURCE_EXHAUSTED),
        (Asked(struct.pack(">BI", 0, 1 << 31)), Status.RESOURCE_EXHAUSTED),
        (Asked(b"\2" + pack(b"x")[1:]), Status.INTERNAL),
        (Asked(pack_gzip(b"x")), Status.INTERNAL),
        (Asked(pack(b"x"), TYPE, (b"grpc-encoding", b"br")), Status.UNIMPLEMENTED),
        (Asked(b"\1" + pack(b"no gzip")[1:], TYPE, (b"grpc-encoding", b"gzip")), Status.INTERNAL),
        (Asked(pack_gzip(bytes(LARGEST + 1)), TYPE, (b"grpc-encoding", b"gzip")), Status.RESOURCE_EXHAUSTED),
    ],
)
def test_a_call_that_cannot_be_read_fails_alone(call: Asked, status: Status) -> None:
    other = Asked(pack(b"x"))
    echo = ask(call, other)
    assert call.status == status
    assert call.extra[b"grpc-message"]
    assert call.body_sent == b""
    assert other.status == Status.OK
    assert len(echo.batches[0]) == 1


def test_unknown_compression_is_answered_with_the_known_ones() -> None:
    call = Asked(pack(b"x"), TYPE, (b"grpc-encoding", b"br"))
    ask(call)
    assert call.extra[b"grpc-accept-encoding"] == b"identity,gzip"


def test_gzip_is_answered_with_gzip_if_the_answer_is_long() -> None:
    headers = TYPE, (b"grpc-encoding", b"gzip")
    short, plain = Asked(pack_gzip(b"x"), *headers), Asked(pack(b"y"), *headers)
    ask(short, plain)
    assert short.body_sent == pack(b"x")
    assert plain.body_sent == pack(b"y")
    long = Asked(pack_gzip(bytes(5_000)), *headers)
    Grpc([Echo()]).handle([long])
    assert long.head is not None
    assert (b"grpc-encoding", b"gzip") in long.head.headers
    assert long.body_sent[0] == 1
    assert gzip.decompress(long.body_sent[5:]) == bytes(5_000)


def test_gzip_bomb_is_decompressed_only_up_to_the_limit() -> None:
    packed = gzip.compress(bytes(5_000_000))
    with pytest.raises(UnreadableMessage) as caught:
        unpack(struct.pack(">BI", 1, len(packed)) + packed, b"gzip", 100_000)
    assert caught.value.status == Status.RESOURCE_EXHAUSTED


def test_expired_call_is_not_handed_over() -> None:
    call = Asked(pack(b"x"))
    call.expires = monotonic() - 1
    assert ask(call).batches == []
    assert call.status == Status.DEADLINE_EXCEEDED


def test_exception_in_a_method_fails_its_unanswered_messages() -> None:
    calls = [Asked(pack(b"x"), path=b"/a.B/Faulty") for _ in range(3)]
    ask(*calls)
    assert [call.status for call in calls] == [Status.OK, Status.INTERNAL, Status.INTERNAL]
    assert b"no" not in calls[1].extra[b"grpc-message"].split()


@pytest.mark.parametrize(("status", "told"), [(5, 5), (99, 2), (0, 2)])
def test_a_failure_has_a_status_that_grpc_knows_and_is_not_ok(status: int, told: int) -> None:
    call = Asked(pack(b"x"))
    Message(call, b"x", False).fail(status, "50 % of kränk\n")
    assert call.status == told
    assert call.extra[b"grpc-message"] == b"50 %25 of kr%C3%A4nk%0A"

"""A session of HTTP/2 without a socket: what RFC 9113 asks of a server, case by case."""

import pytest

from penstock.service.wire.calls import Head, Header, StreamingCall
from penstock.service.wire.http2.control import FINAL_PING
from penstock.service.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST,
    PADDED,
    PING,
    PREFACE,
    PRIORITISED,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    SettingId,
    frame,
    goaway,
    read_settings,
    reset,
    settings,
    window_update,
)
from penstock.service.wire.limits import ServerLimits
from tests.unit.service.http2 import GET, GREETING, POST, TEXT, Talk, block, frames_of, request

BOTH = END_HEADERS | END_STREAM
SMALL = ServerLimits(head=500, headers=10, body=100, calls=3, unsent=1_000)


# ---------------------------------------------------------------- greetings


def test_server_announces_its_limits_first() -> None:
    hello = Talk(ServerLimits(calls=7, head=999, body=100_000), greeted=False).hello
    assert [one.kind for one in hello] == [SETTINGS, WINDOW_UPDATE]
    said = dict(read_settings(hello[0].payload))
    assert said[SettingId.MAX_CONCURRENT_STREAMS] == 7
    assert said[SettingId.MAX_HEADER_LIST_SIZE] == 999
    assert said[SettingId.INITIAL_WINDOW_SIZE] > 100_000


def test_settings_are_acknowledged_once_they_are_whole() -> None:
    talk = Talk(greeted=False)
    for at in range(len(GREETING) - 1):
        talk.send(GREETING[at : at + 1])
    assert talk.said() == []
    talk.send(GREETING[-1:])
    assert talk.said() == frames_of(frame(SETTINGS, ACK, 0))


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nhost: here\r\n\r\n" + b" " * 40,
        PREFACE[:-1] + b"X" + settings([]),
        PREFACE + frame(PING, 0, 0, bytes(8)),
        PREFACE + frame(SETTINGS, ACK, 0),
    ],
)
def test_wrong_preface_ends_the_session(start: bytes) -> None:
    assert Talk(greeted=False).send(start).end() == Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        ((SettingId.ENABLE_PUSH, 2), Code.PROTOCOL_ERROR),
        ((SettingId.INITIAL_WINDOW_SIZE, LARGEST + 1), Code.FLOW_CONTROL_ERROR),
        ((SettingId.MAX_FRAME_SIZE, 16_383), Code.PROTOCOL_ERROR),
        ((SettingId.MAX_FRAME_SIZE, 1 << 24), Code.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_range_end_the_session(pair: tuple[int, int], code: Code) -> None:
    assert Talk().send(settings([pair])).end() == code


def test_unknown_settings_are_ignored() -> None:
    assert Talk().send(settings([(0x99, 5), (SettingId.MAX_FRAME_SIZE, 16_384)])).kinds() == [SETTINGS]


def test_missing_acknowledgement_of_settings_ends_the_session() -> None:
    talk = Talk(ServerLimits(reading=10), greeted=False).send(GREETING)
    talk.session.sweep(talk.now + 9)
    assert not talk.session.control.closed
    talk.session.sweep(talk.now + 11)
    assert talk.end() == Code.SETTINGS_TIMEOUT


# ---------------------------------------------------------------- frames that break the rules


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, BOTH, 0, block(GET)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, BOTH, 2, block(GET)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, BOTH | PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, BOTH | PADDED, 1), Code.FRAME_SIZE_ERROR),
        (frame(HEADERS, BOTH | PRIORITISED, 1, b"abc"), Code.FRAME_SIZE_ERROR),
        (frame(HEADERS, BOTH, 1, b"\x80"), Code.COMPRESSION_ERROR),
        (frame(PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (request(1) + frame(RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (window_update(0, 0), Code.PROTOCOL_ERROR),
        (window_update(1, 5), Code.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
        (window_update(0, LARGEST), Code.FLOW_CONTROL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, block(GET)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_STREAM, 1, block(GET)) + frame(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_STREAM, 1, block(GET)) + frame(0x77, 0, 1), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, block(GET)) + frame(CONTINUATION, END_HEADERS, 3), Code.PROTOCOL_ERROR),
        (request(5) + request(3), Code.STREAM_CLOSED),
        (b"\x00\x40\x01" + bytes(6), Code.FRAME_SIZE_ERROR),
    ],
    ids=lambda value: value.name if isinstance(value, Code) else value[:16].hex(),
)
def test_connection_errors_end_the_session(data: bytes, code: Code) -> None:
    assert Talk().send(data).end() == code


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
        (request(1) + window_update(1, 0), Code.PROTOCOL_ERROR),
        (request(1) + window_update(1, LARGEST), Code.FLOW_CONTROL_ERROR),
        (request(1) + frame(DATA, 0, 1, b"late"), Code.STREAM_CLOSED),
        (request(1) + frame(HEADERS, BOTH, 1, block([(b"a", b"b")])), Code.STREAM_CLOSED),
    ],
)
def test_stream_errors_reset_one_stream(data: bytes, code: Code) -> None:
    talk = Talk().send(data)
    assert talk.reset(1) == code
    assert talk.send(frame(PING, 0, 0, bytes(8))).kinds() == [PING]


def test_frames_of_unknown_kinds_and_priorities_are_ignored() -> None:
    talk = Talk().send(frame(0x77, 0xFF, 99, b"what?") + frame(PRIORITY, 0, 9, bytes(5)) + request(1))
    assert len(talk.calls) == 1
    assert talk.said() == []


def test_the_reserved_bit_of_a_stream_is_ignored() -> None:
    talk = Talk().send(frame(HEADERS, BOTH, 1 << 31 | 1, block(GET)))
    talk.calls[0].answer(TEXT, b"x")
    assert talk.answer(1).body == b"x"
    assert talk.send(frame(HEADERS, BOTH, 1 << 31 | 1, block(GET))).end() == Code.STREAM_CLOSED


# ---------------------------------------------------------------- requests


def test_a_request_becomes_a_call_with_its_path_parted_and_its_host() -> None:
    fields = [*POST[:2], (b":path", b"/a%20b?c=d?e"), POST[3], (b"x-one", b"1")]
    (call,) = Talk().send(request(1, fields, b"hello")).calls
    assert (call.method, call.path, call.query, call.body) == (b"POST", b"/a%20b", b"c=d?e", b"hello")
    assert call.headers == ((b"host", b"here"), (b"x-one", b"1"))
    assert call.header(b"x-one") == b"1"
    assert call.expires is None


def test_request_cut_at_any_byte_is_the_same() -> None:
    data = request(1, POST, b"hello")
    for at in range(1, len(data)):
        talk = Talk().send(data[:at]).send(data[at:])
        assert [call.body for call in talk.calls] == [b"hello"], at


def test_request_may_come_in_many_padded_frames() -> None:
    head = block(POST)
    data = frame(HEADERS, PADDED | PRIORITISED, 1, b"\x03" + bytes(5) + head[:5] + bytes(3))
    data += frame(CONTINUATION, 0, 1, head[5:10]) + frame(CONTINUATION, END_HEADERS, 1, head[10:])
    data += frame(DATA, PADDED, 1, b"\x02hel" + bytes(2)) + frame(DATA, 0, 1) + frame(DATA, END_STREAM, 1, b"lo")
    assert [call.body for call in Talk().send(data).calls] == [b"hello"]


def test_trailers_end_a_request() -> None:
    head = frame(HEADERS, END_HEADERS, 1, block(POST)) + frame(DATA, 0, 1, b"hello")
    talk = Talk().send(head)
    assert talk.calls == []
    talk.send(frame(HEADERS, BOTH, 1, block([(b"checksum", b"1")])))
    assert [call.body for call in talk.calls] == [b"hello"]


@pytest.mark.parametrize(
    ("trailers", "flags"),
    [([(b"checksum", b"1")], END_HEADERS), ([(b":path", b"/")], BOTH), ([(b"A", b"1")], BOTH)],
)
def test_malformed_trailers_reset_the_stream(trailers: list[Header], flags: int) -> None:
    talk = Talk().send(frame(HEADERS, END_HEADERS, 1, block(POST)) + frame(HEADERS, flags, 1, block(trailers)))
    assert talk.reset(1) == Code.PROTOCOL_ERROR
    assert talk.calls == []


@pytest.mark.parametrize(
    "fields",
    [
        GET[1:],
        [GET[0], *GET[2:]],
        [*GET[:2], GET[3]],
        [*GET, GET[0]],
        [*GET, (b":status", b"200")],
        [*GET, (b":protocol", b"websocket")],
        [*GET[:3], (b"a", b"b"), GET[3]],
        [*GET[:2], (b":path", b"")],
        [*GET[:2], (b":path", b"no-slash")],
        [*GET[:2], (b":path", b"*")],
        [*GET, (b"Upper", b"x")],
        [*GET, (b"", b"x")],
        [*GET, (b"a b", b"x")],
        [*GET, (b"a", b"x\r\ny: z")],
        [*GET, (b"a", b" x")],
        [*GET, (b"connection", b"close")],
        [*GET, (b"keep-alive", b"5")],
        [*GET, (b"proxy-connection", b"close")],
        [*GET, (b"transfer-encoding", b"chunked")],
        [*GET, (b"upgrade", b"h2c")],
        [*GET, (b"te", b"gzip")],
        [*GET, (b"host", b"elsewhere")],
        [*GET, (b"content-length", b"1")],
        [*GET, (b"content-length", b"-0")],
        [*GET, (b"content-length", b"0"), (b"content-length", b"1")],
        [(b":method", b"CONNECT"), *GET[1:]],
    ],
    ids=lambda fields: b",".join(b"=".join(field) for field in fields[-2:]).decode(),
)
def test_a_malformed_request_ends_its_stream_alone(fields: list[Header]) -> None:
    talk = Talk().send(request(1, fields) + request(3))
    assert len(talk.calls) == 1, "the well-formed one"
    assert talk.reset(1) == Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [*GET, (b"te", b"trailers")],
        [*GET, (b"host", b"here")],
        [*GET, (b"content-length", b"0"), (b"content-length", b"0")],
        [(b":method", b"OPTIONS"), GET[1], (b":path", b"*")],
        [GET[3], GET[2], GET[1], GET[0], (b"x", b"")],
    ],
)
def test_unusual_requests_are_accepted_if_well_formed(fields: list[Header]) -> None:
    assert len(Talk().send(request(1, fields)).calls) == 1


@pytest.mark.parametrize("length", [b"4", b"6"])
def test_body_of_another_length_than_announced_is_refused(length: bytes) -> None:
    talk = Talk().send(request(1, [*POST, (b"content-length", length)], b"hello"))
    assert talk.reset(1) == Code.PROTOCOL_ERROR
    assert talk.calls == []


def test_connect_is_refused_without_a_proxy() -> None:
    assert Talk().send(request(1, [(b":method", b"CONNECT"), GET[3]])).reset(1) == Code.REFUSED_STREAM


def test_split_cookies_are_joined() -> None:
    (call,) = Talk().send(request(1, [*GET, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2")])).calls
    assert call.header(b"cookie") == b"a=1; b=2"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"2S", 2.0), (b"150m", 0.15), (b"1H", 3_600.0), (b"3M", 180.0), (b"7u", 7e-6), (b"9n", 9e-9), (b"1X", None)],
)
def test_grpc_timeout_becomes_a_deadline(text: bytes, seconds: float | None) -> None:
    talk = Talk().send(request(1, [*GET, (b"grpc-timeout", text)]))
    assert talk.calls[0].expires == (None if seconds is None else pytest.approx(talk.now + seconds))


def test_expectation_is_answered_with_100_continue() -> None:
    talk = Talk().send(frame(HEADERS, END_HEADERS, 1, block([*POST, (b"expect", b"100-continue")])))
    (said,) = talk.said()
    assert talk.reader.decoder.decode(said.payload, raw=True) == [(b":status", b"100")]
    assert not said.flags & END_STREAM


# ---------------------------------------------------------------- header blocks that are remembered


def test_repeated_header_block_is_not_decoded_again() -> None:
    talk = Talk().send(request(1) + request(3))
    first, second = talk.calls
    assert first.headers is second.headers


def test_cached_header_blocks_are_dropped_when_the_table_changes() -> None:
    """The same bytes name another field after one was added to the table."""
    head = b"\x82\x86\x84"
    add = [b"\x40\x01a\x01" + value for value in (b"1", b"2")]
    talk = Talk().send(frame(HEADERS, BOTH, 1, head + add[0]))
    talk.send(frame(HEADERS, BOTH, 3, head + b"\xbe") + frame(HEADERS, BOTH, 5, head + b"\xbe"))
    talk.send(frame(HEADERS, BOTH, 7, head + add[1]) + frame(HEADERS, BOTH, 9, head + b"\xbe"))
    talk.send(frame(HEADERS, BOTH, 11, head + add[0]) + frame(HEADERS, BOTH, 13, head + b"\xbf"))
    assert [call.header(b"a") for call in talk.calls] == [b"1", b"1", b"1", b"2", b"2", b"1", b"2"]


def test_header_block_is_not_cached_if_trailers_change_the_table() -> None:
    head = b"\x82\x86\x84"
    talk = Talk().send(frame(HEADERS, BOTH, 1, head + b"\x40\x01a\x011") + frame(HEADERS, BOTH, 3, head + b"\xbe"))
    talk.send(frame(HEADERS, END_HEADERS, 5, head) + frame(HEADERS, BOTH, 5, b"\x40\x01a\x012"))
    talk.send(frame(HEADERS, BOTH, 7, head + b"\xbe"))
    assert [call.header(b"a") for call in talk.calls] == [b"1", b"1", None, b"2"]


# ---------------------------------------------------------------- answers


def test_answer_has_headers_body_and_trailers() -> None:
    talk = Talk().send(request(1))
    talk.calls[0].answer(Head(200, [(b"a", b"b")], [(b"grpc-status", b"0")]), b"hello", [])
    headers, body, trailers = talk.answer(1)
    assert (headers, body) == ({b":status": b"200", b"a": b"b"}, b"hello")
    assert trailers == {b"grpc-status": b"0"}


def test_extra_headers_are_not_cached_with_the_head() -> None:
    head = Head(429, [(b"a", b"b")])
    talk = Talk().send(request(1) + request(3))
    talk.calls[0].answer(head, b"x", [(b"retry-after", b"3")])
    assert talk.answer(1).headers == {b":status": b"429", b"a": b"b", b"retry-after": b"3"}
    talk.calls[1].answer(head, b"x")
    assert talk.answer(3).headers == {b":status": b"429", b"a": b"b"}


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_answers_without_a_body_end_with_their_headers(method: bytes, status: int) -> None:
    talk = Talk().send(request(1, [(b":method", method), *GET[1:]]))
    talk.calls[0].answer(Head(status), b"hello")
    assert [(one.kind, one.flags) for one in talk.said()] == [(HEADERS, BOTH)]


def test_only_the_first_answer_counts_and_a_head_that_cannot_be_written_is_none() -> None:
    talk = Talk().send(request(1))
    with pytest.raises(ValueError, match="line end"):
        talk.calls[0].answer(TEXT, b"x", [(b"a", b"b\n")])
    talk.calls[0].answer(TEXT, b"first")
    talk.calls[0].answer(TEXT, b"second")
    assert talk.answer(1).body == b"first"


def test_answers_of_a_batch_wake_the_writer_once() -> None:
    talk = Talk().send(b"".join(request(id) for id in range(1, 41, 2)))
    before = talk.woken
    for call in reversed(talk.calls):
        call.answer(TEXT, b"x")
    assert talk.woken == before + 1
    assert [one.stream for one in talk.said() if one.kind == DATA] == list(range(39, 0, -2))


def test_a_head_larger_than_a_frame_goes_on_in_continuations() -> None:
    talk = Talk().send(request(1) + request(3))
    for call in talk.calls:
        call.answer(Head(200, [(b"a", b"x" * 40_000)]), b"hello")
    said = talk.said()
    assert [one.kind for one in said[:4]] == [HEADERS, CONTINUATION, CONTINUATION, DATA]
    assert talk.reader.answer(said, 3).headers[b"a"] == b"x" * 40_000


def test_peer_with_a_smaller_table_is_told_once_that_none_is_used() -> None:
    talk = Talk().send(settings([(SettingId.HEADER_TABLE_SIZE, 100)]) + request(1) + request(3))
    talk.said()
    talk.reader.decoder.max_allowed_table_size = 100
    talk.calls[0].answer(TEXT, b"x")
    talk.calls[1].answer(TEXT, b"x")
    heads = [one.payload for one in talk.said() if one.kind == HEADERS]
    assert heads[0] == b"\x20" + heads[1]
    assert talk.reader.decoder.decode(heads[0])


# ---------------------------------------------------------------- the peer's windows


def test_an_answer_waits_for_the_window_of_the_connection() -> None:
    talk = Talk().send(request(1))
    talk.calls[0].answer(Head(200, [], [(b"t", b"1")]), b"x" * 70_000)
    first = talk.said()
    assert sum(len(one.payload) for one in first if one.kind == DATA) == 65_535
    assert max(len(one.payload) for one in first) <= 16_384
    talk.send(window_update(1, 70_000))
    assert talk.said() == []
    talk.send(window_update(0, 4_464))
    rest = talk.said()
    assert [len(one.payload) for one in rest] == [4_464]
    talk.send(window_update(0, 1))
    rest += talk.said()
    answer = talk.reader.answer([*first, *rest], 1)
    assert answer.body == b"x" * 70_000
    assert answer.trailers == {b"t": b"1"}


def test_an_answer_waits_for_the_window_of_its_stream_while_others_go_on() -> None:
    talk = Talk().send(settings([(SettingId.INITIAL_WINDOW_SIZE, 3)]) + request(1) + request(3))
    talk.said()
    talk.calls[0].answer(TEXT, b"hello")
    talk.calls[1].answer(TEXT, b"abc")
    said = talk.said()
    assert [(one.stream, one.payload) for one in said if one.kind == DATA] == [(1, b"hel"), (3, b"abc")]
    assert said[-1].flags & END_STREAM
    talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 4)]))
    assert (DATA, 0, 1, b"l") in talk.said()
    talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + window_update(1, 4))
    assert DATA not in talk.kinds(), "the window was 4 below 0"
    talk.send(window_update(1, 1))
    assert talk.said() == frames_of(frame(DATA, END_STREAM, 1, b"o"))


def test_trailers_need_no_window_and_neither_does_an_empty_answer() -> None:
    talk = Talk().send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + request(1) + request(3))
    talk.said()
    talk.calls[0].answer(Head(200, [], [(b"t", b"1")]), b"")
    talk.calls[1].answer(TEXT)
    said = talk.said()
    assert [one.kind for one in said] == [HEADERS, HEADERS, HEADERS]


def test_streams_share_a_window_round_robin() -> None:
    talk = Talk().send(window_update(0, 1) + request(1) + request(3))
    talk.session.streams._window = 0
    for call in talk.calls:
        call.answer(TEXT, b"x" * 40_000)
    talk.said()
    talk.send(window_update(0, 65_536))
    sent = [one.stream for one in talk.said() if one.kind == DATA]
    assert sent == [1, 3, 1, 3]


def test_settings_that_overflow_a_window_end_the_session() -> None:
    talk = Talk().send(request(1) + window_update(1, LARGEST - 65_535))
    assert talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 65_536)])).end() == Code.FLOW_CONTROL_ERROR


def test_a_stream_that_is_reset_gives_its_place_up_and_its_late_answer_does_no_harm() -> None:
    talk = Talk().send(request(1) + request(3))
    talk.session.streams._window = 2
    talk.calls[0].answer(TEXT, b"hello")
    talk.said()
    talk.send(reset(1, Code.CANCEL) + reset(3, Code.CANCEL))
    assert all(call.gone for call in talk.calls)
    talk.calls[1].answer(TEXT, b"hello")
    talk.send(window_update(0, 100))
    assert talk.said() == []
    assert talk.session.streams.unsent == talk.session.streams.abandoned == 0


# ---------------------------------------------------------------- our windows


def test_the_window_of_the_connection_is_opened_again_in_large_steps() -> None:
    talk = Talk(ServerLimits(calls=1_000))
    updates = 0
    for id in range(1, 401, 2):
        talk.send(request(id, POST, b"x" * 16_000))
        updates += sum(one.kind == WINDOW_UPDATE for one in talk.said())
        talk.calls.pop().answer(TEXT)
    assert 200 * 16_000 // 1_048_576 <= updates <= 2 * (200 * 16_000 // 1_048_576 + 1)


def test_data_beyond_the_window_of_a_stream_resets_it() -> None:
    talk = Talk(SMALL).send(frame(HEADERS, END_HEADERS, 1, block(POST)))
    padding = frame(DATA, PADDED, 1, b"\xff" + bytes(255))
    codes = set()
    for _ in range(65_535 // 2 // 256 + 2):
        talk.send(padding)
    assert [one for one in talk.said() if one.kind == WINDOW_UPDATE and one.stream == 1], "padding counts"
    talk.session.streams.open[1].window = 10
    talk.send(padding)
    codes.add(talk.reset(1))
    assert codes == {Code.FLOW_CONTROL_ERROR}


# ---------------------------------------------------------------- limits


def test_a_body_that_is_too_large_is_refused_and_what_comes_after_is_dropped() -> None:
    talk = Talk(SMALL).send(frame(HEADERS, END_HEADERS, 1, block(POST)))
    talk.send(frame(DATA, 0, 1, b"x" * 80) + frame(DATA, 0, 1, b"x" * 80) + frame(DATA, 0, 1, b"x" * 80))
    said = talk.said()
    assert talk.reader.answer(said, 1).headers[b":status"] == b"413"
    assert said[-1] == (RST_STREAM, 0, 1, bytes(4))
    assert talk.calls == []
    assert talk.session.streams.held == 0
    assert not talk.session.control.closed


def test_oversized_body_in_one_frame_is_refused() -> None:
    talk = Talk(SMALL).send(request(1, POST, b"x" * 101) + request(3, POST, b"x" * 100))
    assert [len(call.body) for call in talk.calls] == [100]
    assert talk.answer(1).headers[b":status"] == b"413"


def test_oversized_grpc_message_gets_a_grpc_status() -> None:
    talk = Talk(SMALL).send(request(1, [*POST, (b"content-type", b"application/grpc")], b"x" * 101))
    headers = talk.answer(1).headers
    assert headers[b":status"] == b"200"
    assert headers[b"grpc-status"] == b"8"


@pytest.mark.parametrize("more", [[(b"a", b"x" * 400)], [(b"a%d" % number, b"") for number in range(8)]])
def test_a_head_that_is_too_large_is_refused_and_the_session_goes_on(more: list[Header]) -> None:
    talk = Talk(SMALL).send(request(1, [*GET, *more]) + request(3))
    assert talk.answer(1).headers[b":status"] == b"431"
    assert len(talk.calls) == 1


def test_more_streams_than_allowed_are_refused_and_may_be_tried_again() -> None:
    talk = Talk(SMALL).send(b"".join(request(id) for id in (1, 3, 5, 7)))
    assert talk.reset(7) == Code.REFUSED_STREAM
    talk.calls[0].answer(TEXT)
    assert talk.answer(1).headers[b":status"] == b"200"
    talk.send(request(9))
    assert len(talk.calls) == 4


def test_cancelled_calls_count_until_they_are_answered() -> None:
    talk = Talk(SMALL)
    for id in (1, 3, 5):
        talk.send(request(id) + reset(id, Code.CANCEL))
    assert talk.send(request(7)).reset(7) == Code.REFUSED_STREAM
    talk.calls[0].answer(TEXT)
    assert len(talk.send(request(9)).calls) == 4


def test_peer_with_too_many_unread_answers_gets_no_more() -> None:
    talk = Talk(SMALL).send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + request(1))
    talk.calls[0].answer(TEXT, b"x" * 1_001)
    talk.said()
    assert talk.send(request(3)).reset(3) == Code.ENHANCE_YOUR_CALM


def test_repeated_oversized_heads_end_the_session() -> None:
    talk = Talk()
    bomb = b"\x82\x86\x84" + b"\xbe" * 1_000
    talk.send(frame(HEADERS, BOTH, 1, b"\x82\x86\x84\x40\x01a\x7f\x81\x1e" + b"x" * 3_968))
    for id in range(3, 203, 2):
        talk.send(frame(HEADERS, BOTH, id, bomb))
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_too_many_incomplete_bodies_are_refused() -> None:
    talk = Talk(SMALL._replace(calls=100))
    refused = 0
    for id in range(1, 41, 2):
        talk.send(frame(HEADERS, END_HEADERS, id, block(POST)) + frame(DATA, 0, id, b"x" * 80))
        refused += sum(one.kind == RST_STREAM and one.code == Code.ENHANCE_YOUR_CALM for one in talk.said())
    assert refused == 10
    assert talk.session.streams.held == 10 * 80


# ---------------------------------------------------------------- time


def test_a_request_that_takes_too_long_is_reset_and_others_are_not() -> None:
    talk = Talk(ServerLimits(reading=10)).send(frame(HEADERS, END_HEADERS, 1, block(POST)))
    talk.now += 9
    talk.send(frame(HEADERS, END_HEADERS, 3, block(POST)) + request(5))
    talk.now += 2
    talk.session.sweep(talk.now)
    assert talk.reset(1) == Code.CANCEL
    assert list(talk.session.streams.open) == [3, 5]


@pytest.mark.parametrize("start", [frame(HEADERS, 0, 1, block(POST)), frame(PING, 0, 0, bytes(8))[:-1], b"\0"])
def test_a_head_or_a_frame_that_takes_too_long_ends_the_session(start: bytes) -> None:
    talk = Talk(ServerLimits(reading=10)).send(start[:-1]).send(start[-1:])
    talk.session.sweep(talk.now + 9)
    assert not talk.session.control.closed
    talk.session.sweep(talk.now + 11)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_unread_answers_end_the_session() -> None:
    talk = Talk(ServerLimits(stalled=10)).send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]) + request(1))
    talk.session.sweep(talk.now)
    talk.calls[0].answer(TEXT, b"hello")
    talk.session.sweep(talk.now + 9)
    talk.send(window_update(1, 1))
    talk.session.sweep(talk.now + 11)
    assert not talk.session.control.closed, "it took a byte"
    talk.session.sweep(talk.now + 22)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_idle_session_drains_and_one_with_a_call_is_not_idle() -> None:
    talk = Talk(ServerLimits(idle=10)).send(request(1))
    talk.session.sweep(talk.now + 50)
    assert not talk.session.control.closed
    talk.calls[0].answer(TEXT)
    talk.session.sweep(talk.now + 59)
    assert GOAWAY not in talk.kinds()
    talk.session.sweep(talk.now + 61)
    assert talk.kinds() == [GOAWAY, PING]
    talk.send(request(3))  # it was on its way
    talk.calls[1].answer(TEXT)
    assert talk.answer(3).headers[b":status"] == b"200"
    talk.send(frame(PING, ACK, 0, FINAL_PING))
    assert talk.end() == Code.NO_ERROR


# ---------------------------------------------------------------- farewells


def test_drain_names_the_last_stream_after_the_peer_has_acknowledged_it() -> None:
    talk = Talk().send(request(1))
    talk.session.control.drain(talk.now)
    first, ping = talk.said()
    assert (first.kind, first.payload[:4], first.code) == (GOAWAY, b"\x7f\xff\xff\xff", Code.NO_ERROR)
    assert ping.kind == PING
    talk.send(request(3))  # it was on its way
    assert len(talk.calls) == 2
    talk.send(frame(PING, ACK, 0, ping.payload))
    (second,) = talk.said()
    assert (second.kind, second.payload[:4]) == (GOAWAY, b"\0\0\0\3")
    assert talk.send(request(5)).reset(5) == Code.REFUSED_STREAM
    for call in talk.calls:
        assert not talk.session.control.closed
        call.answer(TEXT)
        talk.session.control.settle()
    assert talk.session.control.closed


def test_drain_does_not_wait_long_for_a_silent_peer() -> None:
    talk = Talk()
    talk.session.control.drain(talk.now)
    talk.session.sweep(talk.now + 0.5)
    assert not talk.session.control.closed
    talk.session.sweep(talk.now + 1.5)
    assert talk.session.control.closed


def test_a_peer_that_leaves_gets_its_answers_first() -> None:
    talk = Talk().send(request(1) + goaway(0, Code.NO_ERROR))
    assert not talk.session.control.closed
    talk.calls[0].answer(TEXT)
    talk.session.control.settle()
    assert talk.session.control.closed


def test_closed_session_ignores_input() -> None:
    talk = Talk().send(frame(PING, 0, 1, bytes(8)))
    talk.end()
    assert talk.send(request(1)).said() == []
    assert talk.calls == []


# ---------------------------------------------------------------- nuisances


@pytest.mark.parametrize(
    "nuisance",
    [
        frame(PING, 0, 0, bytes(8)),
        settings([]),
        frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0" * 100),
        window_update(0, 1),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(0x77, 0, 0),
    ],
    ids=["ping", "settings", "many settings", "window", "priority", "unknown"],
)
def test_flood_of_useless_frames_ends_the_session(nuisance: bytes) -> None:
    talk = Talk()
    for _ in range(20):
        talk.send(nuisance * 100)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_flood_of_rapid_resets_ends_the_session() -> None:
    talk = Talk()
    for id in range(1, 4_001, 2):
        talk.send(request(id) + reset(id, Code.CANCEL))
        while talk.calls:
            talk.calls.pop().answer(TEXT)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_flood_of_invalid_requests_ends_the_session() -> None:
    talk = Talk()
    for id in range(1, 4_001, 2):
        talk.send(request(id) + window_update(id, 0))
        while talk.calls:
            talk.calls.pop().answer(TEXT)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_flood_of_empty_frames_within_a_request_ends_the_session() -> None:
    talk = Talk().send(frame(HEADERS, END_HEADERS, 1, block(POST)) + frame(DATA, 0, 1) * 2_000)
    assert talk.end() == Code.ENHANCE_YOUR_CALM
    talk = Talk().send(frame(HEADERS, 0, 1, block(POST)) + frame(CONTINUATION, 0, 1) * 2_000)
    assert talk.end() == Code.ENHANCE_YOUR_CALM
    talk = Talk().send(frame(HEADERS, 0, 1, block(POST)) + frame(CONTINUATION, 0, 1, bytes(9_000)) * 3)
    assert talk.end() == Code.ENHANCE_YOUR_CALM


def test_late_resets_are_no_flood() -> None:
    talk = Talk()
    for id in range(1, 4_001, 2):
        talk.send(request(id))
        talk.now += 0.02
        talk.send(reset(id, Code.CANCEL))
        talk.calls.pop().answer(TEXT)
    assert not talk.session.control.closed


def test_peer_with_served_calls_may_ping_and_open_windows() -> None:
    talk = Talk()
    for id in range(1, 8_001, 2):
        talk.send(request(id) + frame(PING, 0, 0, bytes(8)) + window_update(0, 5))
        talk.calls.pop().answer(TEXT, b"hello")
        talk.said()
    assert not talk.session.control.closed


def test_long_answer_may_be_read_in_many_steps_but_not_by_the_byte() -> None:
    talk = Talk().send(request(1) + window_update(1, 1 << 24))
    talk.calls[0].answer(TEXT, bytes(8 << 20))
    for _ in range(3_000):
        talk.send(window_update(0, 2_000))
    assert not talk.session.control.closed
    for _ in range(3_000):
        talk.send(window_update(0, 1))
    assert talk.end() == Code.ENHANCE_YOUR_CALM


# ---------------------------------------------------------------- streams that are not awaited whole


class Listening:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes | str] = []

    def received(self, data: bytes) -> None:
        self.heard.append(data)

    def ended(self) -> None:
        self.heard.append("ended")

    def lost(self) -> None:
        self.heard.append("lost")


def test_streaming_call_is_read_and_answered_in_pieces() -> None:
    listening, streams = Listening(), []
    talk = Talk(openers={b"/": lambda stream: streams.append(stream) or listening})  # type: ignore[func-returns-value]
    talk.send(frame(HEADERS, END_HEADERS, 1, block(POST)) + frame(DATA, 0, 1, b"one"))
    assert listening.heard == [b"one"]
    (stream,) = streams
    stream.start(TEXT)
    stream.send(b"uno")
    first = talk.said()
    assert [one.kind for one in first] == [HEADERS, DATA]
    talk.send(frame(DATA, END_STREAM, 1, b"two"))
    assert listening.heard == [b"one", b"two", "ended"]
    stream.send(b"due")
    stream.finish([(b"grpc-status", b"0")])
    answer = talk.reader.answer([*first, *talk.said()], 1)
    assert answer.body == b"unodue"
    assert answer.trailers == {b"grpc-status": b"0"}
    assert talk.calls == []
    assert not talk.session.streams.open


def test_pieces_of_an_answer_wait_for_the_window_and_are_dropped_on_a_reset() -> None:
    listening, streams = Listening(), []
    talk = Talk(openers={b"/": lambda stream: streams.append(stream) or listening})  # type: ignore[func-returns-value]
    talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 4)]) + frame(HEADERS, END_HEADERS, 1, block(POST)))
    (stream,) = streams
    stream.start(TEXT)
    stream.send(b"abc")
    stream.send(b"def")
    assert stream.waiting == 2
    talk.send(reset(1, Code.CANCEL))
    assert listening.heard == ["lost"]
    stream.send(b"ghi")
    stream.finish()
    assert talk.session.streams.unsent == 0


def test_the_end_of_an_answer_needs_no_window() -> None:
    listening, streams = Listening(), []
    talk = Talk(openers={b"/": lambda stream: streams.append(stream) or listening})  # type: ignore[func-returns-value]
    talk.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(POST)))
    (stream,) = streams
    stream.start(TEXT)
    stream.send(b"abc")
    talk.send(settings([(SettingId.INITIAL_WINDOW_SIZE, 0)]))  # less than was sent
    stream.finish([(b"grpc-status", b"0")])
    assert talk.answer(1).trailers == {b"grpc-status": b"0"}


def test_answer_to_a_lost_streaming_call_changes_no_count() -> None:
    streams: list[StreamingCall] = []
    talk = Talk(openers={b"/": lambda stream: streams.append(stream) or Listening()})  # type: ignore[func-returns-value]
    talk.send(frame(HEADERS, END_HEADERS, 1, block(POST)) + reset(1, Code.CANCEL))
    streams[0].answer(TEXT)
    assert talk.session.streams.abandoned == 0


def test_many_long_answers_are_taken_by_a_peer_that_opens_its_windows_with_every_frame() -> None:
    talk, size, many = Talk(), 49_266, 100
    for id in range(1, 2 * many, 2):
        talk.send(request(id))
    for call in talk.calls:
        call.answer(TEXT, b"x" * size)
    got, frames = 0, 0
    while got < size * many:
        data = [one for one in talk.said() if one.kind == DATA]
        assert data, "nothing more comes"
        got += sum(len(one.payload) for one in data)
        frames += len(data)
        taken = [(one.stream, len(one.payload)) for one in data if one.payload]
        talk.send(b"".join(window_update(0, size) + window_update(id, size) for id, size in taken))
        assert not talk.session.control.closed
    assert frames < 6 * many  # not ever smaller ones

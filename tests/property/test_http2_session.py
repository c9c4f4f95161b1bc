"""Sessions of HTTP/2 on generated frames, sound and not: nothing raises, nothing is left, all calls come out right.

Every example is at least five frames, so that the full profile is over 50,000 of them.
"""

from hypothesis import given
from hypothesis import strategies as st

from penstock.service.wire.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    settings,
    window_update,
)
from penstock.service.wire.limits import ServerLimits
from tests.unit.service.http2 import GET, POST, TEXT, Reader, Talk, block, request

LIMITS = ServerLimits(head=300, headers=8, body=60, calls=6, unsent=200)

ids = st.integers(0, 12)
sizes = st.integers(0, 80)
blocks = st.sampled_from(
    [
        *(block(GET), block(POST), b"\x82\x86\x84", b"\x82\x86\x84\x40\x01a\x01b", b"\x82\x86\x84\xbe", b"\xbe"),
        *(b"\x40\x01A\x01b", b"\x80", b"", block([*POST, (b"content-length", b"5")]), block([(b"a", b"b" * 200)])),
    ]
)
flags = st.sampled_from([0, 1, 4, 5, 8, 9, 0xC, 0xD, 0x20, 0x25, 0xFF]) | st.integers(0, 255)
sound = st.one_of(
    st.builds(request, ids, st.sampled_from([GET, POST]), st.none() | st.binary(max_size=70)),
    st.builds(lambda id, fields, all: frame(HEADERS, all, id, fields), ids, blocks, st.sampled_from([0, 1, 4, 5])),
    st.builds(lambda id, size, last: frame(DATA, last, id, bytes(size)), ids, sizes, st.sampled_from([0, 1])),
    st.builds(lambda id: frame(RST_STREAM, 0, id, bytes(4)), ids),
    st.builds(window_update, ids, st.sampled_from([0, 1, 50, 70_000, 0x7FFF_FFFF])),
    st.builds(lambda size: settings([(4, size)]), st.sampled_from([0, 1, 100, 65_535, 0x7FFF_FFFF])),
)
anything = st.builds(frame, st.integers(0, 11), flags, ids, st.binary(max_size=30) | blocks)
acts = st.sampled_from(["answer", "sweep", "drain"]) | sound | sound | anything


@given(st.lists(acts, min_size=5, max_size=25), st.integers(1, 200))
def test_a_session_continues_or_ends_in_order_after_any_bytes(acts: list[str | bytes], cut: int) -> None:
    talk = Talk(LIMITS)
    said = []
    for act in acts:
        if act == "answer":
            for call in talk.calls:
                call.answer(TEXT, call.body + b"!" * 50)
            talk.calls.clear()
            talk.session.control.settle()
        elif act == "sweep":
            talk.now += 3.0
            talk.session.sweep(talk.now)
        elif isinstance(act, str):
            talk.session.control.drain(talk.now)
        else:
            for at in range(0, len(act), cut):
                talk.send(act[at : at + cut])
        said += talk.said()
        _check(talk)
    reader = Reader()
    for one in said:  # whatever we said, a client can read
        assert one.kind in (DATA, HEADERS, SETTINGS, WINDOW_UPDATE, RST_STREAM, GOAWAY, 6)
        if one.kind == HEADERS:
            assert one.flags & END_HEADERS
            reader.decoder.decode(one.payload)
    ends = [one.stream for one in said if one.kind in (DATA, HEADERS) and one.flags & END_STREAM]
    assert len(ends) == len(set(ends)), "a stream ends once"
    talk.session.streams.lose_all()
    assert talk.session.streams.unsent == 0


def _check(talk: Talk) -> None:
    session, streams = talk.session, talk.session.streams
    assert len(streams.open) <= LIMITS.calls
    assert session.streams.held == sum(stream.size for stream in streams.open.values() if stream.pieces is not None)
    assert streams.unsent == sum(len(stream.unsent) for stream in streams.open.values())
    assert streams.abandoned == sum(call.gone for call in talk.calls) or session.control.closed
    assert len(b"".join(session._pieces)) <= 16_384 + 9


@given(st.lists(st.tuples(st.sampled_from([GET, POST]), st.binary(max_size=60)), min_size=1, max_size=5), st.data())
def test_however_requests_are_cut_and_mixed_they_are_the_same_calls(
    asked: list[tuple[tuple[tuple[bytes, bytes], ...], bytes]], data: st.DataObject
) -> None:
    """Their frames in any order that keeps that of each stream, and the bytes cut anywhere."""
    lines = []
    for number, (fields, body) in enumerate(asked):
        id = 2 * number + 1
        pieces = [body[:5], body[5:30], body[30:]]
        lines.append([frame(HEADERS, END_HEADERS, id, block(fields)), *(frame(DATA, 0, id, one) for one in pieces)])
        lines[-1].append(frame(DATA, END_STREAM, id))
    mixed = b"".join(line.pop(0) for line in lines)
    while any(lines):
        mixed += data.draw(st.sampled_from([line for line in lines if line])).pop(0)
    talk = Talk(LIMITS)
    size = data.draw(st.integers(1, 100))
    for at in range(0, len(mixed), size):
        talk.send(mixed[at : at + size])
    assert sorted((call.method, call.body) for call in talk.calls) == sorted(
        (fields[0][1], body) for fields, body in asked
    )

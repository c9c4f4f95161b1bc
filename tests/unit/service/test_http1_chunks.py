"""Chunked bodies: put together whatever the pieces they come in, and refused where they are not exact."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.wire.http1.chunked import Unchunker
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.problems import RefusedRequest

LIMITS = ServerLimits(head=100, body=1000)


def unchunk(pieces: list[bytes]) -> tuple[bytes, bytes]:
    """The body and what follows it, fed as a connection does: what was not taken comes again, with more behind it."""
    chunks, data = Unchunker(LIMITS), b""
    for piece in pieces:
        data += piece
        data = data[chunks.feed(data) :]
        if not chunks.done:
            assert len(data) <= 258, "a peer can make it hold more and more"
    if not chunks.done:
        raise EOFError
    return bytes(chunks.body), data


def refused(data: bytes) -> tuple[int, str]:
    answers = set()
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        with pytest.raises(RefusedRequest) as caught:
            unchunk(pieces)
        answers.add((int(caught.value.status), caught.value.code))
    (answer,) = answers  # the same, whatever the pieces
    return answer


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=10), st.lists(st.integers(0, 250), max_size=6))
def test_any_body_is_decoded_from_any_pieces(parts: list[bytes], behind: bytes, cuts: list[int]) -> None:
    data = chunked(parts) + behind
    cuts = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    body, rest = unchunk(pieces)
    assert (body, rest) == (b"".join(parts), behind)


@pytest.mark.parametrize(
    "data",
    [
        b"3;name=value\r\nabc\r\n0\r\n\r\n",
        b'3;name="quoted value"\r\nabc\r\n0;last\r\n\r\n',
        b"00000003\r\nabc\r\n000\r\n\r\n",
        b"3\r\nabc\r\n0\r\nTrailer: dropped\r\nOther:\r\n\r\n",
        b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n",
    ],
)
def test_all_chunkings_of_a_body_are_decoded_alike(data: bytes) -> None:
    assert unchunk([data]) == (b"abc", b"")
    assert unchunk([data[at : at + 1] for at in range(len(data))]) == (b"abc", b"")
    for length in range(len(data)):
        with pytest.raises(EOFError):
            unchunk([data[:length]])


def test_sizes_may_have_hexadecimal_digits_of_either_case() -> None:
    assert unchunk([b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"])[0] == b"0123456789" * 2


@pytest.mark.parametrize(
    "data",
    [
        b"\r\nabc\r\n0\r\n\r\n",
        b"x\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b" 3\r\nabc\r\n0\r\n\r\n",
        b"3_0\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\n0\n\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b"3\r\nabc\rX",
        b"4\r\nabc\r\n0\r\n\r\n",
        b"3;\0\r\nabc\r\n0\r\n\r\n",
        b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        b"3;a\rb\r\nabc\r\n0\r\n\r\n",
        b"000000000\r\n\r\n",
        b"100000000\r\n",
        b"ffffffffffffffffffffffffff\r\n",
        b"3;" + b"x" * 300,
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\nName : x\r\n\r\n",
        b"0\r\nName: \0\r\n\r\n",
        b"0\r\nName: x\nOther: y\r\n\r\n",
        b"0\r\nName: " + b"x" * 200 + b"\r\n\r\n",
        b"0\r\n" + b"Name: xxxx\r\n" * 20 + b"\r\n",
    ],
)
def test_inexact_framing_is_refused(data: bytes) -> None:
    assert refused(data) == (400, "malformed")


def test_the_size_is_limited_as_soon_as_it_is_announced() -> None:
    assert unchunk([b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n"])[0] == b"x" * 1000
    assert refused(b"3e9\r\n") == (413, "body_too_large")
    assert refused(b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n") == (413, "body_too_large")
    assert refused(b"ffffffff\r\n") == (413, "body_too_large")

"""Header blocks, held against the reference: whatever it writes we read, and what we write it reads."""

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.wire.calls import Header
from penstock.service.wire.http2.frames import SessionError
from penstock.service.wire.http2.hpack import Decoder, encode, from_huffman

names = st.sampled_from([b":path", b":method", b"grpc-timeout", b"user-agent", b"x-a", b"x-b"]) | st.from_regex(
    rb"[a-z][a-z0-9-]{0,9}", fullmatch=True
)
values = st.sampled_from([b"GET", b"/", b"", b"100m"]) | st.builds(
    lambda unit, times: unit * times, st.sampled_from([b"a", b"\xff", b"17:"]), st.integers(0, 200)
)
lists = st.lists(st.tuples(names, values, st.booleans()), max_size=6)
steps = st.lists(st.tuples(lists, st.booleans(), st.none() | st.integers(0, 4_096)), max_size=5)


@given(steps)
def test_fields_written_by_the_reference_are_read_alike(
    steps: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    """Also with tables that grow and shrink, over many blocks."""
    encoder, ours, theirs = hpack.Encoder(), Decoder(), hpack.Decoder()
    for fields, huffman, size in steps:
        if size is not None:
            encoder.header_table_size = size
        block = encoder.encode(fields, huffman=huffman)
        read, _, sound = ours.decode(block, 1 << 20)
        assert read == [(name, value) for name, value, _ in fields]
        assert sound
        assert [*map(tuple, theirs.decode(block, raw=True))] == read
        assert ours._table[::-1] == list(theirs.header_table.dynamic_entries)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_read_alike_or_refused_by_both(blocks: list[bytes]) -> None:
    ours, theirs = Decoder(), hpack.Decoder(1 << 20)
    for block in blocks:
        try:
            expected = [*map(tuple, theirs.decode(block, raw=True))]
        except (hpack.HPACKError, IndexError, ValueError):
            with pytest.raises(SessionError):
                ours.decode(block, 1 << 20)
            return
        try:
            assert ours.decode(block, 1 << 20)[0] == expected
        except SessionError:
            assert b"\x80\x80\x80\x80" in block, "the reference takes numbers of any length"
            return


@given(st.lists(st.tuples(names, values), max_size=6))
def test_fields_that_we_write_are_read_by_the_reference(fields: list[Header]) -> None:
    decoder = hpack.Decoder()
    assert [*map(tuple, decoder.decode(encode(fields), raw=True))] == fields
    assert not decoder.header_table.dynamic_entries


@given(st.binary(max_size=100))
def test_any_text_survives_the_huffman_code(text: bytes) -> None:
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)
    assert from_huffman(coded) == text


@given(st.binary(max_size=12))
def test_any_bytes_are_huffman_code_for_both_or_for_neither(coded: bytes) -> None:
    try:
        expected = decode_huffman(coded)
    except hpack.HPACKDecodingError:
        with pytest.raises(ValueError, match="Huffman"):
            from_huffman(coded)
    else:
        assert from_huffman(coded) == expected

"""Header blocks: the facts of RFC 7541, and what is not a header block."""

import hpack
import pytest

from penstock.service.wire.http2.frames import Code, SessionError
from penstock.service.wire.http2.hpack import Decoder, encode, from_huffman, is_sound

PLENTY = 65_536
FIRST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
SECOND = [*FIRST, (b"cache-control", b"no-cache")]
THIRD = [
    *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html"), (b":authority", b"www.example.com")),
    (b"custom-key", b"custom-value"),
]


def fields(decoder: Decoder, block: str) -> list[tuple[bytes, bytes]]:
    return decoder.decode(bytes.fromhex(block), PLENTY)[0]


def refused(block: bytes, decoder: Decoder | None = None) -> bool:
    with pytest.raises(SessionError) as caught:
        (decoder or Decoder()).decode(block, PLENTY)
    return caught.value.code == Code.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("block", "field", "indexed"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header"), True),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), False),
        ("100870617373776f726406736563726574", (b"password", b"secret"), False),
        ("82", (b":method", b"GET"), False),
    ],
)
def test_representations_of_appendix_c2_are_decoded(block: str, field: tuple[bytes, bytes], indexed: bool) -> None:
    decoder = Decoder()
    assert fields(decoder, block) == [field]
    assert decoder.changed is indexed
    if indexed:
        assert fields(decoder, "be") == [field]
    else:
        assert refused(b"\xbe", decoder)


@pytest.mark.parametrize(
    "blocks",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["plain", "huffman"],
)
def test_requests_of_appendices_c3_and_c4_are_decoded(blocks: tuple[str, str, str]) -> None:
    decoder = Decoder()
    assert [fields(decoder, block) for block in blocks] == [FIRST, SECOND, THIRD]
    # Newest first: custom-key, cache-control, :authority.
    assert fields(decoder, "bebfc0") == [THIRD[4], SECOND[4], FIRST[3]]
    assert refused(b"\xc1", decoder)


def test_a_table_of_256_bytes_evicts_as_in_appendix_c5() -> None:
    decoder = Decoder()
    decoder.decode(bytes.fromhex("3fe101"), PLENTY)  # 256
    date, later = b"Mon, 21 Oct 2013 20:13:21 GMT", b"Mon, 21 Oct 2013 20:13:22 GMT"
    first = [
        *((b":status", b"302"), (b"cache-control", b"private"), (b"date", date)),
        (b"location", b"https://www.example.com"),
    ]
    block = "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
    block += "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
    assert fields(decoder, block) == first
    assert fields(decoder, "4803333037c1c0bf") == [(b":status", b"307"), *first[1:]]
    assert refused(b"\xc2", decoder), "the status 302 was evicted"
    cookie = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    block = "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738"
    third = fields(decoder, block + cookie.hex())
    expected = [(b":status", b"200"), first[1], (b"date", later), first[3]]
    assert third == [*expected, (b"content-encoding", b"gzip"), (b"set-cookie", cookie)]


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # beyond the table
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a number without end
        b"\xff",  # ... that ends early
        b"\x40\x05ab",  # a name that ends early
        b"\x40\x01a",  # no value
        b"\x40\x01a\x05b",  # a value that ends early
        b"\x3f\xe2\x1f",  # a table of 4,097 bytes
        b"\x82\x20",  # a size after a field
        b"\x00\x81\xff\x00",  # a name of padding alone is empty, yet 8 bits of it are too many
        b"\x00\x01a\x84\xff\xff\xff\xff",  # the end of the string within it
        b"\x00\x01a\x81\x00",  # padded by zeros
        b"\x7e\x01a",  # the name of a field beyond the table
    ],
    ids=lambda block: block.hex(),
)
def test_a_block_that_cannot_be_read_is_an_error_of_compression(block: bytes) -> None:
    assert refused(block)


def test_a_field_larger_than_the_table_empties_it() -> None:
    decoder = Decoder()
    fields(decoder, "4001610162")
    assert fields(decoder, "be") == [(b"a", b"b")]
    decoder.decode(b"\x40\x01a" + b"\x7f\x81\x1f" + b"x" * 4_096, PLENTY)
    assert refused(b"\xbe", decoder)


def test_a_smaller_table_evicts_and_a_larger_one_brings_nothing_back() -> None:
    decoder = Decoder()
    fields(decoder, "4001610162" + "4001630164")
    assert fields(decoder, "3f03" + "be") == [(b"c", b"d")]  # 34 bytes: room for one
    assert decoder.changed
    assert refused(b"\x3f\xe1\x1f\xbf", decoder)


def test_fields_beyond_the_largest_size_are_left_out_and_the_table_is_kept() -> None:
    decoder = Decoder()
    bomb = b"\x40\x01a\x7f\x81\x1e" + b"x" * 3_968 + b"\xbe" * 1_000
    found, size, sound = decoder.decode(bomb, 10_000)
    assert len(found) == 2
    assert size == 1_001 * (3_968 + 33)
    assert sound
    assert decoder.decode(b"\xbe", 10_000)[0] == [(b"a", b"x" * 3_968)]


def test_an_unsound_field_is_found_again_when_it_is_named_by_its_index() -> None:
    decoder = Decoder()
    assert decoder.decode(b"\x82", PLENTY)[2]
    assert not decoder.decode(b"\x40\x01A\x01b", PLENTY)[2]
    assert decoder.decode(b"\x82", PLENTY)[2]
    assert not decoder.decode(b"\xbe", PLENTY)[2]
    assert not decoder.decode(b"\x0f\x2f\x01b", PLENTY)[2], "its name with another value"


@pytest.mark.parametrize("name", [b"", b"A", b"a b", b"a:", b"a\0", b"\xe4", b":"])
def test_invalid_names_are_not_sound(name: bytes) -> None:
    assert not is_sound((name, b"x"))


@pytest.mark.parametrize("value", [b"\0", b"a\rb", b"a\n", b" a", b"a\t"])
def test_invalid_values_are_not_sound(value: bytes) -> None:
    assert not is_sound((b"a", value))
    assert is_sound((b"a", b"a b"))


def test_encoder_uses_the_static_table_alone() -> None:
    assert encode([(b":status", b"200")]) == b"\x88"
    assert encode([(b"content-type", b"a")]) == b"\x0f\x10\x01a"
    decoder = hpack.Decoder()
    block = encode([(b":status", b"429"), (b"x", b"y" * 300)])
    assert decoder.decode(block, raw=True) == [(b":status", b"429"), (b"x", b"y" * 300)]
    assert not decoder.header_table.dynamic_entries


def test_a_header_with_a_line_end_is_never_written() -> None:
    with pytest.raises(ValueError, match="line end"):
        encode([(b"a", b"b\r\nc: d")])


def test_huffman_code_of_appendix_c4_is_decoded() -> None:
    assert from_huffman(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    assert from_huffman(b"") == b""

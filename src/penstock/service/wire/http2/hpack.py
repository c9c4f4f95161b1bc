"""Header compression (RFC 7541): header blocks to fields and back.

Decoding keeps the dynamic table of the peer. Encoding uses the static table alone, so that an encoded field can be
cached and sent on any connection.

The Huffman code is decoded by the byte. Each node of the code's tree has a row, which gives for each byte the text that
it completes and the next row, so a string costs one look-up per byte. Rows are filled on first use, because most of the
256 are never used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from penstock.service.wire.calls import Header
from penstock.service.wire.http2.frames import Code, SessionError

_EOS = 256


def _tree() -> list[list[int]]:
    """Return the nodes of the code, each with its two children: a node, or a symbol n as ~n."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = ~symbol
    return nodes


_NODES = _tree()

Row: TypeAlias = "list[tuple[Row, bytes]]"

_ROWS: list[Row] = [[] for _ in _NODES]
_FIRST = _ROWS[0]
_DEAD: Row = []  # after EOS, which must not occur within a string
_DEAD += [(_DEAD, b"")] * 256


def _ends() -> list[Row]:
    """Return the rows in which a string may end: padded by at most 7 bits, all of them 1."""
    node, ends = 0, [_FIRST]
    for _ in range(7):
        node = _NODES[node][1]
        ends.append(_ROWS[node])
    return ends


_ENDS = frozenset(map(id, _ends()))


def from_huffman(data: bytes) -> bytes:
    """Return the text of a Huffman-coded string. Raises ValueError if it is invalid."""
    row = _FIRST
    texts = []
    for byte in data:
        if not row:
            _fill(row)
        row, text = row[byte]
        texts.append(text)
    if id(row) not in _ENDS:
        raise ValueError("a Huffman-coded string with invalid padding")
    return b"".join(texts)


def _fill(row: Row) -> None:
    start = next(node for node, one in enumerate(_ROWS) if one is row)
    row += [_step(start, byte) for byte in range(256)]


def _step(node: int, byte: int) -> tuple[Row, bytes]:
    text = bytearray()
    for shift in range(7, -1, -1):
        node = _NODES[node][byte >> shift & 1]
        if node < 0:
            if ~node == _EOS:
                return _DEAD, b""
            text.append(~node)
            node = 0
    return _ROWS[node], bytes(text)


TABLE_SIZE = 4_096
"""The size of the dynamic table, in bytes as RFC 7541 counts them: its default."""

NO_TABLE = b"\x20"
"""Before a header block: its encoder uses no dynamic table."""

_STATIC: tuple[Header, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)  # counted from 1
_INDEX = {field: index for index, field in reversed(list(enumerate(_STATIC)))}
_NAME_INDEX = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC)))}
_LAST = len(_STATIC) - 1

_sound_name = re.compile(rb":?[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
_unsound_value = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z").search

_MOST_OCTETS = 5
"""The longest number, which is enough for 32 bits."""


def is_sound(field: Header) -> bool:
    """Return whether HTTP/2 allows a field: RFC 9113, section 8.2.1."""
    return _sound_name(field[0]) is not None and _unsound_value(field[1]) is None


Decoded: TypeAlias = tuple[list[Header], int, bool]
"""The fields of a block up to the largest size, the size of all fields, and whether all of them are sound."""


class Decoder:
    """The decoder of one peer's header blocks.

    - `changed`: whether the last block changed the dynamic table. While none does, equal blocks have equal fields.
    """

    __slots__ = ("_limit", "_size", "_table", "_tainted", "changed")

    def __init__(self) -> None:
        self._table: list[Header] = []  # the newest last
        self._size, self._limit = 0, TABLE_SIZE
        self._tainted = False  # the table holds, or has held, a field that is not sound
        self.changed = False

    def decode(self, block: bytes, largest: int) -> Decoded:
        """Decode a block. Invalid fields too enter the table, so that later blocks can be read."""
        self.changed = False
        try:
            fields, size, sound = self._decode(block, largest)
        except (IndexError, ValueError):
            raise SessionError(Code.COMPRESSION_ERROR, "an invalid header block") from None
        if self._tainted:
            sound = all(map(is_sound, fields))
        return fields, size, sound

    def _decode(self, block: bytes, largest: int) -> Decoded:
        table = self._table
        fields: list[Header] = []
        at, end, size, sound = 0, len(block), 0, True
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _number(block, at, 0x7F)
                field = _STATIC[index] if index <= _LAST else table[_LAST - index]
                if not index:
                    raise ValueError("no field has index 0")
            elif 0x20 <= first < 0x40:
                at = self._resize(block, at, first & 0x1F, begun=size > 0)
                continue
            else:
                most = 0x3F if first >= 0x40 else 0x0F
                index = first & most
                if index == most:
                    index, at = _number(block, at, most)
                if index:
                    name = (_STATIC[index] if index <= _LAST else table[_LAST - index])[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                field = name, value
                if _unsound_value(value) or not (index or _sound_name(name)):
                    sound = False
                    self._tainted |= first >= 0x40
                if first >= 0x40:
                    self._insert(field)
            size += len(field[0]) + len(field[1]) + 32
            if size <= largest:
                fields.append(field)
        return fields, size, sound

    def _resize(self, block: bytes, at: int, size: int, *, begun: bool) -> int:
        if size == 0x1F:
            size, at = _number(block, at, 0x1F)
        if begun or size > TABLE_SIZE:
            raise ValueError("a table size that is too large, or not at the start of a block")
        self._limit = size
        self._evict()
        self.changed = True
        return at

    def _insert(self, field: Header) -> None:
        self._table.append(field)
        self._size += len(field[0]) + len(field[1]) + 32
        self.changed = True
        if self._size > self._limit:
            self._evict()

    def _evict(self) -> None:
        count = 0
        while self._size > self._limit:
            name, value = self._table[count]
            self._size -= len(name) + len(value) + 32
            count += 1
        del self._table[:count]


def _number(block: bytes, at: int, number: int) -> tuple[int, int]:
    """Read the rest of a number whose first octet was full."""
    for shift in range(0, 7 * _MOST_OCTETS, 7):
        octet = block[at]
        at += 1
        number += (octet & 0x7F) << shift
        if octet < 0x80:
            return number, at
    raise ValueError("a number that is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    first = block[at]
    at += 1
    length = first & 0x7F
    if length == 0x7F:
        length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise ValueError("a string ends early")
    return (from_huffman(block[at:end]) if first >= 0x80 else block[at:end]), end


def encode(fields: Iterable[Header]) -> bytes:
    """Encode fields as a header block, or a part of one, that leaves the peer's table unchanged."""
    return b"".join(map(_encode, fields))


def _encode(field: Header) -> bytes:
    index = _INDEX.get(field)
    if index:
        return bytes([0x80 | index])
    name, value = field
    if _unsound_value(value):
        raise ValueError("a header: expected a value without line ends, NUL or outer spaces")
    known = _NAME_INDEX.get(name)
    return (_length(known, 0x0F) if known else b"\x00" + _length(len(name), 0x7F) + name) + (
        _length(len(value), 0x7F) + value
    )


def _length(number: int, most: int) -> bytes:
    if number < most:
        return bytes([number])
    octets = [most]
    number -= most
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])

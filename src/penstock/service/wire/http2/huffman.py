"""The Huffman code of RFC 7541, decoded by the byte.

A row belongs to a node of the code's tree. It says for each byte which text that completes from there, and which row
comes next: a string costs one look-up for each of its bytes. Rows are filled when they are first needed, for most of
the 256 never are.
"""

from __future__ import annotations

from typing import TypeAlias

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

_EOS = 256


def _tree() -> list[list[int]]:
    """Nodes, each with where 0 and 1 lead: to another node, or, less than 0, to the symbol ~n."""
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
_DEAD: Row = []  # after the end of the string within the string
_DEAD += [(_DEAD, b"")] * 256


def _ends() -> list[Row]:
    """Where a string may end: padded by less than 8 bits, all of them 1."""
    node, ends = 0, [_FIRST]
    for _ in range(7):
        node = _NODES[node][1]
        ends.append(_ROWS[node])
    return ends


_ENDS = frozenset(map(id, _ends()))


def decode(data: bytes) -> bytes:
    """The text of a string. Raises ValueError if there is none."""
    row = _FIRST
    texts = []
    for byte in data:
        if not row:
            _fill(row)
        row, text = row[byte]
        texts.append(text)
    if id(row) not in _ENDS:
        raise ValueError("a string in Huffman code does not end as it must")
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

"""The Huffman code of RFC 7541, decoded by the byte.

A state is a node of the code's tree. Where a byte leads from a state, and which text it completes, is found out once
and remembered: a string then costs one look-up for each of its bytes. There are 256 states, so at most 65,536 steps.
"""

from __future__ import annotations

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


def _ends() -> frozenset[int]:
    """Where a string may end: padded by less than 8 bits, all of them 1."""
    node, ends = 0, [0]
    for _ in range(7):
        node = _NODES[node][1]
        ends.append(node << 8)
    return frozenset(ends)


_ENDS = _ends()
_steps: dict[int, tuple[int, bytes]] = {}  # state << 8 | byte: the next state << 8, and what is complete


def decode(data: bytes) -> bytes:
    """The text of a string. Raises ValueError if there is none."""
    steps = _steps
    state = 0
    texts = []
    for byte in data:
        step = steps.get(state | byte)
        if step is None:
            step = _step(state, byte)
        state, text = step
        texts.append(text)
    if state not in _ENDS:
        raise ValueError("a string in Huffman code ends early")
    return b"".join(texts)


def _step(state: int, byte: int) -> tuple[int, bytes]:
    node, text = state >> 8, bytearray()
    for shift in range(7, -1, -1):
        node = _NODES[node][byte >> shift & 1]
        if node < 0:
            if ~node == _EOS:
                raise ValueError("a string in Huffman code holds its end")
            text.append(~node)
            node = 0
    _steps[state | byte] = step = (node << 8, bytes(text))
    return step

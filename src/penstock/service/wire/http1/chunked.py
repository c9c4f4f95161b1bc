"""Decode chunked bodies. No I/O. Strict, because an error in the framing would misplace the next request."""

from __future__ import annotations

import re

from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.problems import malformed, too_large

_AT_ONCE = 200  # chunks: about a millisecond, in which no other connection is read
_LONGEST = 256  # bytes of a size line with its extensions, which are ignored
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")


class Unchunker:
    """Decodes one body, piece by piece. Trailers are checked and dropped."""

    __slots__ = ("_at_end", "_left", "_limits", "_missing", "body", "done", "paused")

    def __init__(self, limits: ServerLimits) -> None:
        self.body = bytearray()
        self.done = False
        self.paused = False  # it stopped early, so that other connections are read
        self._limits = limits
        self._missing = 0  # bytes of the current chunk that have not come
        self._at_end = False  # the current chunk is complete, and its line end is due
        self._left = -1  # after the last chunk: bytes that trailers may still take

    def feed(self, data: bytes, at: int = 0) -> int:
        """Decode from `at` on, and return the offset where decoding stopped. Raises `RefusedRequest`.

        When `done`, that is the end of the body. Otherwise the caller feeds the rest again, with more data behind it.
        """
        steps = 3 * _AT_ONCE
        self.paused = False
        while not self.done:
            steps -= 1
            if steps < 0:
                self.paused = at < len(data)
                break
            if self._missing:
                stop = self._data(data, at)
            elif self._at_end:
                stop = self._line_end(data, at)
            else:
                stop = self._line(data, at)
            if stop == at:
                break
            at = stop
        return at

    def _data(self, data: bytes, at: int) -> int:
        piece = data[at : at + self._missing]
        self.body += piece
        self._missing -= len(piece)
        self._at_end = not self._missing
        return at + len(piece)

    def _line_end(self, data: bytes, at: int) -> int:
        end = data[at : at + 2]
        if not b"\r\n".startswith(end):
            raise malformed("chunk: expected as many bytes as its size says")
        if len(end) < 2:
            return at
        self._at_end = False
        return at + 2

    def _line(self, data: bytes, at: int) -> int:
        longest = _LONGEST if self._left < 0 else self._left
        end = data.find(b"\r\n", at, at + longest + 2)
        if end < 0:
            if len(data) - at > longest + 1 or b"\n" in data[at:]:
                raise malformed(f"chunk: expected a line of at most {longest} bytes")
            return at
        if self._left < 0:
            self._size(data[at:end])
        elif end == at:
            self.done = True
        elif _TRAILER.fullmatch(data, at, end) is None:
            raise malformed("trailer: expected a name and a value")
        else:
            self._left -= end - at
        return end + 2

    def _size(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise malformed("chunk: expected its size, at most 8 hexadecimal digits")
        self._missing = int(size[1], 16)
        if len(self.body) + self._missing > self._limits.body:
            raise too_large(self._limits.body)
        if not self._missing:
            self._left = self._limits.head

"""Limits on everything that a peer can make grow."""

from __future__ import annotations

from typing import NamedTuple


class ServerLimits(NamedTuple):
    """What a server puts up with. Sizes are bytes, times are seconds.

    - `head`, `headers`: the size of a request's head, and how many headers it may have.
    - `body`: the size of a request's body, after it was unchunked.
    - `reading`: how long a request may take from its first byte to its last.
    - `idle`: how long a connection may stay open with nothing asked.
    - `calls`: how many calls of one connection may be under way; beyond that it is not read from.
    - `unsent`: how many bytes of answers a peer may leave unread; beyond that it is not read from,
      and cut off if it takes none of them for `stalled` seconds.
    - `connections`: how many at once; further ones are closed at once.
    - `held`: how many bytes all requests together may take that have come in part; beyond that, those are cut off
      that hold most.
    """

    head: int = 16_384
    headers: int = 100
    body: int = 1_048_576
    reading: float = 10.0
    idle: float = 75.0
    calls: int = 128
    unsent: int = 262_144
    stalled: float = 10.0
    connections: int = 10_000
    held: int = 268_435_456

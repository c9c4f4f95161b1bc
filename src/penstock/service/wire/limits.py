"""Limits on everything that a peer can make grow."""

from __future__ import annotations

from typing import NamedTuple


class ServerLimits(NamedTuple):
    """What a server accepts. Sizes are bytes, times are seconds.

    - `head`, `headers`: the size of a request's head, and how many headers it may have.
    - `body`: the size of a request's body, without chunk framing.
    - `reading`: how long a request may take from its first byte to its last.
    - `idle`: how long a connection may stay open without a request.
    - `calls`: how many calls of one connection may be under way. Beyond that, reading pauses.
    - `unsent`: how many bytes of answers a peer may leave unread. Beyond that, reading pauses; the connection is
      aborted if the peer reads nothing for `stalled` seconds.
    - `connections`: how many may be open. Further ones are closed at once.
    - `held`: how many bytes all incomplete requests together may take. Beyond that, the connections that hold most
      are aborted.
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

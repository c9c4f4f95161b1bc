"""What passes between a protocol and whoever answers.

A protocol reads bytes and makes calls of them. Whatever came in during one turn of the event loop, over all
connections, is handed over as one batch. Each call is answered once, at once or later and in any order: a protocol that
owes its peer an order keeps it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Header: TypeAlias = tuple[bytes, bytes]
"""A name in lower case, and a value without spaces around it."""


class Peer(NamedTuple):
    """Who is at the other end of a connection. All its calls share one.

    - `address`: of the socket, such as `192.0.2.1`; empty on a Unix socket.
    - `secure`: whether the connection is encrypted.
    - `names`: who the peer is by the certificate it has shown, if it has shown one that we trust.
    """

    address: str = ""
    secure: bool = False
    names: tuple[str, ...] = ()


class Head:
    """Status and headers of answers. Made once and used for many: each protocol keeps its own encoding of it here.

    The length of the body is the protocol's business, and so are `date` and `connection`.
    """

    __slots__ = ("headers", "http1", "http2", "status", "trailers")

    def __init__(self, status: int, headers: Sequence[Header] = (), trailers: Sequence[Header] = ()) -> None:
        self.status = status
        self.headers = tuple(headers)
        self.trailers = tuple(trailers)  # for protocols that have them
        self.http1: bytes | None = None
        self.http2: object = None


class Call(ABC):
    """A request that has been read whole.

    - `path` is as it was sent, up to the `?`; `query` is what follows it. Neither is decoded.
    - `expires`: when the peer gives up waiting, if it said so, as an instant of `penstock.clock.monotonic`.
    """

    __slots__ = ("body", "expires", "headers", "method", "path", "peer", "query")

    method: bytes
    path: bytes
    query: bytes
    headers: Sequence[Header]
    body: bytes
    peer: Peer
    expires: float | None

    @property
    @abstractmethod
    def gone(self) -> bool:
        """Whether nobody waits for an answer any more. Answering all the same does no harm."""

    @abstractmethod
    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        """Answer, once; `extra` are headers of this answer alone. It is written when the batch has been handled."""

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name (in lower case), if it was sent."""
        for found, value in self.headers:
            if found == name:
                return value
        return None


class Handler(Protocol):
    """Who answers calls."""

    def handle(self, calls: list[Call]) -> None:
        """Answer each of them, now or later. Never blocks. Whatever it raises, unanswered calls are answered 500."""


class Connection(asyncio.Protocol, ABC):
    """One peer, in one protocol."""

    __slots__ = ()

    @abstractmethod
    def flush(self) -> None:
        """Write the answers that are ready, in one go."""

    @property
    def held(self) -> int:
        """Bytes of requests that have come in part."""
        return 0

    def retire(self) -> None:
        """Tell the peer with the next answer that it is the last, where a protocol can; else drain."""
        self.drain()

    @abstractmethod
    def drain(self) -> None:
        """Take no more calls, answer those that were taken, and close."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""

    @abstractmethod
    def sweep(self, now: float) -> None:
        """End what takes too long. Called every second or so, in place of a timer for every request."""


# ---------------------------------------------------------------- exchanges


# Calls that both sides go on with: what is asked comes in pieces, and so does the answer.
#
# Only HTTP/2 has them. A server is told by path who opens them; all other calls are read whole and go to its handler.


class Listener(Protocol):
    """Who is told what comes in. Runs on the event loop: it must be quick, and must not raise."""

    def received(self, data: bytes) -> None:
        """Some more of the body."""

    def ended(self) -> None:
        """The peer has said all it wanted to say."""

    def lost(self) -> None:
        """The peer has gone, or has given up: nothing more is received, and nothing that is sent arrives."""


class StreamingCall(Call):
    """A call whose body is not awaited. It can be answered as any call, or piece by piece."""

    __slots__ = ()

    @abstractmethod
    def start(self, head: Head) -> None:
        """Begin an answer, that `send` goes on with and `finish` ends."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Some more of the answer. Whatever the peer does not take yet is kept: see `waiting`."""

    @abstractmethod
    def finish(self, trailers: Sequence[Header] = ()) -> None:
        """That was all."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many bytes the peer has not taken yet. Who goes on sending while they are many, fills our memory."""


Openers: TypeAlias = Mapping[bytes, Callable[[StreamingCall], Listener]]
"""By path: who listens."""

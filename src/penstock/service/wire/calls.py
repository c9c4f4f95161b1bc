"""The interface between protocols and handlers: calls, answers and connections.

A protocol turns bytes into calls. All calls that arrive in one turn of the event loop, over all connections, form one
batch. A handler answers each call once, at once or later, in any order; HTTP/1.1 restores the order of its requests.

A streaming call (HTTP/2 alone) has a body and an answer that come in pieces. The server is configured with the paths of
streaming calls and their openers; every other call is read completely before the handler sees it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Header: TypeAlias = tuple[bytes, bytes]
"""A name in lower case, and a value without spaces around it."""


class Peer(NamedTuple):
    """The other end of a connection, shared by all its calls.

    - `address`: of the socket, such as `192.0.2.1`; empty on a Unix socket.
    - `secure`: whether the connection is encrypted.
    - `names`: the names in the peer's client certificate, if the server trusts it.
    """

    address: str = ""
    secure: bool = False
    names: tuple[str, ...] = ()


class Head:
    """Status and headers of an answer. One head serves many answers: each protocol caches its encoding here.

    The protocol adds `content-length`, `date` and `connection`.
    """

    __slots__ = ("headers", "http1", "http2", "status", "trailers")

    def __init__(self, status: int, headers: Sequence[Header] = (), trailers: Sequence[Header] = ()) -> None:
        self.status = status
        self.headers = tuple(headers)
        self.trailers = tuple(trailers)  # of HTTP/2
        self.http1: bytes | None = None
        self.http2: object = None


class Call(ABC):
    """A request that has been read completely.

    - `path` is as it was sent, up to the `?`; `query` is what follows it. Neither is decoded.
    - `expires`: the deadline of the peer, if it sent one, as an instant of `penstock.clock.monotonic`.
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
        """Whether the peer no longer waits for an answer. An answer is then dropped."""

    @abstractmethod
    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        """Answer, once. `extra`: headers of this answer alone. The answer is written after the batch is handled."""

    def header(self, name: bytes) -> bytes | None:
        """Return the value of the first header of this name (in lower case)."""
        for found, value in self.headers:
            if found == name:
                return value
        return None


class Handler(Protocol):
    """Answers calls."""

    def handle(self, calls: list[Call]) -> None:
        """Answer each call, now or later. Must not block. If it raises, unanswered calls are answered with 500."""


class Connection(asyncio.Protocol, ABC):
    """A connection that speaks one protocol."""

    __slots__ = ()

    @abstractmethod
    def flush(self) -> None:
        """Write the answers that are ready, in one write."""

    @property
    def held(self) -> int:
        """Bytes of incomplete requests."""
        return 0

    def retire(self) -> None:
        """Announce with the next answer that it is the last (HTTP/1.1); other protocols drain."""
        self.drain()

    @abstractmethod
    def drain(self) -> None:
        """Take no more calls, answer those taken, then close."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""

    @abstractmethod
    def sweep(self, now: float) -> None:
        """End what takes too long. Called about once a second, instead of a timer per request."""


class Listener(Protocol):
    """Receives the body of a streaming call, on the event loop: its methods must be quick and must not raise."""

    def received(self, data: bytes) -> None:
        """Receive a piece of the body."""

    def ended(self) -> None:
        """Receive the end of the body."""

    def lost(self) -> None:
        """Note that the peer has gone or has cancelled: nothing more is received, and output is dropped."""


class StreamingCall(Call):
    """A call whose body comes in pieces. It is answered like any call, or piece by piece."""

    __slots__ = ()

    @abstractmethod
    def start(self, head: Head) -> None:
        """Begin an answer in pieces."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send a piece of the answer. What the peer does not accept yet is buffered: see `waiting`."""

    @abstractmethod
    def finish(self, trailers: Sequence[Header] = ()) -> None:
        """End the answer."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Bytes that the peer has not accepted yet. Backpressure is up to the sender: the buffer has no limit."""


Openers: TypeAlias = Mapping[bytes, Callable[[StreamingCall], Listener]]
"""The openers of streaming calls, by path."""

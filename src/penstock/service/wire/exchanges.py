"""Calls that both sides go on with: what is asked comes in pieces, and so does the answer.

Only HTTP/2 has them. A server is told by path who opens them; all other calls are read whole and go to its handler.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from penstock.service.wire.calls import Call, Head, Header


class Listener(Protocol):
    """Who is told what comes in. Runs on the event loop: it must be quick, and must not raise."""

    def received(self, data: bytes) -> None:
        """Some more of the body."""

    def ended(self) -> None:
        """The peer has said all it wanted to say."""

    def lost(self) -> None:
        """The peer has gone, or has given up: nothing more is received, and nothing that is sent arrives."""


class Exchange(Call):
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


Openers: TypeAlias = Mapping[bytes, Callable[[Exchange], Listener]]
"""By path: who listens."""

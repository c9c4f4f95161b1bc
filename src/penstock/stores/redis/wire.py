"""One blocking connection, and how a command is spelled on it."""

from __future__ import annotations

import errno
import math
import select
import ssl
from collections.abc import Mapping
from typing import Any

import hiredis

from penstock.clock import monotonic
from penstock.stores.redis.dialing import dial
from penstock.stores.redis.settings import Node

CHUNK = 65_536


def packed(*words: bytes) -> bytes:
    """A command. Bytes alone: in making text of a number, hiredis crashes when a signal's handler raises (Ctrl-C)."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # declared for a single word
    return command


class Wire:
    """One connection: a question at a time. Its socket never blocks; what waits is `poll`, whose time signals do not
    prolong.
    """

    def __init__(self, kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> None:
        self._socket = dial(kind, connect, node, timeout)
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", lambda: 0)  # what TLS has read already
        self._reader = hiredis.Reader()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def ask(self, question: bytes, until: float) -> Any:
        """The reply to a question. Raises `TimeoutError` or another `OSError` if there is none."""
        self.send(question, until)
        return self.receive(until)

    def receive(self, until: float) -> Any:
        """The next reply."""
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._receive(until))
            reply = self._reader.gets()
        return reply

    def is_quiet(self) -> bool:
        """Whether the server has said nothing since its last answer. If nothing is outstanding, it has hung up else."""
        return not (self._reader.has_data() or self._readable.poll(0))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        """An interrupt may lose one."""
        if hasattr(self, "_socket"):
            self.close()

    def send(self, question: bytes, until: float) -> None:
        """Without waiting for the reply, which `receive` returns."""
        left = memoryview(question)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                _wait(self._writable, until)
            except ssl.SSLWantReadError:
                _wait(self._readable, until)

    def _receive(self, until: float) -> bytes:
        while True:
            if not self._pending():
                _wait(self._readable, until)
            try:
                chunk = self._socket.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # TLS had something to say that was no data
            except ssl.SSLWantWriteError:
                _wait(self._writable, until)
                continue
            if not chunk:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
            return chunk


def _wait(event: select.poll, until: float) -> None:
    """What is there when time is up is still taken: it may have come while somebody else was waited for."""
    if not event.poll(max(math.ceil((until - monotonic()) * 1_000), 0)):
        raise TimeoutError

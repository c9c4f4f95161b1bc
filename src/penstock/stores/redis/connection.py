"""Connections. redis-py connects: names, TLS, passwords, the choice of the database.

Its command layer is not used: it costs more than the server and the kernel together, and it retries calls, while a
decision must be sent at most once.
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import hiredis
import redis
import redis.asyncio.connection as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from penstock.clock import monotonic
from penstock.errors import InvalidOption
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.errors import FORBIDDEN, not_sent

BLOCKING: dict[str, Callable[..., AbstractConnection]] = {
    "tcp": Connection,
    "tls": SSLConnection,
    "unix": UnixDomainSocketConnection,
}
ASYNCIO: dict[str, Callable[..., aio.AbstractConnection]] = {
    "tcp": aio.Connection,
    "tls": aio.SSLConnection,
    "unix": aio.UnixDomainSocketConnection,
}


def dial(kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> socket.socket:
    """Return the socket of a connection that is ready for use; the caller owns it."""
    connection: Any = BLOCKING[kind](**_arguments(kind, connect, node, timeout), retry=Retry(NoBackoff(), 0))
    try:
        connection.connect()
    except BaseException:
        if connection._sock is not None:  # interrupted half-way, which redis-py does not clean up
            connection._sock.close()
            connection._sock = None
        raise
    dialed: socket.socket = connection._sock
    connection._sock = None  # redis-py would close what it takes for forgotten
    return dialed


async def dial_async(kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> asyncio.StreamWriter:
    """Return the writer of a connection that is ready for use; the caller owns its transport."""
    connection: Any = ASYNCIO[kind](**_arguments(kind, connect, node, timeout), retry=AsyncRetry(NoBackoff(), 0))
    try:
        await connection.connect()
    except BaseException:
        if connection._writer is not None:  # cancelled half-way, which redis-py does not clean up
            connection._writer.transport.abort()
            connection._writer = connection._reader = None
        raise
    writer: asyncio.StreamWriter = connection._writer
    connection._writer = connection._reader = None  # redis-py would close what it takes for forgotten
    return writer


def refusal(error: Exception, place: str) -> Failed:
    """Return why there is no connection, without what a server may quote: a user's name, a password."""
    if isinstance(error, redis.AuthenticationError):  # it comes without its code
        why = "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
        return not_sent(FORBIDDEN[why], place, transient=False)
    if isinstance(error, NoPermissionError):
        return not_sent(FORBIDDEN["NOPERM"], place, transient=False)
    cause = error.__cause__ or error.__context__
    what = cause if isinstance(error, redis.RedisError) and isinstance(cause, OSError) else error
    return not_sent(f"cannot connect ({named(what)})", place)


def named(error: BaseException) -> str:
    """Return the name of an error, without what it may quote."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__


def check(settings: RedisSettings) -> None:
    """Raise `InvalidOption` if redis-py does not understand its options."""
    try:
        for connect in (settings.connect, settings.sentinel):
            BLOCKING[settings.kind](**_arguments(settings.kind, connect, settings.nodes[0], settings.connecting))
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        what = f"option {unknown.group(1)!r}: unknown" if unknown else f"a value that redis-py refuses ({named(error)})"
        raise InvalidOption(f"redis at {settings.place}: {what}") from None


def _arguments(kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> dict[str, Any]:
    """Return the options of redis-py. RESP2, because pushed messages would come between replies."""
    where = {"path": node.host} if kind == "unix" else {"host": node.host, "port": node.port}
    ours = {"protocol": 2, "socket_timeout": timeout, "socket_connect_timeout": timeout}
    return dict(connect) | where | ours


# ---------------------------------------------------------------- wire


# One blocking connection, and how a command is spelled on it.


CHUNK = 65_536


def packed(*words: bytes) -> bytes:
    """Return a command. Bytes only: with numbers, hiredis crashes when a signal handler raises (Ctrl-C)."""
    command: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # declared for a single word
    return command


class BlockingConnection:
    """One connection, for one command at a time. Its socket never blocks: `poll` waits, unprolonged by signals."""

    def __init__(self, kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> None:
        self._socket = dial(kind, connect, node, timeout)
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", lambda: 0)  # what TLS has read already
        self._reader = hiredis.Reader()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def ask(self, packed_command: bytes, until: float) -> Any:
        """The reply to a question. Raises `TimeoutError` or another `OSError` if there is none."""
        self.send(packed_command, until)
        return self.receive(until)

    def receive(self, until: float) -> Any:
        """Return the next reply."""
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._receive(until))
            reply = self._reader.gets()
        return reply

    def is_quiet(self) -> bool:
        """Return whether nothing was received. If no reply is outstanding, the server has hung up otherwise."""
        return not (self._reader.has_data() or self._readable.poll(0))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        """Close a connection that an interrupt lost."""
        if hasattr(self, "_socket"):
            self.close()

    def send(self, packed_command: bytes, until: float) -> None:
        """Without waiting for the reply, which `receive` returns."""
        left = memoryview(packed_command)
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
                continue  # TLS received something that was no data
            except ssl.SSLWantWriteError:
                _wait(self._writable, until)
                continue
            if not chunk:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
            return chunk


def _wait(event: select.poll, until: float) -> None:
    """Wait for an event. One that is there when time is up still counts: it may have come during another wait."""
    if not event.poll(max(math.ceil((until - monotonic()) * 1_000), 0)):
        raise TimeoutError

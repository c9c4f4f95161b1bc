"""Making connections. redis-py does the connecting: names, TLS, passwords, the choice of the database.

What it returns is ready for use. Below that its command layer is left alone: it costs more than the server and the
kernel together, and it repeats calls of its own accord, while a decision must be sent at most once.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

import redis
import redis.asyncio.connection as aio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from penstock.errors import InvalidOption
from penstock.model import Failed
from penstock.stores.redis.replies import FORBIDDEN, not_sent
from penstock.stores.redis.settings import Node, Settings

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
    """The socket of a connection that is ready for use; it is the caller's from now on."""
    connection: Any = BLOCKING[kind](**_arguments(kind, connect, node, timeout), retry=Retry(NoBackoff(), 0))
    try:
        connection.connect()
    except BaseException:
        if connection._sock is not None:  # interrupted half-way, which redis-py leaves to whoever finds it
            connection._sock.close()
            connection._sock = None
        raise
    dialed: socket.socket = connection._sock
    connection._sock = None  # redis-py would close what it takes for forgotten
    return dialed


async def dial_async(kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> asyncio.StreamWriter:
    """The writer of a connection that is ready for use: its transport is the caller's from now on."""
    connection: Any = ASYNCIO[kind](**_arguments(kind, connect, node, timeout), retry=AsyncRetry(NoBackoff(), 0))
    try:
        await connection.connect()
    except BaseException:
        if connection._writer is not None:  # cancelled half-way, which redis-py leaves to whoever finds it
            connection._writer.transport.abort()
            connection._writer = connection._reader = None
        raise
    writer: asyncio.StreamWriter = connection._writer
    connection._writer = connection._reader = None  # redis-py would close what it takes for forgotten
    return writer


def refusal(error: Exception, place: str) -> Failed:
    """Why there is no connection. Whatever a server quotes is left out: a user's name, a password."""
    if isinstance(error, redis.AuthenticationError):  # it comes without its code
        why = "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
        return not_sent(FORBIDDEN[why], place, transient=False)
    if isinstance(error, NoPermissionError):
        return not_sent(FORBIDDEN["NOPERM"], place, transient=False)
    cause = error.__cause__ or error.__context__
    what = cause if isinstance(error, redis.RedisError) and isinstance(cause, OSError) else error
    return not_sent(f"cannot connect ({named(what)})", place)


def named(error: BaseException) -> str:
    """What went wrong, without what the error may quote."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__


def check(settings: Settings) -> None:
    """Raise `InvalidOption` if redis-py does not understand what it would be told."""
    try:
        for connect in (settings.connect, settings.sentinel):
            BLOCKING[settings.kind](**_arguments(settings.kind, connect, settings.nodes[0], settings.connecting))
    except Exception as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        what = f"option {unknown.group(1)!r}: unknown" if unknown else f"a value that redis-py refuses ({named(error)})"
        raise InvalidOption(f"redis at {settings.place}: {what}") from None


def _arguments(kind: str, connect: Mapping[str, Any], node: Node, timeout: float) -> dict[str, Any]:
    """RESP2, because what is pushed without having been asked for would come between questions and answers."""
    where = {"path": node.host} if kind == "unix" else {"host": node.host, "port": node.port}
    ours = {"protocol": 2, "socket_timeout": timeout, "socket_connect_timeout": timeout}
    return dict(connect) | where | ours

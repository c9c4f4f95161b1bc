"""Connections for blocking callers: a caller has one to itself for a call, then returns it to the pool.

Requests of one call are written together, and their replies are read in one go. A call that is given up closes its
connection, so that a later call cannot read its replies.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from contextlib import suppress

from penstock.client.address import Address
from penstock.client.http import ApiReply, BadReply, Lost, Replies, ReplyOrLost
from penstock.clock import monotonic
from penstock.engine.lifetime import renew_in_children
from penstock.errors import is_from_signal_handler

AT_ONCE = 64
"""How many requests are written before replies are read: a service whose replies are not read stops reading."""

READ = 65_536
IDLE = 32
"""How many unused connections are kept."""

MOMENT = 1e-4


class _Connection:
    """One connection."""

    def __init__(self, address: Address, until: float) -> None:
        self._replies = Replies()
        self.reused = False
        if address.path:
            plain = socket.socket(socket.AF_UNIX)
        else:
            plain = socket.create_connection((address.host, address.port), _left(until))
        try:
            plain.settimeout(_left(until))
            if address.path:
                plain.connect(address.path)
            else:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = (
                plain if address.context is None else address.context.wrap_socket(plain, server_hostname=address.host)
            )
        except BaseException:
            plain.close()
            raise

    def exchange(self, requests: Sequence[bytes], until: float) -> list[ReplyOrLost]:
        """Return the replies. If any is lost, the connection is closed."""
        replies: list[ApiReply] = []
        sent, why = 0, ""
        try:
            while len(replies) < len(requests):
                some = requests[sent : sent + AT_ONCE]
                sent += len(some)
                self._socket.settimeout(_left(until))
                self._socket.sendall(b"".join(some))
                while len(replies) < sent:
                    replies += self._read(until)
            return [*replies]
        except BaseException as error:
            self.close()  # replies may still come
            if not isinstance(error, OSError | BadReply) or is_from_signal_handler(error):
                raise
            ended = not isinstance(error, TimeoutError)
            why = _named(error) if ended else "no answer in time"
        taken = sent if not self._replies.last else len(replies)  # a peer takes no request after its last reply
        lost = [Lost(why, "unknown" if n < taken else "no", ended) for n in range(len(replies), len(requests))]
        return [*replies, *lost]

    def _read(self, until: float) -> list[ApiReply]:
        if self._replies.last:
            raise ConnectionError("the service has closed the connection")
        self._socket.settimeout(_left(until))
        data = self._socket.recv(READ)
        if not data:
            raise ConnectionError("the service has closed the connection")
        return self._replies.feed(data)

    @property
    def usable(self) -> bool:
        """Whether it can be used again: between calls nothing is readable but the end of a connection."""
        if self._replies.last or self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


class ConnectionPool:
    """The connections of one client, for all its threads. A forked child has its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Connection] = []  # append and pop are atomic
        self._closed = False
        renew_in_children(self)

    def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool = False) -> list[ReplyOrLost]:
        """Return a reply to each request, at `until` of `monotonic` at the latest; with `fresh` by a new connection."""
        connection = None if fresh else self._reused()
        if connection is None:
            try:
                connection = _Connection(self._address, until)
            except OSError as error:
                if is_from_signal_handler(error):
                    raise
                late = isinstance(error, TimeoutError)
                why = "cannot be reached in time" if late else f"cannot be reached: {_named(error)}"
                return [Lost(why, "no")] * len(requests)
        replies = connection.exchange(requests, until)
        if self._closed or len(self._idle) >= IDLE or not connection.usable:
            connection.close()
        else:
            self._idle.append(connection)
        return replies

    def _reused(self) -> _Connection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if connection.usable:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        self._closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def _renew(self) -> None:
        """Forget all connections in a forked child: they are the parent's."""
        for connection in self._idle:
            connection.close()
        self._idle = []


def _left(until: float) -> float:
    return max(until - monotonic(), MOMENT)


def _named(error: Exception) -> str:
    """Return the kind of an error, without text that a peer may have sent."""
    return str(error) if isinstance(error, BadReply) else getattr(error, "strerror", None) or str(error)

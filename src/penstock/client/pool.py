"""Connections for blocking callers: a caller has one to itself while it asks, and leaves it to the next.

Questions that belong together are written together, and their replies read in one go. Who gives up closes the
connection, so that nobody else gets a reply that was not meant for him.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakSet

from penstock.client.address import Address
from penstock.client.http import BadReply, Heard, Lost, Replies, Reply
from penstock.clock import monotonic

AT_ONCE = 64
"""How many questions are written before replies are read: a service that is not read from stops reading."""

READ = 65_536
IDLE = 32
"""How many connections are kept that nobody uses."""

MOMENT = 1e-4


class _Link:
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

    def exchange(self, requests: Sequence[bytes], until: float) -> list[Heard]:
        """The replies; what is missing was lost, and then the connection is closed."""
        heard: list[Reply] = []
        sent, why = 0, ""
        try:
            while len(heard) < len(requests):
                some = requests[sent : sent + AT_ONCE]
                sent += len(some)
                self._socket.settimeout(_left(until))
                self._socket.sendall(b"".join(some))
                while len(heard) < sent:
                    heard += self._read(until)
            return [*heard]
        except TimeoutError:
            why, ended = "no answer in time", False
        except (OSError, BadReply) as error:
            why, ended = _named(error), True
        except BaseException:  # an interrupt: the replies are still to come
            self.close()
            raise
        self.close()
        taken = sent if not self._replies.last else len(heard)  # a peer that said it is the last took no more
        lost = [Lost(why, "unknown" if n < taken else "no", ended) for n in range(len(heard), len(requests))]
        return [*heard, *lost]

    def _read(self, until: float) -> list[Reply]:
        if self._replies.last:
            raise ConnectionError("the service has closed the connection")
        self._socket.settimeout(_left(until))
        data = self._socket.recv(READ)
        if not data:
            raise ConnectionError("the service has closed the connection")
        return self._replies.feed(data)

    @property
    def usable(self) -> bool:
        """Whether it can be asked: nothing may come from a service that owes nothing, but the end."""
        if self._replies.last or self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


class Links:
    """The connections of one client, for all its threads. A forked child has its own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Link] = []  # append and pop are atomic
        self._closed = False
        _alive.add(self)

    def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool = False) -> list[Heard]:
        """What becomes of `requests`, one for each, until that instant of `monotonic`."""
        link = None if fresh else self._reused()
        if link is None:
            try:
                link = _Link(self._address, until)
            except TimeoutError:
                return [Lost("cannot be reached in time", "no")] * len(requests)
            except OSError as error:
                return [Lost(f"cannot be reached: {_named(error)}", "no")] * len(requests)
        heard = link.exchange(requests, until)
        if self._closed or len(self._idle) >= IDLE or not link.usable:
            link.close()
        else:
            self._idle.append(link)
        return heard

    def _reused(self) -> _Link | None:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            if link.usable:
                return link
            link.close()
        return None

    def close(self) -> None:
        self._closed = True
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        for link in self._idle:
            link.close()
        self._idle = []


def _left(until: float) -> float:
    return max(until - monotonic(), MOMENT)


def _named(error: Exception) -> str:
    """What happened, without what a peer may have said."""
    return str(error) if isinstance(error, BadReply) else getattr(error, "strerror", None) or str(error)


_alive: WeakSet[Links] = WeakSet()


def _after_fork_in_child() -> None:
    for links in list(_alive):
        links.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

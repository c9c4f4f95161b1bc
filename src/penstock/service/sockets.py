"""Listening sockets, created before a worker serves them.

The supervisor keeps them open, so that clients queue in the kernel while workers are replaced.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from penstock.errors import InvalidOption

BACKLOG = 2_048
_NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of a host without IPv6, or without an IPv6 address, for which the resolver returns one all the same."""

SPARE = 128
"""Open files of a worker beside its connections, with a reserve."""


class ListenAddress(NamedTuple):
    """Where to listen: a host and a port, or the path of a Unix socket. An empty host is every interface."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reached_at(self) -> str:
        """The address for a client on this machine: host and port, or the path."""
        if self.path:
            return self.path
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return str(ListenAddress(host, self.port))


class ListeningSockets:
    """The listening sockets of some addresses. In `addresses`, port 0 is replaced by the actual port."""

    def __init__(self, addresses: Iterable[ListenAddress]) -> None:
        self.sockets: list[socket.socket] = []
        self.addresses: list[ListenAddress] = []
        self._owner = os.getpid()
        try:
            for address in addresses:
                self.addresses.append(self._listen(address))
        except BaseException:
            self.close()
            raise

    @property
    def numbers(self) -> Sequence[int]:
        """The file descriptors, for a worker that inherits them."""
        return [each.fileno() for each in self.sockets]

    def close(self) -> None:
        """Stop listening. Files of Unix sockets are removed, except in a forked child."""
        for each in self.sockets:
            each.close()
        self.sockets = []
        if self._owner == os.getpid():
            for address in self.addresses:
                if address.path:
                    with suppress(OSError):
                        Path(address.path).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, address: ListenAddress) -> ListenAddress:
        try:
            if address.path:
                self.sockets.append(_on_path(address.path))
                return address
            port, before, missing = address.port, len(self.sockets), OSError(errno.EADDRNOTAVAIL, "no such host")
            for family, place in _places(address):
                try:
                    made = _on_port(family, (place[0], port or place[1], *place[2:]))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    missing = error  # of several resolved addresses, the available ones are used
                    continue
                self.sockets.append(made)
                port = made.getsockname()[1]
            if len(self.sockets) == before:
                raise missing
            return address._replace(port=port)
        except OSError as error:
            raise InvalidOption(f"listen {address}: {error.strerror or error}") from None


def inherited(numbers: Iterable[int]) -> list[socket.socket]:
    """Return the sockets of inherited file descriptors."""
    return [socket.socket(fileno=number) for number in numbers]


def make_room(connections: int) -> str:
    """Raise the limit of open files for so many connections. Return a warning if the system does not allow it.

    Most systems begin with 1,024 files. Beyond that, new connections fail without a log line.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return ""
    room = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, most))
    except (OSError, ValueError):
        room = allowed
    if room == wanted:
        return ""
    return f"limit_connections {connections}: the system allows {room} open files (expected {wanted}: ulimit -n)"


def _places(address: ListenAddress) -> list[tuple[int, tuple[object, ...]]]:
    found = socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, place) for family, _, _, _, place in found))


def _on_port(family: int, place: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 gets a socket of its own
        return _bound(made, place)
    except BaseException:
        made.close()
        raise


def _on_path(path: str) -> socket.socket:
    _remove_left_over(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        return _bound(made, path)
    except BaseException:
        made.close()
        raise


def _bound(made: socket.socket, place: tuple[object, ...] | str) -> socket.socket:
    made.bind(place)
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def _remove_left_over(path: str) -> None:
    """Remove the socket file of a killed process. A socket in use, or any other file, is an error."""
    try:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            raise OSError(errno.EEXIST, "the file exists and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

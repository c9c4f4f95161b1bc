"""The base of server topologies: they start and end together, and tests wait until they agree.

See `tests.rig.sentinels` for a primary whose replicas Sentinel promotes, and `tests.rig.clusters` for
keys that are spread over many servers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from tests.rig.certificates import Certificate
from tests.rig.processes import wait_until
from tests.rig.resp import Refusal
from tests.rig.servers import Server

AGAIN = 6.0
"""Seconds after which servers have given up an operation; those of a cluster take 5."""


class Keyholder(Protocol):
    """Servers with keys: one, or a topology."""

    @property
    def primaries(self) -> Sequence[Server]:
        """The servers that hold the keys now."""


class Topology(ABC):
    """Servers that belong together. As a context manager, it starts and joins them, and closes them at the end."""

    def __init__(self, members: Iterable[Server]) -> None:
        self._members = tuple(members)

    @abstractmethod
    def _join(self) -> None:
        """Join the running members; return when they know one another."""

    def close(self) -> None:
        """Kill all members and remove their folders."""
        together(Server.close, self._members)

    def __enter__(self) -> Self:
        try:
            together(Server.start, self._members)
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def together(do: Callable[[Server], object], servers: Iterable[Server]) -> None:
    """Apply an action to all servers in parallel: each start takes a tenth of a second, mostly waiting."""
    members = list(servers)
    with ThreadPoolExecutor(len(members)) as pool:
        for done in [pool.submit(do, member) for member in members]:
            done.result()


def awake(servers: Iterable[Server]) -> list[Server]:
    """The members that can answer."""
    return [server for server in servers if server.awake]


def come_to_terms(holds: Callable[[], bool], what: str) -> None:
    """Wait like `wait_until`, with a longer pause, for conditions that query every server.

    A server cuts connections when a sentinel changes its role; the condition is then checked again.
    """

    def holds_now() -> bool:
        try:
            return holds()
        except ConnectionRefusedError:  # it is not there at all
            raise
        except ConnectionError:
            return False

    wait_until(holds_now, what, pause=0.02)


def insist(ask: Callable[[], object], holds: Callable[[], bool], what: str) -> None:
    """Request something until it holds: again after a refusal, and after the servers may have given up."""
    again = 0.0
    refusal: Refusal | None = None

    def done() -> bool:
        nonlocal again, refusal
        if holds():
            return True
        if time.monotonic() >= again:
            try:
                ask()
                again = time.monotonic() + AGAIN
            except Refusal as no:
                refusal = no
        return False

    try:
        come_to_terms(done, what)
    except TimeoutError as late:
        raise late from refusal


@contextmanager
def without_replication(primary: Server, replicas: Sequence[Server]) -> Iterator[None]:
    """Detach the replicas: what the primary acknowledges in this block does not reach them.

    Freezing them is not enough: writes of the primary would wait in their sockets and be applied later.
    """
    for replica in replicas:
        replica.freeze()
    try:
        primary.ask("CLIENT", "KILL", "TYPE", "replica")
        yield
    finally:
        for replica in replicas:
            replica.thaw()


def follows(replica: Server, primary: Server) -> bool:
    """Return whether a replica has all data of a primary and receives new writes."""
    kind, *link = replica.ask("ROLE")
    if kind != b"slave" or link[1] != primary.port or link[2] != b"connected":
        return False
    replicas = primary.ask("INFO", "replication")
    return b"port=%d,state=online" % replica.port in replicas


def linked(password: str | None, certificate: Certificate | None) -> list[str]:
    """Return the configuration lines with which servers reach one another.

    Replicas load what they are sent from the socket: from a file, Valkey's take up to a second to notice that it is
    complete.
    """
    lines = ["repl-diskless-load swapdb"]
    if password is not None:
        lines.append(f"masterauth {password}")
    if certificate is not None:
        lines += [f'tls-ca-cert-file "{certificate.path}"', "tls-replication yes"]
    return lines


def url_of(kind: str, servers: Iterable[Server]) -> str:
    """Return the URL of a topology, such as `redis+cluster://:password@127.0.0.1:11000,127.0.0.1:11001`."""
    members = list(servers)
    scheme, _, _ = members[0].url.partition("://")
    hosts = ",".join("{}:{}".format(*member.address) for member in members)
    return f"{scheme}+{kind}://{hosts}"

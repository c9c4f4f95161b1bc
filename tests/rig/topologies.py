"""What sets of servers have in common: they start and end together, and are asked until they have come to terms.

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
"""Seconds after which servers have given up what they were asked for, if they could not do it: Cluster's are 5."""


class Keyholder(Protocol):
    """Whatever has keys: a server, or a topology of many."""

    @property
    def primaries(self) -> Sequence[Server]:
        """The servers that have the keys now."""


class Topology(ABC):
    """Servers that belong together. Used as a context manager they are started and joined, and closed in the end."""

    def __init__(self, members: Iterable[Server]) -> None:
        self._members = tuple(members)

    @abstractmethod
    def _join(self) -> None:
        """Make one of the members, which all run; return when they know one another."""

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
    """Do something to all servers at once: each start takes a tenth of a second, and most of it is waiting."""
    members = list(servers)
    with ThreadPoolExecutor(len(members)) as pool:
        for done in [pool.submit(do, member) for member in members]:
            done.result()


def awake(servers: Iterable[Server]) -> list[Server]:
    """Those that can answer."""
    return [server for server in servers if server.awake]


def come_to_terms(holds: Callable[[], bool], what: str) -> None:
    """`wait_until`, for what takes a question to every server: asked less often, it leaves them time to get on.

    Who asks a server at the moment at which a sentinel gives it another role is cut off, and asks again.
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
    """Ask for something until it holds: again when it is refused, and when it may have been given up silently."""
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
    """What the primary acknowledges in this block reaches no replica. In the end the replicas go on, linked to nobody.

    To freeze them is not enough: what the primary sends would wait in their sockets, and be carried out later.
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
    """Whether a replica has all data of a primary, and gets what is new."""
    kind, *link = replica.ask("ROLE")
    if kind != b"slave" or link[1] != primary.port or link[2] != b"connected":
        return False
    replicas = primary.ask("INFO", "replication")
    return b"port=%d,state=online" % replica.port in replicas


def linked(password: str | None, certificate: Certificate | None) -> list[str]:
    """The lines of configuration with which servers reach one another.

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
    """Where a client finds a topology of a kind, e.g. `redis+cluster://:password@127.0.0.1:11000,127.0.0.1:11001`."""
    members = list(servers)
    scheme, _, _ = members[0].url.partition("://")
    hosts = ",".join("{}:{}".format(*member.address) for member in members)
    return f"{scheme}+{kind}://{hosts}"

"""Stages of faults: real servers of a topology and a fleet with load on them, shared by all faults of the topology.

Each fault restores its stage. It may note further facts and violations on the stage.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from tests.faults.fleet import RATE, Fleet
from tests.faults.node import HOST_NAME
from tests.rig.clock_shim import can_step_clocks
from tests.rig.clusters import Cluster
from tests.rig.faults import FaultProxy
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import Server, binary

FLAVOUR = "valkey"


class Effort(NamedTuple):
    """How long things last: seconds before and after a fault, and the share of its own time that it is given."""

    before: float
    after: float
    share: float
    keys: int


FULL = Effort(before=2.0, after=1.0, share=1.0, keys=100_000)
CI = Effort(before=0.7, after=0.2, share=0.2, keys=5_000)


@dataclass
class Stage:
    """The part that all topologies share."""

    fleet: Fleet
    effort: Effort
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def hold(self, seconds: float) -> None:
        """Let a fault last."""
        Event().wait(seconds * self.effort.share)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)


@dataclass
class One(Stage):
    """One server, behind a proxy."""

    server: Server = field(kw_only=True)
    proxy: FaultProxy = field(kw_only=True)

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self.proxy.refuse()
        self.proxy.reset()

    @contextmanager
    def most_clients(self) -> Iterator[Callable[[], int]]:
        """How many connections the server has had at once in this block, beside the one that is used to ask."""
        most, over = [0], Event()

        def watch() -> None:
            with self.server.talk() as conversation:
                while not over.wait(0.005):
                    text: bytes = conversation.ask("INFO", "clients")
                    (line,) = [line for line in text.splitlines() if line.startswith(b"connected_clients:")]
                    most[0] = max(most[0], int(line.partition(b":")[2]) - 1)

        watcher = Thread(target=watch)
        watcher.start()
        try:
            yield lambda: most[0]
        finally:
            over.set()
            watcher.join()


@dataclass
class Watched(Stage):
    """A primary and its replicas, watched by Sentinels."""

    servers: SentinelSet = field(kw_only=True)


@dataclass
class Sharded(Stage):
    """A cluster."""

    cluster: Cluster = field(kw_only=True)


@dataclass
class Apart(Stage):
    """One server in a network namespace of its own, behind a virtual link."""

    server: Server = field(kw_only=True)

    def cable(self, state: str) -> None:
        _in_its_network(self.server, "ip", "link", "set", "far", state)


# ---------------------------------------------------------------- setting them up


@contextmanager
def one(folder: Path, effort: Effort, nodes: int = 4, rate: float = RATE) -> Iterator[One]:
    with (
        Server(FLAVOUR, steppable=can_step_clocks()) as server,
        FaultProxy(server.address) as proxy,
        Fleet(f"redis://{HOST_NAME}:{proxy.port}", folder, nodes, rate) as fleet,
    ):
        yield One(fleet, effort, server=server, proxy=proxy)


@contextmanager
def durable(folder: Path, effort: Effort) -> Iterator[One]:
    """One server that appends each write to its file before it replies."""
    config = ("appendonly yes", "appendfsync always")
    with (
        Server(FLAVOUR, config=config) as server,
        FaultProxy(server.address) as proxy,
        Fleet(f"redis://{HOST_NAME}:{proxy.port}", folder) as fleet,
    ):
        yield One(fleet, effort, server=server, proxy=proxy)


@contextmanager
def eight(folder: Path, effort: Effort) -> Iterator[One]:
    with one(folder, effort, nodes=8, rate=RATE / 2) as stage:
        yield stage


@contextmanager
def watched(folder: Path, effort: Effort, min_replicas: int = 0) -> Iterator[Watched]:
    with (
        SentinelSet(FLAVOUR, min_replicas=min_replicas, max_lag=1 if min_replicas else 10) as servers,
        Fleet(servers.url, folder) as fleet,
    ):
        yield Watched(fleet, effort, servers=servers)


@contextmanager
def careful(folder: Path, effort: Effort) -> Iterator[Watched]:
    with watched(folder, effort, min_replicas=1) as stage:
        yield stage


@contextmanager
def sharded(folder: Path, effort: Effort) -> Iterator[Sharded]:
    with Cluster(FLAVOUR) as cluster, Fleet(cluster.url, folder) as fleet:
        yield Sharded(fleet, effort, cluster=cluster)


@contextmanager
def apart(folder: Path, effort: Effort) -> Iterator[Apart]:
    """A stage within a network namespace; see `in_own_network`."""
    config = ("bind 0.0.0.0", "protected-mode no")
    with Server(FLAVOUR, config=config, prefix=("unshare", "--net")) as server:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(server.pid))
        _run("ip", "address", "add", "10.77.0.1/24", "dev", "near")
        _run("ip", "link", "set", "near", "up")
        _in_its_network(server, "ip", "address", "add", "10.77.0.2/24", "dev", "far")
        _in_its_network(server, "ip", "link", "set", "far", "up")
        with Fleet(f"redis://10.77.0.2:{server.port}", folder) as fleet:
            yield Apart(fleet, effort, server=server)


def _in_its_network(server: Server, *command: str) -> None:
    _run("nsenter", "--target", str(server.pid), "--net", *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


IN_OWN_NETWORK = ("unshare", "--map-root-user", "--net")
"""What runs a command in a network of its own."""


def can_have_own_network() -> bool:
    """Return whether the system permits a network namespace with a link to another."""
    if any(shutil.which(program) is None for program in ("unshare", "nsenter", "ip")):
        return False
    cable = ("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    return subprocess.run((*IN_OWN_NETWORK, *cable), capture_output=True, check=False).returncode == 0


STAGES: dict[str, Callable[[Path, Effort], AbstractContextManager[Stage]]] = {
    "one server": one,
    "one server, AOF": durable,
    "one server, 8 hosts": eight,
    "Sentinel": watched,
    "Sentinel, min-replicas 1": careful,
    "Cluster": sharded,
    "own network": apart,
}


class Stages:
    """One stage at a time, kept as long as the next fault is on the same."""

    def __init__(self, folder: Path, effort: Effort) -> None:
        self._folder, self._effort = folder, effort
        self._name = ""
        self._closing = ExitStack()

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def on(self, name: str) -> Stage:
        if name != self._name:
            self._closing.close()
            self._name = ""
            folder = self._folder / name.replace(" ", "-")
            folder.mkdir(exist_ok=True)
            self._stage: Stage = self._closing.enter_context(STAGES[name](folder, self._effort))
            self._name = name
        return self._stage


def is_installed() -> bool:
    return binary(FLAVOUR) is not None

"""What the Redis suites share: a server, the processes that ask it, and which core each of them runs on.

Everything listens on the loopback interface, is ended by its id, and ends with the benchmark even if that is killed.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from bench.measure import Run
from tests.rig.servers import Server, flavours

ROOT = Path(__file__).parent.parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
AMPLE = 1_000_000
DAY = 86_400
PATIENCE = 60.0
PEERS = ("limits-valkey", "limits-redis", "throttled")


class Cores(NamedTuple):
    """Where a server runs, and where whoever asks it; empty where processes cannot be pinned."""

    server: tuple[int, ...] = ()
    asker: tuple[int, ...] = ()


def apart() -> Cores:
    """Server and asker on cores of their own, if there are two."""
    cores = _cores()
    return Cores(cores[-1:], cores[:1])


def together() -> Cores:
    """Server and asker on one core: then no time is lost in waking another one, and what costs is work alone."""
    cores = _cores()
    return Cores(cores[-1:], cores[-1:])


def _cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_setaffinity") else ()


def pin(pid: int, cores: tuple[int, ...]) -> None:
    if cores:
        os.sched_setaffinity(pid, cores)


@contextmanager
def a_server(cores: Cores) -> Iterator[Server]:
    """Debian's Redis where it is installed, otherwise the wheel's Valkey."""
    with Server("redis" if "redis" in flavours() else "valkey") as server:
        pin(server.pid, cores.server)
        yield server


def described(server: Server) -> str:
    """What it is: Redis 7.0.15."""
    facts = dict(re.findall(r"^(\w+):(.*?)\r?$", server.ask("INFO", "server").decode(), re.MULTILINE))
    return f"{server.flavour.capitalize()} {facts.get('valkey_version') or facts['redis_version']}"


class HasUrl(Protocol):
    """A server, or several."""

    @property
    def url(self) -> str:
        """How a store reaches it."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One limiter with one algorithm, in a worker."""

    worker: Worker
    number: int
    name: str
    algorithm: str

    def rate(self, tasks: int, seconds: float, cores: Cores) -> Run:
        """A run whose figure is decisions per second."""
        order = {"kind": "rate", "contender": self.number, "tasks": tasks, "seconds": seconds, "cores": cores.asker}

        def run(_: int) -> float:
            self.worker.order(order)
            return float(self.worker.answer())

        return run


class Worker:
    """A process of `bench.redis_worker`; used as a context manager it is ended."""

    def __init__(self, python: Path, *arguments: str) -> None:
        if not python.exists():
            raise SystemExit(f"{python}: missing (make bench makes it)")
        self._name = " ".join(arguments)
        self._process = subprocess.Popen(
            [str(python), "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # it ends when this breaks
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            hello = self.answer()
        except BaseException:
            self.close()
            raise
        self.contenders = [
            Contender(self, number, name, algorithm) for number, (name, algorithm) in enumerate(hello["contenders"])
        ]
        self.versions: list[str] = hello["versions"]

    def order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"{self._name}: no answer within {PATIENCE:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: ended without an answer")
        return json.loads(line)

    def close(self) -> None:
        """Waited for, so that its time counts as ours."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:  # it has ended, and said why
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def penstock(kind: str, server: HasUrl, algorithms: Sequence[str], limit: int = AMPLE, period: int = DAY) -> Worker:
    """`kind` is asyncio or blocking."""
    return Worker(Path(sys.executable), "bench.redis_penstock", kind, server.url, str(limit), str(period), *algorithms)


@dataclass(frozen=True, slots=True)
class Field:
    """All who are measured on one server."""

    ours: Sequence[Contender]
    peers: Sequence[Contender]
    versions: Sequence[str]

    @property
    def all(self) -> list[Contender]:
        return [*self.ours, *self.peers]


@contextmanager
def a_field(kind: str, server: Server, algorithms: Sequence[str]) -> Iterator[Field]:
    """Penstock with some algorithms, and all peers."""
    with ExitStack() as stack:
        ours = stack.enter_context(penstock(kind, server, algorithms))
        peers = [
            stack.enter_context(Worker(PEERS_PYTHON, "bench.redis_peers", kind, server.url, product))
            for product in PEERS
        ]
        versions = dict.fromkeys(text for worker in (ours, *peers) for text in worker.versions)
        yield Field(ours.contenders, [each for worker in peers for each in worker.contenders], list(versions))

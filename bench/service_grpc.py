"""Envoy's rate limit service over gRPC: one descriptor, one process on one core, the load on the other.

The peer is grpcio's server with eight threads, the fastest of the Python servers for gRPC that we know of, with the
very same method behind it. h2load repeats one head, the best case; where a header differs in every call the load is our
own (`bench.grpc_load`). Calls per second count. The server's processor time stands beside them: it is what bounds a
server with a core of its own, and a neighbour on the machine does not show in it.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.grpc_question import BODY, PATH, QUESTION
from bench.measure import Effort, Run, Spread, interleaved
from bench.redis_rig import ROOT, a_server, apart, described, pin
from bench.report import Figure, Report, Table, Target

PATIENCE = 20.0


class Shape(NamedTuple):
    """How calls come in, and what is wanted of us then, against the peer."""

    name: str
    connections: int
    streams: int
    target: Target
    varied: bool = False

    @property
    def alone(self) -> bool:
        """One call after another."""
        return self.connections * self.streams == 1


SHAPES = (
    Shape("4 x 16", 4, 16, Target("ShouldRateLimit over 4 connections of 16 streams against grpcio", bar=10)),
    Shape("1 x 64", 1, 64, Target("ShouldRateLimit over 1 connection of 64 streams against grpcio", bar=6)),
    Shape(
        "4 x 16, a header differs",
        *(4, 16, Target("ShouldRateLimit with a header that differs in every call against grpcio", bar=3)),
        varied=True,
    ),
    Shape("one by one", 1, 1, Target("ShouldRateLimit one by one against grpcio", bar=1)),
)
TO_MEMORY = Target("ShouldRateLimit, Redis on the same machine against memory", bar=0.4)


class Service(NamedTuple):
    """A server in a process of its own. `share`: of the calls that a round has, because some take their time."""

    name: str
    port: int
    share: float
    pid: int

    def rate(self, shape: Shape, calls: int, cores: tuple[int, ...], body: Path, costs: list[float]) -> Run:
        """A run whose figure is calls per second; the microseconds of the server's own time go to `costs`."""
        count = max(64, int(calls * self.share / (5 if shape.alone else 1))) // 64 * 64
        command = _ours(self.port, count, shape) if shape.varied else _h2load(self.port, count, shape, body)

        def run(_: int) -> float:
            before = _processor_time(self.pid)
            with body.open("rb") as question:
                process = subprocess.Popen(command, cwd=ROOT, stdin=question, stdout=subprocess.PIPE, text=True)
            pin(process.pid, cores)
            said = process.communicate()[0]
            if process.returncode:
                raise RuntimeError(f"{self.name}: {said}")
            if not shape.varied and f"{count} succeeded" not in said:
                raise RuntimeError(f"{self.name}: {said}")
            costs.append((_processor_time(self.pid) - before) * 1e6 / count)
            return float(said) if shape.varied else _per_second(said)

        return run


def _processor_time(pid: int) -> float:
    """Seconds that all threads of a process have run."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _h2load(port: int, calls: int, shape: Shape, body: Path) -> list[str]:
    return [
        *("h2load", "-n", str(calls), "-c", str(shape.connections), "-m", str(shape.streams), "-d", str(body)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "grpc-timeout: 500m"),
        f"http://127.0.0.1:{port}{PATH.decode()}",
    ]


def _ours(port: int, calls: int, shape: Shape) -> list[str]:
    shaped = (port, calls, shape.connections, shape.streams)
    return [sys.executable, "-m", "bench.grpc_load", *map(str, shaped)]


def _per_second(said: str) -> float:
    """Calls per second, as h2load tells them."""
    found = re.search(r"finished in [\d.]+\w+, ([\d.]+) req/s", said)
    if found is None:
        raise RuntimeError(said)
    return float(found[1])


@contextmanager
def a_service(name: str, share: float, cores: tuple[int, ...], *arguments: str) -> Iterator[Service]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind, *rest = arguments
    command = [sys.executable, "-m", "bench.grpc_servers", kind, str(port), *rest]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    pin(process.pid, cores)
    try:
        _await(name, process, port)
        yield Service(name, port, share, process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _await(name: str, process: subprocess.Popen[bytes], port: int) -> None:
    """Until it answers, and rightly: within its limit."""
    import grpc

    give_up = time.monotonic() + PATIENCE
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(PATH.decode())
        while process.poll() is None and time.monotonic() < give_up:
            try:
                answer = call(QUESTION, timeout=PATIENCE, wait_for_ready=True)
            except grpc.RpcError:
                time.sleep(0.05)
                continue
            if answer.startswith(b"\x08\x01"):
                return
            raise RuntimeError(f"{name}: answered {answer!r}, expected OK")
    raise RuntimeError(f"{name} does not answer")


def measure(effort: Effort) -> Report:
    report = Report()
    if shutil.which("h2load") is None or find_spec("grpc") is None:
        report.warnings.append("service_grpc: needs h2load and grpcio, which are not both installed here")
        return report
    cores = apart()
    calls = int(effort.seconds * 200_000)
    with ExitStack() as stack:
        redis = stack.enter_context(a_server(cores))
        pin(redis.pid, cores.asker)
        start = stack.enter_context
        ours = start(a_service("penstock", 1, cores.server, "penstock"))
        peer = start(a_service(f"grpcio {version('grpcio')}, 8 threads", 0.15, cores.server, "grpcio"))
        on_redis = start(a_service(f"penstock on {described(redis)}", 0.5, cores.server, "penstock", redis.url))
        body = Path(start(tempfile.TemporaryDirectory())) / "question"
        body.write_bytes(BODY)
        rows = []
        for shape in SHAPES:
            services = [ours, peer, on_redis]
            costs: list[list[float]] = [[] for _ in services]
            runs = [service.rate(shape, calls, cores.asker, body, costs[n]) for n, service in enumerate(services)]
            spreads = interleaved(runs, effort.rounds)
            micros = " / ".join(f"{median(each):.0f}" for each in costs)
            rows.append([shape.name, *map(str, spreads), _against(spreads[0], spreads[1]), micros])
            report.figures.append(Figure(shape.target, shape.name, spreads[0].median / spreads[1].median))
            if shape is SHAPES[0]:
                report.figures.append(Figure(TO_MEMORY, shape.name, spreads[2].median / spreads[0].median))
    columns = ["connections x streams", ours.name, peer.name, on_redis.name, "against grpcio", "processor µs a call"]
    notes = [
        "Calls per second; processor time of the three servers, in their order.",
        "The server runs on one core, the load (and Redis) on another.",
    ]
    report.tables.append(Table("Envoy's rate limit service over gRPC", columns, rows, notes))
    return report


def _against(ours: Spread, theirs: Spread) -> str:
    return f"{ours.median / theirs.median:.1f} x"

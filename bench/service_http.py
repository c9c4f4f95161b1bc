"""The decision service over HTTP: `POST /v1/check`, one worker on one core, 64 connections of wrk from the other.

The peers make the same decision: granian in an RSGI application that does nothing else, with the same reading and
writing; FastAPI on uvicorn as applications are written with it. Answers per second count. The processor time of all
processes of a server stands beside them: it is what bounds a server with a core of its own, and a neighbour on the
machine does not show in it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.measure import Effort, Run, interleaved
from bench.redis_rig import ROOT, a_server, apart, described, pin
from bench.report import Figure, Report, Table, Target

CONNECTIONS = 64
SCRIPT = Path(__file__).with_suffix(".lua")
SECONDS_OF_WRK = 20
"""A round of wrk takes so many times as long as one in this process: most of a short one would be connecting."""

OURS, GRANIAN, FASTAPI, ON_REDIS = "penstock", "granian (RSGI)", "FastAPI on uvicorn", "penstock on Redis"
TO_GRANIAN = Target("POST /v1/check over HTTP against granian", bar=1.4)
TO_FASTAPI = Target("POST /v1/check over HTTP against FastAPI", bar=8)
TO_MEMORY = Target("POST /v1/check, Redis on the same machine against memory", bar=0.4)
IDLE = Target("memory of an idle worker", bar=80, unit="MB", at_least=False)


class Service(NamedTuple):
    """A server in a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    def rate(self, seconds: int, cores: tuple[int, ...], costs: list[float]) -> Run:
        """A run whose figure is answers per second; the microseconds of the server's own time go to `costs`."""
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}", "-s", str(SCRIPT), f"http://127.0.0.1:{self.port}"]

        def run(_: int) -> float:
            before = self._ticks()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            pin(process.pid, cores)
            said = process.communicate()[0]
            failed = re.search(r"Non-2xx.*|Socket errors: (?!connect 0, read 0, write 0).*", said)
            if process.returncode or failed:
                raise RuntimeError(f"{self.name}: {failed[0] if failed else said}")
            costs.append(
                (self._ticks() - before) * 1e6 / os.sysconf("SC_CLK_TCK") / _number(r"(\d+) requests in", said)
            )
            return _number(r"Requests/sec:\s+([\d.]+)", said)

        return run

    def _ticks(self) -> int:
        """Processor time of all processes of the service."""
        total = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(") ")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[2]) == self.process.pid:  # the group, which its first process gave its name
                total += int(fields[11]) + int(fields[12])
        return total

    @property
    def resident(self) -> float:
        """Megabytes that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return _number(r"VmRSS:\s+(\d+)", status) / 1_024


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"{pattern}: not found in what was said:\n{text}")
    return float(found[1])


@contextmanager
def a_service(name: str, cores: tuple[int, ...], *arguments: str) -> Iterator[Service]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind, *rest = arguments
    command = [sys.executable, "-m", "bench.service_servers", kind, str(port), *rest]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    pin(process.pid, cores)
    try:
        _await(name, process, port)
        yield Service(name, process, port)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(name: str, process: subprocess.Popen[bytes], port: int) -> None:
    """Until it has decided on a request."""
    body = b'{"descriptor":{"path":"/orders/1","user":"somebody"}}'
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/check", body, {"Content-Type": "application/json"})
    until = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                if b'"source":"store"' not in answer.read():
                    raise RuntimeError(f"{name}: does not ask its store")
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name}: did not start") from None
            time.sleep(0.05)


def measure(effort: Effort) -> Report:
    if shutil.which("wrk") is None:
        return Report(warnings=["service_http: wrk is missing, so the service over HTTP was not measured"])
    cores = apart()
    seconds = max(1, round(effort.seconds * SECONDS_OF_WRK))
    with ExitStack() as stack:
        redis = stack.enter_context(a_server(cores))
        kinds = [(OURS, "penstock"), (FASTAPI, "fastapi"), (ON_REDIS, "penstock", redis.url)]
        if find_spec("granian"):
            kinds.insert(1, (GRANIAN, "granian"))
        services = [stack.enter_context(a_service(name, cores.asker, *kind)) for name, *kind in kinds]
        idle = services[0].resident
        costs: dict[str, list[float]] = {service.name: [] for service in services}
        runs = [service.rate(seconds, cores.server, costs[service.name]) for service in services]
        spreads = dict(zip([service.name for service in services], interleaved(runs, effort.rounds), strict=True))
        micros = {name: median(each) for name, each in costs.items()}
        rows = [
            [name, str(spread), f"{spreads[OURS].median / spread.median:.2f} x", f"{micros[name]:.1f}"]
            for name, spread in spreads.items()
        ]
        place = f"{CONNECTIONS} connections"
        figures = [Figure(TO_FASTAPI, place, spreads[OURS].median / spreads[FASTAPI].median)]
        if GRANIAN in spreads:
            figures.append(Figure(TO_GRANIAN, place, spreads[OURS].median / spreads[GRANIAN].median))
        figures.append(Figure(TO_MEMORY, place, spreads[ON_REDIS].median / spreads[OURS].median))
        figures.append(Figure(IDLE, "memory store", idle))
        table = Table(
            f"POST /v1/check over HTTP/1.1, one worker, {CONNECTIONS} connections",
            ["server", "answers/s", "ours against it", "processor µs an answer"],
            rows,
            [
                f"wrk on a core of its own, {seconds} s a round; {described(redis)} on wrk's core.",
                f"An idle worker of ours holds {idle:.0f} MB. {', '.join(_versions())}.",
            ],
        )
    return Report([table], figures)


def _versions() -> list[str]:
    return [f"{name} {version(name)}" for name in ("granian", "fastapi", "uvicorn", "uvloop") if find_spec(name)]

"""One build's service, measured once over its sockets: `python -m bench.ab_service BUILD REDIS_URL CORES FIGURE ...`.

Started by `bench.ab` on the core that makes the load; CORES, with commas between, are those of the service. Prints a
JSON object as `bench.ab_worker` does: CPU nanoseconds of the service's process per answer. Of the build it uses only
the command `penstock serve`, documented flags and the wire, so an old build is measured like a new one. Load comes in
bursts. Each burst is answered in full before the next, so that the batches of both builds are alike.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

from hpack import Encoder

from bench.keys import keys, shuffled

PASSES = 5
CALLS = 6_400
MANY = 100_000
WARM_UP_DEPTH = 64
"""Large bursts reach all keys sooner: on a busy machine each burst waits for a core."""
FEW = 1_000
PATIENCE = 30.0
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}}, key: user | ip, quota: 1000000000/day}
  - {id: edge, match: {domain: bench}, key: user, quota: 1000000000/day}
"""
CONFIG = "domain: bench\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1000000000}}]\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WINDOW = 2**31 - 1


class Link(Protocol):
    """A connection to the service."""

    def ask(self, some: Sequence[str]) -> None:
        """Send a call per key."""

    def take(self, count: int) -> None:
        """Read so many answers; RuntimeError for one that is no admission by the store."""


class HttpLink:
    """Pipelined calls of POST /v1/check."""

    def __init__(self, port: int) -> None:
        self._socket = _connected(port)
        self._answers = self._socket.makefile("rb")

    def ask(self, some: Sequence[str]) -> None:
        self._socket.sendall(b"".join(map(http_call, some)))

    def take(self, count: int) -> None:
        for _ in range(count):
            status, length = self._answers.readline(), 0
            while (line := self._answers.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self._answers.read(length)
            if not is_admission(status, body):
                raise RuntimeError(f"answered {status + body!r}, expected an admission by the store")


class GrpcLink:
    """Concurrent calls of ShouldRateLimit."""

    def __init__(self, port: int) -> None:
        self._socket = _connected(port)
        self._answers = self._socket.makefile("rb")
        self._next_id = 1
        encoder = Encoder()
        self._first, self._head = (encoder.encode(GRPC_HEAD) for _ in range(2))  # then all of it is in the table
        windows = frame(SETTINGS, 0, 0, b"\0\4" + WINDOW.to_bytes(4, "big"))
        windows += frame(WINDOW_UPDATE, 0, 0, (WINDOW - 65_535).to_bytes(4, "big"))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + windows)

    def ask(self, some: Sequence[str]) -> None:
        frames = []
        for key in some:
            head = self._first if self._next_id == 1 else self._head
            frames.append(frame(HEADERS, END_HEADERS, self._next_id, head))
            frames.append(frame(DATA, END_STREAM, self._next_id, grpc_call(key)))
            self._next_id += 2
        self._socket.sendall(b"".join(frames))

    def take(self, count: int) -> None:
        decided = 0
        while count:
            head = self._answers.read(9)
            kind, flags = head[3], head[4]
            payload = self._answers.read(int.from_bytes(head[:3], "big"))
            if kind == DATA:
                if not is_within_limit(payload):
                    raise RuntimeError(f"answered {payload!r}, expected OK by a limit")
                decided += 1
            elif kind == HEADERS and flags & END_STREAM:
                count -= 1
                decided -= 1
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind not in (HEADERS, SETTINGS, PING, WINDOW_UPDATE):
                raise RuntimeError(f"frame {kind}: {payload!r}")
        if decided:
            raise RuntimeError(f"{-decided} calls ended without a message")


def is_admission(status: bytes, body: bytes) -> bool:
    return status.startswith(b"HTTP/1.1 200 ") and b'"allowed":true' in body and b'"source":"store"' in body


def is_within_limit(message: bytes) -> bool:
    """Whether a message says OK, overall and of one descriptor, and by which limit: without one it was not counted."""
    return message[5:8] == b"\x08\x01\x12" and message[9:12] == b"\x08\x01\x12"


def http_call(key: str) -> bytes:
    body = b'{"descriptor":{"path":"/orders/1","method":"GET","user":"%b","ip":"192.0.2.7"}}' % key.encode()
    head = b"POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


GRPC_HEAD = [
    *((":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "127.0.0.1:8081")),
    *(("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "bench"), ("grpc-timeout", "10S")),
]


def grpc_call(key: str) -> bytes:
    entry = field(1, b"user") + field(2, key.encode())
    message = field(1, b"bench") + field(2, field(1, entry))
    return b"\0" + len(message).to_bytes(4, "big") + message


def field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf of at most 127 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _connected(port: int) -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


# ---------------------------------------------------------------- the figures


class Shape(NamedTuple):
    """How calls come in: on so many connections, so many at once on each."""

    link: Callable[[int], Link]
    connections: int
    depth: int


class Load(NamedTuple):
    """What a figure measures: calls of one kind with so many keys, of a service configured like this."""

    shape: Shape
    keys: int
    by_config: bool = False
    on_redis: bool = False


HTTP, GRPC = Shape(HttpLink, 16, 4), Shape(GrpcLink, 4, 16)
FIGURES = {
    "service, POST /v1/check, one key": Load(HTTP, 1),
    f"service, POST /v1/check, {MANY:,} keys": Load(HTTP, MANY),
    "service, POST /v1/check on Redis": Load(HTTP, FEW, on_redis=True),
    "service, gRPC by --envoy-config, one key": Load(GRPC, 1, by_config=True),
    f"service, gRPC by --envoy-config, {MANY:,} keys": Load(GRPC, MANY, by_config=True),
    "service, gRPC by --envoy-config on Redis": Load(GRPC, FEW, by_config=True, on_redis=True),
    "service, gRPC by rules, one key": Load(GRPC, 1),
    f"service, gRPC by rules, {MANY:,} keys": Load(GRPC, MANY),
    "service, gRPC by rules on Redis": Load(GRPC, FEW, on_redis=True),
}


def measured(load: Load, url: str, cores: set[int]) -> float:
    """Return the median of some passes: CPU nanoseconds of the service per answer. Every key was visited before."""
    order, shape = shuffled(keys(load.keys)), load.shape
    with a_service(load, url, cores) as (pid, port):
        links = [shape.link(port) for _ in range(shape.connections)]
        visit(links, order, WARM_UP_DEPTH)
        visit(links, list(islice(cycle(order), CALLS)), shape.depth)
        turns = cycle(order)
        figures = []
        for _ in range(PASSES):
            some = list(islice(turns, CALLS))
            start = cpu_time(pid)
            visit(links, some, shape.depth)
            figures.append((cpu_time(pid) - start) / CALLS)
    return median(figures)


def visit(links: Sequence[Link], order: Sequence[str], depth: int) -> None:
    """Make a call per key, in bursts of `depth` calls on each connection."""
    burst = depth * len(links)
    for start in range(0, len(order), burst):
        parts = [order[at : at + depth] for at in range(start, min(start + burst, len(order)), depth)]
        for link, part in zip(links, parts, strict=False):
            link.ask(part)
        for link, part in zip(links, parts, strict=False):
            link.take(len(part))


def cpu_time(pid: int) -> int:
    """Return the CPU nanoseconds of a process with all its threads, by the clock of clock_getcpuclockid(3)."""
    return time.clock_gettime_ns(~pid << 3 | 2)


@contextmanager
def a_service(load: Load, url: str, cores: set[int]) -> Iterator[tuple[int, int]]:
    """Run `penstock serve` on cores of its own; give its process and port."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-ab-")))
        (folder / "rules.yaml").write_text(RULES)
        (folder / "envoy").mkdir()
        (folder / "envoy/bench.yaml").write_text(CONFIG)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = ["--listen", f"127.0.0.1:{port}", "--rules", "rules.yaml", "--log-level", "error"]
        flags += ["--envoy-config", "envoy"] if load.by_config else []
        if load.on_redis:  # what Redis does not decide must not look fast
            flags += ["--store", url, "--on-failure", "closed", "--store-budget-ms", "10000"]
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores or own)
        try:
            command = (PENSTOCK, "serve", *flags)
            with (folder / "log").open("wb") as log:
                service = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        finally:
            os.sched_setaffinity(0, own)
        stack.callback(service.wait)
        stack.callback(service.kill)
        until = time.monotonic() + PATIENCE
        while not _listens(port):
            if service.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"penstock serve did not start: {(folder / 'log').read_text()[-300:]!r}")
            time.sleep(0.02)
        yield service.pid, port


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def main(build: str, url: str, cores: str, *names: str) -> None:
    found = find_spec("penstock")  # where the service finds it too
    if found is None or not Path(found.origin or "").is_relative_to(build):
        raise SystemExit(f"{found}: expected the build in {build}")
    figures: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            figures[name] = measured(FIGURES[name], url, {int(core) for core in cores.split(",") if core})
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    print(json.dumps({"figures": figures, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Servers that answer Envoy's ShouldRateLimit alike, each in a process of its own.

    python -m bench.grpc_servers KIND PORT [URL]

| kind | is |
|---|---|
| `penstock` | our own transport; with a URL, over that Redis |
| `grpcio` | grpcio's server with eight threads, and the same method behind it, in memory |

Each sets aside what it has built (`gc.freeze`), and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from socket import create_server

from penstock import AsyncLimiter, Limiter
from penstock.clock import SECOND
from penstock.engine.engine import AsyncEngine, Engine
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.envoy.service import Parts, configured
from penstock.service.grpc import Grpc, Message
from penstock.service.wire.calls import Call, Head, Header, Peer

DOMAIN, KEY = "bench", "user"
CONFIG = f"""
domain: {DOMAIN}
descriptors:
  - key: {KEY}
    rate_limit: {{unit: day, requests_per_unit: 1000000000}}
"""
THREADS = 8


def method(engine: Engine | AsyncEngine) -> Parts:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench.yaml").write_text(CONFIG)
        return configured(ConfigSource(folder), engine, ready=lambda: True, budget=10 * SECOND)


def serve_penstock(port: int, url: str | None) -> None:
    import uvloop

    from penstock.service.wire.server import Server

    async def serving() -> None:
        limiter = AsyncLimiter(url, on_failure="closed") if url else Limiter()
        server = Server(Grpc(method(limiter.engine).methods))
        await server.listen([create_server(("127.0.0.1", port))])
        gc.collect()
        gc.freeze()
        await asyncio.Event().wait()

    uvloop.run(serving())


class Kept(Call):
    """A call of grpcio's server, as our method sees it."""

    __slots__ = ("answered",)

    def __init__(self, data: bytes) -> None:
        self.method, self.path, self.query, self.headers, self.body = b"POST", b"", b"", (), data
        self.peer, self.expires = Peer(), None
        self.answered = b""

    @property
    def gone(self) -> bool:
        return False

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        self.answered = body[5:]  # without the prefix that grpcio writes itself


def serve_grpcio(port: int) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    should_rate_limit = method(Limiter().engine).methods[0]

    def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
        call = Kept(data)
        should_rate_limit.handle([Message(call, data, False)])
        return call.answered

    service, _, name = should_rate_limit.path.decode()[1:].partition("/")
    handlers = {name: grpc.unary_unary_rpc_method_handler(handle)}
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    gc.collect()
    gc.freeze()
    server.wait_for_termination()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _, kind, port, *rest = sys.argv
    if kind == "penstock":
        serve_penstock(int(port), rest[0] if rest else None)
    else:
        serve_grpcio(int(port))

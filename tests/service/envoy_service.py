"""A service that Envoy asks, as a process: `python envoy_service.py CONFIG STORE PORT BUDGET`. SIGTERM ends it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import uvloop

from penstock.limiter import AsyncLimiter, Limiter
from penstock.service.envoy.parts import configured
from penstock.service.grpc import Grpc
from penstock.service.routes import Routes
from penstock.service.running import Now, Runner, Soon
from penstock.service.wire.serving import Server


async def serve(config: str, store: str, port: int, budget: int) -> None:
    limiter: Limiter | AsyncLimiter
    runner: Runner
    if store == "memory://":
        limiter = Limiter()
        runner = Now(limiter)
    else:
        limiter = AsyncLimiter(store)
        runner = Soon(limiter)
    parts = configured(config, runner, ready=lambda: True, budget=budget)
    assert parts.source is not None
    parts.source.start()
    server = Server(Routes(parts.handlers, {}, Grpc(parts.methods)))
    bound = socket.create_server(("127.0.0.1", port))
    await server.listen([bound])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.drain(1)
    parts.source.close()


if __name__ == "__main__":
    _, config, store, port, budget = sys.argv
    uvloop.run(serve(config, store, int(port), int(budget)))

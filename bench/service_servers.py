"""Servers that make the same decision, each in a process of its own: `python -m bench.service_servers KIND PORT [URL]`.

| kind | is |
|---|---|
| `penstock` | our own transport and API; with a URL, over that Redis |
| `granian` | a bare RSGI application that reads, decides and writes with the same parts |
| `fastapi` | FastAPI on uvicorn as its documentation has it: models of pydantic, and a dictionary that is answered |

Each sets aside what it has built (`gc.freeze`), and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from typing import Any

from penstock import AsyncLimiter, Limiter
from penstock.clock import SECOND
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.headers import HeaderWriter
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet

RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}}, key: user | ip, quota: 1000000000/day}
  - {id: exports, match: {path: {prefix: /export}, method: POST}, key: user, quota: 10/hour}
"""
SECRET = b"a secret for these benchmarks"


def rules() -> RuleSet:
    return RuleSet(parse(RULES))


def serve_penstock(port: int, url: str | None) -> None:
    import uvloop

    from penstock.service.wire.server import Server

    async def serving() -> None:
        server = Server(_over_redis(url) if url else _over_memory())
        await server.listen([_bound(port)])
        gc.collect()
        gc.freeze()
        await asyncio.Event().wait()

    uvloop.run(serving())


def _over_memory() -> Any:
    from penstock.engine.protocols import Unobserved
    from penstock.service.api import Api
    from penstock.service.decisions import Decider

    return Api(Decider(Enforcer(rules(), Limiter()), Unobserved()), SECRET)


def _over_redis(url: str) -> Any:
    from penstock.engine.protocols import Unobserved
    from penstock.service.api import Api
    from penstock.service.decisions import Decider

    limiter = AsyncLimiter(url, on_failure="closed")  # what the store does not answer is not to look quick
    decider = Decider(AsyncEnforcer(rules(), limiter), Unobserved(), budget=10 * SECOND)
    return Api(decider, SECRET)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


# ---------------------------------------------------------------- the peers


def rsgi() -> Any:
    """The application that granian serves: nothing but reading, deciding and writing."""
    from msgspec.json import Decoder

    from penstock.service.api.bodies import Check
    from penstock.service.api.verdicts import Verdicts
    from penstock.service.receipts import Tokens

    enforcer = Enforcer(rules(), Limiter())
    decode = Decoder(Check).decode
    write = Verdicts(HeaderWriter(), Tokens(SECRET)).write
    headers = [("content-type", "application/json")]
    gc.collect()
    gc.freeze()

    async def application(scope: Any, protocol: Any) -> None:
        sent = decode(await protocol())
        protocol.response_bytes(200, headers, write(enforcer.check(sent.descriptor, sent.cost, id=sent.id)))

    return application


def serve_granian(port: int) -> None:
    options = ["--interface", "rsgi", "--loop", "uvloop", "--factory", "--no-log", "--host", "127.0.0.1"]
    target = "bench.service_servers:rsgi"
    subprocess.run([sys.executable, "-m", "granian", *options, "--port", str(port), target], check=False)


def asgi() -> Any:
    """The application that uvicorn serves."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Check(BaseModel):
        descriptor: dict[str, str]
        cost: int = 1
        id: str | None = None

    application = FastAPI()
    enforcer = Enforcer(rules(), Limiter())
    writer = HeaderWriter()

    async def check(sent: Check) -> dict[str, Any]:
        ruling = enforcer.check(sent.descriptor, sent.cost, id=sent.id)
        return {
            "allowed": ruling.allowed,
            "reason": ruling.reason,
            "rule": ruling.rule,
            "limit": ruling.limit,
            "remaining": ruling.remaining,
            "retry_after": ruling.retry_after,
            "reset_after": ruling.reset_after,
            "delay": ruling.delay,
            "source": ruling.source,
            "headers": dict(writer.headers(ruling.shown())),
            "version": ruling.version,
        }

    check.__annotations__["sent"] = Check  # it is local, so its name alone says nothing
    application.post("/v1/check")(check)
    gc.collect()
    gc.freeze()
    return application


def serve_fastapi(port: int) -> None:
    import uvicorn

    uvicorn.run(
        asgi(), host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )


def _end_with_whoever_started_this() -> None:
    sys.stdin.read()
    os.killpg(0, 15)


def main() -> None:
    kind, port, *url = sys.argv[1:]
    os.setpgrp()  # with all that it starts, to end with it
    threading.Thread(target=_end_with_whoever_started_this, daemon=True).start()
    if kind == "penstock":
        serve_penstock(int(port), url[0] if url else None)
    elif kind == "granian":
        serve_granian(int(port))
    else:
        serve_fastapi(int(port))


if __name__ == "__main__":
    main()

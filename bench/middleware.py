"""Middleware: what a limit adds to a request to a plain application, against slowapi and fastapi-limiter.

Everybody limits the same application, which answers a line of text and is driven in this process without a server or
sockets. What stands in the tables is the time of the limited application less that of the bare one.

In memory it is processor time, one request after the other. On Redis it is wall time per request with 64 of them in
flight, because slowapi's client blocks the event loop: time in which nothing happens is what it costs.

slowapi is measured with both of its middlewares, as they are by default: they write no headers, while ours always does.
fastapi-limiter works within FastAPI alone, as a dependency; what it adds there, to an application that does the same,
is compared with our middleware and with our own dependency. A third of what a dependency adds is FastAPI's own: it
costs as much if it does nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import slowapi
import uvloop
from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
from redis.asyncio import Redis
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bench.measure import Effort, Spread, cpu_ns_of_each, interleaved
from bench.redis_rig import Cores, a_server, apart, described, pin
from bench.report import Figure, Report, Table, Target
from penstock import AsyncLimiter
from penstock.middleware.fastapi import RateLimit
from penstock.middleware.starlette import RateLimitMiddleware

AMPLE = 1_000_000
QUOTA = f"{AMPLE}/day"
IN_FLIGHT = 64
ADDRESSES = [f"198.51.100.{number}" for number in range(200)]

App = Callable[[Any, Any, Any], Awaitable[None]]

IN_MEMORY = Target("time added to a request in memory, a peer's against ours", bar=3)
ON_REDIS = Target(f"time added to a request on Redis, {IN_FLIGHT} in flight, a peer's against ours", bar=4)


STARLETTE, FASTAPI = "Starlette, bare", "FastAPI, bare"
MIDDLEWARE, DEPENDENCY = "middleware", "dependency"


class Contender(NamedTuple):
    """An application, the bare one that its time is compared with, and in which way Penstock limits it, if it does."""

    name: str
    app: App
    floor: str
    ours: str = ""


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def measure(effort: Effort) -> Report:
    report = Report()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        _in_memory(report, effort, runner)
        _on_redis(report, effort, runner)
    return report


# ---------------------------------------------------------------- who is measured


def bare() -> list[Contender]:
    return [Contender(STARLETTE, _starlette(), STARLETTE), Contender(FASTAPI, _fastapi(), FASTAPI)]


def _starlette() -> Starlette:
    return Starlette(routes=[Route("/", hello)])


def _fastapi(limit: Callable[[FastAPI], Any] | None = None) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.get("/", dependencies=[Depends(limit(app))] if limit else [])(hello)
    return app


def penstock(store: str = "memory://") -> list[Contender]:
    limiter, contenders = AsyncLimiter(store), []
    for algorithm in ("sliding_window", "fixed_window"):
        app = _starlette()
        app.add_middleware(RateLimitMiddleware, limiter=limiter, quota=f"{QUOTA} {algorithm}")
        contenders.append(Contender(f"Penstock, middleware, {algorithm}", app, STARLETTE, MIDDLEWARE))
    app = _fastapi(lambda app: RateLimit(app, limiter=limiter)(QUOTA))
    return [*contenders, Contender("Penstock, dependency, sliding_window", app, FASTAPI, DEPENDENCY)]


def slow_api(store: str = "memory://") -> list[Contender]:
    contenders = []
    for middleware in (SlowAPIMiddleware, SlowAPIASGIMiddleware):
        app = _starlette()
        app.state.limiter = slowapi.Limiter(
            key_func=lambda request: request.client.host, default_limits=[QUOTA], storage_uri=store
        )
        app.add_middleware(middleware)
        contenders.append(Contender(f"slowapi, {middleware.__name__}", app, STARLETTE))
    return contenders


def fastapi_limiter(limiter: Limiter) -> list[Contender]:
    return [Contender("fastapi-limiter, dependency", _fastapi(lambda app: RateLimiter(limiter=limiter)), FASTAPI)]


@asynccontextmanager
async def on_redis(url: str) -> AsyncIterator[list[Contender]]:
    """Everybody who can count in Redis."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(url, max_connections=IN_FLIGHT))
        bucket: Any = await RedisBucket.init([Rate(AMPLE, Duration.DAY)], client, "bench")
        ours = f"{url}/0?secret=for-the-benchmarks&deadline=30"
        yield [*bare(), *penstock(ours), *slow_api(url), *fastapi_limiter(Limiter(bucket))]


# ---------------------------------------------------------------- how


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _scope(address: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"example.org"), (b"user-agent", b"bench"), (b"accept", b"*/*")],
        "client": (address, 50_000),
        "server": ("example.org", 80),
    }


async def _visit(app: App, addresses: Iterator[str]) -> None:
    """Requests one after the other, each of which must be answered with 200."""
    statuses = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    for address in addresses:
        await app(_scope(address), _receive, send)
    if set(statuses) - {200}:
        raise RuntimeError(f"{set(statuses)}: only what is allowed is measured")


def _in_memory(report: Report, effort: Effort, runner: asyncio.Runner) -> None:
    contenders = [*bare(), *penstock(), *slow_api(), *fastapi_limiter(Limiter(Rate(AMPLE, Duration.DAY)))]
    addresses = [ADDRESSES[number % len(ADDRESSES)] for number in range(effort.calls // 4)]

    def run_of(app: App) -> Any:
        def visit(turns: Collection[str]) -> None:
            runner.run(_visit(app, iter(turns)))

        visit(ADDRESSES)
        return cpu_ns_of_each(visit, [addresses] * effort.rounds)

    spreads = interleaved([run_of(contender.app) for contender in contenders], effort.rounds)
    notes = ["One request after the other, 200 addresses in turn; the loop that drives is in the bare figure."]
    _tell(report, IN_MEMORY, "Middleware, memory", "CPU ns", contenders, spreads, notes)


def _on_redis(report: Report, effort: Effort, runner: asyncio.Runner) -> None:
    cores = apart()
    with a_server(cores) as server, _pinned(cores):
        peers = on_redis(server.url)
        contenders = runner.run(peers.__aenter__())
        count = max(effort.calls // 8, IN_FLIGHT)

        async def together(app: App, requests: int) -> None:
            turns = iter([ADDRESSES[number % len(ADDRESSES)] for number in range(requests)])
            await asyncio.gather(*[_visit(app, turns) for _ in range(IN_FLIGHT)])

        def run_of(app: App) -> Callable[[int], float]:
            runner.run(together(app, IN_FLIGHT * 2))

            def run(_: int) -> float:
                start = time.perf_counter_ns()
                runner.run(together(app, count))
                return (time.perf_counter_ns() - start) / count

            return run

        spreads = interleaved([run_of(contender.app) for contender in contenders], effort.rounds)
        notes = [
            f"{described(server)} over TCP on one core, the application on another; {IN_FLIGHT} requests in flight."
        ]
        _tell(report, ON_REDIS, "Middleware, Redis", "ns", contenders, spreads, notes)
        runner.run(peers.__aexit__(None, None, None))


@contextmanager
def _pinned(cores: Cores) -> Iterator[None]:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    pin(0, cores.asker)
    try:
        yield
    finally:
        pin(0, tuple(before))


def _tell(
    report: Report,
    target: Target,
    title: str,
    unit: str,
    contenders: Sequence[Contender],
    spreads: Sequence[Spread],
    notes: list[str],
) -> None:
    medians = {each.name: spread.median for each, spread in zip(contenders, spreads, strict=True)}
    added = {each.name: medians[each.name] - medians[each.floor] for each in contenders}
    ours = {each.ours: max(added[other.name] for other in contenders if other.ours == each.ours) for each in contenders}
    rows = []
    for each, spread in zip(contenders, spreads, strict=True):
        row = [each.name, str(spread), f"{added[each.name]:.0f}" if each.name != each.floor else "", "", ""]
        if not each.ours and each.name != each.floor:
            row[3] = target.verdict(added[each.name] / ours[MIDDLEWARE])
            report.figures.append(Figure(target, each.name, added[each.name] / ours[MIDDLEWARE]))
            row[4] = f"{added[each.name] / ours[DEPENDENCY]:.1f} x"
        rows.append(row)
    columns = [f"{unit} per request", "median", "added", "÷ our middleware", "÷ our dependency"]
    report.tables.append(Table(f"{title} (target {target.bar:g} x)", columns, rows, notes))

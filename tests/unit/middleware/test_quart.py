"""The extension for real Quart applications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from quart import Quart, abort, request, websocket

from penstock import AsyncLimiter, ManualClock, RateLimited
from penstock.middleware.gate import failed_logins, unless_server_error
from penstock.middleware.quart import RateLimit
from tests.unit.middleware.asgi_support import Socket
from tests.unit.middleware.http_support import client, statuses

ME = "ip=192.0.2.7"


def application(**options: Any) -> Quart:
    chosen: dict[str, Any] = {"limiter": AsyncLimiter(clock=ManualClock()), "quota": "2/minute gcra"} | options
    app = Quart(__name__)
    RateLimit(app, **chosen)

    @app.get("/users/<int:number>")
    async def user(number: int) -> str:
        return str(number)

    @app.get("/login")
    async def login() -> str:
        abort(401)

    @app.get("/fails")
    async def fails() -> str:
        raise LookupError

    @app.get("/stream")
    async def stream() -> Any:
        async def parts() -> AsyncIterator[str]:
            yield "a"
            yield "b"

        return parts()

    @app.get("/ask")
    async def ask() -> str:
        request.scope["penstock"].cost = 5  # type: ignore[typeddict-item]
        return "42"

    @app.websocket("/ws/<name>")
    async def echo(name: str) -> None:
        await websocket.accept()
        await websocket.send(f"{name}: {await websocket.receive()!s}")

    return app


async def test_one_line_limits_an_application_and_knows_its_routes() -> None:
    app = application(key=["route", "ip"])
    assert await statuses(app, "/users/1", "/users/2", "/users/3", "/stream") == [200, 200, 429, 200]
    assert await statuses(app, "/nowhere", "/elsewhere", "/users/x") == [404, 404, 429]


@pytest.mark.parametrize("host", ["example.org", "exa mple", "[::1", ""])
async def test_a_request_for_any_host_gets_an_answer(host: str) -> None:
    (status,) = await statuses(application(key=["route", "ip"]), "/users/1", headers={"Host": host})
    assert status in (200, 400)


async def test_responses_have_headers() -> None:
    async with client(application(quota="1/minute gcra")) as http:
        passed, refused = [await http.get("/users/1") for _ in range(2)]
    assert passed.headers["ratelimit"] == '"1-per-minute";r=0;t=60'
    assert refused.json()["reason"] == "rate"


async def test_outcomes_are_those_that_clients_see() -> None:
    paths = [*["/users/1"] * 3, *["/login"] * 3]
    assert await statuses(application(charge=failed_logins), *paths) == [200, 200, 200, 401, 401, 429]
    assert await statuses(application(charge=unless_server_error), *["/fails"] * 3) == [500] * 3


@pytest.mark.parametrize("path", ["/users/1", "/fails", "/stream", "/login"])
async def test_places_are_released(path: str) -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    await statuses(application(limiter=limiter, quota="1 concurrent ttl 30s"), path)
    assert (await limiter.peek(ME, "1 concurrent ttl 30s", 0)).remaining == 1


async def test_a_handler_settles_the_cost_of_a_request() -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    await statuses(application(limiter=limiter, quota="100/minute", cost=30, settle=True), "/ask")
    assert (await limiter.peek(ME, "100/minute")).remaining == 95


async def test_websockets_are_limited() -> None:
    app = application(quota="1/minute gcra", messages="1/minute gcra", key=["route", "ip"])
    socket = Socket(app, path="/ws/a", headers={"Host": "testserver"})
    assert (await socket.connect())["type"] == "websocket.accept"
    assert (await socket.say("hello"))["text"] == "a: hello"
    await socket.end()
    second = Socket(app, path="/ws/b", headers={"Host": "testserver"})
    assert await second.connect() == {"type": "websocket.close", "code": 1008}


async def test_a_handler_that_raises_a_refusal_is_answered_with_it() -> None:
    app, limiter = application(quota="9/minute"), AsyncLimiter()

    @app.get("/asks")
    async def asks() -> str:
        if not (verdict := await limiter.acquire("upstream", "1/hour")):
            raise RateLimited(verdict)
        return "asked"

    assert await statuses(app, "/asks", "/asks") == [200, 429]

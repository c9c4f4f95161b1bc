"""The plugin, and the ASGI middleware that it is made of, in real Litestar applications."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Litestar, Request, WebSocket, get, websocket
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import DefineMiddleware
from litestar.params import FromPath
from litestar.response import Stream

from penstock import AsyncLimiter, ManualClock, RateLimited
from penstock.middleware.asgi import RateLimitMiddleware
from penstock.middleware.gate import failed_logins, unless_server_error
from penstock.middleware.litestar import RateLimit, answered
from tests.unit.middleware.asgi_support import Socket
from tests.unit.middleware.http_support import client, statuses

ME = "ip=192.0.2.7"


@get("/users/{number:int}")
async def user(number: FromPath[int]) -> int:
    return number


@get("/login")
async def login() -> None:
    raise NotAuthorizedException


@get("/fails")
async def fails() -> None:
    raise LookupError


@get("/stream")
async def stream() -> Stream:
    return Stream(iter(["a", "b"]))


@get("/ask")
async def ask(request: Request[Any, Any, Any]) -> None:
    request.scope["penstock"].cost = 5  # type: ignore[typeddict-item]


@websocket("/ws")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


@get("/calls")
async def calls() -> None:
    await limited_upstream()
    await limited_upstream()


@AsyncLimiter(clock=ManualClock()).limit("1/hour name upstream")
async def limited_upstream() -> None: ...


def application(**options: Any) -> Litestar:
    chosen: dict[str, Any] = {"limiter": AsyncLimiter(clock=ManualClock()), "quota": "2/minute gcra"} | options
    handlers = [user, login, fails, stream, ask, echo, calls]
    return Litestar(handlers, plugins=[RateLimit(**chosen)], logging_config=None)


async def test_a_refusal_that_a_handler_raises_is_answered() -> None:
    async with client(application()) as http:
        refused = await http.get("/calls")
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["content-length"]) == len(refused.content)
    assert refused.json()["violated-policies"] == ["upstream"]
    assert int(refused.headers["retry-after"]) > 0
    told = refused.headers.get_list("ratelimit")
    assert [each.partition(";")[0] for each in told] == ['"upstream"', '"2-per-minute"']


async def test_the_middleware_alone_will_do_with_its_exception_handler() -> None:
    middleware = DefineMiddleware(RateLimitMiddleware, limiter=AsyncLimiter(), quota="9/minute")
    for handlers, status in ({RateLimited: answered}, 429), ({}, 500):
        app = Litestar([calls], middleware=[middleware], exception_handlers=handlers, logging_config=None)  # type: ignore[arg-type]
        assert await statuses(app, "/calls", "/calls") == [status] * 2


async def test_one_line_limits_an_application_and_knows_its_routes() -> None:
    app = application(key=["route", "ip"])
    assert await statuses(app, "/users/1", "/users/2", "/users/3", "/stream") == [200, 200, 429, 200]


async def test_responses_have_headers() -> None:
    async with client(application(quota="1/minute gcra")) as http:
        passed, refused = [await http.get("/users/1") for _ in range(2)]
    assert passed.headers["ratelimit"] == '"1-per-minute";r=0;t=60'
    assert refused.json()["reason"] == "rate"


async def test_outcomes_are_those_that_clients_see() -> None:
    assert await statuses(application(charge=failed_logins), *["/users/1"] * 3, *["/login"] * 3) == [200] * 3 + [
        401,
        401,
        429,
    ]
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
    app = application(quota="1/minute gcra", messages="1/minute gcra")
    socket = Socket(app, path="/ws")
    assert (await socket.connect())["type"] == "websocket.accept"
    assert (await socket.say("hello"))["text"] == "hello"
    await socket.end()
    assert (await Socket(app, path="/ws").connect()) == {"type": "websocket.close", "code": 1008}

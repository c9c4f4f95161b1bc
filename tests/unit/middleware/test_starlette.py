"""The middleware in real Starlette applications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from penstock import AsyncLimiter, ManualClock
from penstock.enforcer import AsyncEnforcer
from penstock.middleware.gate import unless_server_error
from penstock.middleware.starlette import RateLimitMiddleware, route_of, visit_of
from tests.unit.middleware.asgi_support import Response as Answer
from tests.unit.middleware.asgi_support import Socket, http_scope
from tests.unit.middleware.http_support import client, statuses
from tests.unit.rules.support import rule_set

ME = "ip=192.0.2.7"


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


async def failing(request: Request) -> Response:
    raise LookupError


def application(*routes: Any, before: Any = (), **options: Any) -> Starlette:
    chosen: dict[str, Any] = {"limiter": AsyncLimiter(clock=ManualClock()), "quota": "2/minute gcra"} | options
    ours: Any = Middleware(RateLimitMiddleware, **chosen)
    return Starlette(routes=[Route("/", hello), *routes], middleware=[*before, ours])


async def test_one_line_limits_an_application() -> None:
    assert await statuses(application(), "/", "/", "/") == [200, 200, 429]


@pytest.mark.parametrize(
    ("method", "path", "template"),
    [
        ("GET", "/users/7", "/users/{id:int}"),
        ("GET", "/users/alice", None),
        ("PUT", "/users/7", "/users/{id:int}"),
        ("POST", "/users/7", "/users/{id}"),
        ("GET", "/shops/3/orders/4", "/shops/{shop}/orders/{order}"),
        ("GET", "/shops/3/elsewhere", "/shops/{shop}"),
        ("GET", "/other/x/y", "/other"),
        ("GET", "/nowhere", None),
    ],
)
def test_the_template_of_a_route_is_found_before_starlette_does(method: str, path: str, template: str | None) -> None:
    app = Starlette(
        routes=[
            Route("/users/{id:int}", hello, methods=["GET"]),
            Route("/users/{id}", hello, methods=["POST"]),
            Mount("/shops/{shop}", routes=[Route("/orders/{order}", hello)]),
            Mount("/other", app=PlainTextResponse("another application")),
            Host("api.example.org", app=Router([Route("/", hello)])),
        ]
    )
    if template is None and path.startswith("/users"):
        template = "/users/{id}"  # its method does not fit, but its path does: 405
    assert route_of(http_scope(path, method, app=app)) == template


def test_no_route_is_known_without_an_application() -> None:
    assert route_of(http_scope("/users/7")) is None


async def test_rules_tell_routes_apart_whatever_the_path() -> None:
    rules = rule_set({"id": "users", "match": {"route": "/users/{id}"}, "key": ["ip"], "quota": "2/minute"})
    enforcer = AsyncEnforcer(rules, AsyncLimiter())
    app = Starlette(
        routes=[Route("/", hello), Route("/users/{id}", hello)],
        middleware=[Middleware(RateLimitMiddleware, enforcer=enforcer)],
    )
    assert await statuses(app, "/users/1", "/users/2", "/", "/users/3", "/") == [200, 200, 200, 429, 200]


class Basic(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("authorization")
        return None if name is None else (AuthCredentials(["known"]), SimpleUser(name))


async def test_users_of_the_authentication_middleware_are_known() -> None:
    app = application(before=[Middleware(AuthenticationMiddleware, backend=Basic())], key="user | ip")
    assert await statuses(app, "/", "/", "/", headers={"Authorization": "alice"}) == [200, 200, 429]
    assert await statuses(app, "/", headers={"Authorization": "bob"}) == [200]
    assert await statuses(app, "/", "/", "/") == [200, 200, 429]


async def test_a_refusal_passes_the_middlewares_outside() -> None:
    cors = Middleware(CORSMiddleware, allow_origins=["https://example.org"], expose_headers=["RateLimit"])
    async with client(application(before=[cors], quota="1/minute gcra")) as http:
        answers = [await http.get("/", headers={"Origin": "https://example.org"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert [answer.headers["access-control-allow-origin"] for answer in answers] == ["https://example.org"] * 2


async def test_server_errors_are_not_charged_if_the_option_says_so() -> None:
    app = application(Route("/fails", failing), charge=unless_server_error)
    assert await statuses(app, "/fails", "/fails", "/fails", "/", "/nowhere", "/") == [500, 500, 500, 200, 404, 429]


async def test_a_streaming_response_holds_its_place_to_the_end_and_background_work_does_not() -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    free: list[int] = []

    async def look() -> None:
        free.append((await limiter.peek(ME, "1 concurrent ttl 30s", 0)).remaining)

    async def parts() -> AsyncIterator[str]:
        yield "a"
        await look()
        yield "b"

    async def stream(request: Request) -> Response:
        return StreamingResponse(parts(), background=BackgroundTask(look))

    app = application(Route("/stream", stream), limiter=limiter, quota="1 concurrent ttl 30s")
    assert await statuses(app, "/stream", "/stream") == [200, 200]
    assert free == [0, 1] * 2


async def test_a_stream_whose_client_leaves_gives_its_place_back() -> None:
    """Starlette cancels the stream by a cancel scope, which cancels all that is awaited on the way out."""
    limiter = AsyncLimiter(clock=ManualClock())
    begun = asyncio.Event()

    async def parts() -> AsyncIterator[str]:
        while True:
            yield "more"
            begun.set()
            await asyncio.sleep(0)

    async def stream(request: Request) -> Response:
        return StreamingResponse(parts())

    async def leaving() -> Any:
        await begun.wait()
        return {"type": "http.disconnect"}

    app = application(Route("/stream", stream), limiter=limiter, quota="1 concurrent ttl 30s")
    await app(http_scope("/stream") | {"asgi": {"version": "3.0", "spec_version": "2.0"}}, leaving, Answer().send)
    assert (await limiter.peek(ME, "1 concurrent ttl 30s", 0)).remaining == 1


async def test_the_middleware_works_within_base_http_middlewares() -> None:
    class Slower(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
            return await call_next(request)

    limiter = AsyncLimiter(clock=ManualClock())
    quota = ["1 concurrent ttl 30s", "3/minute gcra"]
    app = application(Route("/fails", failing), before=[Middleware(Slower)], limiter=limiter, quota=quota)
    assert await statuses(app, "/", "/fails", "/", "/") == [200, 500, 200, 429]


async def test_a_handler_settles_the_cost_of_a_request() -> None:
    limiter = AsyncLimiter(clock=ManualClock())

    async def ask(request: Request) -> Response:
        visit_of(request).cost = 432
        return PlainTextResponse("42")

    app = application(Route("/ask", ask), limiter=limiter, quota="10000/minute", cost=2_000, settle=True)
    assert await statuses(app, "/ask") == [200]
    assert (await limiter.peek(ME, "10000/minute")).remaining == 10_000 - 432


async def test_websockets_are_limited_by_connection_and_by_message() -> None:
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(await websocket.receive_text())
        except WebSocketDisconnect as gone:
            codes.append(gone.code)

    codes: list[int] = []
    app = application(WebSocketRoute("/ws", echo), messages="2/minute gcra", key=["route", "ip"])
    socket = Socket(app, path="/ws")
    assert (await socket.connect())["type"] == "websocket.accept"
    assert [(await socket.say(text))["type"] for text in "abc"] == ["websocket.send"] * 2 + ["websocket.close"]
    await socket.end()
    assert codes == [1008]
    assert (await Socket(app, path="/ws").connect())["type"] == "websocket.accept"
    denied = Socket(app, path="/ws", denial=True)
    await denied.connect()
    await denied.end()
    assert denied.response.status == 429

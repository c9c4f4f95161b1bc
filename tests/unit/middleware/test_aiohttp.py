"""aiohttp: a real server on a loopback port, and a real client."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from penstock import AsyncLimiter, ManualClock, RateLimited
from penstock.enforcer import AsyncEnforcer
from penstock.middleware.aiohttp import RateLimit, visit_of
from penstock.middleware.gate import unless_server_error
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet

PEER = "ip=127.0.0.1"
PLACES = "1 concurrent ttl 1h"


class Shop:
    """Handlers, one of which waits for an event."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.began = asyncio.Event()

    async def hello(self, request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def fails(self, request: web.Request) -> web.Response:
        raise ValueError("on purpose")

    async def forbids(self, request: web.Request) -> web.Response:
        raise web.HTTPForbidden

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        self.began.set()
        await self.go_on.wait()
        await response.write(b"two")
        return response

    async def chat(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            pass
        return socket

    def app(self) -> web.Application:
        app = web.Application()
        for path, handler in {
            "/hello": self.hello,
            "/users/{number}": self.hello,
            "/fails": self.fails,
            "/forbids": self.forbids,
            "/stream": self.stream,
            "/chat": self.chat,
        }.items():
            app.router.add_get(path, handler)
        return app


def _client(app: web.Application, **options: Any) -> TestClient[web.Request, web.Application]:
    return TestClient(TestServer(app, **options))


async def _left(limiter: AsyncLimiter, quota: str) -> int:
    return (await limiter.peek(PEER, quota, cost=0)).remaining


async def _given_back(limiter: AsyncLimiter) -> None:
    async with asyncio.timeout(60):
        while await _left(limiter, PLACES) == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_handlers_are_limited_and_responses_have_headers() -> None:
    app = Shop().app()
    RateLimit(app, limiter=AsyncLimiter(), quota="2/hour name api")
    async with _client(app) as client:
        first, second, refused = [await client.get("/hello") for _ in range(3)]
        assert (first.status, await first.text(), second.status) == (200, "hello", 200)
        assert first.headers["RateLimit"].startswith('"api";r=1')
        assert (refused.status, refused.content_type) == (429, "application/problem+json")
        problem = await refused.json()
        assert (problem["reason"], problem["violated-policies"]) == ("rate", ["api"])
        assert int(refused.headers["Retry-After"]) > 0
        assert (await client.get("/nowhere")).status == 429


async def test_rules_see_the_route_rather_than_the_path() -> None:
    rules = parse("rules: [{id: users, match: {route: '/users/{number}'}, key: [route], quota: 2/hour}]")
    app = Shop().app()
    RateLimit(app, enforcer=AsyncEnforcer(RuleSet(rules), AsyncLimiter()))
    async with _client(app) as client:
        assert [(await client.get(f"/users/{number}")).status for number in range(3)] == [200, 200, 429]
        assert (await client.get("/nowhere")).status == 404


async def test_client_behind_a_proxy_is_read_from_all_lines_of_the_header() -> None:
    app = Shop().app()
    RateLimit(app, limiter=AsyncLimiter(), quota="1/hour", trusted_proxies=1)
    async with _client(app) as client:
        statuses = []
        for spoof in ("203.0.113.1", "203.0.113.2"):
            lines = [("X-Forwarded-For", spoof), ("X-Forwarded-For", "192.0.2.7")]
            statuses.append((await client.get("/hello", headers=lines)).status)
        assert statuses == [200, 429]


async def test_a_handler_that_raises_gives_back_its_place_and_is_not_charged() -> None:
    app = Shop().app()
    limiter = AsyncLimiter()
    RateLimit(app, limiter=limiter, quota=[PLACES, "2/hour"], charge=unless_server_error)
    async with _client(app) as client:
        assert [(await client.get("/fails")).status for _ in range(4)] == [500] * 4
        forbidden = [await client.get("/forbids") for _ in range(3)]
        assert [got.status for got in forbidden] == [403, 403, 429]
        assert "RateLimit" in forbidden[0].headers
    assert await _left(limiter, PLACES) == 1


async def test_a_stream_holds_its_place_and_sends_headers_with_its_first_bytes() -> None:
    shop = Shop()
    app, limiter = shop.app(), AsyncLimiter()
    RateLimit(app, limiter=limiter, quota=PLACES)
    async with _client(app) as client:
        streaming = await client.get("/stream")
        assert "RateLimit" in streaming.headers
        assert (await client.get("/hello")).status == 429
        shop.go_on.set()
        assert await streaming.read() == b"onetwo"
        assert (await client.get("/hello")).status == 200


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    shop = Shop()
    app, limiter = shop.app(), AsyncLimiter()
    RateLimit(app, limiter=limiter, quota=PLACES)
    async with _client(app) as client:  # whose server cancels handlers when clients leave
        streaming = await client.get("/stream")
        await shop.began.wait()
        assert await _left(limiter, PLACES) == 0
        streaming.close()  # the connection with it
        await _given_back(limiter)


async def test_a_websocket_is_one_request_that_lasts() -> None:
    app, limiter = Shop().app(), AsyncLimiter()
    RateLimit(app, limiter=limiter, quota=PLACES)
    async with _client(app) as client:
        socket = await client.ws_connect("/chat")
        assert await _left(limiter, PLACES) == 0
        try:
            await client.ws_connect("/chat")
        except aiohttp.WSServerHandshakeError as refused:
            assert refused.status == 429  # noqa: PT017
        else:
            raise AssertionError("two sockets in one place")
        await socket.close()
        await _given_back(limiter)


async def test_shaping_delays_by_the_limiters_clock() -> None:
    clock = ManualClock()
    began = clock.micros
    app = Shop().app()
    RateLimit(app, limiter=AsyncLimiter(clock=clock), quota="60/minute leaky_bucket queue 5")
    async with _client(app) as client:
        for _ in range(3):
            assert (await client.get("/hello")).status == 200
    assert clock.micros - began == 2_000_000


async def test_the_true_cost_is_settled() -> None:
    async def tokens(request: web.Request) -> web.Response:
        visit_of(request).cost = 60
        return web.Response()

    app, limiter = web.Application(), AsyncLimiter()
    app.router.add_get("/tokens", tokens)
    RateLimit(app, limiter=limiter, quota="100/hour", cost=10, settle=True)
    async with _client(app) as client:
        await client.get("/tokens")
    assert await _left(limiter, "100/hour") == 40


async def test_an_application_within_another_sends_the_headers_of_both_limits_once() -> None:
    inner, outer = Shop().app(), web.Application()
    RateLimit(inner, limiter=AsyncLimiter(), quota="1/hour name inner")
    RateLimit(outer, limiter=AsyncLimiter(), quota="9/hour name outer")
    outer.add_subapp("/inner", inner)
    async with _client(outer) as client:
        got = await client.get("/inner/hello")
        assert [line.split(";")[0] for line in got.headers.getall("RateLimit")] == ['"outer"', '"inner"']
        assert (await client.get("/inner/hello")).status == 429


async def test_a_handler_that_raises_a_refusal_is_answered_with_it() -> None:
    limiter = AsyncLimiter()

    @limiter.limit("1/hour name inner")
    async def work() -> web.Response:
        return web.Response(text="done")

    async def handler(request: web.Request) -> web.Response:
        return await work()

    app = web.Application()
    app.router.add_get("/work", handler)
    RateLimit(app, limiter=limiter, quota=PLACES)
    async with _client(app) as client:
        got, refused = await client.get("/work"), await client.get("/work")
        assert (got.status, refused.status) == (200, 429)
        assert (await refused.json())["violated-policies"] == ["inner"]
    assert await _left(limiter, PLACES) == 1


async def test_a_refusal_that_is_raised_too_late_is_a_failure() -> None:
    limiter = AsyncLimiter()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await limiter.acquire("all", "1/hour")
        raise RateLimited(await limiter.acquire("all", "1/hour"))

    app = web.Application()
    app.router.add_get("/late", handler)
    RateLimit(app, limiter=limiter, quota=[PLACES, "9/hour"], charge=unless_server_error)
    async with _client(app) as client:
        with pytest.raises(aiohttp.ClientError):
            await (await client.get("/late")).read()
    assert (await _left(limiter, PLACES), await _left(limiter, "9/hour")) == (1, 9)


async def test_exempt_requests_pass() -> None:
    app = Shop().app()
    RateLimit(app, limiter=AsyncLimiter(), quota="1/hour", exempt=lambda request: request["path"] == "/hello")
    async with _client(app) as client:
        assert [(await client.get("/hello")).status for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"POST /reads HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", b"some"),
        (b"POST /reads HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n", b"not gzip."),
        (b"GET /writes HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    ],
)
async def test_a_client_that_leaves_or_sends_garbage_stays_charged(head: bytes, body: bytes) -> None:
    limiter, began, ended = AsyncLimiter(), asyncio.Event(), asyncio.Event()

    async def reads(request: web.Request) -> web.Response:
        began.set()
        try:
            return web.Response(body=await request.read())
        finally:
            ended.set()

    async def writes(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        began.set()
        try:
            while True:
                await response.write(b"x" * 100_000)
        finally:
            ended.set()

    app = web.Application()
    app.router.add_post("/reads", reads)
    app.router.add_get("/writes", writes)
    RateLimit(app, limiter=limiter, quota="9/hour", charge=unless_server_error)
    runner = web.AppRunner(app)  # a test server would cancel handlers, which others do not
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(head + body)
    await asyncio.wait_for(began.wait(), 60)
    writer.transport.abort()
    await asyncio.wait_for(ended.wait(), 60)
    await asyncio.sleep(0.01)
    await runner.cleanup()
    assert await _left(limiter, "9/hour") == 8


async def test_a_websocket_header_does_not_slip_past_rules_for_a_method() -> None:
    rules = parse("rules: [{id: reads, match: {method: GET}, key: [ip], quota: 1/hour}]")
    app = Shop().app()
    RateLimit(app, enforcer=AsyncEnforcer(RuleSet(rules), AsyncLimiter()))
    async with _client(app) as client:
        answers = [await client.get("/hello", headers={"Upgrade": "websocket"}) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 429]

"""Limits as dependencies and decorators of real FastAPI applications."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import PlainTextResponse

from penstock import AsyncLimiter, Limiter, ManualClock, Verdict
from penstock.enforcer import AsyncEnforcer
from penstock.errors import InvalidOption
from penstock.middleware.fastapi import RateLimit, RateLimitMiddleware, route_of, visit_of
from penstock.middleware.gate import failed_logins
from tests.unit.middleware.asgi_support import Response, Socket, http_scope, nothing_more
from tests.unit.middleware.asgi_support import statuses as asgi_statuses
from tests.unit.middleware.http_support import client, statuses
from tests.unit.rules.support import rule_set

ME = "ip=192.0.2.7"


class Shop:
    """An application with its limits."""

    def __init__(self, **options: Any) -> None:
        self.app = FastAPI()
        self.limiter = AsyncLimiter(clock=ManualClock())
        self.limit = RateLimit(self.app, limiter=self.limiter, **options)


async def test_a_dependency_limits_a_route() -> None:
    shop = Shop()

    @shop.app.get("/search", dependencies=[Depends(shop.limit("1/minute gcra"))])
    async def search() -> str:
        return "found"

    async with client(shop.app) as http:
        passed, refused = [await http.get("/search") for _ in range(2)]
    assert (passed.status_code, passed.json()) == (200, "found")
    assert passed.headers["ratelimit"] == '"1-per-minute";r=0;t=60'
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == "60"
    assert refused.json()["violated-policies"] == ["1-per-minute"]
    assert refused.json()["reason"] == "rate"


async def test_every_kind_of_response_has_headers() -> None:
    shop = Shop()

    @shop.app.get("/plain", dependencies=[Depends(shop.limit("9/minute gcra"))])
    async def plain() -> PlainTextResponse:
        return PlainTextResponse("text")

    @shop.app.get("/missing", dependencies=[Depends(shop.limit("9/minute gcra"))])
    async def missing() -> None:
        raise HTTPException(404)

    async with client(shop.app) as http:
        for path, status in (("/plain", 200), ("/missing", 404)):
            answer = await http.get(path)
            assert (answer.status_code, answer.headers["ratelimit"]) == (status, '"9-per-minute";r=8;t=54')


async def test_a_dependency_returns_the_verdict() -> None:
    shop = Shop()
    limit = shop.limit("9/minute gcra")

    @shop.app.get("/")
    async def left(verdict: Verdict = Depends(limit)) -> int:  # noqa: B008
        return verdict.remaining

    async with client(shop.app) as http:
        assert (await http.get("/")).json() == 8


async def awaited(item: int, request: Request, text: Annotated[str, Body()], q: str = "none") -> list[Any]:
    return [item, request.method, text, q]


def called(item: int, request: Request, text: Annotated[str, Body()], q: str = "none") -> list[Any]:
    return [item, request.method, text, q]


@pytest.mark.parametrize("handler", [awaited, called])
async def test_a_decorator_limits_a_handler_of_either_kind(handler: Any) -> None:
    shop = Shop()
    shop.app.post("/items/{item}")(shop.limit.on("1/minute gcra")(handler))
    async with client(shop.app) as http:
        answers = [await http.post("/items/7?q=some", json="hello") for _ in range(2)]
        schema = (await http.get("/openapi.json")).json()
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[0].json() == [7, "POST", "hello", "some"]
    assert answers[0].headers["ratelimit"] == '"1-per-minute";r=0;t=60'
    parameters = schema["paths"]["/items/{item}"]["post"]["parameters"]
    assert [parameter["name"] for parameter in parameters] == ["item", "q"]


async def test_a_decorated_handler_can_be_called_as_before() -> None:
    shop = Shop()

    @shop.limit.on("1/minute gcra")
    async def double(number: int, **others: int) -> int:
        return number * 2 + sum(others.values())

    assert [await double(2), await double(3, more=1)] == [4, 7]


def test_a_generator_cannot_be_decorated() -> None:
    shop = Shop()
    with pytest.raises(InvalidOption, match="expected the limit as a dependency of its route"):

        @shop.limit.on("1/minute")
        async def stream() -> Any:
            yield "a"


async def test_each_handler_is_counted_apart_unless_they_share_a_name() -> None:
    shop = Shop()
    own = [Depends(shop.limit("1/minute gcra")), Depends(shop.limit("1/minute gcra"))]
    shared = Depends(shop.limit("2/minute gcra", name="writes"))

    @shop.app.get("/a", dependencies=[own[0]])
    async def a() -> None: ...

    @shop.app.get("/b", dependencies=[own[1]])
    async def b() -> None: ...

    @shop.app.get("/c", dependencies=[shared])
    async def c() -> None: ...

    @shop.app.get("/d", dependencies=[shared])
    async def d() -> None: ...

    assert await statuses(shop.app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]
    assert await statuses(shop.app, "/c", "/d", "/c", "/d") == [200, 200, 429, 429]


async def test_several_limits_of_one_route_all_count() -> None:
    shop = Shop()
    limits = [Depends(shop.limit("2/minute gcra")), Depends(shop.limit("3/hour gcra"))]

    @shop.app.get("/", dependencies=limits)
    async def handler() -> None: ...

    async with client(shop.app) as http:
        answer = await http.get("/")
    assert answer.headers.get_list("ratelimit") == ['"2-per-minute";r=1;t=30', '"3-per-hour";r=2;t=2400']


async def test_handlers_hold_places_and_are_charged_by_outcome_and_settle() -> None:
    shop = Shop()
    quota = ["1 concurrent ttl 30s", "100/minute"]

    @shop.app.get("/login", dependencies=[Depends(shop.limit(quota, name="login", charge=failed_logins))])
    async def login(ok: bool) -> None:
        if not ok:
            raise HTTPException(401)

    @shop.app.get("/ask", dependencies=[Depends(shop.limit("1000/minute", name="ask", cost=300, settle=True))])
    async def ask(request: Request) -> None:
        visit_of(request).cost = 40

    @shop.app.get("/fails", dependencies=[Depends(shop.limit(quota, name="fails"))])
    async def fails() -> None:
        raise LookupError

    paths = ["/login?ok=true"] * 3 + ["/login?ok=false"] * 2
    assert await statuses(shop.app, *paths) == [200] * 3 + [401] * 2
    assert await statuses(shop.app, "/ask", "/fails", "/fails") == [200, 500, 500]
    peeks = [await shop.limiter.peek((name, ME), quota, 0) for name in ("login", "fails")]
    assert [[decision.remaining for decision in peek.decisions] for peek in peeks] == [[1, 98], [1, 98]]
    assert (await shop.limiter.peek(("ask", ME), "1000/minute")).remaining == 960


async def test_a_request_cancelled_within_a_handler_gives_its_place_back() -> None:
    shop = Shop()
    begun = asyncio.Event()

    @shop.app.get("/", dependencies=[Depends(shop.limit("1 concurrent ttl 30s", name="x"))])
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(statuses(shop.app, "/"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shop.limiter.peek(("x", ME), "1 concurrent ttl 30s", 0)).remaining == 1


async def test_rules_decide_for_a_router_and_see_its_prefixes() -> None:
    app = FastAPI()
    rules = rule_set({"id": "orders", "match": {"route": "/v1/shops/{shop}/orders"}, "quota": "2/minute"})
    limit = RateLimit(app, enforcer=AsyncEnforcer(rules, AsyncLimiter()))
    inner = APIRouter(prefix="/shops", dependencies=[Depends(limit())])

    @inner.get("/{shop}/orders")
    async def orders(shop: int) -> None: ...

    @inner.get("/{shop}")
    async def one(shop: int) -> None: ...

    app.include_router(inner, prefix="/v1")
    paths = ["/v1/shops/1/orders", "/v1/shops/2/orders", "/v1/shops/3/orders", "/v1/shops/3"]
    assert await statuses(app, *paths) == [200, 200, 429, 200]


async def test_the_middleware_finds_routes_before_fastapi_does() -> None:
    app, inner, mounted = FastAPI(), APIRouter(prefix="/shops"), FastAPI()

    @inner.get("/{shop}/orders")
    async def orders(shop: int) -> None: ...

    @mounted.get("/files/{name}")
    async def files(name: str) -> None: ...

    app.include_router(inner, prefix="/v1")
    app.mount("/static", mounted)
    assert route_of(http_scope("/v1/shops/7/orders", app=app)) == "/v1/shops/{shop}/orders"
    assert route_of(http_scope("/v1/shops/7/orders", "PUT", app=app)) == "/v1/shops/{shop}/orders"
    assert route_of(http_scope("/static/files/x", app=app)) == "/static/files/{name}"
    assert route_of(http_scope("/v1/shops", app=app)) is None
    limiter = AsyncLimiter(clock=ManualClock())
    app.add_middleware(RateLimitMiddleware, limiter=limiter, quota="2/minute gcra", key=["route", "ip"])
    assert await statuses(app, *[f"/v1/shops/{shop}/orders" for shop in range(3)]) == [200, 200, 429]


async def test_a_dependency_limits_websocket_connections() -> None:
    shop = Shop()

    @shop.app.websocket("/ws", dependencies=[Depends(shop.limit("1 concurrent ttl 30s"))])
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.receive_text()

    for _ in range(2):
        first, second = Socket(shop.app, path="/ws"), Socket(shop.app, path="/ws", denial=True)
        assert (await first.connect())["type"] == "websocket.accept"
        await second.connect()
        await second.end()
        assert second.response.status == 429
        first.hear("bye")
        await first.end()


async def test_a_limit_outside_its_application_is_an_error() -> None:
    app, shop = FastAPI(), Shop()

    @app.get("/", dependencies=[Depends(shop.limit("1/minute"))])
    async def handler() -> None: ...

    with pytest.raises(InvalidOption, match=r"expected RateLimit\(app\)"):
        await app(http_scope("/"), nothing_more, Response().send)


def test_a_limiter_that_would_block_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="limiter: expected AsyncLimiter, not Limiter"):
        RateLimit(FastAPI(), limiter=Limiter())("1/minute")


async def test_exempt_requests_are_not_limited() -> None:
    shop = Shop(exempt=lambda request: request.header("x-internal") == "yes")

    @shop.app.get("/")
    @shop.limit.on("1/minute gcra")
    async def handler() -> None: ...

    assert await statuses(shop.app, "/", "/", headers={"X-Internal": "yes"}) == [200, 200]
    assert await statuses(shop.app, "/", "/") == [200, 429]


async def test_a_refusal_within_a_mounted_application_is_answered() -> None:
    outer, inner = FastAPI(), FastAPI()
    outer.add_middleware(RateLimitMiddleware, limiter=AsyncLimiter(), quota="100/minute")
    limit = RateLimit(inner, limiter=AsyncLimiter())

    @inner.get("/item", dependencies=[Depends(limit("1/minute"))])
    async def item() -> None: ...

    outer.mount("/shop", inner)
    assert await asgi_statuses(outer, 2, path="/shop/item") == [200, 429]

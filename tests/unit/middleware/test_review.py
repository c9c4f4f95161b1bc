"""What clients could get away with, or were told wrongly, whatever the framework."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.authentication import BaseUser

from penstock import AsyncLimiter, ManualClock, RateLimited
from penstock.middleware.asgi import App, RateLimitMiddleware, Receive, Scope, Send, name_of
from penstock.middleware.fastapi import RateLimit
from penstock.middleware.fastapi import RateLimitMiddleware as FastAPIMiddleware
from penstock.middleware.gate import CLIENT_CLOSED, failed_logins
from tests.unit.middleware.asgi_support import DistantStore, Socket, answering, get, http_scope, nothing_more, statuses

PLACES = "1 concurrent ttl 1h"
ME = "ip=192.0.2.7"


async def test_a_refusal_within_a_mounted_application_is_no_failure() -> None:
    outer, inner = FastAPI(), FastAPI()
    outer.add_middleware(FastAPIMiddleware, limiter=AsyncLimiter(), quota="100/minute")
    limit = RateLimit(inner, limiter=AsyncLimiter())

    @inner.get("/item", dependencies=[Depends(limit("1/minute"))])
    async def item() -> None: ...

    outer.mount("/shop", inner)
    assert await statuses(outer, 2, path="/shop/item") == [200, 429]


async def test_all_places_come_back_if_cancelled_again_and_again() -> None:
    limiter = AsyncLimiter(store := DistantStore(ManualClock()), clock=ManualClock())
    began = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await asyncio.Event().wait()

    names = ["a", "b", "c"]
    app: App = waits
    for name in names:
        app = RateLimitMiddleware(app, limiter=limiter, quota=PLACES, name=name)

    async def request() -> None:
        await app(http_scope(), nothing_more, nothing_said)

    task = asyncio.create_task(request())
    await began.wait()
    store.pause()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    store.go_on()
    for _ in range(20):
        await asyncio.sleep(0)
    assert [(await limiter.peek((name, ME), PLACES)).remaining for name in names] == [1, 1, 1]


async def nothing_said(message: Any) -> None: ...


@pytest.mark.parametrize("dialect", ["draft6", "x-seconds", "x-epoch"])
async def test_what_says_one_thing_only_is_said_once(dialect: str) -> None:
    inner = RateLimitMiddleware(answering(), limiter=AsyncLimiter(), quota="1/hour", dialect=dialect)
    app = RateLimitMiddleware(inner, limiter=AsyncLimiter(), quota="9/hour", dialect=dialect)
    for status, left in ((200, b"0"), (429, b"0")):
        response = await get(app)
        (told,) = [value for name, value in response.messages[0]["headers"] if name.endswith(b"-remaining")]
        assert (response.status, told) == (status, left)


async def test_a_refusal_that_is_raised_tells_no_more_than_others() -> None:
    limiter = AsyncLimiter()

    async def asks(scope: Scope, receive: Receive, send: Send) -> None:
        await limiter.acquire("upstream", "1/hour name secret")
        raise RateLimited(await limiter.acquire("upstream", "1/hour name secret"))

    response = await get(RateLimitMiddleware(asks, limiter=limiter, quota="9/hour", dialect="none"))
    assert response.status == 429
    assert "ratelimit" not in response.headers
    assert b"secret" not in response.body


def test_leaving_before_the_answer_is_a_failed_login() -> None:
    assert failed_logins(CLIENT_CLOSED)


class OnlyIdentity(BaseUser):
    """A user as Starlette describes it, without a name to display."""

    is_authenticated = True
    identity = "7"


def test_a_user_is_known_by_its_identity() -> None:
    assert name_of(OnlyIdentity()) == "7"
    assert name_of(BaseUserWithout()) is None


class BaseUserWithout(BaseUser):
    is_authenticated = True


async def test_a_message_that_is_sent_to_everybody_stays_as_it_is() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": []}

    async def constant(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body"})

    app = RateLimitMiddleware(constant, limiter=AsyncLimiter(), quota="9/hour")
    first, second = [len((await get(app)).messages[0]["headers"]) for _ in range(2)]
    assert (first, start["headers"]) == (second, [])


async def test_a_refusal_of_head_has_no_body() -> None:
    app = RateLimitMiddleware(answering(), limiter=AsyncLimiter(), quota="1/hour")
    await get(app, method="HEAD")
    refused = await get(app, method="HEAD")
    assert (refused.status, refused.body) == (429, b"")
    assert int(refused.headers["content-length"]) > 0


async def test_an_application_that_does_not_listen_keeps_nobody_from_running() -> None:
    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept", "headers": []})
        while True:
            await receive()

    app = RateLimitMiddleware(deaf, limiter=AsyncLimiter(), quota="9/hour", messages="1/hour")
    socket = Socket(app)
    await socket.connect()
    socket.hear("one")
    assert (await socket.say("two"))["code"] == 1008
    await asyncio.sleep(0.01)  # comes back
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(socket.end(), 0.01)

"""The ASGI middleware charges before, adds headers, and ends passages, whatever the application does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.authentication import BaseUser

from penstock import AsyncLimiter, Limiter, ManualClock, RateLimited, StoreError
from penstock.enforcer import AsyncEnforcer
from penstock.errors import InvalidOption
from penstock.middleware.asgi import App, Message, RateLimitMiddleware, Receive, Scope, Send, name_of
from penstock.middleware.gate import unless_server_error
from tests.unit.middleware.asgi_support import (
    DistantStore,
    Response,
    answering,
    get,
    http_scope,
    nothing_more,
    statuses,
)
from tests.unit.rules.support import rule_set

PLACE = "1 concurrent ttl 30s"
ME = "ip=192.0.2.7"


def limited(app: Any = None, **options: Any) -> RateLimitMiddleware:
    chosen: dict[str, Any] = {"limiter": AsyncLimiter(clock=ManualClock()), "quota": "1/minute gcra"} | options
    return RateLimitMiddleware(app or answering(), **chosen)


async def test_an_admitted_request_gets_its_response_with_the_headers_of_the_limit() -> None:
    response = await get(limited())
    assert (response.status, response.body) == (200, b"hello")
    assert response.headers == {
        "x-own": "1",
        "ratelimit-policy": '"1-per-minute";q=1;w=60',
        "ratelimit": '"1-per-minute";r=0;t=60',
    }


async def test_a_refused_request_is_answered_without_the_application() -> None:
    calls = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope)
        await answering()(scope, receive, send)

    middleware = limited(app)
    await get(middleware)
    response = await get(middleware)
    assert response.status == 429
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "60"
    assert response.problem["violated-policies"] == ["1-per-minute"]
    assert len(calls) == 1


async def test_rules_decide_if_there_is_an_enforcer() -> None:
    rules = rule_set({"id": "writes", "match": {"method": "POST"}, "quota": "1/minute"})
    middleware = RateLimitMiddleware(answering(), enforcer=AsyncEnforcer(rules, AsyncLimiter()))
    assert await statuses(middleware, 3) == [200, 200, 200]
    assert await statuses(middleware, 2, method="POST") == [200, 429]


@pytest.mark.parametrize("kind", ["lifespan", "something.else"])
async def test_foreign_scopes_pass_untouched(kind: str) -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, receive, send))

    middleware, scope, response = limited(app), {"type": kind}, Response()
    for _ in range(3):
        await middleware(scope, nothing_more, response.send)
    assert seen == [({"type": kind}, nothing_more, response.send)] * 3


async def test_a_limiter_that_would_block_the_event_loop_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidOption, match="limiter: expected AsyncLimiter, not Limiter"):
        limited(limiter=Limiter())


@pytest.mark.parametrize("client", [None, (), ("", 0), [None, 0], "x", 7])
async def test_clients_without_an_address_share_one_counter(client: Any) -> None:
    middleware = limited()
    assert await statuses(middleware, 1, client=None) == [200]
    assert await statuses(middleware, 1, client=client) == [429]
    assert await statuses(middleware, 1) == [200]


async def test_a_scope_without_optional_keys_is_a_request() -> None:
    rules = rule_set({"id": "all", "key": ["method", "path", "route", "user", "api_key", "ip"], "quota": "1/minute"})
    middleware = RateLimitMiddleware(answering(), enforcer=AsyncEnforcer(rules, AsyncLimiter()))
    for status in (200, 429):
        response = Response()
        await middleware({"type": "http"}, nothing_more, response.send)
        assert response.status == status


async def test_headers_of_any_bytes_are_read() -> None:
    middleware = limited(key="api_key")
    raw = [(b"x-api-key", bytes(range(256)))]
    assert await statuses(middleware, 1) == [200]
    for status in (200, 429):
        response = Response()
        await middleware(http_scope() | {"headers": raw}, nothing_more, response.send)
        assert response.status == status


class User:
    is_authenticated = True
    id = 7


class Nobody:
    is_authenticated = False
    id = 8


@pytest.mark.parametrize(("user", "others"), [("alice", "bob"), (User(), 8), (7, None)])
async def test_users_are_those_of_an_authentication_middleware(user: Any, others: Any) -> None:
    middleware = limited(key="user | ip")
    assert await statuses(middleware, 2, user=user) == [200, 429]
    assert await statuses(middleware, 1, user=others) == [200]


async def test_a_request_without_a_login_is_known_by_its_address() -> None:
    middleware = limited(key="user | ip")
    assert await statuses(middleware, 1, user=Nobody()) == [200]
    assert await statuses(middleware, 1) == [429]


async def test_the_application_sees_the_verdict_and_sets_the_true_cost() -> None:
    limiter = AsyncLimiter(clock=ManualClock())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["penstock"].verdict.remaining == 70
        scope["penstock"].cost = 12
        assert scope["penstock"].cost == 12
        await answering()(scope, receive, send)

    await get(limited(app, limiter=limiter, quota="100/minute", cost=30, settle=True))
    assert (await limiter.peek(ME, "100/minute")).remaining == 88


async def test_a_cost_where_nothing_is_settled_is_an_error_of_the_application() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["penstock"].cost = 12

    with pytest.raises(InvalidOption, match="settle=True"):
        await get(limited(app))


# ---------------------------------------------------------------- places and refunds, however it ends


class Stage:
    """An application under a test's control, behind a middleware, on a store here or elsewhere."""

    def __init__(self, *, distant: bool, **options: Any) -> None:
        self.store = DistantStore(ManualClock())
        self.limiter = AsyncLimiter(self.store, layers=[]) if distant else AsyncLimiter(clock=ManualClock())
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.quota = [PLACE, "9/minute gcra"]
        self.app = limited(self._app, limiter=self.limiter, quota=self.quota, **options)
        self.does: Any = answering()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.set()
        await self.does(scope, receive, send)

    async def left(self) -> list[int]:
        """Return the free places and the units left of the rate."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [decision.remaining for decision in (await self.limiter.peek(ME, self.quota, 0)).decisions]


@pytest.fixture(params=["here", "elsewhere"])
def distant(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "elsewhere")


async def test_a_place_is_held_while_the_application_works(distant: bool) -> None:
    stage = Stage(distant=distant)
    go_on = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await answering()(scope, receive, send)

    stage.does = slow
    first = asyncio.create_task(get(stage.app))
    await stage.begun.wait()
    assert (await get(stage.app)).problem["reason"] == "concurrency"
    go_on.set()
    assert (await first).status == 200
    assert await stage.left() == [1, 8]


async def test_the_place_is_free_when_the_client_has_read_the_end(distant: bool) -> None:
    stage = Stage(distant=distant)
    freed: list[list[int]] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            freed.append(await stage.left())

    async def with_work_afterwards(scope: Scope, receive: Receive, send: Send) -> None:
        await answering()(scope, receive, send)
        assert await stage.left() == [1, 8]

    stage.does = with_work_afterwards
    await stage.app(http_scope(), nothing_more, send)
    assert freed == [[1, 8]]


async def test_a_place_is_held_while_a_response_streams(distant: bool) -> None:
    stage = Stage(distant=distant)
    seen: list[list[int]] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        for part in (b"a", b"b"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            seen.append(await stage.left())
        await send({"type": "http.response.body"})

    stage.does = streaming
    response = await get(stage.app)
    assert response.body == b"ab"
    assert seen == [[0, 8], [0, 8]]
    assert await stage.left() == [1, 8]


async def test_a_handler_that_raises_gives_its_place_back_and_the_error_goes_on(distant: bool) -> None:
    stage = Stage(distant=distant)

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("no such thing")

    stage.does = failing
    with pytest.raises(LookupError, match="no such thing"):
        await get(stage.app)
    assert await stage.left() == [1, 8]


async def test_a_handler_that_raises_after_it_responded_counts_as_a_server_error(distant: bool) -> None:
    stage = Stage(distant=distant, charge=unless_server_error)

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise LookupError

    stage.does = failing
    with pytest.raises(LookupError):
        await get(stage.app)
    assert await stage.left() == [1, 9]


async def test_work_after_the_response_changes_nothing_about_it(distant: bool) -> None:
    stage = Stage(distant=distant, charge=unless_server_error)

    async def failing_late(scope: Scope, receive: Receive, send: Send) -> None:
        await answering()(scope, receive, send)
        raise LookupError

    stage.does = failing_late
    with pytest.raises(LookupError):
        await get(stage.app)
    assert await stage.left() == [1, 8]


async def test_a_client_that_leaves_does_not_escape_being_charged(distant: bool) -> None:
    stage = Stage(distant=distant, charge=unless_server_error)

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        raise ConnectionError("the client is gone")

    stage.does = reading
    with pytest.raises(ConnectionError):
        await get(stage.app)
    assert await stage.left() == [1, 8]


async def test_a_client_that_cannot_be_sent_a_response_does_not_escape_being_charged(distant: bool) -> None:
    stage = Stage(distant=distant, charge=unless_server_error)

    async def deaf(message: Message) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        await stage.app(http_scope(), nothing_more, deaf)
    assert await stage.left() == [1, 8]


async def test_a_request_without_a_response_ends(distant: bool) -> None:
    stage = Stage(distant=distant)

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    stage.does = silent
    await get_nothing(stage)
    assert await stage.left() == [1, 8]


async def get_nothing(stage: Stage) -> None:
    response = Response()
    await stage.app(http_scope(), nothing_more, response.send)
    assert response.messages == []


async def test_a_cancelled_request_gives_its_place_back(distant: bool) -> None:
    stage = Stage(distant=distant)

    async def forever(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    stage.does = forever
    task = asyncio.create_task(get(stage.app))
    await stage.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stage.left() == [1, 8]


async def test_a_request_that_is_cancelled_repeatedly_gives_its_place_back() -> None:
    """Cancel scopes do this: all that is awaited on the way out is cancelled too."""
    stage = Stage(distant=True)

    async def forever(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    stage.does = forever
    task = asyncio.create_task(get(stage.app))
    await stage.begun.wait()
    stage.store.pause()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    stage.store.go_on()
    assert task.cancelled()
    assert await stage.left() == [1, 8]


async def test_a_request_that_is_cancelled_before_its_verdict_leaves_no_place_taken() -> None:
    stage = Stage(distant=True)
    stage.store.pause()
    task = asyncio.create_task(get(stage.app))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not stage.begun.is_set()
    stage.store.go_on()
    for _ in range(3):
        await asyncio.sleep(0)
    assert await stage.left() == [1, 8]


async def test_a_request_by_rules_that_is_cancelled_before_its_verdict_leaves_no_place_taken() -> None:
    limiter = AsyncLimiter(store := DistantStore(ManualClock()), clock=ManualClock())
    enforcer = AsyncEnforcer(rule_set({"id": "all", "quota": PLACE}), limiter)
    app = RateLimitMiddleware(answering(), enforcer=enforcer)
    store.pause()
    task = asyncio.create_task(get(app))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    second = asyncio.create_task(get(app))
    for _ in range(3):
        await asyncio.sleep(0)
    store.go_on()
    assert (await second).status == 429  # the cancelled request was charged before
    for _ in range(5):
        await asyncio.sleep(0)
    assert await statuses(app, 1) == [200]


async def test_a_store_failure_after_a_cancellation_is_not_raised() -> None:
    stage = Stage(distant=True)
    stage.store.pause()
    task = asyncio.create_task(get(stage.app))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stage.store.fails = True
    stage.store.go_on()
    for _ in range(5):
        await asyncio.sleep(0)
    stage.store.fails = False
    assert not stage.begun.is_set()


# ---------------------------------------------------------------- delays


async def test_shaped_requests_are_delayed() -> None:
    clock = ManualClock()
    middleware = limited(limiter=AsyncLimiter(clock=clock), quota="1/second leaky_bucket queue 2")
    start = clock.micros
    assert await statuses(middleware, 3) == [200, 200, 200]
    assert clock.micros - start == 2_000_000


@pytest.mark.parametrize("kind", ["limiter", "enforcer"])
async def test_a_request_that_is_cancelled_in_its_delay_gives_its_turn_and_place_back(kind: str, distant: bool) -> None:
    quotas = ["1/hour leaky_bucket queue 2", "2 concurrent ttl 1h"]
    limiter = AsyncLimiter(DistantStore(), layers=[]) if distant else AsyncLimiter()
    if kind == "limiter":
        middleware = RateLimitMiddleware(answering(), limiter=limiter, quota=quotas)
    else:
        rules = rule_set({"id": "all", "quota": quotas})
        middleware = RateLimitMiddleware(answering(), enforcer=AsyncEnforcer(rules, limiter))
    assert await statuses(middleware, 1) == [200]
    for _ in range(4):  # more than there is room for
        task = asyncio.create_task(get(middleware))
        for _ in range(8):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# ---------------------------------------------------------------- refusals from within, and middlewares in middlewares


async def test_a_refusal_raised_by_the_application_is_answered() -> None:
    limiter = AsyncLimiter(clock=ManualClock())

    @limiter.limit("1/minute gcra")
    async def search() -> None: ...

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await search()
        await answering()(scope, receive, send)

    assert await statuses(RateLimitMiddleware(app), 2) == [200, 429]


async def test_a_refusal_raised_after_the_response_has_begun_is_an_error() -> None:
    limiter = AsyncLimiter()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await limiter.acquire("x", "1/minute")
        raise RateLimited(await limiter.acquire("x", "1/minute"))

    with pytest.raises(RateLimited):
        await get(limited(app))


async def test_nested_middlewares_all_count_and_all_send_headers() -> None:
    inner_limiter, outer_limiter = AsyncLimiter(clock=ManualClock()), AsyncLimiter(clock=ManualClock())
    inner = limited(limiter=inner_limiter, quota=["2/minute gcra", PLACE])
    outer = limited(inner, limiter=outer_limiter, quota="9/hour gcra")
    first, second, third = [await get(outer) for _ in range(3)]
    assert [first.status, second.status, third.status] == [200, 200, 429]
    assert first.messages[0]["headers"].count((b"ratelimit", b'"9-per-hour";r=8;t=3200')) == 1
    assert [name for name, _ in first.messages[0]["headers"]].count(b"ratelimit") == 2
    assert (await outer_limiter.peek(ME, "9/hour gcra")).remaining == 6


async def test_a_store_failure_is_raised_if_on_failure_says_so() -> None:
    store = DistantStore()
    store.fails = True
    middleware = limited(limiter=AsyncLimiter(store, on_failure="raise"))
    with pytest.raises(StoreError):
        await get(middleware)


async def test_all_places_come_back_if_a_request_is_cancelled_repeatedly() -> None:
    limiter = AsyncLimiter(store := DistantStore(ManualClock()), clock=ManualClock())
    began = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await asyncio.Event().wait()

    names = ["a", "b", "c"]
    app: App = waits
    for name in names:
        app = RateLimitMiddleware(app, limiter=limiter, quota=PLACE, name=name)

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
    assert [(await limiter.peek((name, ME), PLACE)).remaining for name in names] == [1, 1, 1]


async def nothing_said(message: Any) -> None: ...


@pytest.mark.parametrize("dialect", ["draft6", "x-seconds", "x-epoch"])
async def test_headers_with_one_value_are_sent_once(dialect: str) -> None:
    inner = RateLimitMiddleware(answering(), limiter=AsyncLimiter(), quota="1/hour", dialect=dialect)
    app = RateLimitMiddleware(inner, limiter=AsyncLimiter(), quota="9/hour", dialect=dialect)
    for status, left in ((200, b"0"), (429, b"0")):
        response = await get(app)
        (told,) = [value for name, value in response.messages[0]["headers"] if name.endswith(b"-remaining")]
        assert (response.status, told) == (status, left)


async def test_a_refusal_that_is_raised_shows_no_more_than_others() -> None:
    limiter = AsyncLimiter()

    async def asks(scope: Scope, receive: Receive, send: Send) -> None:
        await limiter.acquire("upstream", "1/hour name secret")
        raise RateLimited(await limiter.acquire("upstream", "1/hour name secret"))

    response = await get(RateLimitMiddleware(asks, limiter=limiter, quota="9/hour", dialect="none"))
    assert response.status == 429
    assert "ratelimit" not in response.headers
    assert b"secret" not in response.body


class OnlyIdentity(BaseUser):
    """A user as Starlette describes it, without a name to display."""

    is_authenticated = True
    identity = "7"


def test_a_user_is_known_by_its_identity() -> None:
    assert name_of(OnlyIdentity()) == "7"
    assert name_of(BaseUserWithout()) is None


class BaseUserWithout(BaseUser):
    is_authenticated = True


async def test_a_message_object_that_an_application_sends_again_is_not_changed() -> None:
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

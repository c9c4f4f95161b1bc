"""WebSockets: a connection is a request, a place lasts as long as the connection, and messages may be charged too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import AsyncLimiter, ManualClock
from penstock.enforcer import AsyncEnforcer
from penstock.errors import InvalidOption
from penstock.middleware.asgi import RateLimitMiddleware, Receive, Scope, Send
from penstock.middleware.gate import unless_server_error
from tests.unit.flaky import AsyncFlaky, Flaky
from tests.unit.middleware.asgi_support import DistantStore, Socket, echo
from tests.unit.rules.support import rule_set


def limited(app: Any = echo, **options: Any) -> RateLimitMiddleware:
    chosen: dict[str, Any] = {"limiter": AsyncLimiter(clock=ManualClock()), "quota": "100/minute"} | options
    return RateLimitMiddleware(app, **chosen)


async def test_an_admitted_connection_is_accepted_with_the_headers_of_the_limit() -> None:
    socket = Socket(limited())
    accepted = await socket.connect()
    assert accepted["type"] == "websocket.accept"
    assert (b"ratelimit-policy", b'"100-per-minute";q=100;w=60') in accepted["headers"]
    assert (await socket.say("hello"))["text"] == "hello"
    await socket.leave()


async def test_a_refused_connection_is_answered_where_the_server_can() -> None:
    app = limited(quota="1/minute gcra")
    first, second = Socket(app), Socket(app, denial=True)
    await first.connect()
    await second.connect()
    await second.end()
    assert second.response.status == 429
    assert second.response.headers["retry-after"] == "60"
    assert second.response.problem["reason"] == "rate"
    await first.leave()


async def test_a_refused_connection_is_closed_where_the_server_cannot_answer() -> None:
    app = limited(quota="1/minute gcra")
    first, second = Socket(app), Socket(app)
    await first.connect()
    assert await second.connect() == {"type": "websocket.close", "code": 1008}
    await second.end()
    await first.leave()


async def test_a_connection_is_closed_with_try_again_later_if_the_store_fails_closed() -> None:
    store = Flaky(ManualClock())
    store.up = False
    socket = Socket(limited(limiter=AsyncLimiter(AsyncFlaky(store), on_failure="closed")))
    assert await socket.connect() == {"type": "websocket.close", "code": 1013}
    await socket.end()


@pytest.mark.parametrize("distant", [False, True])
async def test_a_place_is_held_until_the_connection_ends(distant: bool) -> None:
    limiter = AsyncLimiter(DistantStore(), layers=[]) if distant else AsyncLimiter()
    app = limited(limiter=limiter, quota="1 concurrent ttl 30s")
    for _ in range(2):
        first, second = Socket(app), Socket(app)
        assert (await first.connect())["type"] == "websocket.accept"
        assert (await second.connect())["type"] == "websocket.close"
        await first.say("still here")
        await first.leave()


async def test_the_place_of_a_connection_is_renewed_beyond_its_ttl() -> None:
    """Renewals run by the event loop's own time; the clock of the limiter moves on with each of them."""
    limiter = AsyncLimiter(clock=(clock := ManualClock()))
    renew, began = limiter.renew, clock.micros

    async def renewed(verdict: Any) -> bool:
        held = await renew(verdict)
        clock.advance(0.04)
        return held

    limiter.renew = renewed  # type: ignore[method-assign, assignment]
    app = limited(limiter=limiter, quota="1 concurrent ttl 60ms")
    first, second = Socket(app), Socket(app)
    await first.connect()
    async with asyncio.timeout(60):
        while clock.micros < began + 120_000:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (await second.connect())["type"] == "websocket.close"
    await first.leave()
    assert (await Socket(app).connect())["type"] == "websocket.accept"


async def test_a_handler_that_fails_gives_the_place_back_and_is_refunded_if_the_option_says_so() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        raise LookupError

    limiter = AsyncLimiter(clock=ManualClock())
    quota = ["1 concurrent ttl 30s", "9/minute"]
    socket = Socket(limited(failing, limiter=limiter, quota=quota, charge=unless_server_error))
    await socket.connect()
    socket.hear("something it cannot bear")
    with pytest.raises(LookupError):
        await socket.end()
    assert [d.remaining for d in (await limiter.peek("ip=192.0.2.7", quota, 0)).decisions] == [1, 9]


async def test_a_connection_that_the_application_rejects_stays_charged() -> None:
    async def unwelcoming(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 4_000})

    outcomes: list[int] = []

    def charge(status: int) -> bool:
        outcomes.append(status)
        return True

    limiter = AsyncLimiter(clock=ManualClock())
    app = limited(unwelcoming, limiter=limiter, charge=charge)
    socket = Socket(app)
    await socket.connect()
    await socket.end()
    assert outcomes == [403]


# ---------------------------------------------------------------- messages


async def test_each_message_is_charged_and_the_first_too_many_closes_the_connection() -> None:
    app = limited(messages="2/minute gcra")
    socket = Socket(app)
    await socket.connect()
    assert [(await socket.say(text))["type"] for text in "ab"] == ["websocket.send", "websocket.send"]
    closed = await socket.say("c")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert closed["reason"] == "too many messages: try again in 30 s"
    await socket.end()


async def test_messages_are_counted_apart_from_connections() -> None:
    app = limited(quota="2/minute gcra", messages="2/minute gcra")
    sockets = [Socket(app), Socket(app)]
    for socket in sockets:
        assert (await socket.connect())["type"] == "websocket.accept"
        assert (await socket.say("hello"))["type"] == "websocket.send"
    for socket in sockets:
        await socket.leave()


async def test_an_application_that_goes_on_sending_finds_the_connection_closed() -> None:
    found: list[str] = []

    async def talkative(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "yes"})
        assert (await receive()) == message
        try:
            await send({"type": "websocket.send", "text": "are you there?"})
        except OSError as error:
            found.append(str(error))
        await send({"type": "websocket.close"})

    socket = Socket(limited(talkative, messages="1/minute gcra"))
    await socket.connect()
    await socket.say("a")
    await socket.say("b")
    await socket.end()
    assert found == ["the connection was closed: too many messages"]


async def test_shaped_messages_are_delayed() -> None:
    clock = ManualClock()
    app = limited(limiter=AsyncLimiter(clock=clock), messages="1/second leaky_bucket queue 5")
    socket = Socket(app)
    await socket.connect()
    start = clock.micros
    for text in "abc":
        await socket.say(text)
    assert clock.micros - start == 2_000_000
    await socket.leave()


async def test_rules_tell_connections_and_messages_apart() -> None:
    rules = rule_set(
        {"id": "connects", "match": {"method": "WEBSOCKET"}, "quota": "1/minute"},
        {"id": "messages", "match": {"method": "MESSAGE"}, "quota": ["2/minute", "5 concurrent ttl 1m"]},
    )
    app = RateLimitMiddleware(echo, enforcer=AsyncEnforcer(rules, AsyncLimiter()), messages=True)
    socket = Socket(app)
    await socket.connect()
    assert [(await socket.say(text))["type"] for text in "abc"] == ["websocket.send"] * 2 + ["websocket.close"]
    assert (await Socket(app).connect())["type"] == "websocket.close"
    await socket.end()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages": True}, "messages: expected a quota, and a limiter to ask"),
        ({"messages": "5 concurrent ttl 30s"}, "messages: a message holds no place (expected a rate)"),
        (
            {"messages": "1/minute", "enforcer": AsyncEnforcer(rule_set({"id": "all"}), AsyncLimiter())},
            "messages: the rules of an enforcer say that (expected True)",
        ),
    ],
)
def test_invalid_quotas_of_messages_are_errors_at_the_start(options: Any, message: str) -> None:
    if "enforcer" not in options:
        options |= {"limiter": AsyncLimiter(), "quota": "1/minute"}
    with pytest.raises(InvalidOption) as error:
        RateLimitMiddleware(echo, **options)
    assert str(error.value) == message


async def test_an_application_that_ignores_the_end_does_not_block_the_loop() -> None:
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
    await asyncio.sleep(0.01)  # returns, because the loop is free
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(socket.end(), 0.01)

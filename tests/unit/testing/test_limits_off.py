"""Under `limits_off` every limiter, client, enforcer and middleware admits; after it, all is as it was before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import flask
import httpx
import pytest

from penstock import AsyncLimiter, InvalidInput, Limiter, ManualClock, Verdict
from penstock.client import AsyncClient, Client
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import InvalidCost
from penstock.middleware.asgi import RateLimitMiddleware
from penstock.middleware.flask import RateLimit, visit
from penstock.rules import RuleSet, parse
from penstock.shedding import Shedder
from penstock.stores import MemoryStore
from penstock.testing import assert_allowed, assert_refused, limits_off, switch

QUOTA = "1/day"
PLACES = "1 concurrent"
RULES = RuleSet(parse("rules: [{id: api, key: ip, quota: 1/day}, {id: admin, action: deny, match: {path: /admin}}]"))
REQUEST = {"ip": "192.0.2.7"}
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_stays_replaced() -> Iterator[None]:
    before = {owner: dict(vars(owner)) for owner in switch._OFF}
    yield
    assert {owner: dict(vars(owner)) for owner in switch._OFF} == before


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    """Its limits are used up."""
    limiter = Limiter(clock=clock)
    for quota in (QUOTA, PLACES):
        assert limiter.acquire("alice", quota)
        assert not limiter.acquire("alice", quota)
    return limiter


def _asyncio(limiter: Limiter) -> AsyncLimiter:
    store = limiter.store
    assert isinstance(store, MemoryStore)
    from penstock.stores import AsyncMemoryStore

    return AsyncLimiter(AsyncMemoryStore(store))


def test_every_verb_of_a_limiter_admits(limiter: Limiter) -> None:
    with limits_off():
        verdicts = [
            limiter.acquire("alice", QUOTA),
            limiter.acquire("alice", [QUOTA, PLACES]),
            limiter.acquire("alice", QUOTA, id="one"),
            limiter.peek("alice", QUOTA),
            limiter.wait("alice", QUOTA, timeout=0),
            limiter.wait("alice", QUOTA),
            *limiter.acquire_many([("alice", QUOTA), ("alice", PLACES)]),
            *limiter.acquire_many([("alice", QUOTA, 1)]),
            limiter.acquire_all([("alice", QUOTA), ("bob", QUOTA)]),
        ]
        for verdict in verdicts:
            assert_allowed(verdict)
            assert verdict.source == "open"
        with limiter.hold("alice", PLACES, renew=True) as hold, limiter.hold("alice", PLACES, timeout=None):
            assert hold.renew()
        with limiter.reserve("alice", QUOTA, cost=1) as reservation:
            reservation.settle(0)
        assert [limiter.limit(QUOTA, key="alice", name="alice")(lambda: "called")() for _ in range(3)] == ["called"] * 3
    assert_refused(limiter.acquire("alice", QUOTA))
    assert_refused(limiter.acquire("alice", PLACES))


async def test_every_verb_of_an_asyncio_limiter_admits(limiter: Limiter) -> None:
    waiting = _asyncio(limiter)

    async def called() -> str:
        return "called"

    with limits_off():
        verdicts = [
            await waiting.acquire("alice", QUOTA),
            await waiting.acquire("alice", QUOTA, id="one"),
            await waiting.peek("alice", QUOTA),
            await waiting.wait("alice", QUOTA, timeout=0),
            *await waiting.acquire_many([("alice", QUOTA), ("alice", PLACES)]),
            await waiting.acquire_all([("alice", QUOTA), ("bob", QUOTA)]),
        ]
        for verdict in verdicts:
            assert_allowed(verdict)
        async with waiting.hold("alice", PLACES, renew=True), waiting.hold("alice", PLACES, timeout=None):
            pass
        async with waiting.reserve("alice", QUOTA, cost=1) as reservation:
            await reservation.settle(0)
        assert await waiting.limit(QUOTA, key="alice", name="alice")(called)() == "called"
    assert_refused(await waiting.acquire("alice", QUOTA))


def test_what_was_charged_before_can_be_given_back(limiter: Limiter) -> None:
    charged = limiter.acquire("bob", "2/day")
    several = limiter.acquire("bob", ["2/day name a", "2/day name b"])
    with limits_off():
        assert limiter.refund(charged).units == 1
        assert limiter.refund(several).each == (1, 1)
    assert limiter.peek("bob", "2/day").remaining == 2


@pytest.mark.parametrize("quota", ["5/minute token_bucket", "5/minute", "5/minute rolling_window", "5 concurrent"])
def test_what_was_admitted_meanwhile_gives_nothing_back(limiter: Limiter, quota: str) -> None:
    charged = limiter.acquire("bob", quota, cost=3)
    with limits_off():
        free = [limiter.acquire("bob", quota, cost=2), limiter.acquire("bob", quota, cost=2, id="one")]
    assert [limiter.refund(verdict).units for verdict in free] == [0, 0]
    assert limiter.settle(free[1], 1).units == 0
    assert limiter.peek("bob", quota).remaining == 5 - charged.cost if "concurrent" not in quota else 4


def test_mistakes_are_raised_as_always(limiter: Limiter) -> None:
    with limits_off():
        for key, quota, cost in (("", QUOTA, 1), ("alice", "100/fortnight", 1), ("alice", QUOTA, 2)):
            with pytest.raises(InvalidInput):
                limiter.acquire(key, quota, cost)


async def test_costs_that_rules_would_refuse_are_raised_as_always(limiter: Limiter) -> None:
    with limits_off(), Client(NOBODY) as client:
        for cost in (0, -1, True, 1.5):
            with pytest.raises(InvalidCost):
                Enforcer(RULES, limiter).check(REQUEST, cost)  # type: ignore[arg-type]
            with pytest.raises(InvalidCost):
                await AsyncEnforcer(RULES, _asyncio(limiter)).check(REQUEST, cost)  # type: ignore[arg-type]
            with pytest.raises(InvalidCost):
                client.check(REQUEST, cost)  # type: ignore[arg-type]
            with pytest.raises(InvalidCost):
                client.peek(descriptor=REQUEST, cost=cost)  # type: ignore[arg-type]


async def test_methods_that_were_looked_up_meanwhile_are_limited_afterwards(limiter: Limiter) -> None:
    unlimited = _asyncio(limiter)
    with limits_off():
        acquire, acquire_async, check = limiter.acquire, unlimited.acquire, Enforcer(RULES, limiter).check
        assert_allowed(acquire("alice", QUOTA))
        assert_allowed(await acquire_async("alice", QUOTA))
        assert [bool(check(REQUEST)) for _ in range(2)] == [True, True]
    assert_refused(acquire("alice", QUOTA))
    assert_refused(await acquire_async("alice", QUOTA))
    assert [bool(check(REQUEST)) for _ in range(2)] == [True, False]


def test_no_store_is_asked() -> None:
    class Gone:
        def run(self, *_: Any) -> Any:
            raise AssertionError

        def close(self) -> None: ...

    limiter = Limiter(Gone(), on_failure="closed")
    with limits_off():
        assert_allowed(limiter.acquire("alice", QUOTA))
        limiter.release(limiter.acquire("alice", PLACES))
    assert_refused(limiter.acquire("alice", QUOTA), reason="degraded")


@pytest.mark.parametrize("submits", [False, True])
async def test_no_asyncio_store_is_asked(submits: bool) -> None:
    class Gone:
        async def run(self, *_: Any) -> Any:
            raise AssertionError

        async def close(self) -> None: ...

    class GoneAtOnce(Gone):
        def submit(self, *_: Any) -> Any:
            raise AssertionError

    limiter = AsyncLimiter(GoneAtOnce() if submits else Gone(), on_failure="closed")
    with limits_off():
        assert_allowed(await limiter.acquire("alice", QUOTA))
        assert_allowed(await limiter.acquire("alice", QUOTA, id="one"))
        assert_allowed(await limiter.acquire_all([("alice", QUOTA), ("bob", QUOTA)]))
        assert_allowed(await limiter.wait("alice", QUOTA, timeout=1))
        assert_allowed(await limiter.peek("alice", QUOTA))
        await limiter.release(await limiter.acquire("alice", PLACES))
        async with limiter.hold("alice", PLACES, timeout=1):
            pass
    assert_refused(await limiter.acquire("alice", QUOTA), reason="degraded")


def test_rules_do_not_refuse_nor_shed(limiter: Limiter) -> None:
    enforcer = Enforcer(RULES, limiter, shedder=Shedder(lambda: 1.0))
    with limits_off():
        ruling = assert_allowed(enforcer.check(REQUEST))
        assert_allowed(enforcer.check(REQUEST))
        assert_allowed(enforcer.check({"path": "/admin"}))
        assert enforcer.begin({"path": "/admin"}, 1, "one")
        assert all(enforcer.check_many([REQUEST, (REQUEST, 2)]))
        with enforcer.hold(REQUEST), enforcer.reserve(REQUEST, 5) as reservation:
            reservation.settle(3)
        assert enforcer.refund(ruling).units == 0
    assert_refused(enforcer.check({"path": "/admin"}))


async def test_rules_do_not_refuse_in_asyncio(limiter: Limiter) -> None:
    enforcer = AsyncEnforcer(RULES, _asyncio(limiter))
    with limits_off():
        for _ in range(2):
            assert_allowed(await enforcer.check(REQUEST))
        assert all(await enforcer.check_many([REQUEST, ({"path": "/admin"}, 2)]))
        async with enforcer.hold(REQUEST):
            pass
    assert_refused(await enforcer.check({"path": "/admin"}))


def test_clients_call_no_service() -> None:
    with limits_off(), Client(NOBODY, on_failure="raise") as client:
        verdicts: list[Verdict] = [
            client.check(REQUEST),
            client.peek(descriptor=REQUEST),
            client.acquire("alice", QUOTA),
            client.peek("alice", QUOTA),
            *client.check_many([REQUEST, (REQUEST, 3)]),
            client.hold(descriptor=REQUEST).verdict,
            client.reserve(descriptor=REQUEST, cost=3).verdict,
        ]
        for verdict in verdicts:
            assert_allowed(verdict)
        client.refund(verdicts[0])
        client.refund(verdicts[2])


async def test_asyncio_clients_call_no_service() -> None:
    with limits_off():
        async with AsyncClient(NOBODY, on_failure="raise") as client:
            for verdict in (
                await client.check(REQUEST),
                await client.peek(descriptor=REQUEST),
                await client.acquire("alice", QUOTA),
                await client.peek("alice", QUOTA),
                *await client.check_many([REQUEST]),
            ):
                assert_allowed(verdict)


def test_blocking_middleware_admits_and_settles() -> None:
    app = flask.Flask(__name__)
    RateLimit(app, limiter=Limiter(), quota=QUOTA, settle=True)

    @app.get("/")
    def hello() -> str:
        visit().cost = 0
        return "hello"

    def statuses() -> list[int]:
        return [app.test_client().get("/").status_code for _ in range(2)]

    with limits_off():
        assert statuses() == [200, 200]
    app = flask.Flask(__name__)
    RateLimit(app, limiter=Limiter(), quota=[QUOTA, PLACES])
    app.get("/")(lambda: "hello")
    with limits_off():
        assert statuses() == [200, 200]
    assert statuses() == [200, 429]


@pytest.mark.parametrize("rules", [False, True])
async def test_asyncio_middleware_admits(rules: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limiter = AsyncLimiter()
    decider: Any = {"enforcer": AsyncEnforcer(RULES, limiter)} if rules else {"limiter": limiter, "quota": QUOTA}
    guarded = RateLimitMiddleware(app, **decider)

    async def statuses() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url="http://test") as client:
            return [(await client.get("/")).status_code for _ in range(2)]

    with limits_off():
        assert await statuses() == [200, 200]
    assert await statuses() == [200, 429]


def test_blocks_may_be_nested(limiter: Limiter) -> None:
    with limits_off():
        with limits_off():
            pass
        assert_allowed(limiter.acquire("alice", QUOTA))
    assert_refused(limiter.acquire("alice", QUOTA))


def test_limits_are_back_after_an_exception(limiter: Limiter) -> None:
    with pytest.raises(ZeroDivisionError), limits_off():
        raise ZeroDivisionError
    assert_refused(limiter.acquire("alice", QUOTA))


def test_limits_stay_off_until_the_last_thread_is_done(limiter: Limiter) -> None:
    inside, done = threading.Event(), threading.Event()

    def hold_it() -> None:
        with limits_off():
            inside.set()
            done.wait(30)

    other = threading.Thread(target=hold_it)
    other.start()
    assert inside.wait(30)
    with limits_off():
        assert_allowed(limiter.acquire("alice", QUOTA))
    assert_allowed(limiter.acquire("alice", QUOTA))
    done.set()
    other.join(30)
    assert_refused(limiter.acquire("alice", QUOTA))


async def test_limits_are_off_in_all_tasks_at_once(limiter: Limiter) -> None:
    waiting = _asyncio(limiter)
    entered = asyncio.Event()

    async def beside() -> Verdict:
        await entered.wait()
        return await waiting.acquire("alice", QUOTA)

    task = asyncio.create_task(beside())
    with limits_off():
        entered.set()
        assert_allowed(await task)

"""The guard before a real server: calls to a hanging server stop and resume, and waiting is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Thread

import pytest

from penstock import AsyncLimiter, Limiter
from penstock.events import BreakerChanged, Degraded
from penstock.model import Failed, Outcome, Verdict
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.integration.redis_support import LONG, acquire, decided, failed, one, one_async, opened, opened_async
from tests.integration.support import in_threads
from tests.redis.test_faults import url
from tests.rig.faults import FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.processes import wait_until

QUOTA = f"1000000/{LONG}"
QUICK = {"deadline": 0.05, "breaker_failures": 3, "breaker_calls": 20, "breaker_slow": 60}


@pytest.fixture
def proxy(keyspace: Keyspace) -> Iterator[FaultProxy]:
    with FaultProxy(keyspace.server.address) as proxy:
        yield proxy


def states(told: list[object]) -> list[str]:
    return [event.state for event in told if isinstance(event, BreakerChanged)]


def test_threads_do_not_ask_a_server_that_hangs_and_find_back(keyspace: Keyspace, proxy: FaultProxy) -> None:
    told: list[object] = []
    with opened(url(proxy), prefix=keyspace.prefix, **QUICK, hook=told.append) as store:
        wait_until(lambda: isinstance(one(store, acquire(QUOTA)), Verdict), "an answer")
        proxy.replies = Flow(held=True)
        wait_until(lambda: "open" in states(told) or not one(store, acquire(QUOTA)), "an open breaker")
        store.force_breakers("open")
        refusal = failed(one(store, acquire(QUOTA)))
        assert refusal.charged == "no"
        assert "not asked" in str(refusal.error)
        store.force_breakers(None)
        proxy.replies = Flow()
        wait_until(lambda: isinstance(one(store, acquire(QUOTA)), Verdict), "an answer")
        wait_until(lambda: is_closed(store), "all is well")


def is_closed(store: RedisStore) -> bool:
    one(store, acquire(QUOTA))
    return set(store.breakers().values()) == {"closed"}


async def test_tasks_do_not_ask_a_server_that_hangs_and_find_back(keyspace: Keyspace, proxy: FaultProxy) -> None:
    told: list[object] = []
    async with opened_async(url(proxy), prefix=keyspace.prefix, **QUICK, hook=told.append) as store:
        await until_answered(store)
        proxy.replies = Flow(held=True)
        while "open" not in states(told):
            await one_async(store, acquire(QUOTA))
        proxy.replies = Flow()
        await until_answered(store)
        while set(store.breakers().values()) != {"closed"}:
            await one_async(store, acquire(QUOTA))
        assert "half-open" in states(told)
        assert states(told)[-1] == "closed"


async def until_answered(store: AsyncRedisStore) -> Outcome:
    async with asyncio.timeout(60):
        while not isinstance(outcome := await one_async(store, acquire(QUOTA)), Verdict):
            pass
    return outcome


def test_forced_open_nothing_is_sent_and_forced_closed_everything_is(keyspace: Keyspace, proxy: FaultProxy) -> None:
    with opened(url(proxy), prefix=keyspace.prefix) as store:
        decided(one(store, acquire(QUOTA)))
        store.force_breakers("open")
        before = proxy.counts().requests
        assert {failed(one(store, acquire(QUOTA))).charged for _ in range(20)} == {"no"}
        assert proxy.counts().requests == before
        store.force_breakers("closed")
        decided(one(store, acquire(QUOTA)))


def test_a_queue_of_callers_is_not_held_against_the_server(keyspace: Keyspace, proxy: FaultProxy) -> None:
    options = {"connections": 1, "breaker_failures": 2, "breaker_calls": 2, "breaker_slow": 60}
    with opened(url(proxy), prefix=keyspace.prefix, **options) as store:
        decided(one(store, acquire(QUOTA)))
        proxy.replies = Flow(held=True)
        seen = proxy.counts().requests.seen
        outcomes: list[Outcome] = []
        user = Thread(target=lambda: outcomes.append(one(store, acquire(QUOTA))))
        user.start()
        proxy.when(lambda counts: counts.requests.seen > seen)
        for _ in range(4):
            (outcome,) = store.run([acquire(QUOTA)], 10_000)
            assert "no connection was ready in time" in str(failed(outcome).error)
        assert set(store.breakers().values()) == {"closed"}
        proxy.replies = Flow()
        user.join()
        assert decided(outcomes[0])


def test_threads_wait_in_bounded_number(keyspace: Keyspace, proxy: FaultProxy) -> None:
    options = {"connections": 1, "waiting": 2, "deadline": 2}
    with opened(url(proxy), prefix=keyspace.prefix, **options) as store:
        decided(one(store, acquire(QUOTA)))
        proxy.replies = Flow(held=True)
        outcomes = in_threads(lambda _: one(store, acquire(QUOTA)), 12)
        why = [str(outcome.error) for outcome in outcomes if isinstance(outcome, Failed)]
        assert len(why) == 12
        assert sum("2 calls are waiting already" in text for text in why) >= 8


async def test_tasks_wait_in_bounded_number(keyspace: Keyspace, proxy: FaultProxy) -> None:
    async with opened_async(url(proxy), prefix=keyspace.prefix, waiting=2, deadline=2) as store:
        decided(await one_async(store, acquire(QUOTA)))
        proxy.replies = Flow(held=True)
        asked = []
        for _ in range(6):  # each in a turn of its own, so each is a call
            asked.append(asyncio.ensure_future(one_async(store, acquire(QUOTA))))
            for _ in range(3):
                await asyncio.sleep(0)
        outcomes = await asyncio.gather(*asked)
        why = [str(failed(outcome).error) for outcome in outcomes]
        assert sum("2 calls are waiting already" in text for text in why) == 4


# ---------------------------------------------------------------- limiters


def test_a_limiter_answers_while_its_server_is_away_and_tells_it_afterwards(
    keyspace: Keyspace, proxy: FaultProxy
) -> None:
    told: list[object] = []
    quota = f"100/{LONG}"
    with (
        opened(url(proxy), prefix=keyspace.prefix, **QUICK, hook=told.append) as store,
        opened(keyspace.server.url, prefix=keyspace.prefix) as direct,
    ):
        limiter = Limiter(store, hook=told.append)
        wait_until(lambda: limiter.acquire("another key", quota).source == "store", "an answer")
        proxy.refuse()
        wait_until(lambda: is_cut_off(proxy, limiter, quota), "the first answer without the store")
        for _ in range(5):
            assert limiter.acquire("alice", quota).source == "local"
        assert any(isinstance(event, Degraded) and event.source == "local" for event in told)
        proxy.accept()
        wait_until(lambda: limiter.acquire("another key", quota).source == "store", "the store's own answers")
        wait_until(lambda: tick(limiter, quota) and used(direct, quota) == 5, "the store knows of all five")


def is_cut_off(proxy: FaultProxy, limiter: Limiter, quota: str) -> bool:
    proxy.reset()  # a connection that was just accepted, too
    return limiter.acquire("another key", quota).source == "local"


def tick(limiter: Limiter, quota: str) -> bool:
    """A call starts the due work."""
    limiter.acquire("another key", quota)
    return True


def used(store: RedisStore, quota: str) -> int:
    return 100 - decided(one(store, acquire(quota, dry=True))).remaining


async def test_an_async_limiter_answers_while_its_server_is_away(keyspace: Keyspace, proxy: FaultProxy) -> None:
    async with opened_async(url(proxy), prefix=keyspace.prefix, **QUICK) as store:
        limiter = AsyncLimiter(store, on_failure="closed")
        async with asyncio.timeout(60):
            await until_undegraded(limiter)
            proxy.refuse()
            verdict = await limiter.acquire("alice", QUOTA)
            while not verdict.degraded:
                proxy.reset()  # a connection that was just accepted, too
                verdict = await limiter.acquire("alice", QUOTA)
            assert (verdict.source, verdict.allowed) == ("closed", False)
            proxy.accept()
            await until_undegraded(limiter)


async def until_undegraded(limiter: AsyncLimiter) -> None:
    while (await limiter.acquire("alice", QUOTA)).degraded:
        await asyncio.gather(*[limiter.acquire("bob", QUOTA) for _ in range(2)])

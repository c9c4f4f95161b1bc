"""Scripts flushed, replies lost, callers that give up: charged at most once, and no reply reaches the wrong caller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from threading import Event, Thread
from typing import Any

import pytest

from penstock.clock import monotonic
from penstock.model import Acquire, Amend, Amended, Outcome, Verdict
from penstock.stores.redis import pipeline
from penstock.stores.redis.connection import dial_async
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from penstock.testing.history import CallHistory
from tests.integration.redis_load import THREADS, hammer, hammer_in_threads
from tests.integration.redis_support import (
    LONG,
    acquire,
    count,
    decided,
    failed,
    lost_wire,
    one,
    one_async,
    opened,
    opened_async,
    our_threads,
    the_link,
    used,
)
from tests.integration.support import in_threads
from tests.integration.test_redis_exact import check_exactly
from tests.rig.faults import FaultProxy, Flow
from tests.rig.fixtures import Keyspace
from tests.rig.processes import wait_until
from tests.rig.servers import Server

QUOTA = f"10/{LONG}"
HOLD = "3 concurrent ttl 60s"
SHORT = 0.2  # seconds: a deadline that is meant to be missed


def url(proxy: FaultProxy) -> str:
    host, port = proxy.address
    return f"redis://{host}:{port}"


@pytest.fixture
def proxy(keyspace: Keyspace) -> Iterator[FaultProxy]:
    with FaultProxy(keyspace.server.address) as proxy:
        yield proxy


# ---------------------------------------------------------------- scripts flushed


class Flushing:
    """SCRIPT FLUSH every 50 ms, and at least twice."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = Event()
        self._thread = Thread(target=self._run)
        self.flushes = 0

    def _run(self) -> None:
        with self._server.talk() as conversation:
            while not self._over.is_set() or self.flushes < 2:
                conversation.ask("SCRIPT", "FLUSH")
                self.flushes += 1
                self._over.wait(0.05)

    def __enter__(self) -> Flushing:
        self._thread.start()
        wait_until(lambda: self.flushes > 0, "the first flush")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def test_tasks_notice_nothing_of_scripts_that_are_flushed(keyspace: Keyspace) -> None:
    history = CallHistory()
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        with Flushing(keyspace.server) as flushing:
            while flushing.flushes < count(10, 100) or len(history.calls) < 1_200:
                await hammer(store, history, f"1000/{LONG}", tasks=64, each=4)
    assert not {call.outcome for call in history.calls} & {"failed", "unknown"}
    check_exactly(history, f"1000/{LONG}")


def test_threads_notice_nothing_of_scripts_that_are_flushed(keyspace: Keyspace) -> None:
    history = CallHistory()
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store, Flushing(keyspace.server) as flushing:
        while flushing.flushes < count(10, 100) or len(history.calls) < 600:
            hammer_in_threads(store, history, f"500/{LONG}", each=5)
    assert not {call.outcome for call in history.calls} & {"failed", "unknown"}
    check_exactly(history, f"500/{LONG}")


async def test_many_calls_under_way_when_the_script_is_flushed_are_each_charged_once(
    proxy: FaultProxy, keyspace: Keyspace
) -> None:
    """Twenty script calls on their way at once, none of which the server knows when they arrive."""
    async with opened_async(url(proxy), prefix=keyspace.prefix) as store:
        decided(await one_async(store, acquire(f"100/{LONG}")))
        proxy.requests = Flow(held=True)
        calls = []
        for _ in range(20):
            calls.append(asyncio.ensure_future(store.run([acquire(f"100/{LONG}")])))
            await asyncio.sleep(0.001)
        keyspace.server.ask("SCRIPT", "FLUSH")
        proxy.requests = Flow()
        remaining = [decided(outcome).remaining for (outcome,) in await asyncio.gather(*calls)]
    assert sorted(remaining, reverse=True) == list(range(98, 78, -1))


# ---------------------------------------------------------------- replies lost


def test_a_reply_lost_after_the_charge_is_charged_once_and_said_to_be_unknown(
    proxy: FaultProxy, keyspace: Keyspace
) -> None:
    with (
        opened(url(proxy), prefix=keyspace.prefix) as store,
        opened(keyspace.server.url, prefix=keyspace.prefix) as witness,
    ):
        assert decided(one(store, acquire(QUOTA)))
        for flow, why in (
            (Flow(cut_after=0), "the connection broke"),
            (Flow(lost=True), "no answer within the deadline"),
        ):
            before = used(witness, QUOTA)
            proxy.replies = flow
            (outcome,) = store.run([acquire(QUOTA)], int(SHORT * 1e6))
            lost = failed(outcome)
            assert lost.charged == "unknown"
            assert lost.error.transient
            assert why in str(lost.error)
            proxy.replies = Flow()
            proxy.reset()
            assert used(witness, QUOTA) == before + 1
            assert decided(one(store, acquire(QUOTA))), "recovers by itself"
            assert used(witness, QUOTA) == before + 2, "and nothing was sent twice"


async def test_a_reply_lost_to_tasks_is_charged_once_each_and_said_to_be_unknown(
    proxy: FaultProxy, keyspace: Keyspace
) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix) as witness:
        async with opened_async(url(proxy), prefix=keyspace.prefix) as store:
            assert decided(await one_async(store, acquire(QUOTA)))
            for flow, why in ((Flow(cut_after=0), "the connection broke"), (Flow(lost=True), "no answer within")):
                before = used(witness, QUOTA)
                proxy.replies = flow
                outcomes = await asyncio.gather(*[store.run([acquire(QUOTA)], int(SHORT * 1e6)) for _ in range(2)])
                for (outcome,) in outcomes:
                    lost = failed(outcome)
                    assert (lost.charged, lost.error.transient) == ("unknown", True)
                    assert why in str(lost.error)
                proxy.replies = Flow()
                proxy.reset()
                await lost_wire(store)
                assert used(witness, QUOTA) == before + 2
                assert decided(await one_async(store, acquire(QUOTA))), "recovers by itself"
                assert used(witness, QUOTA) == before + 3, "and nothing was sent twice"


def test_a_request_lost_before_the_server_is_unknown_and_was_not_charged(proxy: FaultProxy, keyspace: Keyspace) -> None:
    with (
        opened(url(proxy), prefix=keyspace.prefix) as store,
        opened(keyspace.server.url, prefix=keyspace.prefix) as witness,
    ):
        assert decided(one(store, acquire(QUOTA)))
        proxy.requests = Flow(lost=True)
        (outcome,) = store.run([acquire(QUOTA)], int(SHORT * 1e6))
        assert failed(outcome).charged == "unknown"
        proxy.requests = Flow()
        assert used(witness, QUOTA) == 1


def test_a_hold_whose_reply_was_lost_can_be_released_by_asking_again(proxy: FaultProxy, keyspace: Keyspace) -> None:
    with (
        opened(url(proxy), prefix=keyspace.prefix) as store,
        opened(keyspace.server.url, prefix=keyspace.prefix) as witness,
    ):
        decided(one(store, acquire(HOLD, dry=True)))
        hold = acquire(HOLD, id=b"made by the caller")
        proxy.replies = Flow(cut_after=0)
        assert failed(one(store, hold)).charged == "unknown"
        assert used(witness, HOLD) == 1, "the place is taken, by an unknown caller"
        proxy.replies = Flow()
        again = decided(one(store, hold))
        assert again
        assert again.receipt is not None
        assert used(witness, HOLD) == 1, "the same place"
        assert one(store, Amend(again.receipt, "release")) == Amended((1,))
        assert used(witness, HOLD) == 0
        assert one(store, Amend(again.receipt, "release")) == Amended((0,))


def test_a_release_whose_reply_was_lost_can_be_repeated(proxy: FaultProxy, keyspace: Keyspace) -> None:
    with opened(url(proxy), prefix=keyspace.prefix) as store:
        first, other = (decided(one(store, acquire(HOLD, id=name))) for name in (b"first", b"other"))
        assert first.receipt is not None
        proxy.replies = Flow(cut_after=0)
        assert failed(one(store, Amend(first.receipt, "release"))).charged == "unknown"
        proxy.replies = Flow()
        assert one(store, Amend(first.receipt, "release")) == Amended((0,))
        assert used(store, HOLD) == 1
        assert other


# ---------------------------------------------------------------- callers that give up

SLOW = Flow(latency=0.002, jitter=0.02)


def limit_of(number: int) -> int:
    """So far from all others' that what remains of it tells whose answer it is."""
    return 1_000_000 + 10_000 * number


def own_request(number: int) -> Acquire:
    return acquire(f"{limit_of(number)}/{LONG}", f"caller {number}")


def remains(number: int, outcome: Outcome) -> int:
    """What an answer says of the caller's own counter; the script computed it from the limit that it was sent."""
    verdict = decided(outcome)
    assert 0 < limit_of(number) - verdict.remaining < 10_000, "another's answer"
    return verdict.remaining


def is_falling(numbers: list[int]) -> bool:
    return all(later < earlier for earlier, later in pairwise(numbers))


@pytest.mark.parametrize("seed", range(2))
async def test_cancelling_a_task_at_any_point_mixes_up_no_replies(
    proxy: FaultProxy, keyspace: Keyspace, seed: int
) -> None:
    chance = random.Random(seed)
    cancelled = 0

    async def ask(store: AsyncRedisStore, number: int, answers: list[int]) -> None:
        answers.append(remains(number, await one_async(store, own_request(number))))

    async def caller(store: AsyncRedisStore, number: int) -> None:
        nonlocal cancelled
        answers: list[int] = []
        for _ in range(count(20, 200)):
            task = asyncio.ensure_future(ask(store, number, answers))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0, chance.uniform(0, 0.03)]))
                task.cancel()
            await asyncio.wait([task])
            cancelled += task.cancelled()
            if not task.cancelled():
                task.result()
        assert is_falling(answers)

    async with opened_async(url(proxy), prefix=keyspace.prefix) as store:
        proxy.requests = proxy.replies = SLOW
        await asyncio.gather(*[caller(store, number) for number in range(24)])
        proxy.requests = proxy.replies = Flow()
        for number in range(24):
            remains(number, await one_async(store, own_request(number)))
    assert cancelled > 50
    assert proxy.counts().connections == 1, "cancelled callers cost no connection"


DEADLINES = [1, 500, 5_000, 20_000, 10_000_000]


async def test_a_task_that_times_out_mixes_up_no_replies(proxy: FaultProxy, keyspace: Keyspace) -> None:
    chance = random.Random(7)
    late = 0

    async def caller(store: AsyncRedisStore, number: int) -> None:
        nonlocal late
        answers: list[int] = []
        for _ in range(count(20, 200)):
            (outcome,) = await store.run([own_request(number)], chance.choice(DEADLINES))
            if isinstance(outcome, Verdict):
                answers.append(remains(number, outcome))
            else:
                late += 1
        assert is_falling(answers)

    async with opened_async(url(proxy), prefix=keyspace.prefix) as store:
        remains(0, await one_async(store, own_request(0)))
        proxy.requests = proxy.replies = SLOW
        await asyncio.gather(*[caller(store, number) for number in range(24)])
    assert late > 24


def test_a_thread_that_times_out_mixes_up_no_replies(proxy: FaultProxy, keyspace: Keyspace) -> None:
    with opened(url(proxy), prefix=keyspace.prefix) as store:
        remains(0, one(store, own_request(0)))
        proxy.requests = proxy.replies = SLOW

        def caller(number: int) -> tuple[int, int]:
            chance = random.Random(number)
            late, answers = 0, list[int]()
            for _ in range(count(15, 150)):
                (outcome,) = store.run([own_request(number)], chance.choice(DEADLINES))
                if isinstance(outcome, Verdict):
                    answers.append(remains(number, outcome))
                else:
                    late += 1
            assert is_falling(answers)
            return late, len(answers)

        results = in_threads(caller, THREADS)
    assert sum(late for late, _ in results) > THREADS
    assert sum(answered for _, answered in results) > THREADS


# ---------------------------------------------------------------- closing


async def test_closing_tells_callers_whose_answers_are_outstanding(proxy: FaultProxy, keyspace: Keyspace) -> None:
    store = AsyncRedisStore(url(proxy), prefix=keyspace.prefix, deadline=30, secret="of these tests")
    decided(await one_async(store, acquire(QUOTA)))
    proxy.replies = Flow(held=True)
    callers = [asyncio.ensure_future(store.run([acquire(QUOTA)])) for _ in range(3)]
    await asyncio.sleep(0.01)
    await store.close()
    for (outcome,) in await asyncio.gather(*callers):
        assert failed(outcome).charged == "unknown"
    closed = failed(await one_async(store, acquire(QUOTA)))
    assert (closed.charged, closed.error.transient) == ("no", False)
    assert "the store is closed" in str(closed.error)


async def test_closing_fails_calls_that_wait_for_a_connection(keyspace: Keyspace) -> None:
    with FaultProxy(keyspace.server.address) as proxy:
        proxy.replies = Flow(held=True)
        store = AsyncRedisStore(url(proxy), prefix=keyspace.prefix, deadline=30, secret="of these tests")
        callers = [asyncio.ensure_future(store.run([acquire(QUOTA)])) for _ in range(3)]
        await asyncio.to_thread(proxy.when, lambda counts: counts.replies.seen > 0 or counts.connections > 0)
        await store.close()
        for (outcome,) in await asyncio.gather(*callers):
            assert failed(outcome).charged == "no"
        assert len(asyncio.all_tasks()) == 1


async def test_closing_ends_a_connector_that_swallows_a_cancellation(
    monkeypatch: pytest.MonkeyPatch, keyspace: Keyspace
) -> None:
    """As `asyncio.wait_for` of Python 3.11 can, by which redis-py sends."""
    connecting = asyncio.Event()
    dialed: list[asyncio.StreamWriter] = []

    async def stubborn(*arguments: Any) -> asyncio.StreamWriter:
        connecting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if dialed:
            await asyncio.Event().wait()
        dialed.append(await dial_async(*arguments))
        return dialed[0]

    monkeypatch.setattr(pipeline, "dial_async", stubborn)
    for _ in range(2):
        store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, deadline=30, secret="of these tests")
        caller = asyncio.ensure_future(store.run([acquire(QUOTA)]))
        await connecting.wait()
        connecting.clear()
        async with asyncio.timeout(20):
            await store.close()
            (outcome,) = await caller
        assert failed(outcome).charged == "no"
        assert len(asyncio.all_tasks()) == 1
    assert dialed[0].transport.is_closing()


def test_closing_lets_threads_finish_and_fails_calls_that_wait(proxy: FaultProxy, keyspace: Keyspace) -> None:
    store = RedisStore(url(proxy), prefix=keyspace.prefix, connections=1, deadline=30, secret="of these tests")
    decided(one(store, acquire(QUOTA)))
    proxy.replies = Flow(held=True)
    seen = proxy.counts().requests.seen
    outcomes: list[Outcome] = []
    threads = [Thread(target=lambda: outcomes.append(one(store, acquire(QUOTA)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    proxy.when(lambda counts: counts.requests.seen > seen)
    wait_until(lambda: len(the_link(store)._turns) == 2, "two threads that wait")
    store.close()
    wait_until(lambda: len(outcomes) == 2, "the outcomes of waiting calls")
    assert {failed(outcome).charged for outcome in outcomes} == {"no"}
    proxy.replies = Flow()
    for thread in threads:
        thread.join()
    assert decided(outcomes[2])
    assert "the store is closed" in str(failed(one(store, acquire(QUOTA))).error)
    wait_until(lambda: our_threads() == 0, "the connector's end")
    proxy.when(lambda counts: counts.open == 0)


def test_a_deadline_shorter_than_a_millisecond_is_kept(proxy: FaultProxy, keyspace: Keyspace) -> None:
    """It says so, and the store is as good as before."""
    with opened(url(proxy), prefix=keyspace.prefix) as store:
        decided(one(store, acquire(QUOTA, "bob")))
        for _ in range(20):
            begun = monotonic()
            (outcome,) = store.run([acquire(f"1000/{LONG}")], 1)
            print(f"{(monotonic() - begun) * 1e3:.3f} ms: {type(outcome).__name__}")
        assert decided(one(store, acquire(QUOTA, "bob"))).remaining == 8

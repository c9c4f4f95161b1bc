"""Servers that restart, hang up, pause, freeze or come late: the store finds back by itself, and leaks nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from penstock.model import Verdict
from penstock.stores.redis import pipeline
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.integration.redis_support import (
    LONG,
    acquire,
    count,
    decided,
    failed,
    lost_wire,
    one,
    one_async,
    open_files,
    opened,
    opened_async,
    our_tasks,
    our_threads,
    the_link,
)
from tests.integration.support import in_threads
from tests.rig.faults import FaultProxy, Flow
from tests.rig.processes import wait_until
from tests.rig.servers import Server, flavours

QUOTA = f"1000000/{LONG}"
SHORT_US = 50_000


@pytest.fixture(params=flavours())
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, to be maltreated."""
    with Server(request.param) as server:
        yield server


def hang_up(server: Server) -> None:
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


HARMS: dict[str, Callable[[Server], None]] = {"restarted": Server.restart, "hung up on us": hang_up}
for_every_harm = pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)


# ---------------------------------------------------------------- connections that end


@for_every_harm
def test_the_next_call_of_a_thread_finds_a_server_that(own: Server, harm: Callable[[Server], None]) -> None:
    with opened(own.url) as store:
        in_threads(lambda _: decided(one(store, acquire(QUOTA))), 8)
        files = []
        for _ in range(5):
            wait_until(lambda: our_threads() == 0, "the connector's end")
            harm(own)
            assert decided(one(store, acquire(QUOTA)))
            files.append(open_files())
        assert max(files[1:]) <= files[0], files


@for_every_harm
async def test_the_next_call_of_a_task_finds_a_server_that(own: Server, harm: Callable[[Server], None]) -> None:
    async with opened_async(own.url) as store:
        decided(await one_async(store, acquire(QUOTA)))
        files, tasks = [], []
        for _ in range(5):
            await asyncio.to_thread(harm, own)
            await lost_wire(store)
            assert decided(await one_async(store, acquire(QUOTA)))
            files.append(open_files())
            tasks.append(our_tasks())
        assert max(files[1:]) <= files[0], files
        assert max(tasks) == 0
    assert our_tasks() == 0


def test_a_restarted_server_starts_empty_and_counts_again(own: Server) -> None:
    """A server that keeps nothing gives one budget more when it restarts: no more than that, and no refusal."""
    with opened(own.url) as store:
        assert sum(bool(decided(one(store, acquire(f"5/{LONG}")))) for _ in range(10)) == 5
        own.restart()
        assert sum(bool(decided(one(store, acquire(f"5/{LONG}")))) for _ in range(10)) == 5


# ---------------------------------------------------------------- servers that hang


def hold_writes(server: Server) -> None:
    server.ask("CLIENT", "PAUSE", 600_000, "WRITE")


def let_write(server: Server) -> None:
    server.ask("CLIENT", "UNPAUSE")


HANGS: dict[str, tuple[Callable[[Server], None], Callable[[Server], None]]] = {
    "pauses": (hold_writes, let_write),
    "is frozen": (Server.freeze, Server.thaw),
}
for_every_hang = pytest.mark.parametrize(("begin", "end"), HANGS.values(), ids=HANGS)


@for_every_hang
def test_calls_of_threads_fail_in_time_and_go_on_after_a_server(
    own: Server, begin: Callable[[Server], None], end: Callable[[Server], None]
) -> None:
    with opened(own.url) as store:
        files = []
        for _ in range(3):
            assert decided(one(store, acquire(QUOTA)))
            begin(own)
            for number in range(5):
                (outcome,) = store.run([acquire(QUOTA)], SHORT_US)
                hung = failed(outcome)
                assert hung.error.transient
                assert hung.charged == "unknown" or number > 0
            end(own)
            assert decided(one(store, acquire(QUOTA)))
            wait_until(lambda: our_threads() == 0, "the connector's end")
            files.append(open_files())
        assert max(files[1:]) <= files[0], files


@for_every_hang
async def test_calls_of_tasks_fail_in_time_and_late_replies_cost_no_connection(
    own: Server,
    begin: Callable[[Server], None],
    end: Callable[[Server], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "OVERDUE", 600.0)  # however slow the machine is, none is overdue yet
    async with opened_async(own.url) as store:
        for _ in range(3):
            assert decided(await one_async(store, acquire(QUOTA)))
            wire = the_link(store).connection
            begin(own)
            outcomes = await asyncio.gather(*[store.run([acquire(QUOTA)], SHORT_US) for _ in range(20)])
            assert {failed(outcome).charged for (outcome,) in outcomes} == {"unknown"}
            end(own)
            assert decided(await one_async(store, acquire(QUOTA)))
            assert wire is not None
            assert the_link(store).connection is wire
            assert not wire.outstanding
        assert our_tasks() == 0


async def test_an_answer_that_is_overdue_ends_the_connection_and_nothing_is_kept(own: Server) -> None:
    """While a server hangs, memory is bounded by what is asked in a deadline and a second."""
    async with opened_async(own.url) as store:
        assert decided(await one_async(store, acquire(QUOTA)))
        link = the_link(store)
        wire = link.connection
        assert wire is not None
        own.freeze()
        waiting = []
        for _ in range(count(500, 5_000)):
            waiting.append(asyncio.ensure_future(store.run([acquire(QUOTA)], SHORT_US)))
            await asyncio.sleep(0)
        for (outcome,) in await asyncio.gather(*waiting):
            assert failed(outcome).error.transient
        await asyncio.wait_for(wire.gone, 60)
        assert not wire.outstanding
        assert not link._waiting
        (outcome,) = await store.run([acquire(QUOTA)], SHORT_US)
        assert failed(outcome).charged == "no", "the frozen server takes connections, and does not answer"
        assert not link._waiting
        own.thaw()
        assert decided(await one_async(store, acquire(QUOTA)))


# ---------------------------------------------------------------- servers that are not there


@pytest.mark.parametrize("flavour", flavours())
def test_a_server_that_starts_after_its_callers_is_found_by_threads(flavour: str) -> None:
    own = Server(flavour)
    try:
        with opened(own.url) as store:
            down = failed(one(store, acquire(QUOTA)))
            assert (down.charged, down.error.transient) == ("no", True)
            assert f"redis at 127.0.0.1:{own.port}: cannot connect (Connection refused)" in str(down.error)
            own.start()
            wait_until(lambda: isinstance(one(store, acquire(QUOTA)), Verdict), "a verdict")
            wait_until(lambda: our_threads() == 0, "the connector's end")
    finally:
        own.close()


async def verdict(store: AsyncRedisStore) -> Verdict:
    """The first one, asked for again and again."""
    while True:
        outcome = await one_async(store, acquire(QUOTA))
        if isinstance(outcome, Verdict):
            return outcome
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("flavour", flavours())
async def test_a_server_that_starts_after_its_callers_is_found_by_tasks(flavour: str) -> None:
    own = Server(flavour)
    try:
        async with opened_async(own.url) as store:
            down = failed(await one_async(store, acquire(QUOTA)))
            assert (down.charged, down.error.transient) == ("no", True)
            assert "cannot connect" in str(down.error)
            await asyncio.to_thread(own.start)
            await asyncio.wait_for(verdict(store), 60)
    finally:
        own.close()


def test_the_connector_stops_trying_once_there_are_no_calls() -> None:
    own = Server("valkey")
    try:
        with opened(own.url) as store:
            for _ in range(50):
                assert failed(one(store, acquire(QUOTA))).charged == "no"
            wait_until(lambda: our_threads() == 0, "the connector's end")
    finally:
        own.close()


async def test_a_server_that_accepts_and_says_nothing_is_as_good_as_none(own: Server) -> None:
    """Callers wait as long as their deadline allows; closing does not wait for the connector."""
    with FaultProxy(own.address) as proxy:
        proxy.replies = Flow(held=True)
        url = f"redis://127.0.0.1:{proxy.port}"
        blocking = RedisStore(url, secret="of these tests")
        store = AsyncRedisStore(url, secret="of these tests")
        for _ in range(3):
            outcomes = await store.run([acquire(QUOTA)], SHORT_US)
            outcomes += await asyncio.to_thread(blocking.run, [acquire(QUOTA)], SHORT_US)
            assert [failed(outcome).charged for outcome in outcomes] == ["no", "no"]
            assert all("no connection was ready in time" in str(outcome) for outcome in outcomes)
        await store.close()
        blocking.close()
    await asyncio.to_thread(wait_until, lambda: our_threads() == 0, "the connector's end")
    gc.collect()  # whatever was left open would be complained about


def test_callers_share_what_there_is_when_a_server_takes_no_more_connections(own: Server) -> None:
    with opened(own.url, connections=8) as store:
        decided(one(store, acquire(QUOTA)))
        own.ask("CONFIG", "SET", "maxclients", "2")
        outcomes = in_threads(lambda _: [one(store, acquire(QUOTA)) for _ in range(20)], 8)
        assert all(decided(outcome) for several in outcomes for outcome in several)
    wait_until(lambda: our_threads() == 0, "the connector's end")

"""The Redis store where Sentinels name the server: which server it follows, and its thread and connections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import monotonic
from penstock.model import Failed, Verdict
from penstock.stores.redis.config import Node
from penstock.stores.redis.sentinel import SentinelTopology
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.integration.redis_support import PATIENT, decided, failed, opened
from tests.integration.support import in_threads
from tests.integration.test_fork import in_child
from tests.redis.topology_support import all_threads, charged, clients, facing, for_both_faces, spanning
from tests.rig.faults import FaultProxy
from tests.rig.processes import DEADLINE, wait_until
from tests.rig.sentinels import SentinelSet
from tests.rig.topologies import insist


@pytest.fixture(scope="module")
def own() -> Iterator[SentinelSet]:
    """A set whose primary may hand over; no replica is promoted because the machine stood still."""
    with SentinelSet(down_after=60_000) as sentinel_set:
        yield sentinel_set


@for_both_faces
def test_a_successor_is_found_and_its_counts_go_on(face: str, own: SentinelSet) -> None:
    """The old primary answers READONLY on the connections to it, and the Sentinels go on naming it for a while."""
    with facing(face, own.url) as asked:
        assert decided(asked.run([spanning("a")])[0])
        old, new = own.primary, own.failover()
        wait_until(lambda: isinstance(asked.run([spanning("a")])[0], Verdict), "a verdict of the new primary")
        assert asked.store.topology.nodes == {Node(*new.address)}
        assert charged(asked, "a") == 2
        insist(
            lambda: new.ask("FAILOVER", "TO", *old.address),
            lambda: bool(old.ask("ROLE")[0] == b"master" and new.ask("ROLE")[0] == b"slave"),
            "the way back",
        )
        wait_until(lambda: isinstance(asked.run([spanning("a")])[0], Verdict), "a verdict of the old one")
        assert asked.store.topology.nodes == {Node(*old.address)}
        assert charged(asked, "a") == 3


def test_an_announcement_is_followed_without_being_asked(own: SentinelSet) -> None:
    with opened(own.url) as store:
        decided(store.run([spanning("a")])[0])
        topology = store.topology
        assert isinstance(topology, SentinelTopology)
        wait_until(lambda: topology._announcer is not None and not topology.watch.in_doubt, "calm")
        old = own.sentinel_failover()
        wait_until(lambda: topology.node(0) == Node(*own.primary.address), "the new primary")
        assert topology.node(0) != Node(*old.address)
        own.wait_until_ok()
        assert decided(store.run([spanning("a", dry=True)])[0])


def test_the_rights_that_the_docs_name_suffice_to_hear_announcements(own: SentinelSet) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    rights = re.findall(r"A user of Sentinels needs\s`([^`]+)`", docs)[0].split()
    for sentinel in own.sentinels:
        sentinel.ask("ACL", "SETUSER", "watcher", "reset", "on", ">known", "-@all", *rights)
    with opened(own.url, sentinel_username="watcher", sentinel_password="known") as store:
        topology = store.topology
        assert isinstance(topology, SentinelTopology)
        decided(store.run([spanning("a")])[0])
        wait_until(lambda: topology._announcer is not None, "a Sentinel that may be listened to")


def test_however_many_callers_fail_looks_are_bounded(own: SentinelSet) -> None:
    """All bytes that go to the only Sentinel are looks, but for a few on the way in."""
    with FaultProxy(own.sentinels[0].address) as proxy:
        url = f"redis+sentinel://127.0.0.1:{proxy.port}/{own.service}"
        threads = RedisStore(url, **PATIENT, connections=3, client_name="threads")
        tasks = AsyncRedisStore(url, **PATIENT, client_name="tasks")
        assert isinstance(threads.topology, SentinelTopology)
        look = len(threads.topology._lookup)

        def ask_until(number: int, until: float) -> None:
            if number < 8:
                while monotonic() < until:
                    threads.run([spanning(str(number))], 10_000)
            else:
                asyncio.run(ask_in_loop(until))

        async def ask_in_loop(until: float) -> None:
            while monotonic() < until:
                await asyncio.gather(*[tasks.run([spanning(str(number))], 10_000) for number in range(5)])

        def work(seconds: float) -> tuple[float, float]:
            seen, began = proxy.counts().requests.seen, monotonic()
            in_threads(lambda number: ask_until(number, began + seconds), 12)
            return (proxy.counts().requests.seen - seen) / look, monotonic() - began

        work(0.3)
        primary = own.primary
        # A server notices late that a client has hung up, so its count comes down to the bound.
        wait_until(lambda: clients(primary, "threads") <= 3 and clients(primary, "tasks") <= 4, "few connections")
        primary.freeze()
        looks = seconds = 0.0
        try:
            while looks < 2:
                assert seconds < DEADLINE, "the thread looks, if not at once"
                more, took = work(3.0)
                looks, seconds = looks + more, seconds + took
        finally:
            primary.thaw()
        assert looks <= 2 * (seconds + 2), "two stores, each of which looks once a second"
        proxy.when(lambda counts: counts.open <= 2 * 2)  # each has a connection to ask, and one to listen
        threads.close()
        asyncio.run(tasks.close())
        proxy.when(lambda counts: counts.open == 0)


@for_both_faces
def test_a_closed_store_leaves_no_thread_and_no_connection(face: str, own: SentinelSet) -> None:
    before = all_threads()
    with facing(face, own.url, client_name="closing") as asked:
        assert decided(asked.run([spanning("a")])[0])
        assert clients(own.sentinels[0], "closing") > 0
        asked.store.topology.close()
        for sentinel in own.sentinels:
            wait_until(lambda: clients(sentinel, "closing") == 0, "the end of its connections")  # noqa: B023
        wait_until(lambda: all_threads() <= before, "the end of its threads")


def test_a_forked_child_watches_for_itself(own: SentinelSet) -> None:
    with opened(own.url, namespace="forked", client_name="forking") as store:

        def connections() -> int:
            return sum(clients(server, "forking") for server in (*own.servers, *own.sentinels))

        def as_child() -> bool:
            at_first = connections()
            return bool(decided(store.run([spanning("a")])[0])) and connections() > at_first + 1

        assert decided(store.run([spanning("a")])[0])
        assert in_child(as_child) == 0
        assert decided(store.run([spanning("a")])[0]).remaining == 1000 - 3


@for_both_faces
def test_sentinels_that_start_after_their_callers_are_found(face: str) -> None:
    sentinel_set = SentinelSet(replicas=1, sentinels=1)
    with facing(face, sentinel_set.url) as asked:
        down = failed(asked.run([spanning("a")])[0])
        assert (down.charged, down.error.transient) == ("no", True)
        with sentinel_set:
            wait_until(lambda: isinstance(asked.run([spanning("a")])[0], Verdict), "a verdict")


@for_both_faces
def test_a_sentinel_that_hangs_does_not_hide_the_primary(face: str, own: SentinelSet) -> None:
    own.sentinels[0].freeze()
    try:
        with facing(face, own.url) as asked:
            assert decided(asked.run([spanning("a")])[0])
            topology = asked.store.topology
            assert isinstance(topology, SentinelTopology)
            assert topology._announcer is not None
            assert topology._announcer[0] != Node(*own.sentinels[0].address)
    finally:
        own.sentinels[0].thaw()


def test_calls_to_a_primary_that_hangs_fail_in_time(own: SentinelSet) -> None:
    with opened(own.url) as store:
        decided(store.run([spanning("a")])[0])
        primary = own.primary
        primary.freeze()
        try:
            assert all(isinstance(store.run([spanning("a")], 20_000)[0], Failed) for _ in range(5))
        finally:
            primary.thaw()
        assert decided(store.run([spanning("a")])[0])

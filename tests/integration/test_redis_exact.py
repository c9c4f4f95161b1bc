"""A fleet that shares one Redis admits exactly what the limit says: processes, tasks, threads, loops and forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.model import Acquire, Op, Outcome, Verdict
from penstock.quota import Quota
from penstock.stores.redis.store import AsyncRedisStore
from penstock.testing.history import CallHistory
from tests.integration.redis_load import BUCKETS, EACH, HOLDS, HOT, RATES, TASKS, THREADS, hammer
from tests.integration.redis_support import (
    LONG,
    acquire,
    count,
    decided,
    one,
    open_files,
    opened,
    opened_async,
    our_threads,
    the_link,
)
from tests.integration.support import DEADLINE, in_threads
from tests.integration.test_fork import hammering, in_children
from tests.rig.fixtures import Keyspace
from tests.rig.processes import wait_until

ROOT = Path(__file__).parents[2]
PROCESSES = 4
DAY = 86_400.0


def fleet(scenarios: Sequence[str], keyspace: Keyspace, folder: Path) -> CallHistory:
    """What processes that began at the same moment saw, as one history."""
    program = (sys.executable, "-m", "tests.integration.redis_load")
    files = [folder / f"{node}.jsonl" for node in range(len(scenarios))]
    nodes = [
        subprocess.Popen(
            (*program, scenario, keyspace.server.url, keyspace.prefix, file.stem, str(file)),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for scenario, file in zip(scenarios, files, strict=True)
    ]
    try:
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == b"ready\n"
        for node in nodes:
            assert node.stdin is not None
            node.stdin.write(b"go\n")
            node.stdin.flush()
        assert [node.wait(DEADLINE) for node in nodes] == [0] * len(nodes)
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    return CallHistory.read(*files)


def check_exactly(history: CallHistory, quota: str) -> None:
    """Exactly the limit was admitted, and not given back; no span holds more; no request was refused without need."""
    rate = Quota.parse(quota)
    history.check(rate)
    history.check_total(rate)
    history.check_refusals(rate)
    assert sum(call.at_least for call in history.calls) == rate.limit


# ---------------------------------------------------------------- processes


@pytest.mark.parametrize(
    "scenarios", [("tasks",) * PROCESSES, ("tasks", "threads", "tasks", "threads")], ids=["tasks", "with threads"]
)
def test_four_processes_on_one_key_admit_exactly_the_limit(
    keyspace: Keyspace, tmp_path: Path, scenarios: tuple[str, ...]
) -> None:
    keyspace.horizon = 2 * DAY + 1
    history = fleet(scenarios, keyspace, tmp_path)
    calls = {"tasks": TASKS * EACH, "threads": THREADS * 2 * EACH}
    assert len(history.calls) == sum(calls[scenario] for scenario in scenarios) > Quota.parse(HOT).limit
    assert {call.node for call in history.calls} == {str(node) for node in range(PROCESSES)}
    check_exactly(history, HOT)
    assert keyspace.check() == 1


def test_every_unit_is_accounted_for_when_requests_are_of_every_kind(keyspace: Keyspace, tmp_path: Path) -> None:
    """Several quotas and costs at once, refunds, reservations and holds; what came back can be spent by others."""
    history = fleet(("mixture",) * PROCESSES, keyspace, tmp_path)
    quotas: dict[str, CallHistory] = {}
    for call in history.calls:
        quotas.setdefault(call.key[0], CallHistory()).calls.append(call)
    assert set(quotas) == {*RATES, *BUCKETS, HOLDS}
    assert {call.given_back for call in history.calls} >= {0, 1, 2, 3, 4, 5}
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:
        for quota in RATES:  # what is left is taken, so that the total must be the limit, whatever happened before
            drained = quotas[quota]
            while True:
                invoked = drained.now()
                verdict = decided(one(store, acquire(quota, "hot")))
                drained.note((quota, "hot"), invoked, "admitted" if verdict else "refused")
                if not verdict:
                    break
            check_exactly(drained, quota)
        for quota in BUCKETS:
            quotas[quota].check(Quota.parse(quota))
            quotas[quota].check_refusals(Quota.parse(quota))
        quotas[HOLDS].check(Quota.parse(HOLDS))
        assert any(call.outcome == "refused" for call in quotas[HOLDS].calls)
        places = decided(one(store, acquire(HOLDS, "hot", dry=True)))
        assert places.remaining == places.quota.limit, "all holds were released"


class CheckThenIncrement:
    """The counters of a real store, used in the obvious way: look whether there is room, then count."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self._store = store

    async def run(self, ops: Sequence[Op], deadline: int | None = None) -> list[Outcome]:
        (op,) = ops
        assert isinstance(op, Acquire)
        (look,) = await self._store.run([op._replace(dry=True)])
        if not look:
            return [look]
        (ask,) = op.asks
        boundless = ask._replace(quota=Quota.parse("1000000/day"))  # the same counter: its identity has no amount
        return await self._store.run([op._replace(asks=(boundless,))])

    async def close(self) -> None:
        await self._store.close()


async def test_a_store_that_checks_and_then_increments_is_caught_by_the_same_check(keyspace: Keyspace) -> None:
    history = CallHistory()
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        await hammer(CheckThenIncrement(store), history, HOT, each=20)
    with pytest.raises(AssertionError, match=r"at least .* where at most 1000 are promised"):
        check_exactly(history, HOT)


# ---------------------------------------------------------------- first calls


async def test_a_thousand_first_calls_of_a_fresh_client_all_find_an_answer(keyspace: Keyspace) -> None:
    calls = 1_024
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        outcomes = await asyncio.gather(*[store.run([acquire("1000/day")]) for _ in range(calls)])
        assert sum(bool(decided(outcome)) for (outcome,) in outcomes) == 1_000


async def test_more_operations_than_one_call_carries_are_answered_in_order(keyspace: Keyspace) -> None:
    ops = [acquire(f"{number + 1}/hour", f"key {number}") for number in range(1_100)]
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        outcomes = await store.run(ops)
    assert [decided(outcome).quota.limit for outcome in outcomes] == list(range(1, 1_101))
    assert [decided(outcome).remaining for outcome in outcomes] == list(range(1_100))


@pytest.mark.parametrize("connections", [32, 4])
def test_first_calls_of_many_threads_all_find_an_answer(keyspace: Keyspace, connections: int) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix, connections=connections) as store:
        outcomes = in_threads(lambda _: one(store, acquire("50/day")), 64)
        assert sum(bool(decided(outcome)) for outcome in outcomes) == 50
        assert len(the_link(store)._connections) <= connections
    wait_until(lambda: our_threads() == 0, "the connector's end")


# ---------------------------------------------------------------- event loops


def test_event_loops_in_several_threads_share_a_store(keyspace: Keyspace) -> None:
    store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, deadline=30, secret="of these tests")
    history = CallHistory()

    async def work() -> None:
        await hammer(store, history, "500/day", tasks=16, each=count(10, 100))

    in_threads(lambda _: asyncio.run(work()), 4)
    check_exactly(history, "500/day")
    asyncio.run(store.close())
    assert not store._loops


def test_loops_that_ended_are_forgotten_with_their_connections(keyspace: Keyspace) -> None:
    """The store need not be closed for each of them; a connection left open would be a warning here."""
    store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, deadline=30, secret="of these tests")

    async def work() -> Verdict:
        (outcome,) = await store.run([acquire("100/day")])
        return decided(outcome)

    assert asyncio.run(work()).remaining == 99
    files = open_files()
    assert [asyncio.run(work()).remaining for _ in range(5)] == [98, 97, 96, 95, 94]
    assert len(store._loops) == 1
    assert open_files() <= files
    asyncio.run(store.close())
    assert not store._loops


async def test_a_store_closed_by_another_loop_closes_its_connections_here_too(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        decided((await store.run([acquire("100/day")]))[0])
        wire = the_link(store).connection
        assert wire is not None
        await asyncio.to_thread(asyncio.run, store.close())
        await asyncio.wait_for(wire.gone, DEADLINE)
        (outcome,) = await store.run([acquire("100/day")])
        assert "the store is closed" in str(outcome)


# ---------------------------------------------------------------- forks


def test_parent_and_children_that_fork_under_load_are_exact_together(keyspace: Keyspace) -> None:
    limit, forks, each = 300, 4, 50
    quota = f"{limit}/{LONG}"
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:

        def hammer_on(_: int) -> None:
            one(store, acquire(f"100000000/{LONG}", "noise"))

        def child() -> bool:
            """Each child takes its share, and its parent's connections are left alone."""
            return all(decided(one(store, acquire(quota))) for _ in range(each))

        with hammering(hammer_on):
            assert in_children(child, forks) == {0}
        verdicts = [decided(one(store, acquire(quota))) for _ in range(limit)]
        assert sum(map(bool, verdicts)) == limit - forks * each


def test_a_forked_child_can_use_an_asyncio_store_that_its_parent_used(keyspace: Keyspace) -> None:
    store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, deadline=30, secret="of these tests")

    async def two() -> list[int]:
        outcomes = [(await store.run([acquire("10/day")]))[0] for _ in range(2)]
        return [decided(outcome).remaining for outcome in outcomes]

    async def child() -> bool:
        await two()
        await store.close()  # its own connection; the parent's stays as it is
        return True

    async def parent() -> None:
        assert await two() == [9, 8]
        codes = await asyncio.to_thread(in_children, lambda: asyncio.run(child()), 2)
        assert codes == {0}
        assert await two() == [3, 2]
        await store.close()

    asyncio.run(parent())

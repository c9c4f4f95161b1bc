"""The Redis store on a cluster: slots that move, shards that are gone, and what lives and dies with a store."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from threading import Event, Thread

import pytest

from penstock import AsyncLimiter, Limiter, RateLimited
from penstock.clock import monotonic
from penstock.model import Acquire, Amend, Amended, AmendVerb, Failed, Op, Outcome, Verdict
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from tests.integration.redis_support import LONG, PATIENT, acquire, decided, failed, opened, opened_async, our_tasks
from tests.integration.support import in_threads
from tests.integration.test_fork import in_child
from tests.redis.topology_support import (
    ANY,
    QUOTA,
    Face,
    all_threads,
    calls,
    charged,
    clients,
    errors,
    facing,
    for_both_faces,
    name_on,
    names_in,
    spanning,
)
from tests.rig.clusters import Cluster, SlotMove
from tests.rig.processes import DEADLINE, wait_until
from tests.rig.servers import Server

DOUBLE = f"1000/{LONG}, 5000/{LONG} gcra"
HOLD = "5 concurrent ttl 600s"
SHORT_US = 300_000


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """Three primaries whose slots may be moved, and which come back if they are killed or frozen."""
    with Cluster(replicas=0, node_timeout=15_000) as cluster:
        yield cluster


def both(name: str, id: bytes | None = None) -> Acquire:
    """A request about two counters of one key."""
    first, second = f"1000/{LONG}", f"5000/{LONG} gcra"
    return Acquire((*acquire(first, name).asks, *acquire(second, name).asks), id=id)


# ---------------------------------------------------------------- slots that move


class Moving:
    """A slot on its way to another server, and requests about it."""

    def __init__(self, asked: Face, cluster: Cluster, partition: int) -> None:
        self.asked, self._store = asked, asked.store
        slot = self._store.settings.keys.slots[partition]
        source = cluster.owner(slot)
        target = next(server for server in cluster.primaries if server is not source)
        self.move: SlotMove = cluster.move(slot, target)
        self.names = names_in(self._store, partition, 30)
        self.partition = partition

    def ops(self) -> list[Op]:
        """Charges of one unit each: of one counter, of two, of a place."""
        single = [acquire(QUOTA, name) for name in self.names[:10]]
        double = [both(name) for name in self.names[10:16]]
        holds = [acquire(HOLD, name, id=b"mine") for name in self.names[16:18]]
        return [*single, *double, *holds]

    def move_some(self, ops: Sequence[Op]) -> None:
        """Of each kind the keys of some requests, none of others, and half of those of the last two with two counters.

        The slot may hold other tests' keys, so they are named.
        """
        whole = [key for op in (*ops[:5], *ops[10:12], ops[16]) for key in self._keys(op)]
        self.move.move_keys([*whole, *(self._keys(op)[0] for op in ops[14:16])])

    def _keys(self, op: Op) -> list[bytes]:
        return list(dict.fromkeys(self._store.commands.encode([op]).call.keys))

    def can_be_decided(self, op: Op) -> bool:
        """Whether the keys of a request are together; or may be made, which is where the slot goes."""
        keys = self._keys(op)
        here = [key for key in keys if key in self.move.source.ask("CLUSTER", "GETKEYSINSLOT", self.move.slot, 1_000)]
        if here:
            return len(here) == len(keys)
        there = self.move.target.ask("CLUSTER", "GETKEYSINSLOT", self.move.slot, 1_000)
        return len(keys) == 1 or set(keys) <= set(there)

    def owned_by_target(self) -> bool:
        node = self._store.topology.node(self.partition)
        return node is not None and node.port == self.move.target.port


@for_both_faces
def test_counts_stay_exact_for_keys_that_have_moved_have_not_and_are_new(face: str, own: Cluster) -> None:
    with facing(face, own.url) as asked:
        moving = Moving(asked, own, partition=5)
        move, ops = moving.move, moving.ops()
        assert all(map(decided, asked.run(ops)))
        move.begin()
        moving.move_some(ops)
        together = [op for op in ops if moving.can_be_decided(op)]
        apart = [op for op in ops if op not in together and isinstance(op, Acquire)]
        assert apart == ops[14:16]
        asks = errors(move.source, "ASK")
        assert all(map(decided, asked.run(together))), "in one batch, part of which is here and part there"
        assert all(decided(asked.run([op])[0]) for op in together), "one by one"
        assert errors(move.source, "ASK") > asks
        fresh = [acquire(QUOTA, name) for name in moving.names[18:22]]
        assert all(map(decided, asked.run(fresh)))
        fresh.append(both(moving.names[22]))
        assert decided(asked.run(fresh[-1:])[0]), "one counter of which is made here, and one there"
        assert all(map(decided, asked.run(apart))), "in one batch"
        for double in apart:
            first, second = double.asks
            (refused,) = asked.run([Acquire((first, second._replace(cost=5000)))])
            assert [decision.allowed for decision in decided(refused).decisions] == [True, False]
            admitted = decided(asked.run([double])[0])
            assert admitted.receipt is not None
            assert asked.run([Amend(admitted.receipt, "refund")]) == [Amended((1, 1))]
            assert decided(asked.run([double])[0])
        waiting = failed(asked.run([apart[0]._replace(id=b"id")], SHORT_US)[0])
        assert waiting.error.transient
        if waiting.charged == "no":  # else time was up while it was asked once more
            why = str(waiting.error)
            assert "slots are being moved" in why or "no time was left" in why, why  # a busy machine asks once
        move.move_keys()
        move.finish()
        after = decided_all(asked.run([*ops, *fresh]))
        for op, verdict in zip([*ops, *fresh], after, strict=True):
            times = 2 if op in fresh else 4
            assert isinstance(op, Acquire)
            expected = 1 if op.id is not None else times
            assert [d.quota.limit - d.remaining for d in verdict.decisions] == [expected] * len(op.asks)


def decided_all(outcomes: Sequence[Outcome]) -> list[Verdict]:
    return [decided(outcome) for outcome in outcomes]


def test_what_empties_a_counter_whose_slot_is_being_moved_succeeds(own: Cluster) -> None:
    """A script must not touch a key again that it has emptied: the server would call it another's, half-way through."""
    with facing("blocking", own.url) as asked:
        moving = Moving(asked, own, partition=17)
        quotas: dict[str, AmendVerb] = {
            HOLD: "release",
            f"5/{LONG} rolling_window": "refund",
            f"5/{LONG}": "refund",
            "5/hour gcra": "refund",
        }
        names = iter(moving.names)
        charges = [(acquire(quota, next(names), id=id), verb) for quota, verb in quotas.items() for id in (None, b"id")]
        rolling = acquire("2/second rolling_window", next(names))
        receipts = [decided(asked.run([op])[0]).receipt for op, _ in charges]
        decided(asked.run([rolling])[0])
        moving.move.begin()
        for (_, verb), receipt in zip(charges, receipts, strict=True):
            assert receipt is not None
            assert asked.run([Amend(receipt, verb)]) == [Amended((1,))]
        wait_until(lambda: decided(asked.run([acquire_dry(rolling)])[0]).remaining == 2, "an empty window")
        assert decided(asked.run([rolling])[0])
        moving.move.move_keys()
        moving.move.finish()


def acquire_dry(op: Acquire) -> Acquire:
    return op._replace(dry=True)


@for_both_faces
def test_requests_wait_for_keys_that_are_being_moved(face: str, own: Cluster) -> None:
    """With ids, whose records are keys of their own, and places that are released: none fails, none counts twice."""
    with facing(face, own.url) as asked:
        moving = Moving(asked, own, partition=9)
        move, ops = moving.move, [*moving.ops(), *[both(name, b"id") for name in moving.names[22:26]]]
        first = decided_all(asked.run(ops))
        move.begin()
        moving.move_some(ops)
        tried = errors(move.source, "TRYAGAIN") + errors(move.target, "TRYAGAIN")

        def finish() -> None:
            wait_until(lambda: errors(move.source, "TRYAGAIN") + errors(move.target, "TRYAGAIN") > tried, "a try")
            move.move_keys()
            move.finish()

        finishing = Thread(target=finish)
        finishing.start()
        releases = [Amend(verdict.receipt, "release") for verdict in first[16:18] if verdict.receipt is not None]
        outcomes = asked.run([*ops, both(moving.names[26], b"new"), *releases])
        finishing.join()
        assert not {n: str(outcome.error) for n, outcome in enumerate(outcomes) if isinstance(outcome, Failed)}
        assert outcomes[-2:] == [Amended((1,))] * 2
        assert [charged(asked, name) for name in moving.names[:16]] == [2] * 16
        assert [charged(asked, name) for name in moving.names[22:27]] == [1] * 5
        assert [charged(asked, name, HOLD) for name in moving.names[16:18]] == [0, 0]


@pytest.mark.parametrize("way", ["key by key", "at once"])
def test_limits_hold_and_no_breaker_opens_while_a_slot_moves_under_load(way: str, own: Cluster) -> None:
    """Requests of two quotas, whose counters are on two servers for a while."""
    if way == "at once" and not own.can_migrate():
        pytest.skip("this server has no CLUSTER MIGRATESLOTS")
    limit, told, stop = 60, list[object](), Event()
    made: list[tuple[str, Verdict]] = []
    quotas = f"{limit}/{LONG}, {limit}/{LONG} gcra"
    with closing(
        Limiter(f"{own.url}?secret=of+these+tests&deadline=30&namespace={way.replace(' ', '-')}", hook=told.append)
    ) as limiter:
        assert isinstance(limiter.store, RedisStore)
        names = names_in(limiter.store, 3, 6)

        def ask() -> None:
            while not stop.is_set():
                made.extend([(name, limiter.acquire(name, quotas)) for name in names])

        def wait_for_calls() -> None:
            before = len(made)
            wait_until(lambda: len(made) > before + len(names), "calls meanwhile")

        slot = limiter.store.settings.keys.slots[3]
        target = next(server for server in own.primaries if server is not own.owner(slot))
        load = Thread(target=ask)
        load.start()
        try:
            wait_for_calls()
            if way == "at once":
                own.migrate(slot, target)
            else:
                move = own.move(slot, target)
                move.begin()
                for key in move.source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1_000):
                    move.move_keys([key])
                    wait_for_calls()
                move.move_keys()
                move.finish()
            wait_until(lambda: not any(verdict for _, verdict in made[-len(names) :]), "limits that are reached")
        finally:
            stop.set()
            load.join()
        assert {
            name: sum(bool(verdict) for asked, verdict in made if asked == name) for name in names
        } == dict.fromkeys(names, limit)
        assert {verdict.source for _, verdict in made} == {"store"}
        assert told == []


@for_both_faces
def test_once_a_slot_has_moved_no_call_reaches_its_old_owner(face: str, own: Cluster) -> None:
    with facing(face, own.url) as asked:
        moving = Moving(asked, own, partition=13)
        asked.run(moving.ops())
        before = errors(moving.move.source, "MOVED")
        own.reshard([moving.move.slot], moving.move.target)
        assert all(map(decided, asked.run(moving.ops())))
        assert errors(moving.move.source, "MOVED") == before + 1, "one is told, for all of them"
        assert moving.owned_by_target()
        for _ in range(20):
            assert all(map(decided, asked.run(moving.ops())))
        assert sum(errors(server, "MOVED") for server in own.nodes) >= before + 1
        assert errors(moving.move.source, "MOVED") == before + 1


# ---------------------------------------------------------------- requests that span servers


@for_both_faces
def test_what_several_servers_decide_is_charged_in_all_or_none(face: str, own: Cluster) -> None:
    with facing(face, own.url) as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        quota = f"3/{LONG}"
        granted = decided_all(asked.run([spanning(*names, quota=quota), spanning(*names, quota=quota, id=b"id")]))
        assert all(granted)
        assert decided(asked.run([spanning(names[1], quota=quota)])[0])
        (refused,) = asked.run([spanning(*names, quota=quota)])
        assert not decided(refused)
        assert [charged(asked, name, quota) for name in names] == [2, 3, 2]
        (again,) = asked.run([spanning(*names, quota=quota, id=b"id")])
        assert again, "the same request"
        for verdict in granted:
            assert verdict.receipt is not None
            assert asked.run([Amend(verdict.receipt, "refund")]) == [Amended((1, 1, 1))]
        assert [charged(asked, name, quota) for name in names] == [0, 1, 0]


@for_both_faces
def test_places_on_several_servers_are_taken_renewed_and_released_together(face: str, own: Cluster) -> None:
    with facing(face, own.url) as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        first, other = decided_all(asked.run([spanning(*names, quota=HOLD, id=id) for id in (b"1", b"2")]))
        assert first.receipt is not None
        assert other.receipt is not None
        assert asked.run([Amend(first.receipt, "renew")]) == [Amended((1, 1, 1))]
        assert asked.run([Amend(first.receipt, "release")]) == [Amended((1, 1, 1))]
        assert asked.run([Amend(first.receipt, "release")]) == [Amended((0, 0, 0))]
        assert [charged(asked, name, HOLD) for name in names] == [1, 1, 1]
        reserved = decided(asked.run([spanning(*names, cost=10, id=b"3")])[0])
        assert reserved.receipt is not None
        asked.run([Amend(reserved.receipt, "settle", 4)])
        assert [charged(asked, name) for name in names] == [4, 4, 4]


# ---------------------------------------------------------------- shards that are gone


@for_both_faces
def test_a_shard_that_is_dead_fails_only_its_own_operations_until_it_returns(face: str, own: Cluster) -> None:
    with facing(face, own.url) as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        dead, lost, others = own.primaries[1], names[1], [names[0], names[2]]
        dead.kill()
        try:
            wait_until(lambda: failing(asked, names) == {lost}, "a batch of which nothing failed but what must")
            before = [charged(asked, name) for name in others]
            outcome = failed(asked.run([spanning(*names)])[0])
            assert outcome.error.transient
            assert str(dead.port) in str(outcome.error)
            assert [charged(asked, name) for name in others] == before, "given back"
        finally:
            dead.start()
        wait_until(lambda: failing(asked, names) == set(), "the return of the shard")


def failing(asked: Face, names: list[str], within: float = 30) -> set[str]:
    """Those of which nothing was decided in a batch about all of them."""
    batch = [spanning(name) for name in names] * 3
    outcomes = asked.run(batch, int(within * 1e6))
    failures = {name for name, outcome in zip(names * 3, outcomes, strict=True) if isinstance(outcome, Failed)}
    verdicts = {name for name, outcome in zip(names * 3, outcomes, strict=True) if isinstance(outcome, Verdict)}
    return failures if not failures & verdicts else {*names, "some decided and some not"}


@for_both_faces
def test_a_shard_that_hangs_fails_only_its_own_operations(face: str, own: Cluster) -> None:
    """At first its connection is good, and all are asked; then a connection is waited for that never comes."""
    with facing(face, own.url) as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        assert failing(asked, names) == set()
        own.primaries[0].freeze()
        try:
            for _ in range(3):
                wait_until(lambda: failing(asked, names, 0.5) == {names[0]}, "a batch of which others were decided")
        finally:
            own.primaries[0].thaw()
        wait_until(lambda: failing(asked, names) == set(), "the return of the shard")


@for_both_faces
def test_answers_that_came_while_a_shard_was_waited_for_are_taken(face: str, own: Cluster) -> None:
    """The very first batch after it hangs: all are asked over good connections, and it is the first to be heard."""
    with facing(face, own.url) as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        assert failing(asked, names) == set()
        own.primaries[0].freeze()
        try:
            assert failing(asked, names, 3) == {names[0]}
        finally:
            own.primaries[0].thaw()


@for_both_faces
def test_a_slot_without_owner_fails_only_its_own_operations(face: str, own: Cluster) -> None:
    with facing(face, own.url, namespace="unowned") as asked:
        asked.run([spanning("a", dry=True)])
        names = [name_on(asked.store, server) for server in own.primaries]
        keys = asked.store.settings.keys
        slot = keys.slots[keys.partition(asked.store.where(names[0], ANY)[0].encode())]
        owner = own.owner(slot)
        for server in own.nodes:
            server.ask("CLUSTER", "DELSLOTS", str(slot))
        try:
            with facing(face, own.url, namespace="unowned") as newcomer:
                wait_until(lambda: failing(newcomer, names, 0.5) == {names[0]}, "a batch of which others were decided")
                assert failing(newcomer, names, 0.5) == {names[0]}
        finally:
            owner.ask("CLUSTER", "ADDSLOTS", str(slot))
            own.wait_until_ok()


# ---------------------------------------------------------------- how much is looked


def few_clients(server: Server) -> bool:
    """A server notices late that a client has hung up, so its count comes down to the bound."""
    return clients(server, "threads") <= 3 + 1 and clients(server, "tasks") <= 4 + 1


def test_however_many_callers_fail_looks_and_connections_are_bounded() -> None:
    with Cluster(replicas=0, node_timeout=15_000, full_coverage=True) as cluster:
        threads = RedisStore(cluster.url, **PATIENT, connections=3, client_name="threads")
        tasks = AsyncRedisStore(cluster.url, **PATIENT, client_name="tasks")

        def looks() -> int:
            return sum(calls(server, "cluster|nodes") for server in cluster.nodes)

        def work(until: float) -> tuple[int, int]:
            """The looks that it took, and how many may have been."""
            own_looks, began = looks(), monotonic()
            in_threads(lambda number: ask_until(number, until), 12)
            return looks() - own_looks, int(monotonic() - began)

        def ask_until(number: int, until: float) -> None:
            if number < 8:
                while monotonic() < until:
                    threads.run([spanning(str(number), "a", "b")])
            else:
                asyncio.run(ask_in_loop(until))

        async def ask_in_loop(until: float) -> None:
            while monotonic() < until:
                await asyncio.gather(*[tasks.run([spanning(str(number), "a")]) for number in range(5)])

        work(monotonic())
        calm, seconds = work(monotonic() + 0.5)
        assert calm <= 2 * 3 * (2 + seconds // 4)
        for server in cluster.nodes:
            wait_until(partial(few_clients, server), "few connections")
        for server in cluster.nodes:
            server.ask("CLUSTER", "DELSLOTS", "0")
        wait_until(lambda: isinstance(threads.run([spanning("a")])[0], Failed), "a cluster that is down")
        down = failed(threads.run([spanning("a")])[0])
        assert (down.charged, down.error.transient) == ("no", True)
        assert "the cluster is down" in str(down.error)
        doubtful, seconds = work(monotonic() + 3.0)
        assert 3 * 2 <= doubtful <= 2 * 3 * (seconds + 2), "two stores, each of which asks three nodes once a second"
        for server in cluster.nodes:
            wait_until(partial(few_clients, server), "few connections")
        threads.close()
        asyncio.run(tasks.close())
        for server in cluster.nodes:
            wait_until(lambda: clients(server, "threads") + clients(server, "tasks") == 0, "the end of connections")  # noqa: B023


# ---------------------------------------------------------------- life and death


@for_both_faces
def test_a_closed_store_leaves_no_thread_and_says_so_at_once(face: str, own: Cluster) -> None:
    before = all_threads()
    with facing(face, own.url, client_name="closing") as asked:
        assert decided(asked.run([spanning("a")])[0])
        asked.store.topology.close()
        wait_until(lambda: all_threads() <= before, "the end of its threads")
        assert decided(asked.run([spanning("a")])[0]), "what is known is known"
    closed = RedisStore(own.url, **PATIENT)
    closed.close()
    outcome = failed(closed.run([spanning("a")])[0])
    assert (outcome.charged, outcome.error.transient) == ("no", False)
    assert "the store is closed" in str(outcome.error)
    for server in own.nodes:
        wait_until(lambda: clients(server, "closing") == 0, "the end of its connections")  # noqa: B023


async def test_a_submitted_request_over_several_servers_is_charged_in_all_or_none(own: Cluster) -> None:
    async with opened_async(own.url) as store:

        async def submitted(op: Acquire) -> Verdict:
            answer: asyncio.Future[list[Outcome] | Exception] = asyncio.get_running_loop().create_future()
            store.submit([op], None, answer.set_result)
            outcomes = await answer
            assert isinstance(outcomes, list)
            return decided(outcomes[0])

        names = [f"submitted {number}" for number in range(8)]
        assert await submitted(spanning(*names, quota="3/hour"))
        assert await submitted(spanning(names[0], quota="3/hour", cost=2))
        assert not await submitted(spanning(*names, quota="3/hour"))
        stands = await submitted(spanning(*names, quota="3/hour", dry=True))
        assert [decision.remaining for decision in stands.decisions] == [0, *[2] * 7]
        assert our_tasks() == 0


async def test_a_closed_store_fails_calls_of_tasks_at_once(own: Cluster) -> None:
    async with opened_async(own.url) as store:
        pass
    for op in (spanning("a"), spanning("a", "b", "c")):
        (outcome,) = await store.run([op])
        assert "the store is closed" in str(failed(outcome).error)
    assert our_tasks() == 0


async def test_a_call_to_another_server_while_a_store_is_closed_fails(own: Cluster) -> None:
    async with opened_async(own.url) as store:
        await store.run([spanning("a", dry=True)])
        names = [name_on(store, server) for server in own.primaries]
    for first, *others in (names, names[::-1]):
        async with opened_async(own.url) as store:
            decided((await store.run([spanning(first)]))[0])
            asked = [asyncio.ensure_future(store.run([spanning(name)])) for name in others]
            await store.close()
            for outcomes in await asyncio.gather(*asked):
                assert "the store is closed" in str(failed(outcomes[0]).error)


def test_a_child_that_was_forked_while_a_link_was_made_is_not_stuck(own: Cluster) -> None:
    with opened(own.url, namespace="forked meanwhile") as store:
        assert decided(store.run([spanning("a")])[0])
        with store._lock:
            assert in_child(lambda: bool(decided(store.run([spanning("a")])[0]))) == 0


def test_a_forgotten_store_leaves_no_thread(own: Cluster) -> None:
    before = all_threads()
    store = RedisStore(own.url, **PATIENT)
    decided(store.run([spanning("a")])[0])
    assert all_threads() > before
    del store
    gc.collect()
    wait_until(lambda: all_threads() <= before, "the end of its threads")


def test_a_forked_child_has_connections_and_a_watcher_of_its_own(own: Cluster) -> None:
    with opened(own.url, namespace="forked", client_name="forking") as store:
        names = [f"name {number}" for number in range(20)]

        def decide() -> bool:
            return all(map(decided, store.run([spanning(name) for name in names])))

        def connections() -> int:
            return sum(clients(server, "forking") for server in own.nodes)

        def as_child() -> bool:
            began = all_threads()
            at_first = connections()
            return decide() and connections() > at_first and all_threads() > began

        assert decide()
        assert [in_child(as_child) for _ in range(2)] == [0, 0]
        assert decide()
        assert [store.run([spanning(name, dry=True)])[0].remaining for name in names] == [1000 - 4] * 20  # type: ignore[union-attr]


def test_an_interpreter_ends_although_a_store_is_open(own: Cluster) -> None:
    program = (
        "import sys; from penstock.stores.redis.store import RedisStore\n"
        "from tests.redis.topology_support import spanning\n"
        "store = RedisStore(sys.argv[1], deadline=30, secret='x')\n"
        "print(bool(store.run([spanning('a', 'b', 'c')])[0]))\n"
    )
    ended = subprocess.run(
        (sys.executable, "-c", program, own.url), capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


async def test_a_cancelled_request_that_spans_servers_is_given_back_all_the_same(own: Cluster) -> None:
    async with opened_async(own.url, namespace="cancelled") as store:
        await store.run([spanning("a", dry=True)])
        frozen, other, *_ = own.primaries
        slow, quick = name_on(store, frozen), name_on(store, other)
        spent = f"1/{LONG}"
        assert decided((await store.run([spanning(quick, quota=spent)]))[0])
        decided((await store.run([spanning(slow, dry=True)]))[0])
        before = calls(frozen, "evalsha")
        seen = calls(other, "evalsha")
        frozen.freeze()
        try:
            op = Acquire((*spanning(slow).asks, *spanning(quick, quota=spent).asks))
            task = asyncio.ensure_future(store.run([op]))
            await asyncio.to_thread(wait_until, lambda: calls(other, "evalsha") > seen, "the refusal of one")
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        finally:
            frozen.thaw()
        await asyncio.to_thread(wait_until, lambda: calls(frozen, "evalsha") == before + 2, "the charge and its return")
        (verdict,) = await store.run([spanning(slow, dry=True)])
        assert decided(verdict).remaining == 1000


@for_both_faces
def test_a_cluster_that_starts_after_its_callers_is_found(face: str) -> None:
    cluster = Cluster(replicas=0)
    with facing(face, cluster.url) as asked:
        down = failed(asked.run([spanning("a", "b", "c")])[0])
        assert (down.charged, down.error.transient) == ("no", True)
        with cluster:
            wait_until(lambda: isinstance(asked.run([spanning("a", "b", "c")])[0], Verdict), "a verdict")


# ---------------------------------------------------------------- limiters


def test_limiters_do_on_a_cluster_whatever_they_do(own: Cluster) -> None:
    with Limiter(RedisStore(own.url, **PATIENT, namespace="limiter")) as limiter:
        assert all(limiter.acquire_many([(f"user {number}", QUOTA) for number in range(50)]))
        assert limiter.acquire("alice", DOUBLE)
        assert [part.remaining for part in limiter.inspect("alice", DOUBLE)] == [999, 4999]
        with limiter.hold("alice", HOLD):
            assert limiter.peek("alice", HOLD).remaining == 4
        assert limiter.peek("alice", HOLD).remaining == 5
        with limiter.reserve("bob", QUOTA, 100) as reservation:
            reservation.settle(30)
        assert limiter.peek("bob", QUOTA).remaining == 970
        assert limiter.wait("carol", "1000/second", timeout=30)

        @limiter.limit(f"1/{LONG}", key="dora")
        def once() -> int:
            return 1

        assert once() == 1
        with pytest.raises(RateLimited):
            once()


async def test_limiters_for_asyncio_do_on_a_cluster_whatever_they_do(own: Cluster) -> None:
    async with AsyncLimiter(AsyncRedisStore(own.url, **PATIENT, namespace="async limiter")) as limiter:
        assert all(await limiter.acquire_many([(f"user {number}", QUOTA) for number in range(50)]))
        assert await limiter.acquire("alice", DOUBLE)
        assert [part.remaining for part in await limiter.inspect("alice", DOUBLE)] == [999, 4999]
        async with limiter.hold("alice", HOLD):
            assert (await limiter.peek("alice", HOLD)).remaining == 4
        assert (await limiter.peek("alice", HOLD)).remaining == 5
        async with limiter.reserve("bob", QUOTA, 100) as reservation:
            await reservation.settle(30)
        assert (await limiter.peek("bob", QUOTA)).remaining == 970
        assert await limiter.wait("carol", "1000/second", timeout=30)

        @limiter.limit(f"1/{LONG}", key="dora")
        async def once() -> int:
            return 1

        assert await once() == 1
        with pytest.raises(RateLimited):
            await once()

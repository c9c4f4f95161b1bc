"""The faults. Each is a generator: the failure up to the `yield`, and the clean-up after it.

    @fault("connection refused", "one server")
    def refused(stage: One) -> Iterator[None]:
        stage.cut()
        stage.hold(3)
        stage.proxy.accept()
        yield                       # the store is back; the fleet has to recover by itself

`budgets` is the allowed over-admission of a key in multiples of its limit: one for hosts that decide instead of the
store, and one more where the store forgets its counters.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock import AsyncLimiter
from penstock.clock import SECOND, monotonic
from penstock.stores.redis.store import AsyncRedisStore
from tests.faults.fleet import ROOT
from tests.faults.node import HOST_NAME
from tests.faults.stages import FLAVOUR, Apart, One, Sharded, Watched, can_have_own_network
from tests.rig.clock_shim import can_step_clocks
from tests.rig.clusters import SLOTS
from tests.rig.faults import Flow
from tests.rig.processes import wait_until
from tests.rig.servers import Server, binary

Story: TypeAlias = Callable[[Any], Iterator[None]]

HOUR = 3_600


@dataclass(frozen=True)
class Fault:
    """A failure of a store.

    - `ci`: whether it is part of the usual run of the tests.
    - `possible`: whether it can be done on this machine.
    """

    name: str
    topology: str
    story: Story
    budgets: int = 1
    ci: bool = False
    possible: Callable[[], bool] = lambda: True


FAULTS: list[Fault] = []


def fault(name: str, topology: str, **more: Any) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        FAULTS.append(Fault(name, topology, story, **more))
        return story

    return add


# ---------------------------------------------------------------- one server


@fault("connection refused", "one server", ci=True)
def refused(stage: One) -> Iterator[None]:
    stage.cut()
    stage.hold(3)
    stage.proxy.accept()
    yield


@fault("SIGSTOP 10 s (connections half-open)", "one server", ci=True)
def frozen(stage: One) -> Iterator[None]:
    stage.server.freeze()
    stage.hold(10)
    stage.server.thaw()
    yield


@fault("network cut, nothing arrives", "one server")
def cut(stage: One) -> Iterator[None]:
    stage.proxy.requests = stage.proxy.replies = Flow(held=True)
    stage.hold(4)
    stage.proxy.reset()  # a network drops what it cannot deliver for long
    stage.proxy.requests = stage.proxy.replies = Flow()
    yield


@fault("replies lost, requests carried out", "one server")
def replies_lost(stage: One) -> Iterator[None]:
    stage.proxy.replies = Flow(lost=True)
    stage.hold(3)
    stage.proxy.reset()
    stage.proxy.replies = Flow()
    yield


def slowed(millis: int) -> Story:
    def story(stage: One) -> Iterator[None]:
        stage.proxy.replies = Flow(latency=millis / 1_000)
        stage.hold(4)
        stage.proxy.replies = Flow()
        yield

    return story


fault("replies slowed by 3 ms", "one server")(slowed(3))
fault("replies slowed by 10 ms", "one server")(slowed(10))
fault("replies slowed by 100 ms", "one server", ci=True)(slowed(100))


@fault("CLIENT PAUSE", "one server")
def paused(stage: One) -> Iterator[None]:
    """The server answers no command, not even one that would end the pause."""
    stage.server.ask("CLIENT", "PAUSE", round(3_000 * stage.effort.share), "ALL")
    stage.server.ask("PING")
    yield


@fault("script stall", "one server")
def stalled(stage: One) -> Iterator[None]:
    """A slow script blocks the server for seconds; after a tenth of a second it replies BUSY."""
    stage.server.ask("CONFIG", "SET", "busy-reply-threshold", 100)
    micros = round(3 * stage.effort.share * SECOND)
    stage.server.ask(
        "EVAL",
        "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end "
        "local start = now() while now() - start < tonumber(ARGV[1]) do end",
        0,
        micros,
    )
    yield
    stage.server.ask("CONFIG", "SET", "busy-reply-threshold", 5_000)


@fault("READONLY", "one server", ci=True)
def readonly(stage: One) -> Iterator[None]:
    """The server becomes a replica of a missing primary: it keeps its keys and refuses writes."""
    stage.server.ask("REPLICAOF", "127.0.0.1", 1)
    stage.hold(3)
    stage.server.ask("REPLICAOF", "NO", "ONE")
    yield


@fault("rights revoked (set, zadd)", "one server")
def deprived(stage: One) -> Iterator[None]:
    """The user may read and not write: each script ends at its first charge."""
    stage.server.ask("ACL", "SETUSER", "default", "-set", "-zadd")
    stage.hold(3)
    stage.server.ask("ACL", "SETUSER", "default", "+set", "+zadd")
    yield


@fault("maxmemory reached (noeviction)", "one server", ci=True)
def full(stage: One) -> Iterator[None]:
    stage.server.ask("CONFIG", "SET", "maxmemory", 1)
    stage.hold(3)
    stage.server.ask("CONFIG", "SET", "maxmemory", 0)
    yield


@fault("restarted empty", "one server", budgets=2, ci=True)
def restarted(stage: One) -> Iterator[None]:
    stage.server.kill()
    stage.hold(2)
    stage.server.start()
    yield


@fault("name that stops resolving", "one server")
def unnamed(stage: One) -> Iterator[None]:
    stage.fleet.resolve(False)
    stage.proxy.reset()
    stage.hold(3)
    stage.fleet.resolve(True)
    yield


@fault("store absent at start", "one server", ci=True)
def absent(stage: One) -> Iterator[None]:
    stage.cut()
    stage.fleet.open()
    stage.hold(3)
    stage.proxy.accept()
    yield


def stepped(hours: int) -> Story:
    def story(stage: One) -> Iterator[None]:
        stage.server.step_clock(hours * HOUR)
        yield

    return story


fault("clock steps +1 h", "one server", budgets=2, possible=can_step_clocks)(stepped(1))
fault("clock steps −1 h", "one server", budgets=2, possible=can_step_clocks)(stepped(-1))


@fault("corrupt values", "one server", budgets=2, ci=True)
def corrupt(stage: One) -> Iterator[None]:
    """All stored values are overwritten."""
    with stage.server.talk() as conversation:
        for key in conversation.ask("KEYS", "*"):
            conversation.ask("SET", key, "not a counter", "EX", 600)
    yield


@fault("crash holding places", "one server")
def crashed(stage: One) -> Iterator[None]:
    """A process that holds all places is killed: the places return by their ttl."""
    key, quota, ttl = f"{stage.fleet.generation}-places", "4_concurrent_ttl_2s", 2
    program = (sys.executable, "-m", "tests.faults.holder", stage.fleet.url_for("closed"), str(stage.proxy.port))
    holder = subprocess.Popen((*program, key, quota), cwd=ROOT, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    stage.require(holder.stdout.readline() == b"4\n", "the holder did not get all places")
    holder.kill()
    holder.communicate()

    def free() -> int:
        number: int = stage.fleet.tell_one(0, f"free {key} {quota}")
        return number

    wait_until(lambda: free() == 4, "places that come back", pause=0.05)
    stage.note(f"4 places free again after their ttl of {ttl} s")
    yield


@fault("callers cancelled during the round trip", "one server")
def cancelled(stage: One) -> Iterator[None]:
    """Charges and places of cancelled asyncio callers come back with the replies."""
    port = stage.proxy.port
    url = stage.fleet.url_for("closed").replace(f"{HOST_NAME}:{port}", f"127.0.0.1:{port}")
    left = asyncio.run(_left_by_cancelled(stage, url, f"{stage.fleet.generation}-cancelled"))
    stage.require(left == (0, 0), f"of 100 cancelled callers {left[0]} units and {left[1]} places are lost")
    stage.note("the charges and places of 100 callers came back")
    yield


async def _left_by_cancelled(stage: One, url: str, key: str) -> tuple[int, ...]:
    quotas = "1000/hour", "1000 concurrent ttl 1h"
    async with AsyncLimiter(AsyncRedisStore(url, deadline=10.0), on_failure="raise") as limiter:
        await limiter.peek(key, quotas)  # connects
        stage.proxy.replies = Flow(held=True)
        tasks = [asyncio.ensure_future(limiter.acquire(key, quotas)) for _ in range(100)]
        await asyncio.wait(tasks, timeout=0.02)  # by then they have been sent
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        stage.proxy.replies = Flow()
        left: tuple[int, ...] = (100, 100)
        for _ in range(100):
            left = tuple([1_000 - decision.remaining for decision in (await limiter.peek(key, quotas, 0)).decisions])
            if not any(left):
                break
            await asyncio.sleep(0.02)
        await limiter.store.close()
        return left


@fault("60 s outage, 100,000 keys", "one server")
def flooded(stage: One) -> Iterator[None]:
    stage.cut()
    began, keys = monotonic(), stage.effort.keys
    for number in (0, 1):
        first, second = [stage.fleet.tell_one(number, f"flood {keys}") for _ in range(2)]
        kept = second["untold"]
        stage.require(kept <= 100_000, f"{kept} counters are kept, at most 100,000 agreed")
        grown = first["grown"], second["grown"]
        stage.require(second["grown"] <= max(first["grown"], 64 * 2**20), f"memory grows on: {grown}")
        more, kind = [f"{size / 2**20:+.0f} MB" for size in grown], stage.fleet.kinds[number]
        stage.note(f"{kind}: {more[0]} for {keys:,} keys, {more[1]} for as many others")
    stage.hold(max(60 - (monotonic() - began), 0))
    stage.proxy.accept()
    yield


@fault("reconnect herd of 8 processes", "one server, 8 hosts", ci=True)
def herd(stage: One) -> Iterator[None]:
    stage.cut()
    stage.hold(3)
    before = stage.proxy.counts().connections
    with stage.most_clients() as most:
        stage.proxy.accept()
        yield
    bound = stage.fleet.most_connections()
    stage.require(0 < most() <= bound, f"{most()} connections at once, at most {bound} agreed")
    made = stage.proxy.counts().connections - before
    stage.note(f"{made} connections made, {most()} at once (bound {bound})")


@fault("restarted with what it had", "one server, AOF")
def restored(stage: One) -> Iterator[None]:
    stage.server.kill()
    stage.hold(2)
    stage.server.start()
    yield


# ---------------------------------------------------------------- Sentinel


@fault("kill -9 of the primary", "Sentinel", budgets=2, ci=True)
def primary_killed(stage: Watched) -> Iterator[None]:
    dead = stage.servers.kill_primary()
    yield
    stage.servers.restart(dead)


@fault("zombie primary, no min-replicas", "Sentinel", budgets=2)
def zombie(stage: Watched) -> Iterator[None]:
    """The primary is frozen until another is promoted, then still acts as a primary."""
    old = stage.servers.freeze_and_promote()
    old.thaw()
    yield
    stage.servers.wait_until_ok()


@fault("lost acknowledged writes", "Sentinel", budgets=2)
def writes_lost(stage: Watched) -> Iterator[None]:
    with stage.servers.losing_writes() as dead:
        stage.hold(2)
    yield
    stage.servers.restart(dead)


@fault("zombie primary, min-replicas 1", "Sentinel, min-replicas 1", budgets=2)
def harmless_zombie(stage: Watched) -> Iterator[None]:
    yield from zombie(stage)


# ---------------------------------------------------------------- Cluster


@fault("kill -9 of a primary", "Cluster", budgets=2, ci=True)
def owner_killed(stage: Sharded) -> Iterator[None]:
    dead = stage.cluster.primaries[0]
    stage.cluster.kill_primary(dead)
    yield
    stage.cluster.restart(dead)


@fault("resharding", "Cluster")
def resharded(stage: Sharded) -> Iterator[None]:
    """A third of one node's slots moves to another."""
    source, target, *_ = stage.cluster.primaries
    slots = _used_slots(source)
    stage.cluster.reshard(slots[: max(len(slots) // 2, 1)], target)
    stage.note(f"{len(slots) // 2} slots with keys moved")
    yield


@fault("resharding, key by key in 4 s", "Cluster")
def resharded_slowly(stage: Sharded) -> Iterator[None]:
    """The counters of one slot are on two servers for a while."""
    source, target, *_ = stage.cluster.primaries
    move = stage.cluster.move(_used_slots(source)[0], target)
    move.begin()
    keys = source.ask("CLUSTER", "GETKEYSINSLOT", move.slot, 1_000)
    for key in keys:
        move.move_keys([key])
        stage.hold(4 / len(keys))
    move.move_keys()
    move.finish()
    stage.note(f"{len(keys)} keys moved")
    yield


def can_migrate_slots() -> bool:
    """Return whether the servers have `CLUSTER MIGRATESLOTS`, as Valkey has from version 9 on."""
    told = subprocess.run((str(binary(FLAVOUR)), "--version"), capture_output=True, text=True, check=False).stdout
    version = re.search(r"v=(\d+)", told)
    return version is not None and int(version[1]) >= 9


@fault("resharding at once", "Cluster", possible=can_migrate_slots)
def resharded_at_once(stage: Sharded) -> Iterator[None]:
    """A third of one node's slots moves to another by `CLUSTER MIGRATESLOTS`, which stops each for a moment."""
    source, target, *_ = stage.cluster.primaries
    slots = _used_slots(source)
    chosen = slots[: max(len(slots) // 2, 1)]
    for slot in chosen:
        stage.cluster.migrate(slot, target)
    stage.note(f"{len(chosen)} slots with keys moved")
    yield


@fault("one shard lost with its replica", "Cluster", budgets=2)
def shard_lost(stage: Sharded) -> Iterator[None]:
    lost = stage.cluster.lose_shard(stage.cluster.primaries[0])
    stage.hold(2)
    stage.cluster.restart(*lost)
    yield


def _used_slots(server: Server) -> list[int]:
    """Return the slots of which a node has keys."""
    with server.talk() as conversation:
        keys = conversation.ask("KEYS", "*")
        return sorted({int(conversation.ask("CLUSTER", "KEYSLOT", key)) % SLOTS for key in keys})


# ---------------------------------------------------------------- a network of its own


@fault("network cut between namespaces", "own network", possible=can_have_own_network)
def unplugged(stage: Apart) -> Iterator[None]:
    stage.cable("down")
    stage.hold(4)
    stage.cable("up")
    yield

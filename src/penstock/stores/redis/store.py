"""The Redis store: counters that every server of a fleet shares. One script call decides a whole batch.

`RedisStore` is for blocking callers, `AsyncRedisStore` for asyncio. Both share the choice of servers (`topology`), the
fan-out over partitions (`scatter`) and the handling of replies (`redirects`); `pool` and `pipeline` move the bytes.
Neither raises for failures on the way: the outcome of an operation is then a `Failed`, which says whether it may have
been charged all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from penstock.clock import SECOND, Clock, Micros, monotonic
from penstock.engine.engine import Caller, resolve
from penstock.engine.lifetime import renew_in_children
from penstock.engine.protocols import Done, Gone
from penstock.events import Hook
from penstock.events import nobody as no_hook
from penstock.model import Failed, Key, Op, Outcome, check_key
from penstock.quota import Quota
from penstock.stores.redis.cluster import ClusterTopology
from penstock.stores.redis.commands import Commands
from penstock.stores.redis.config import Node, RedisSettings, read_client, read_url
from penstock.stores.redis.connection import check
from penstock.stores.redis.guard import Guards
from penstock.stores.redis.loop import LoopStore
from penstock.stores.redis.pool import NoReply, PendingReplies, RedisPool
from penstock.stores.redis.redirects import Attempt
from penstock.stores.redis.scatter import MAX_OPS, Groups, one_partition, spread
from penstock.stores.redis.sentinel import SentinelTopology
from penstock.stores.redis.server_checks import inspect
from penstock.stores.redis.topology import REPLACED, SingleServer, Topology, no_server

if TYPE_CHECKING:
    import redis


TOPOLOGIES: dict[str, Callable[[RedisSettings], Topology]] = {
    "single": SingleServer,
    "sentinel": SentinelTopology,
    "cluster": ClusterTopology,
}


class ServerStore:
    """The settings, servers and commands that both stores have."""

    def __init__(self, url: str, *, clock: Clock | None = None, hook: Hook = no_hook, **options: Any) -> None:
        self._begin(read_url(url, **options), clock, hook)

    @classmethod
    def from_client(
        cls,
        client: redis.Redis | redis.asyncio.Redis,
        *,
        clock: Clock | None = None,
        hook: Hook = no_hook,
        **options: Any,
    ) -> Self:
        """Return a store on the server of an existing client, with its address, credentials and TLS."""
        store = cls.__new__(cls)
        store._begin(read_client(client, **options), clock, hook)
        return store

    def _begin(self, settings: RedisSettings, clock: Clock | None, hook: Hook) -> None:
        check(settings)
        self.settings = settings
        self.guards = Guards(settings, hook)
        self._within = settings.deadline_us / SECOND
        self.commands = Commands(settings, clock)
        self.topology: Topology = TOPOLOGIES[settings.topology](settings)

    def where(self, key: Key, quota: str | Quota) -> list[str]:
        """Return the names under which the counters of `key` are stored, to find them in the database."""
        keys, subject = self.settings.keys, self.settings.keys.subject(check_key(key))
        quotas = (quota,) if isinstance(quota, Quota) else Quota.parse_all(quota)
        return [keys.counter(subject, keys.family(part)).decode() for whole in quotas for part in whole.parts]

    def breakers(self) -> dict[str, str]:
        """Return the state of the breaker of each server that was called: closed, open or half-open."""
        return self.guards.states()

    def inspect(self, within: float) -> Mapping[str, Mapping[str, str] | None]:
        """Return the `INFO` of each server that decides; None where it failed. Blocks, so not for event loops."""
        return inspect(self.settings, self.topology, within)

    def force_breakers(self, state: Literal["open", "closed"] | None) -> None:
        """Keep all breakers open or closed, until this is called with None."""
        self.guards.force(state)


class RedisStore(ServerStore):
    """Counters in Redis or Valkey, for blocking callers.

    - `deadline`: seconds within which a decision is made, or known to have failed; 0.05.
    - `connections`: how many may be open at once, to each server; 32.
    - `secret`: what identities are hashed with before they leave the process; the same on every server.
    - `namespace`: keeps applications apart that share a server and a secret.
    - `prefix`: what every key begins with.
    - `partitions`: over how many slots of a cluster the keys are spread; 32.
    - `clock`: for tests; the script goes by it instead of the server's time.
    """

    def _begin(self, settings: RedisSettings, clock: Clock | None, hook: Hook) -> None:
        super()._begin(settings, clock, hook)
        self._lock = Lock()
        self._pools: dict[Node, RedisPool] = {}
        self._nodes: frozenset[Node] = frozenset()  # of the topology when pools were last dropped
        self._closed = False
        renew_in_children(self)

    def _renew(self) -> None:
        """Replace the lock in a forked child: the thread that held it does not exist there."""
        self._lock = Lock()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        within = self._within if deadline is None else deadline / SECOND
        if 0 < len(ops) <= MAX_OPS and not self.topology.partitioned:
            return self._call_one(ops, within)
        at = self.commands.now()
        spreading = spread(ops, self.commands.partitions)
        try:
            groups = next(spreading)
            while True:
                groups = spreading.send(self._call_all(groups, at, within))
        except StopIteration as end:
            outcomes: list[Outcome] = end.value
            return outcomes

    def close(self) -> None:
        self.topology.close()
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    def _call_one(self, ops: Sequence[Op], within: float) -> list[Outcome]:
        """Call the only server: as below, without the parts for several."""
        until = monotonic() + within
        answers: list[Outcome | None] = []
        attempt = Attempt(self.commands, self.topology, 0, ops, answers)
        more: Sequence[Attempt] = (attempt,)
        if attempt.node is not None:
            try:
                reply = self._pool_of(attempt.node).call(attempt.command.packed, until)
            except NoReply as no_answer:
                reply = no_answer.failed
            more = attempt.receive(reply)
        while more:
            more = self._run(more, until)
        return cast("list[Outcome]", answers)

    def _call_all(self, groups: Groups, at: Micros | None, within: float) -> list[list[Outcome]]:
        """Return the outcomes of each group; all servers are called at the same time."""
        until = monotonic() + within
        answers: list[list[Outcome | None]] = [[None] * len(ops) for _, ops in groups]
        attempts = [
            Attempt(self.commands, self.topology, partition, ops, into, at=at)
            for (partition, ops), into in zip(groups, answers, strict=True)
        ]
        while attempts:
            attempts = self._run(attempts, until)
        return cast("list[list[Outcome]]", answers)

    def _run(self, attempts: Sequence[Attempt], until: float) -> list[Attempt]:
        """Call the servers, and return the retries."""
        pause = max([attempt.pause for attempt in attempts])
        if pause:  # for keys on the move
            Event().wait(max(min(pause, until - monotonic()), 0))
        known = [attempt for attempt in attempts if attempt.node is not None]
        more = self._call_known(known, until) if known else []
        return more if len(known) == len(attempts) else more + self._find(attempts, until)

    def _find(self, attempts: Sequence[Attempt], until: float) -> list[Attempt]:
        """Look for the servers of attempts that have none; return those that were found. Other attempts do not wait."""
        unknown = [attempt for attempt in attempts if attempt.node is None]
        if self.topology.trouble() is None:
            looked = Event()
            self.topology.when_looked(looked.set)
            looked.wait(max(until - monotonic(), 0))
            for attempt in unknown:
                attempt.look_up()
        more: list[Attempt] = []
        for attempt in unknown:
            found = attempt.node is not None
            more += [attempt] if found else attempt.receive(no_server(self.topology, self.settings))
        return more

    def _call_known(self, attempts: Sequence[Attempt], until: float) -> list[Attempt]:
        if len(attempts) == 1:
            return list(attempts[0].receive(self._call(attempts, until)[0]))
        more: list[Attempt] = []
        late: list[list[Attempt]] = []  # those for which no connection is ready: others do not wait for theirs
        for group, pending in [(group, self._start(group, until)) for group in _by_node(attempts)]:
            if pending is None:
                late.append(group)
            else:
                more += _receive(group, _finish(group, pending))
        for group in sorted(late, key=self._is_unconnected):
            more += _receive(group, self._call(group, until))
        return more

    def _call(self, group: Sequence[Attempt], until: float) -> list[Any]:
        """Return the replies to attempts that go to the same server."""
        node = group[0].node
        if node is None:
            return [no_server(self.topology, self.settings)] * len(group)
        if monotonic() + group[0].pause >= until:
            return [attempt.late() for attempt in group]
        try:
            return _finish(group, self._pool_of(node).start(_packed(group), until))
        except NoReply as no_answer:
            return [no_answer.failed] * len(group)

    def _start(self, group: Sequence[Attempt], until: float) -> PendingReplies | Failed | None:
        """Send attempts that go to the same server; return None if no connection is ready."""
        node = group[0].node
        if node is None:
            return no_server(self.topology, self.settings)
        if monotonic() + group[0].pause >= until:
            return group[0].late()
        try:
            return self._pool_of(node).start_at_once(_packed(group), until)
        except NoReply as no_answer:
            return no_answer.failed

    def _is_unconnected(self, group: Sequence[Attempt]) -> bool:
        """Return whether there is no connection at all: such a server is waited for last."""
        node = group[0].node
        return node is None or not self._pool_of(node).is_connected()

    def _pool_of(self, node: Node) -> RedisPool:
        """Return the pool of a server. Those of servers that no longer decide are closed."""
        if self._nodes is not self.topology.nodes:
            self._drop_old_pools()
        return self._pools.get(node) or self._new_pool(node)

    def _new_pool(self, node: Node) -> RedisPool:
        with self._lock:
            pool = self._pools.get(node)
            if pool is None:
                pool = self._pools[node] = RedisPool(self.settings, self.commands, node, self.guards.of(node))
                if self._closed:
                    pool.close()
            return pool

    def _drop_old_pools(self) -> None:
        with self._lock:
            self._nodes = self.topology.nodes
            gone = [self._pools.pop(node) for node in set(self._pools) - self._nodes]
            self.guards.keep(self._nodes)
        for pool in gone:
            pool.close(REPLACED, transient=True)


def _by_node(attempts: Sequence[Attempt]) -> list[list[Attempt]]:
    groups: dict[Node | None, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.node, []).append(attempt)
    return list(groups.values())


def _packed(group: Sequence[Attempt]) -> list[bytes]:
    return [command for attempt in group for command in attempt.packed]


def _finish(group: Sequence[Attempt], pending: PendingReplies | Failed) -> list[Any]:
    """Return the replies to attempts that were sent together."""
    if isinstance(pending, Failed):
        return [pending] * len(group)
    try:
        replies = iter(pending.finish())
    except NoReply as no_answer:
        return [no_answer.failed] * len(group)
    return [[next(replies) for _ in attempt.packed][-1] for attempt in group]


def _receive(group: Sequence[Attempt], replies: Sequence[Any]) -> list[Attempt]:
    """Return the retries."""
    return [more for attempt, reply in zip(group, replies, strict=True) for more in attempt.receive(reply)]


class AsyncRedisStore(ServerStore):
    """Counters in Redis or Valkey, for asyncio. Options as `RedisStore`.

    Operations for a server that come in one turn of an event loop are sent together. Each loop has a connection to each
    server.
    """

    def _begin(self, settings: RedisSettings, clock: Clock | None, hook: Hook) -> None:
        super()._begin(settings, clock, hook)
        self._loops: dict[asyncio.AbstractEventLoop, LoopStore] = {}
        self._closed = False

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        caller: Caller = asyncio.get_running_loop().create_future()
        self.submit(ops, deadline, partial(resolve, caller), caller.done)
        return caller

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        """Send `ops` in this turn of the loop. `done` is called once, on the loop, with the outcomes, or with the error
        that an invalid operation raised; perhaps before this returns. It must not raise.

        With `gone` they are sent together with all others of this turn, unless `gone` returns true by then. Costs
        neither a task nor a future, unless `ops` need several script calls: over several partitions, or more than
        `MAX_OPS`.
        """
        within = self._within if deadline is None else deadline / SECOND
        here = self._loops.get(asyncio.get_running_loop()) or self._here()
        if self.topology.partitioned:
            partition = one_partition(ops, self.commands.partitions)
        else:
            partition = 0 if 0 < len(ops) <= MAX_OPS else None
        if partition is None:
            here.scatter(ops, within, done, gone)
        elif gone is None:
            here.submit(ops, partition, within, done)
        else:
            here.add(ops, partition, within, done, gone)

    def _here(self) -> LoopStore:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            self._forget_ended()
            here = self._loops[loop] = LoopStore(self.settings, self.commands, self.topology, self.guards)
            if self._closed:
                here.shut()
        return here

    def _forget_ended(self) -> None:
        for loop in list(self._loops):
            if loop.is_closed():
                self._loops.pop(loop, None)

    async def close(self) -> None:
        """Close the connections of all event loops; those of this one are closed when it returns."""
        self._closed = True
        self.topology.close()
        self._forget_ended()
        here = self._loops.get(asyncio.get_running_loop())
        for loop, elsewhere in list(self._loops.items()):
            if elsewhere is not here:
                with suppress(RuntimeError):  # it has ended meanwhile
                    loop.call_soon_threadsafe(elsewhere.shut)
        if here is not None:
            await here.close()

"""Penstock's batches, carried by a Redis client, for `bench.redis_worker`.

python -m bench.redis_carriers CLIENT URL DEADLINE

The codec, the script and the batches of a turn are the same for each; only what sends and receives them differs.
CLIENT is penstock or one of CLIENTS. Each is set up as its documentation says, with DEADLINE (seconds) as its timeout;
"once" turns its retries off.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import coredis
import glide
import redis.asyncio
from coredis.retry import NoRetryPolicy
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from bench.redis_penstock import DEADLINE, SECRET, awaited
from bench.redis_worker import Async, serve_asyncio
from penstock import AsyncLimiter, Quota
from penstock.clock import Micros, SystemClock
from penstock.engine.engine import Caller, resolve
from penstock.engine.protocols import Done, Gone
from penstock.model import Op, Outcome
from penstock.stores.redis.codec import Codec, ScriptCall
from penstock.stores.redis.commands import LONGEST_KNOWN, MAX_KNOWN, PORTION
from penstock.stores.redis.config import Node, read_url
from penstock.stores.redis.errors import unanswered
from penstock.stores.redis.loop import Callers
from penstock.stores.redis.script import SCRIPT
from penstock.stores.redis.store import AsyncRedisStore

QUOTA = Quota(1_000_000, 86_400, "sliding_window")

Carry = Callable[[ScriptCall], Awaitable[bytes]]
Open = Callable[[Node, float], Awaitable[Carry]]

staying: list[asyncio.Task[None]] = []  # a loop holds its tasks weakly


async def redis_py(node: Node, deadline: float, **options: Any) -> Carry:
    client = redis.asyncio.Redis(host=node.host, port=node.port, socket_timeout=deadline, **options)
    await client.script_load(SCRIPT.text)
    sha, evalsha = SCRIPT.sha.decode(), client.evalsha

    async def carry(call: ScriptCall) -> bytes:
        return await evalsha(sha, len(call.keys), *call.keys, *call.args)  # type: ignore[no-any-return]

    return carry


async def of_coredis(node: Node, deadline: float, **options: Any) -> Carry:
    client = coredis.Redis(host=node.host, port=node.port, stream_timeout=deadline, **options)
    opened = asyncio.Event()

    async def stay() -> None:
        """Hold the client open until the loop ends: it must be closed by the task that opened it."""
        async with client:
            opened.set()
            await asyncio.Event().wait()

    staying.append(asyncio.create_task(stay()))
    await opened.wait()
    await client.script_load(SCRIPT.text)
    sha, evalsha = SCRIPT.sha, client.evalsha

    async def carry(call: ScriptCall) -> bytes:
        return await evalsha(sha, call.keys, call.args)  # type: ignore[no-any-return]

    return carry


async def of_glide(node: Node, deadline: float) -> Carry:
    glide.Logger.init(glide.LogLevel.OFF)
    timeout = int(deadline * 1_000)
    address = glide.NodeAddress(node.host, node.port)
    client = await glide.GlideClient.create(glide.GlideClientConfiguration([address], request_timeout=timeout))
    await client.custom_command([b"SCRIPT", b"LOAD", SCRIPT.text])

    async def carry(call: ScriptCall) -> bytes:
        words = [b"EVALSHA", SCRIPT.sha, b"%d" % len(call.keys), *call.keys, *call.args]
        return await client.custom_command(words)  # type: ignore[no-any-return]

    return carry


CLIENTS: Mapping[str, tuple[Open, Sequence[str]]] = {
    "redis-py": (redis_py, ("redis", "hiredis")),
    "redis-py once": (partial(redis_py, retry=Retry(NoBackoff(), 0)), ("redis", "hiredis")),
    "coredis": (of_coredis, ("coredis",)),
    "coredis once": (partial(of_coredis, retry_policy=NoRetryPolicy()), ("coredis",)),
    "valkey-glide": (of_glide, ("valkey-glide",)),
}


class CarriedStore:
    """A store on one server whose calls are sent by a client of others: the least that lets it decide."""

    def __init__(self, url: str, deadline: float, opened: Open) -> None:
        settings = read_url(url, secret=SECRET)
        self._node, self._deadline, self._open = settings.nodes[0], deadline, opened
        self._codec, self._time_ns = Codec(settings.keys), SystemClock().time_ns
        self._known: dict[Op, ScriptCall] = {}
        self._carry: Carry | None = None
        self._opening = asyncio.Lock()
        self._turn: list[tuple[list[Op], Callers]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        caller: Caller = asyncio.get_running_loop().create_future()
        self.submit(ops, deadline, partial(resolve, caller), caller.done)
        return caller

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        """Send operations with the others of this turn, in the portions of `LoopStore`."""
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._send_turn)
        if not self._turn or len(self._turn[-1][0]) + len(ops) > PORTION:
            self._turn.append(([], Callers()))
        added, callers = self._turn[-1]
        callers.append((done, gone or bool, len(added), len(added) + len(ops)))
        added += ops

    async def close(self) -> None:
        """Do nothing: the process ends."""

    def _send_turn(self) -> None:
        turn, self._turn = self._turn, []
        for ops, callers in turn:
            task = asyncio.get_running_loop().create_task(self._send(ops, callers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, ops: Sequence[Op], callers: Callers) -> None:
        try:
            carry = self._carry or await self._opened()
            call = self._call(ops)
            outcomes = self._codec.decode(ops, call, await carry(call)).outcomes
        except Exception as error:
            outcomes = [unanswered(repr(error), self._node.place)] * len(ops)
        callers(outcomes)

    async def _opened(self) -> Carry:
        async with self._opening:
            if self._carry is None:
                self._carry = await self._open(self._node, self._deadline)
            return self._carry

    def _call(self, ops: Sequence[Op]) -> ScriptCall:
        """Return the call, a lone one from memory, as `Commands` does."""
        known = self._known.get(ops[0]) if len(ops) == 1 else None
        if known is not None:
            return known
        call = self._codec.encode(ops, self._time_ns() // 1_000)
        if len(ops) == 1 and len(self._known) < MAX_KNOWN and sum(map(len, call.args)) < LONGEST_KNOWN:
            self._known[ops[0]] = call
        return call


def contender(client: str, url: str, deadline: float) -> Async:
    if client == "penstock":
        limiter = AsyncLimiter(AsyncRedisStore(url, secret=SECRET, deadline=deadline), layers=())
    else:
        limiter = AsyncLimiter(CarriedStore(url, deadline, CLIENTS[client][0]), layers=())
    made = awaited(limiter, QUOTA)
    # With a deadline that is to be missed nothing is asked but what is ordered.
    return made._replace(name=client) if deadline == DEADLINE else made._replace(name=client, visit=_nothing)


async def _nothing(keys: Iterator[str]) -> None:
    for _ in keys:
        pass


def main(client: str, url: str, deadline: str) -> None:
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    packages = ("penstock", "redis", "hiredis") if client == "penstock" else CLIENTS[client][1]
    serve_asyncio(lambda: [contender(client, url, float(deadline))], *packages)


if __name__ == "__main__":
    main(*sys.argv[1:])

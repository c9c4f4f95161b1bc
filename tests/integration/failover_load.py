"""Load on a Redis store while its servers fail. As a program: one node of a fleet.

python -m tests.integration.failover_load KIND URL NODE

KIND is `threads` (blocking calls) or `tasks` (asyncio). A node says that it is ready, and then does what each line of
its standard input says, and answers with a line of JSON:

    work GENERATION SECONDS go on asking with this deadline, until told to rest; another generation, other counters
    spend GENERATION KIND   ask for all units of these counters, until each is refused; how many were admitted
    count                   how many calls were made so far
    rest FILE               leave the history in the file, and tell what else was seen

Every counter has a limit and a period of its own, and windows that end when those of no other do. Servers say when that
is: whoever receives the answer to another's question sees it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.model import Acquire, Amended, Ask, Decision, Failed, Outcome, Verdict
from penstock.quota import Quota
from penstock.stores.redis.keys import SLOTS, Keys
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from penstock.testing.history import CallHistory, outcome_of

SECRET = "of these tests"
DEADLINE = 0.2
POOL = 3
WORKERS = 5
PACE = 0.02
"""Seconds between two calls of a worker, so that the machine has time for the servers."""

SHARES = 3
"""Of each kind there are so many counters, one in each third of the slots."""

LIMITS = {"spent": 20, "slow": 400, "user": 40, "ip": 60, "everyone": 90, "proof": 4, "lost": 10}
"""Units in a period that does not end meanwhile, by kind; a little more for each counter than for the one before."""

Run: TypeAlias = Callable[[Acquire, Micros], Awaitable[Outcome]]
"""Has a store decide within a deadline."""

_KEYS = Keys(SECRET.encode())


def quota_of(key: str) -> Quota:
    _, kind, share, _ = key.split(" ")
    return _quota(kind.partition("-")[0], int(share))


@cache
def _quota(kind: str, share: int) -> Quota:
    if kind == "flow":
        return Quota.parse(f"{100 + share}/10s gcra burst {10 + share}")
    seconds = 20_000_003 + 7_919 * (SHARES * list(LIMITS).index(kind) + share)
    return Quota.parse(f"{LIMITS[kind] + share}/{seconds}s fixed_window")


def slot_of(key: str) -> int:
    return _KEYS.slots[_KEYS.partition(_KEYS.subject(key).head)]


@cache
def key_of(generation: str, kind: str, share: int) -> str:
    """The name of a counter, chosen so that it is in its share of the slots."""
    names = (f"{generation} {kind} {share} {number}" for number in count())
    return next(name for name in names if slot_of(name) * SHARES // SLOTS == share)


def ask(generation: str, kind: str, share: int, cost: int = 1) -> Ask:
    key = key_of(generation, kind, share)
    return Ask(key, quota_of(key), cost)


def is_wrong(decision: Decision) -> bool:
    """Whether it cannot be the answer to what was asked."""
    most = decision.quota.capacity - (decision.cost if decision else 0)
    if not 0 <= decision.remaining <= most:
        return True
    window = decision.quota.algorithm == "fixed_window"
    return window and (decision.at_us + decision.reset_after_us) % decision.quota.period_us != 0


class Node:
    """Asks, and notes what came back."""

    def __init__(self, name: str, run: Run) -> None:
        self._name, self._run = name, run
        self._random = random.Random(name)
        self._others = _sockets()
        self._deadline = round(DEADLINE * SECOND)
        self._forget()

    def _forget(self) -> None:
        self._history = CallHistory(node=self._name)
        self._left: dict[str, Counter[int]] = {}  # what admissions said to be left, and how often
        self._wrong: list[str] = []
        self._connections = 0
        self._working: list[asyncio.Task[None]] = []
        self._resting = False

    async def work(self, generation: str, deadline: str) -> None:
        self._deadline = round(float(deadline) * SECOND)
        self._working = [asyncio.create_task(self._go_on(generation)) for _ in range(WORKERS)]

    async def _go_on(self, generation: str) -> None:
        while not self._resting:
            await self._ask(self._something(generation))
            self._connections = max(self._connections, _sockets() - self._others)
            await asyncio.sleep(PACE * self._random.uniform(0.5, 1.5))

    def _something(self, generation: str) -> Acquire:
        kind = self._random.choice(("spent", "slow", "slow", "flow", "all"))
        share = self._random.randrange(SHARES)
        if kind != "all":
            return Acquire((ask(generation, kind, share, self._random.randint(1, 3) if kind == "slow" else 1),))
        elsewhere = (share + 1) % SHARES
        return Acquire(
            (ask(generation, "user", share), ask(generation, "ip", elsewhere), ask(generation, "everyone", 0))
        )

    async def spend(self, generation: str, kind: str) -> dict[str, tuple[int, int]]:
        """Units of each counter that were admitted, and those that may have been."""
        spent: dict[str, tuple[int, int]] = {}
        for share in range(SHARES):
            asked = ask(generation, kind, share)
            outcomes: Counter[str] = Counter()
            while not outcomes["refused"]:
                outcome = await self._ask(Acquire((asked,)))
                outcomes[outcome_of(outcome)] += 1
                if isinstance(outcome, Failed):
                    await asyncio.sleep(PACE / 2)
            spent[asked.key] = outcomes["admitted"], outcomes["unknown"]  # type: ignore[index]
        return spent

    async def count(self) -> int:
        return len(self._history.calls)

    async def rest(self, file: str) -> dict[str, Any]:
        self._resting = True
        await asyncio.gather(*self._working)
        self._history.write(Path(file))
        told = {"wrong": self._wrong, "connections": self._connections, "left": self._left}
        self._forget()
        return told

    async def _ask(self, op: Acquire) -> Verdict | Failed:
        invoked = self._history.now()
        outcome = await self._run(op, self._deadline)
        assert not isinstance(outcome, Amended)
        self._note(op, invoked, outcome)
        return outcome

    def _note(self, op: Acquire, invoked: int, outcome: Verdict | Failed) -> None:
        """A request that was refused says nothing about those of its counters that would have let it pass."""
        returned = self._history.now()
        decisions = [None] * len(op.asks) if isinstance(outcome, Failed) else outcome.decisions
        for (key, _, cost, _), decision in zip(op.asks, decisions, strict=True):
            noted = outcome_of(outcome)
            if decision is not None:
                if not outcome and decision:
                    continue
                if decision.at_us == 0:  # it could not be asked, but another one refused
                    noted = "unknown"
                elif is_wrong(decision):
                    self._wrong.append(f"{key}: {decision!r}")
                if outcome and len(op.asks) == 1:  # a charge that is never given back because another ask was refused
                    self._left.setdefault(str(key), Counter())[decision.remaining] += 1
            self._history.note(key, invoked, noted, cost=cost, returned=returned)


def _sockets() -> int:
    """How many are open."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += str(descriptor.readlink()).startswith("socket:")
        except OSError:  # closed since
            pass
    return found


@asynccontextmanager
async def opened(kind: str, url: str, name: str) -> AsyncIterator[Run]:
    """How to ask the store that this node has."""
    options: dict[str, Any] = {"secret": SECRET, "client_name": name}
    if kind == "tasks":
        store = AsyncRedisStore(url, **options)

        async def run(op: Acquire, deadline: Micros) -> Outcome:
            return (await store.run([op], deadline))[0]

        yield run
        await store.close()
        return
    blocking = RedisStore(url, connections=POOL, **options)
    with ThreadPoolExecutor(WORKERS + 1) as threads:

        async def run_in_thread(op: Acquire, deadline: Micros) -> Outcome:
            running = asyncio.get_running_loop().run_in_executor(threads, blocking.run, [op], deadline)
            return (await running)[0]

        yield run_in_thread
    blocking.close()


async def _node(kind: str, url: str, name: str) -> None:
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    async with opened(kind, url, name) as run:
        node = Node(name, run)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, *words = line.split()
            print(json.dumps(await getattr(node, verb)(*words)), flush=True)


if __name__ == "__main__":
    asyncio.run(_node(*sys.argv[1:]))

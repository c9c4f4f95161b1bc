"""One host of a fleet, as a program: an open-loop load at a steady rate, and a record of the answers.

    python -m tests.faults.node threads|tasks NAME RATE FILE-OF-NAMES

It has a limiter for each behaviour, blocking ones in threads or asyncio's. It does what each line of its standard input
says, and answers with a line of JSON:

    open {"local": URL, ...}    make the limiters anew; with "broken", one that breaks a promise
    turn GENERATION FILE        ask for other counters from now on; leave the answers to those before in the file
    look                        how things stand
    used GENERATION             units that the store has counted of the wide counters
    free KEY QUOTA              free places
    flood KEYS                  ask for so many keys once, as fast as can be; what that costs in memory

The load is bounded: at most OUTSTANDING calls are under way, and what is due beyond that is counted as not sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock import AsyncLimiter, Limiter, Quota, Verdict
from penstock.clock import Micros, SystemClock, monotonic
from penstock.events import LayerFailed
from penstock.layers.fallback import Fallback
from tests.faults.broken import BROKEN
from tests.faults.load import BEHAVIOURS, COPIES, WEIGHTS, WIDE, Answer, key_of, keys_of, quota_of, write

HOST_NAME = "store.faults.test"
"""A name that resolves as long as the file of names is there."""

OUTSTANDING = 64
THREADS = 16
TICK = 0.005
PATIENCE = 40.0
"""Seconds after which a call counts as hung. Machines have stood still for 25."""

STEADY = 5
"""Answers of the store in a row, of each limiter, after which all is well again."""


class Desk:
    """The limiter of one behaviour, and how it has done."""

    def __init__(self, behaviour: str, limiter: Limiter | AsyncLimiter, threads: ThreadPoolExecutor | None) -> None:
        self.behaviour, self.limiter, self._threads = behaviour, limiter, threads
        self.in_a_row = 0  # answers of the store
        self.since = monotonic()  # when the last other one came
        self.refusals = 0  # of the store

    async def call(self, method: str, *args: Any) -> Any:
        ask: Callable[..., Any] = getattr(self.limiter, method)
        if self._threads is None:
            return await ask(*args)
        return await asyncio.get_running_loop().run_in_executor(self._threads, ask, *args)

    def heard(self, answer: Answer) -> None:
        if answer.degraded or answer.error:
            self.in_a_row, self.since = 0, monotonic()
        else:
            self.in_a_row += 1
            self.refusals += not answer.allowed

    @property
    def fallback(self) -> Fallback | None:
        layers = self.limiter.engine._chain.layers
        return next((layer for layer in layers if isinstance(layer, Fallback)), None)

    def look(self) -> dict[str, Any]:
        fallback = self.fallback
        return {
            "steady": self.in_a_row >= STEADY,
            "since": monotonic() - self.since,
            "refusals": self.refusals,
            "breakers": self.limiter.store.breakers(),  # type: ignore[union-attr]
            "hosts": (fallback.hosts.number or 0) if fallback else None,
            "untold": len(fallback.unreported) if fallback else 0,
        }


class Node:
    """Asks, and notes what came back."""

    def __init__(self, kind: str, name: str, rate: float) -> None:
        self._name, self._rate = name, rate
        self._threads = ThreadPoolExecutor(THREADS) if kind == "threads" else None
        self._random = random.Random(name)
        self._now = SystemClock().time_ns
        self._desks: dict[str, Desk] = {}
        self._generation = ""
        self._begin("g0")

    def _begin(self, generation: str) -> None:
        self._generation = generation
        self._answers: list[Answer] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._sent = self._not_sent = 0
        self._faults: Counter[str] = Counter()

    # ---------------------------------------------------------------- the load

    async def go_on(self) -> None:
        """Open loop: what is due is sent, however the calls before it fare."""
        due = monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = monotonic()
            if now - due > 1:  # this process itself stood still: a real host would have had no load
                due = now
            while due <= now:
                due += 1 / self._rate * self._random.uniform(0.5, 1.5)
                self._send()

    def _send(self) -> None:
        if not self._desks:
            return
        if len(self._under_way) >= OUTSTANDING:
            self._not_sent += 1
            return
        self._sent += 1
        (behaviour,) = self._random.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
        (kind,) = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        key = key_of(self._generation, kind, self._random.randrange(COPIES))
        under_way = self._under_way
        task = asyncio.create_task(self._ask(self._desks[behaviour], key, self._answers))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    async def _ask(self, desk: Desk, key: str, answers: list[Answer]) -> None:
        invoked: Micros = self._now() // 1_000
        allowed, source, error = False, "store", ""
        try:
            verdict: Verdict = await desk.call("acquire", key, quota_of(key))
            allowed, source = verdict.allowed, verdict.source
        except Exception as raised:
            error = type(raised).__name__
        returned: Micros = max(self._now() // 1_000, invoked)
        answer = Answer(self._name, desk.behaviour, key, invoked, returned, allowed, source, error)
        answers.append(answer)
        desk.heard(answer)

    async def open(self, text: str) -> str:
        urls: dict[str, Any] = json.loads(text)
        making = BROKEN[urls.pop("broken", None)]
        desks, self._desks = self._desks, {}
        await asyncio.wait_for(asyncio.gather(*self._under_way), PATIENCE)
        for desk in desks.values():
            await desk.call("close")
        limiters = Limiter if self._threads else AsyncLimiter
        for behaviour, url in urls.items():
            limiter = limiters(url + making.url, hook=self._hear, **making.options(behaviour))
            self._desks[behaviour] = Desk(behaviour, limiter, self._threads)
        return "open"

    def _hear(self, event: Any) -> None:
        if isinstance(event, LayerFailed):
            self._faults[event.error] += 1

    async def turn(self, generation: str, file: str) -> dict[str, Any]:
        answers, under_way = self._answers, self._under_way
        told = {"sent": self._sent, "not_sent": self._not_sent, "faults": self._faults}
        self._begin(generation)
        hung = len((await asyncio.wait(under_way, timeout=PATIENCE))[1]) if under_way else 0
        write(Path(file), answers)
        return {**told, "hung": hung}

    async def look(self) -> dict[str, Any]:
        return {behaviour: desk.look() for behaviour, desk in self._desks.items()}

    async def used(self, generation: str) -> dict[str, int]:
        """By key. Asked until the store says it."""
        used = {}
        for key in keys_of(generation, WIDE):
            verdict = await self._peek("local", key, quota_of(key))
            used[key] = verdict.quota.limit - verdict.remaining
        return used

    async def free(self, key: str, quota: str) -> int:
        return (await self._peek("closed", key, Quota.parse(quota.replace("_", " ")))).remaining

    async def _peek(self, behaviour: str, key: str, quota: Quota) -> Verdict:
        until = monotonic() + PATIENCE
        while True:
            verdict: Verdict = await self._desks[behaviour].call("peek", key, quota, 0)
            if not verdict.degraded:
                return verdict
            if monotonic() > until:
                raise TimeoutError("the store does not answer")
            await asyncio.sleep(0.02)

    async def flood(self, keys: str) -> dict[str, int]:
        """Send one request each for new keys, of a quota with no other load: counters of one
        identity are taken to be of one limit when there is no room, and those of the trial would begin anew.
        """
        desk, before = self._desks["local"], _memory()
        prefix = self._random.randbytes(6).hex()
        quota = Quota.parse("20/300 days fixed_window")
        each = 500
        for first in range(0, int(keys), each):
            numbers = range(first, min(first + each, int(keys)))
            await desk.call("acquire_many", [(f"{prefix} {number}", quota) for number in numbers])
        fallback = desk.fallback
        return {"grown": _memory() - before, "untold": len(fallback.unreported) if fallback else 0}


def _memory() -> int:
    """Bytes that are resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def _resolve_by(names: Path) -> None:
    """Have this process resolve one name as a file says."""
    resolve = socket.getaddrinfo

    def resolve_ours(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != HOST_NAME:
            return resolve(host, *args, **kwargs)
        if not names.exists():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(names.read_text().strip(), *args, **kwargs)

    socket.getaddrinfo = resolve_ours


async def _node(kind: str, name: str, rate: str, names: str) -> None:
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    logging.getLogger("penstock").propagate = False
    _resolve_by(Path(names))
    node = Node(kind, name, float(rate))
    working = asyncio.create_task(node.go_on())
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = line.split()
        do: Callable[..., Awaitable[Any]] = getattr(node, verb)
        print(json.dumps(await do(*words)), flush=True)
    working.cancel()


if __name__ == "__main__":
    asyncio.run(_node(*sys.argv[1:]))

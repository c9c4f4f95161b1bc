"""A process that asks a server through one product, as it is told: it reads an order per line, and answers with a line.

Every product runs in a process of its own, with the interpreter, clients and event loop that it wants, and sleeps while
another one has its turn. This module needs nothing but the standard library and uvloop, because the peers' environment
has no Penstock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import cycle, islice
from time import perf_counter, process_time
from typing import Any, Generic, NamedTuple, TypeVar

import uvloop

from bench.keys import keys

USERS = keys(1_000)
FILLERS = 16

Answer = TypeVar("Answer")
Allowed = TypeVar("Allowed")


class Contender(NamedTuple, Generic[Answer, Allowed]):
    """A limiter with a prepared quota, on a server."""

    name: str
    algorithm: str
    visit: Callable[[Iterator[str]], Answer]
    """Asks for one unit for each key in turn, by the public method: what is timed."""
    allows: Callable[[str], Allowed]
    """Asks for one unit."""


Blocking = Contender[None, bool]
Async = Contender[Awaitable[None], Awaitable[bool]]


class Turns:
    """Whose turn it is, until time is up. All tasks take theirs from one of these."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.taken = 0

    def keys(self) -> Iterator[str]:
        end = perf_counter() + self._seconds
        for user in cycle(USERS):
            if perf_counter() >= end:
                return
            self.taken += 1
            yield user


def serve_blocking(contenders: Sequence[Blocking], *packages: str) -> None:
    """Carry out orders until there are no more, in one thread."""
    for contender in contenders:
        contender.visit(iter(USERS))

    def rate(contender: Blocking, order: dict[str, Any]) -> float:
        contender.visit(islice(USERS, 10))
        turns = Turns(order["seconds"])
        start = perf_counter()
        contender.visit(turns.keys())
        seconds = perf_counter() - start
        _insist(contender.allows(USERS[0]), contender.name)
        return turns.taken / seconds

    _serve(contenders, packages, {"rate": rate})


def serve_asyncio(make: Callable[[], Sequence[Async]], *packages: str) -> None:
    """Carry out orders until there are no more, each with any number of tasks of one event loop."""

    async def begin() -> Sequence[Async]:
        contenders = make()
        for contender in contenders:
            await _together(contender, FILLERS, iter(USERS))
        return contenders

    most_tasks: dict[str, int] = {}

    async def cost(contender: Async, order: dict[str, Any]) -> tuple[float, float]:
        """Return decisions per second, and microseconds of CPU per decision, those of all threads included."""
        tasks = order["tasks"]
        if tasks > most_tasks.get(contender.name, 0):  # let it open as many connections as it wants
            most_tasks[contender.name] = tasks
            await _together(contender, tasks, islice(cycle(USERS), 2 * tasks))
        turns = Turns(order["seconds"])
        start, began = perf_counter(), process_time()
        await _together(contender, tasks, turns.keys())
        seconds, spent = perf_counter() - start, process_time() - began
        _insist(await contender.allows(USERS[0]), contender.name)
        return turns.taken / seconds, spent / turns.taken * 1e6

    async def rate(contender: Async, order: dict[str, Any]) -> float:
        return (await cost(contender, order))[0]

    async def ask(contender: Async, order: dict[str, Any]) -> tuple[float, bool]:
        """Return how many seconds one request took, and whether it was allowed; an error counts as not."""
        start = perf_counter()
        try:
            allowed = await contender.allows(order["key"])
        except Exception:
            allowed = False
        return perf_counter() - start, allowed

    async def admitted(contender: Async, order: dict[str, Any]) -> int:
        """How many of so many requests for one key were admitted."""
        asks = iter(range(order["asks"]))

        async def hammer() -> int:
            return sum([await contender.allows(order["key"]) for _ in asks])

        return sum(await asyncio.gather(*[hammer() for _ in range(order["tasks"])]))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        contenders = runner.run(begin())
        _serve(
            contenders,
            (*packages, "uvloop"),
            {
                "rate": lambda contender, order: runner.run(rate(contender, order)),
                "cost": lambda contender, order: runner.run(cost(contender, order)),
                "ask": lambda contender, order: runner.run(ask(contender, order)),
                "admitted": lambda contender, order: runner.run(admitted(contender, order)),
            },
        )


async def _together(contender: Async, tasks: int, turns: Iterator[str]) -> None:
    await asyncio.gather(*[contender.visit(turns) for _ in range(tasks)])


def _serve(
    contenders: Sequence[Any], packages: Sequence[str], kinds: dict[str, Callable[[Any, dict[str, Any]], object]]
) -> None:
    _say(
        {
            "contenders": [[contender.name, contender.algorithm] for contender in contenders],
            "versions": [f"{package} {version(package)}" for package in packages],
        }
    )
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        if order["cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, order["cores"])
        gc.collect()
        _say(kinds[order["kind"]](contenders[order["contender"]], order))


def _insist(allowed: bool, name: str) -> None:
    if not allowed:
        raise RuntimeError(f"{name}: denied, but only what is allowed is measured")


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)

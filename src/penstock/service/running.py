"""How operations are run for whoever answers calls: at once where the store is in this process, else soon.

A handler never waits. It hands operations over, with what is to be done with their outcomes: over memory that is done
before `run` returns, over a shared store when the store has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from penstock.clock import Micros
from penstock.errors import StoreError
from penstock.limiter import AsyncLimiter, Limiter
from penstock.model import Failed, Op, Outcome

Done: TypeAlias = Callable[[list[Outcome]], None]


class Runner(Protocol):
    """Runs operations as one batch: `done` gets one outcome per operation, in their order, and must not raise."""

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None: ...


class Now:
    """Over a store that answers without waiting. `bind` makes the store's own way to ask a single quota, if it has one:
    a fifth of what an operation costs.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._run = limiter._driver.run
        self.bind = limiter._bind

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        done(self._run(ops, deadline))


class Soon:
    """Over a store that has to be waited for."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._run = limiter._driver.run
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        task = asyncio.get_running_loop().create_task(self._await(ops, deadline, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, ops: Sequence[Op], deadline: Micros | None, done: Done) -> None:
        outcomes: list[Outcome]
        try:
            outcomes = await self._run(ops, deadline)
        except Exception as error:  # a fault of our own: whoever waits must hear of it
            outcomes = [Failed(StoreError(f"an unexpected error ({type(error).__name__})", transient=False), "unknown")]
            outcomes *= len(ops)
        done(outcomes)

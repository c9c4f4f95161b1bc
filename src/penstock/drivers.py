"""Drivers run operations through the layers and the store: one blocking, one for asyncio.

Whatever the two share is a pure function here, so that neither repeats the other: a driver is three steps, and only the
middle one waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from penstock.clock import Clock, Micros
from penstock.layers.base import Due, Layer
from penstock.model import Op, Outcome
from penstock.stores.base import AsyncStore, Store


class _Chain:
    """The layers of a driver, from the caller down to the store."""

    def __init__(self, layers: Sequence[Layer], clock: Clock) -> None:
        self.layers = tuple(layers)
        self.clock = clock

    def now(self) -> Micros:
        return self.clock.time_ns() // 1_000

    def down(self, ops: Sequence[Op], *, below: int = 0) -> tuple[Sequence[Op], list[Any]]:
        """What reaches the store of `ops` that enter at layer `below`, and the layers' tokens."""
        now = self.now()
        tokens = []
        for layer in self.layers[below:]:
            ops, token = layer.enter(ops, now)
            tokens.append(token)
        return ops, tokens

    def up(self, outcomes: list[Outcome], tokens: list[Any], *, below: int = 0) -> list[Outcome]:
        """The outcomes as the caller sees them."""
        now = self.now()
        for layer, token in zip(reversed(self.layers[below:]), reversed(tokens), strict=True):
            outcomes = layer.leave(token, outcomes, now)
        return outcomes

    def due(self) -> tuple[list[tuple[int, Due]], Micros | None]:
        """The layers' own work, with each layer's position, and the next instant at which there may be more."""
        now = self.now()
        work = [(position, layer.due(now)) for position, layer in enumerate(self.layers)]
        instants = [due.next_at for _, due in work if due.next_at is not None]
        return [(position, due) for position, due in work if due.ops], min(instants, default=None)


class Driver:
    """Runs operations for blocking callers."""

    def __init__(self, store: Store, layers: Sequence[Layer], clock: Clock) -> None:
        self._store = store
        self._chain = _Chain(layers, clock)

    def run(self, ops: Sequence[Op], *, below: int = 0) -> list[Outcome]:
        if not self._chain.layers:
            return self._store.run(ops)
        ops, tokens = self._chain.down(ops, below=below)
        outcomes = self._store.run(ops) if ops else []
        return self._chain.up(outcomes, tokens, below=below)

    def run_due(self) -> Micros | None:
        """Do what the layers want done; the answer is when to come again."""
        work, next_at = self._chain.due()
        for position, due in work:
            outcomes = self.run(due.ops, below=position + 1)
            self._chain.layers[position].leave(due.token, outcomes, self._chain.now())
        return next_at


class AsyncDriver:
    """Runs operations for asyncio."""

    def __init__(self, store: AsyncStore, layers: Sequence[Layer], clock: Clock) -> None:
        self._store = store
        self._chain = _Chain(layers, clock)

    def run(self, ops: Sequence[Op], *, below: int = 0) -> Awaitable[list[Outcome]]:
        """What the store says of `ops`, through all layers; without any it is the store's own coroutine, a hop less."""
        return self._run(ops, below) if self._chain.layers else self._store.run(ops)

    async def _run(self, ops: Sequence[Op], below: int) -> list[Outcome]:
        ops, tokens = self._chain.down(ops, below=below)
        outcomes = await self._store.run(ops) if ops else []
        return self._chain.up(outcomes, tokens, below=below)

    async def run_due(self) -> Micros | None:
        """Do what the layers want done; the answer is when to come again."""
        work, next_at = self._chain.due()
        for position, due in work:
            outcomes = await self.run(due.ops, below=position + 1)
            self._chain.layers[position].leave(due.token, outcomes, self._chain.now())
        return next_at

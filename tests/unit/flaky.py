"""A store that can be taken away and given back: counters in memory, answers only while it is up."""

from collections.abc import Sequence

from penstock.clock import ManualClock, Micros
from penstock.errors import StoreError
from penstock.model import Failed, Op, Outcome
from penstock.stores import MemoryStore


class Flaky:
    """Shared by any number of drivers. While it is down every operation fails; `charged` says how certain that is.

    While it `loses_replies` operations take effect and seem to have failed.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.up = True
        self.charged = "no"
        self.loses_replies = False
        self.seen: list[Op] = []

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        if not self.up:
            return [Failed(StoreError("the store is away", transient=True), self.charged)] * len(ops)  # type: ignore[arg-type]
        self.seen += ops
        outcomes = self.inner.run(ops, deadline)
        if self.loses_replies:
            return [Failed(StoreError("the reply was lost", transient=True), "unknown")] * len(ops)
        return outcomes

    def close(self) -> None:
        """Nothing to give back."""


class AsyncFlaky:
    """The same for asyncio."""

    def __init__(self, store: Flaky) -> None:
        self.store = store

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self.store.run(ops, deadline)

    async def close(self) -> None:
        """Nothing to give back."""

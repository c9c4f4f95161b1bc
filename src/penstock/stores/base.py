"""What a store is: whatever can answer operations, in order, one outcome each.

Operations reach a store already checked: canonical keys, costs that fit, asks that name different counters. A batch is
decided at one instant, each operation seeing the ones before it. A store never raises for what went wrong inside: the
outcome of the operation is then a `Failed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.clock import Clock, Micros
from penstock.model import Key, Op, Outcome, Posed, Verdict
from penstock.quota import Quota

V = TypeVar("V", bound=Verdict)

DirectAsk: TypeAlias = Callable[[Key, int, Micros], Verdict]
"""Decide and charge (key, cost) at an instant. Takes keys and costs as users write them, and checks them."""


DirectOnce: TypeAlias = Callable[[Key, int, bytes, Micros], Verdict]
"""The same for a request with an id, which comes after the cost and was checked."""


class AskAll(Protocol):
    """Decides on all asks of a request, which have been checked, at an instant; charges all or none."""

    def __call__(self, asks: tuple[Posed, ...], now: Micros, kind: type[V], /) -> V:
        """The verdict, made as one of `kind`."""


class DirectAmends(NamedTuple):
    """How a store in this process amends a verdict of a single ask without the making of operations and batches.

    - `refund(key, cost, mark, now)`: give back a charge that had no id; how many units came back.
    - `settle(verdict, units, now)`: make the cost of a request with an id `units` after all, the first time; how many
      units came back.
    """

    refund: Callable[[Key, int, int, Micros], int]
    settle: Callable[[Verdict, int, Micros], int]


class Store(Protocol):
    """A store for blocking callers."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """One outcome per operation, in the same order, within `deadline` microseconds from now."""

    def close(self) -> None:
        """Give back connections and the like."""


class AsyncStore(Protocol):
    """A store for asyncio."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """One outcome per operation, in the same order, within `deadline` microseconds from now."""

    async def close(self) -> None:
        """Give back connections and the like."""


@runtime_checkable
class InProcess(Protocol):
    """A store that answers at once, without I/O, and so can spare a request the making of operations and batches."""

    clock: Clock

    @property
    def ask_all(self) -> AskAll:
        """The function that answers requests of any keys, all or none."""

    def bind(self, quotas: tuple[Quota, ...]) -> DirectAsk:
        """The function that answers requests of one key for `quotas`, which are `Quota.parts`, all or none."""

    def bind_once(self, quota: Quota) -> DirectOnce:
        """The function that answers requests of one key for `quota` alone that have an id."""

    def bind_amends(self, quota: Quota) -> DirectAmends:
        """The functions that amend what a single ask of `quota` was charged."""

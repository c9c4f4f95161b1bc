"""What a store is: whatever can answer operations, in order, one outcome each.

Operations reach a store already checked: canonical keys, costs that fit, asks that name different counters. A batch is
decided at one instant, each operation seeing the ones before it. A store never raises for what went wrong inside: the
outcome of the operation is then a `Failed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.clock import Clock, Micros
from penstock.model import Acquire, Key, Op, Outcome, Posed, Verdict
from penstock.quota import Quota

# ---------------------------------------------------------------- base


# What a layer is.
#
# A layer sees every batch on its way down and its outcomes on their way up. It does no I/O and has no clock of its own:
# the drivers, blocking and asyncio, hand it the time and do the waiting. So every layer is written once and tested with
# plain calls.


class Entered(NamedTuple):
    """What a layer passes on, and whatever it wants back with the outcomes of that."""

    ops: Sequence[Op]
    token: Any = None


class Due(NamedTuple):
    """Operations that a layer wants done of its own accord, their token, and when it wants to be asked again."""

    ops: Sequence[Op] = ()
    token: Any = None
    next_at: Micros | None = None


class Layer(Protocol):
    """`enter` and `leave` bracket a batch; `due` is the layer's own work."""

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        """Answer some operations here, pass on the rest."""

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        """Given the outcomes of what was passed on, the outcomes of everything that entered."""

    def due(self, now: Micros) -> Due:
        """What should be done now without anybody asking. Its outcomes come back through `leave`."""


@runtime_checkable
class ForOne(Layer, Protocol):
    """A layer with a short way for a lone request, which has no id and is not dry: what is admitted does not come back
    to it. If all layers have one, a request that the store admits costs one call per layer.
    """

    def enter_one(self, op: Acquire, now: Micros) -> Any:
        """A verdict, if it is answered here; otherwise whatever is wanted back with the outcome."""

    def leave_one(self, token: Any, op: Acquire, outcome: Outcome, now: Micros) -> Outcome:
        """Given a refusal or a failure, the outcome."""


# ---------------------------------------------------------------- observing


# What a service tells whoever measures it: once per batch, never per key.


class Observer(Protocol):
    """Told of every batch, on the event loop: it must be quick and must not raise."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        """These were decided together, and the store took so long. By rules where they are `Ruling`s."""

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        """Calls of one route were answered with these statuses, so long after they had been read."""


class Unobserved:
    """Nobody measures."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None: ...

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...


# ---------------------------------------------------------------- base


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

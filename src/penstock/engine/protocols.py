"""What a store is: whatever can answer operations, in order, one outcome each.

Operations reach a store already checked: canonical keys, costs that fit, asks that name different counters. A batch is
decided at one instant, each operation seeing the ones before it. A store never raises for what went wrong inside: the
outcome of the operation is then a `Failed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.clock import Clock, Micros
from penstock.model import Key, Op, Outcome, Posed, Verdict
from penstock.quota import Quota

# ---------------------------------------------------------------- base


# What a layer is.
#
# A layer sees every batch on its way down and its outcomes on their way up. It does no I/O and has no clock of its own:
# the engines, blocking and asyncio, hand it the time and do the waiting. So every layer is written once and tested with
# plain calls.


class Entered(NamedTuple):
    """What a layer passes on, and whatever it wants back with the outcomes of that."""

    ops: Sequence[Op]
    token: Any = None


class Declined(tuple[Op, ...]):
    """A lone request that the `local` of its quotas has declined: a layer need not look for an answer again."""

    __slots__ = ()


class Due(NamedTuple):
    """Operations that a layer wants done of its own accord, their token, and when it wants to be asked again."""

    ops: Sequence[Op] = ()
    token: Any = None
    next_at: Micros | None = None


class Layer(Protocol):
    """`enter` and `leave` bracket a batch; `due` is the layer's own work; `bind` answers without a batch.

    Where every layer has an attribute `ignores_admissions` that is true, a lone request that the store admits does not
    come back through `leave`.
    """

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        """Return what decides requests of one key for `quotas` in this process, by `below` or by itself.

        What it declines goes through `enter`, as a `Declined`.
        """

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        """Answer some operations here, pass on the rest."""

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        """Given the outcomes of what was passed on, the outcomes of everything that entered."""

    def due(self, now: Micros) -> Due:
        """Return the operations that the layer wants done now. Their outcomes come back through `leave`."""


# ---------------------------------------------------------------- observing


# What a service reports for measurement: once per batch, never per key.


class Observer(Protocol):
    """Told of every batch, on the event loop: it must be quick and must not raise."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        """These were decided together, and the store took so long. By rules where they are `Ruling`s."""

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        """Calls of one route were answered with these statuses, so long after they had been read."""


class Unobserved:
    """An observer that ignores everything."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None: ...

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...


# ---------------------------------------------------------------- base


V = TypeVar("V", bound=Verdict)

Local: TypeAlias = Callable[[Key, int, Micros], Verdict | None]
"""Decide and charge (key, cost) at an instant, in this process; None leaves the decision to what is below.

It takes keys and costs as users write them, and checks them.
"""

Done: TypeAlias = Callable[[list[Outcome] | Exception], None]
"""What `submit` calls once, on the event loop: with one outcome per operation, or with an error. It must not raise."""

Gone: TypeAlias = Callable[[], bool]
"""Whether the caller of a `submit` has been cancelled."""

DirectOnce: TypeAlias = Callable[[Key, int, bytes, Micros], Verdict]
"""Decide a request with an id: (key, cost, id, now). The id has been checked."""


@dataclass(frozen=True, slots=True)
class DirectAmends:
    """Amend the verdict of a single ask in this process, without an operation and a batch.

    - `refund(key, cost, mark, now)`: give back a charge that had no id; how many units came back.
    - `settle(verdict, units, now)`: make the cost of a request with an id `units` after all, the first time; how many
      units came back.
    """

    refund: Callable[[Key, int, int, Micros], int]
    settle: Callable[[Verdict, int, Micros], int]


@dataclass(frozen=True, slots=True)
class BoundQuota:
    """Everything about the quotas of a request that depends on them alone, prepared once.

    - `parts`: the counters that a request asks, all or none.
    - `local`: decides a request of one key in this process.
    - `once`: the same for a request with an id.
    - `amends`: changes what such a request was charged.
    """

    parts: tuple[Quota, ...]
    local: Local | None = None
    once: DirectOnce | None = None
    amends: DirectAmends | None = None


class Store(Protocol):
    """A store for blocking callers."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """One outcome per operation, in the same order, within `deadline` microseconds from now."""

    def close(self) -> None:
        """Give back connections and the like."""


class Submit(Protocol):
    """Send `ops` at once, and call `done` with the outcomes. It costs neither a task nor a future.

    With `gone` they wait for others of this turn of the event loop, and are dropped if `gone` returns true by then.
    """

    def __call__(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None, /) -> None: ...


class AsyncStore(Protocol):
    """A store for asyncio. One with a `submit` method, see `Submit`, is spared a task per batch."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """One outcome per operation, in the same order, within `deadline` microseconds from now."""

    async def close(self) -> None:
        """Give back connections and the like."""


@runtime_checkable
class InProcess(Protocol):
    """A store that answers at once, without I/O, and so can spare a request the making of operations and batches."""

    clock: Clock

    def bind(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        """Prepare requests of one key for `quotas`, which are `Quota.parts`."""

    def decide(self, asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V:
        """Decide a request of any keys at an instant, all asks or none. The asks have been checked."""

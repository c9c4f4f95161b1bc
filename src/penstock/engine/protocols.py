"""The protocols of layers, observers and stores, and the records that pass between them and an engine.

A store returns one outcome for each operation, in order. Operations reach it checked: canonical keys, costs that fit,
asks that name different counters. A batch is decided at one instant, each operation seeing the ones before it. A store
does not raise its own failures: the outcome of the operation is then a `Failed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from penstock.clock import Clock, Micros
from penstock.model import Key, Op, Outcome, Posed, Verdict
from penstock.quota import Quota

# ---------------------------------------------------------------- layers


# A layer sees every batch on its way down and its outcomes on their way up. It does no I/O and has no clock of its own:
# the engines, blocking and asyncio, hand it the time and do the waiting. So every layer is written once and tested with
# plain calls.


class Entered(NamedTuple):
    """The operations that a layer passes on, and a token that comes back to it with their outcomes."""

    ops: Sequence[Op]
    token: Any = None


class Declined(tuple[Op, ...]):
    """A lone request that the `local` of its quotas has declined, so that no layer has to look for an answer again."""

    __slots__ = ()


class Due(NamedTuple):
    """Background work of a layer: operations, their token, and the instant at which more may be due."""

    ops: Sequence[Op] = ()
    token: Any = None
    next_at: Micros | None = None


class Layer(Protocol):
    """`enter` and `leave` bracket a batch; `due` is the layer's own work; `bind` answers without a batch.

    Where every layer has an attribute `ignores_admissions` that is true, a lone request that the store admits does not
    come back through `leave`.
    """

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        """Return a function that decides requests of one key for `quotas` in this process, by `below` or by itself.

        The function calls `below`, if there is one, before it declines. What it declines goes through `enter`, as a
        `Declined`.
        """

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        """Answer some operations here, pass on the rest."""

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        """Return the outcomes of all operations that entered; `outcomes` are those of the ones passed on."""

    def due(self, now: Micros) -> Due:
        """Return the operations that the layer wants done now. Their outcomes come back through `leave`."""


# ---------------------------------------------------------------- observers


# A service reports to its observer once per batch, never per key.


class Observer(Protocol):
    """Receives the decisions and replies of every batch, on the event loop: it must be quick and must not raise."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        """Record verdicts that were decided together in `took` microseconds. Those by rules are `Ruling`s."""

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        """Record the statuses of calls of one route, answered `took` microseconds after they were read."""


class Unobserved:
    """An observer that ignores everything."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None: ...

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...


# ---------------------------------------------------------------- stores


V = TypeVar("V", bound=Verdict)

Local: TypeAlias = Callable[[Key, int, Micros], Verdict | None]
"""Decide and charge (key, cost) at an instant, in this process; return None to leave it to the engine.

It takes keys and costs as users write them, and checks them.
"""

Done: TypeAlias = Callable[[list[Outcome] | Exception], None]
"""The callback of `submit`, called once, on the event loop: with the outcomes, or with an error. It must not raise."""

Gone: TypeAlias = Callable[[], bool]
"""Whether the caller of a `submit` has been cancelled."""

DirectOnce: TypeAlias = Callable[[Key, int, bytes, Micros], Verdict]
"""Decide a request with an id: (key, cost, id, now). The id has been checked."""


@dataclass(frozen=True, slots=True)
class DirectAmends:
    """Amend the verdict of a single ask in this process, without an operation and a batch.

    - `refund(key, cost, mark, now)`: give back a charge that had no id; return how many units came back.
    - `settle(verdict, units, now)`: make the cost of a request with an id `units`, the first time; return how many
      units came back.
    """

    refund: Callable[[Key, int, int, Micros], int]
    settle: Callable[[Verdict, int, Micros], int]


@dataclass(frozen=True, slots=True)
class BoundQuota:
    """What is prepared once for the quotas of a request.

    - `parts`: one quota for each counter of a request.
    - `local`: decides a request of one key in this process.
    - `once`: decides a request with an id.
    - `amends`: changes what a request was charged.
    """

    parts: tuple[Quota, ...]
    local: Local | None = None
    once: DirectOnce | None = None
    amends: DirectAmends | None = None


class Store(Protocol):
    """A store for blocking callers."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """Return one outcome per operation, in the same order, within `deadline` microseconds from now."""

    def close(self) -> None:
        """Release connections and other resources."""


class Submit(Protocol):
    """Send `ops`, and call `done` with the outcomes. It costs neither a task nor a future.

    Without `gone` they are sent at once. With `gone` they are sent at the end of this turn of the event loop, unless
    `gone` returns true by then.
    """

    def __call__(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None, /) -> None: ...


class AsyncStore(Protocol):
    """A store for asyncio. With a method `submit`, see `Submit`, it costs no task per batch."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> Awaitable[list[Outcome]]:
        """Return one outcome per operation, in the same order, within `deadline` microseconds from now."""

    async def close(self) -> None:
        """Release connections and other resources."""


@runtime_checkable
class InProcess(Protocol):
    """A store in this process: it decides at once, without I/O, and without operations and batches."""

    clock: Clock

    def bind(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        """Prepare requests of one key for `quotas`, which are `Quota.parts`."""

    def decide(self, asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V:
        """Decide a request of any keys at an instant, all asks or none. The asks have been checked."""

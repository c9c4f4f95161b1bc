"""What a layer is.

A layer sees every batch on its way down and its outcomes on their way up. It does no I/O and has no clock of its own:
the drivers, blocking and asyncio, hand it the time and do the waiting. So every layer is written once and tested with
plain calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.clock import Micros
from penstock.model import Acquire, Op, Outcome


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

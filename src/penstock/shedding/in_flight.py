"""Signals that count requests: how many are running, now (`InFlight`) or on average (`Utilisation`).

A shedder that is given one counts what it admits. A request is an entry in a set: adding and removing one is a single
step of the interpreter, so there is no lock to wait for, and ending a request twice removes nothing else.
"""

from __future__ import annotations

from penstock.clock import Clock, SteadyClock
from penstock.model import new
from penstock.shedding.admission import Admission
from penstock.shedding.checks import micros, whole
from penstock.shedding.forks import renew_in_children
from penstock.shedding.smoothing import Smoothed


class InFlight:
    """Requests begun and not ended, as a share of `capacity`: how many the system can well have at once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = whole("capacity", capacity)
        self.begun: set[int] = set()
        renew_in_children(self)

    def __call__(self) -> float:
        return len(self.begun) / self.capacity

    @property
    def now(self) -> int:
        """How many are running."""
        return len(self.begun)

    def begin(self) -> Admission:
        """Count work that no shedder is asked about, until the end of its `with` block."""
        admission: Admission = new(Admission, (True, "", "", "", 0.0, (self.begun,)))
        self.begun.add(id(admission))
        return admission

    def _renew(self) -> None:
        self.begun.clear()


class Utilisation(InFlight):
    """The share of `workers` that are busy, on average over about the last `over` seconds.

    It is looked at when requests arrive, so it is the share that they find busy.
    """

    def __init__(self, workers: int, over: float = 5.0, *, clock: Clock | None = None) -> None:
        super().__init__(whole("workers", workers))
        self._busy = Smoothed(micros("over", over))
        self._time_ns = (clock or SteadyClock()).time_ns

    def __call__(self) -> float:
        return self._busy.take(super().__call__(), self._time_ns() // 1_000)

"""Reading signals safely: whatever a signal does, the caller of a shedder does not notice.

A signal is any function that returns pressure: 0 is idle, 1 is at capacity, more is overload. It is called from the
middle of a request, a few times a second, so it should be quick. One that raises, or returns what is no finite number
at least 0, counts as no pressure: who cannot see sheds nothing. Such faults are counted, logged once, and told to the
hook when they begin.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from penstock.errors import InvalidOption, shown
from penstock.events import Hook, SignalFailed, tell

log = logging.getLogger("penstock.shedding")

Signal: TypeAlias = Callable[[], float]

WORST = 10.0
"""What is above counts as this, so that one wild reading is soon forgotten by who takes a mean."""


class Reading(NamedTuple):
    """The highest pressure, and the name of the signal that said so."""

    pressure: float
    why: str


class Gauge:
    """One signal, and how often it failed."""

    def __init__(self, signal: Signal, hook: Hook) -> None:
        self._signal = _checked(signal)
        self._hook = hook
        self._failing = False
        self.name: str = getattr(signal, "__name__", type(signal).__name__)
        self.faults = 0

    def read(self) -> Reading:
        try:
            pressure = float(self._signal())
            if not 0 <= pressure < float("inf"):
                raise ValueError("not a pressure")
        except Exception as error:  # the caller asked whether a request may begin, and shall hear of nothing else
            self._fail(type(error).__name__)
            return Reading(0.0, self.name)
        self._failing = False
        return Reading(min(pressure, WORST), self.name)

    def _fail(self, error: str) -> None:
        self.faults += 1
        if self.faults == 1:
            log.warning("signal %s failed (%s) and counts as no pressure; logged once", self.name, error)
        if not self._failing:
            self._failing = True
            tell(self._hook, SignalFailed(self.name, error))


class Gauges:
    """Several signals, read as one: the highest counts."""

    def __init__(self, signals: Signal | Iterable[Signal], hook: Hook) -> None:
        several = (signals,) if callable(signals) else signals
        if not isinstance(several, Iterable):
            raise InvalidOption(f"signals {shown(signals)}: expected functions that return pressure")
        self.signals = tuple(several)
        if not self.signals:
            raise InvalidOption("signals: none given (expected at least one function that returns pressure)")
        self._gauges = [Gauge(signal, hook) for signal in self.signals]

    def read(self) -> Reading:
        return max(gauge.read() for gauge in self._gauges)

    @property
    def faults(self) -> int:
        """How often a signal could not be read."""
        return sum(gauge.faults for gauge in self._gauges)


def _checked(signal: Signal) -> Signal:
    if not callable(signal):
        raise InvalidOption(f"signal {shown(signal)}: expected a function that returns pressure")
    if inspect.iscoroutinefunction(signal) or inspect.iscoroutinefunction(getattr(signal, "__call__", None)):  # noqa: B004
        raise InvalidOption(f"signal {shown(signal)}: a coroutine cannot be read at once (expected a plain function)")
    return signal

"""Reading signals safely: whatever a signal does, the caller of a shedder does not notice.

A signal is any function that returns pressure: 0 is idle, 1 is at capacity, more is overload. It is called from the
middle of a request, a few times a second, so it should be quick. One that raises, or returns what is no finite number
at least 0, counts as no pressure: who cannot see sheds nothing. Such faults are counted, logged once, and told to the
hook when they begin.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple, TypeAlias
from weakref import WeakSet, ref

from penstock.clock import SECOND, Clock, Micros, SteadyClock
from penstock.engine.lifetime import renew_in_children
from penstock.engine.options import micros, whole
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, SignalFailed, tell
from penstock.model import new
from penstock.shedding.admission import Admission
from penstock.shedding.levels import Smoothed

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


# ---------------------------------------------------------------- in flight


# Signals that count requests: how many are running, now (`InFlight`) or on average (`Utilisation`).
#
# A shedder that is given one counts what it admits. A request is an entry in a set: adding and removing one is a single
# step of the interpreter, so there is no lock to wait for, and ending a request twice removes nothing else.


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


# ---------------------------------------------------------------- looks


# Looking at signals now and then, by whoever comes by: no thread, no task, nothing to start or to stop.
#
# One caller at a time looks; the others go on with what was seen last.


class Looking(ABC):
    """Who looks at most once in `every` microseconds."""

    def __init__(self, clock: Clock | None, every: Micros) -> None:
        self._time_ns = (clock or SteadyClock()).time_ns
        self._every = every
        self._looked_at: Micros = 0
        self._due: Micros = 0
        self._renew()
        renew_in_children(self)

    @abstractmethod
    def _look(self, now: Micros) -> None:
        """Take in what there is to see."""

    def _look_if_due(self) -> None:
        now = self._time_ns() // 1_000
        if not self._looked_at <= now < self._due:
            self._take_turn(now)

    def _take_turn(self, now: Micros) -> None:
        """Look, unless somebody else does or just did."""
        turn = self._turn
        try:  # an RLock knows its owner: an exception from outside (Ctrl-C) between any two steps leaves nothing locked
            if turn.acquire(blocking=False):
                if not self._looked_at <= now < self._due:
                    self._looked_at, self._due = now, now + self._every
                    self._look(now)
                turn.release()
        except BaseException:
            if turn._is_owned():  # type: ignore[attr-defined]
                turn.release()
            raise

    def _renew(self) -> None:
        self._turn = RLock()


# ---------------------------------------------------------------- loop lag


# LoopLag: how late an event loop runs its timers, which is how long everything in it waits for its turn.
#
# A loop is watched from the first time that it is asked about from within. A timer that sets itself again is all there
# is: it costs a few microseconds each time and vanishes with its loop.


EVERY: Micros = 50_000


class LoopLag:
    """The lag of the watched event loops, the latest of them, as a share of the `worst` that is bearable, in seconds.

    One instance serves all loops of a process. It is meant for loops that run on and on: one that rests between calls
    of `run_until_complete` seems late each time it goes on.
    """

    def __init__(self, worst: float = 0.1, *, clock: Clock | None = None) -> None:
        self._worst = micros("worst", worst)
        self._clock = clock or SteadyClock()
        self._watches: WeakSet[_Watch] = WeakSet()  # each is kept alive by its loop's timer, and by nothing else
        renew_in_children(self)

    def __call__(self) -> float:
        now = self._clock.time_ns() // 1_000
        watches = list(self._watches)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asked from outside any loop
            pass
        else:
            if not any(watch.loop is loop for watch in watches):
                self._watches.add(_Watch(loop, self, now))
        return max((watch.lag(now) for watch in watches), default=0) / self._worst

    def _renew(self) -> None:
        self._watches.clear()


class _Watch:
    """One loop: when its timer is due, and how late it was the last time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: LoopLag, now: Micros) -> None:
        self.loop = loop
        self._owner = ref(owner)  # not to be kept alive by a timer
        self._late: Micros = 0
        self._set(now)

    def lag(self, now: Micros) -> Micros:
        """How late the timer was, or already is."""
        return max(self._late, now - self._due) if self.loop.is_running() else 0

    def _set(self, now: Micros) -> None:
        self._due = now + EVERY
        self.loop.call_later(EVERY / SECOND, self._ring)

    def _ring(self) -> None:
        owner = self._owner()
        if owner is not None:
            now = owner._clock.time_ns() // 1_000
            self._late = max(now - self._due, 0)
            self._set(now)

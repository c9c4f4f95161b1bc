"""Signals of pressure: functions that return 0 when idle, 1 at capacity, and more in overload.

A signal is called in the middle of a request, a few times a second, so it should be quick. A signal that raises, or
returns anything but a finite number of at least 0, counts as no pressure, because shedding without evidence would turn
a broken signal into an outage. Such failures are counted, logged once, and reported to the hook when they begin.

    InFlight        requests in flight, now, as a share of capacity
    Utilisation     the same on average
    LoopLag         how late an asyncio event loop runs its timers

A shedder that is given an `InFlight` or `Utilisation` counts the requests it admits. A request is an entry in a set.
Adding and removing one is a single step of the interpreter, so no lock is needed, and ending a request twice removes
nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple, TypeAlias
from weakref import WeakSet, ref

from penstock.clock import SECOND, Clock, Micros, SteadyClock
from penstock.engine.lifetime import renew_in_children
from penstock.engine.options import micros, whole
from penstock.errors import InvalidOption, is_from_signal_handler, shown
from penstock.events import Hook, SignalFailed, tell
from penstock.model import new
from penstock.shedding.admission import Admission
from penstock.shedding.levels import Smoothed

log = logging.getLogger("penstock.shedding")

Signal: TypeAlias = Callable[[], float]

WORST = 10.0
"""Higher pressures count as this, so that one wild sample does not dominate a mean for long."""

EVERY: Micros = 50_000
"""Time between two timers on a watched event loop."""


class Reading(NamedTuple):
    """The highest pressure, and the name of the signal that returned it."""

    pressure: float
    why: str


class Gauge:
    """One signal, read safely."""

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
        except Exception as error:  # the request that triggered the sample must not fail because of it
            if is_from_signal_handler(error):
                raise
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
        """How often reading a signal failed."""
        return sum(gauge.faults for gauge in self._gauges)


def _checked(signal: Signal) -> Signal:
    if not callable(signal):
        raise InvalidOption(f"signal {shown(signal)}: expected a function that returns pressure")
    if inspect.iscoroutinefunction(signal) or inspect.iscoroutinefunction(getattr(signal, "__call__", None)):  # noqa: B004
        raise InvalidOption(f"signal {shown(signal)}: a coroutine cannot be read at once (expected a plain function)")
    return signal


class SampleSchedule:
    """When signals are sampled: at most once in `every` microseconds, by one caller at a time.

    There is no thread and no task. The caller that finds a sample due takes it; concurrent callers go on with the
    previous one. `sampled_at <= now < due` means that no sample is due, also after the clock was set back.
    """

    __slots__ = ("__weakref__", "_every", "_turn", "due", "sampled_at")

    def __init__(self, every: Micros) -> None:
        self._every = every
        self.sampled_at: Micros = 0
        self.due: Micros = 0
        self._renew()
        renew_in_children(self)

    def run(self, now: Micros, sample: Callable[[Micros], None]) -> None:
        """Call `sample` if one is due and no other caller is taking it."""
        turn = self._turn
        try:  # an RLock knows its owner, so an interrupt (Ctrl-C) between any two steps leaves nothing locked
            if turn.acquire(blocking=False):
                if not self.sampled_at <= now < self.due:
                    self.sampled_at, self.due = now, now + self._every
                    sample(now)
                turn.release()
        except BaseException:
            if turn._is_owned():  # type: ignore[attr-defined]
                turn.release()
            raise

    def _renew(self) -> None:
        self._turn = RLock()


class InFlight:
    """Requests in flight as a share of `capacity`: how many the system can handle well at once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = whole("capacity", capacity)
        self.begun: set[int] = set()
        renew_in_children(self)

    def __call__(self) -> float:
        return len(self.begun) / self.capacity

    @property
    def now(self) -> int:
        """How many requests are in flight."""
        return len(self.begun)

    def begin(self) -> Admission:
        """Count work that passes no shedder, until the end of its `with` block."""
        admission: Admission = new(Admission, (True, "", "", "", 0.0, (self.begun,)))
        self.begun.add(id(admission))
        return admission

    def _renew(self) -> None:
        self.begun.clear()


class Utilisation(InFlight):
    """The share of `workers` that are busy, on average over about the last `over` seconds.

    It is sampled when requests arrive, so it is the share that arriving requests find busy.
    """

    def __init__(self, workers: int, over: float = 5.0, *, clock: Clock | None = None) -> None:
        super().__init__(whole("workers", workers))
        self._busy = Smoothed(micros("over", over))
        self._time_ns = (clock or SteadyClock()).time_ns

    def __call__(self) -> float:
        return self._busy.take(super().__call__(), self._time_ns() // 1_000)


class LoopLag:
    """How late event loops run their timers, as a share of `worst`, the longest tolerable lag in seconds.

    Of several event loops the latest counts. A loop is watched from the first call made within it, by one timer that
    sets itself again: it costs a few microseconds each time and ends with its loop. One instance serves all loops of a
    process. It is meant for loops that run without pause: a loop that rests between calls of `run_until_complete` seems
    late whenever it continues.
    """

    def __init__(self, worst: float = 0.1, *, clock: Clock | None = None) -> None:
        self._worst = micros("worst", worst)
        self._clock = clock or SteadyClock()
        self._watches: WeakSet[_Watch] = WeakSet()  # each is kept alive by its loop's timer alone
        renew_in_children(self)

    def __call__(self) -> float:
        now = self._clock.time_ns() // 1_000
        watches = list(self._watches)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # called outside any loop
            pass
        else:
            if not any(watch.loop is loop for watch in watches):
                self._watches.add(_Watch(loop, self, now))
        return max((watch.lag(now) for watch in watches), default=0) / self._worst

    def _renew(self) -> None:
        self._watches.clear()


class _Watch:
    """One event loop: when its timer is due, and how late it was the last time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: LoopLag, now: Micros) -> None:
        self.loop = loop
        self._owner = ref(owner)  # weak, so that a timer does not keep the signal alive
        self._late: Micros = 0
        self._set(now)

    def lag(self, now: Micros) -> Micros:
        """Return how late the timer was, or already is."""
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

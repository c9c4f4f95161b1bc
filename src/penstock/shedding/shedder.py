"""Shedder: refuses the least important requests while the system is under pressure. Two mechanisms, and one promise.

**Reserve** acts at once. A share of the in-flight capacity is kept free for `critical`; other requests are refused when
they fill the rest. That bound holds from however many threads requests come.

**Pressure** acts slowly. The longer the signals stay high, the larger a share of requests is refused: first `low`, then
`normal`, then `high` (see `penstock.shedding.levels`). Pressure is the highest signal, averaged over about as long as
one step up takes.

The promise: `critical` is never refused, and a class is refused only while every lower class is refused too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple

from penstock.clock import SECOND, Clock, Micros, SteadyClock
from penstock.engine.lifetime import renew_in_children
from penstock.engine.options import is_number, micros, rising
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, nobody, tell
from penstock.events import Shedding as SheddingChanged
from penstock.model import new
from penstock.shedding.admission import CRITICAL, PRIORITIES, RANKS, SHED, Admission, unknown_priority
from penstock.shedding.levels import LevelState, Pace, Smoothed, shed_share, stepped, steps_into
from penstock.shedding.signals import Gauges, InFlight, Reading, SampleSchedule, Signal

SAMPLES_PER_RISE = 5


class _Terms(NamedTuple):
    """How a class is treated at a level: the share to refuse, and the answers."""

    share: float
    refusal: Admission
    yes: tuple[object, ...]  # the fields of a positive answer
    full: Admission | None  # the refusal by the reserve, if this class is subject to it


class Shedder:
    """Decides whether a request may begin, by its priority and by how busy the system is.

    - `signals`: one or several functions that return pressure. `InFlight` and `Utilisation` among them count the
      requests that are admitted.
    - `reserve`: the share of capacity (of the smallest `InFlight` or `Utilisation`) kept for `critical`; 0 for none.
    - `above`, `below`: shed more while pressure is at least `above`, less while it is under `below`.
    - `rise`, `fall`: seconds for each step up or down; a class has ten.
    - `draw`: returns a random number from 0 to 1.

    >>> shedder = Shedder(InFlight(200), reserve=0.2)
    >>> with shedder.admit("low") as admission:
    ...     if not admission:
    ...         ...  # refuse: 503, Retry-After
    """

    def __init__(
        self,
        signals: Signal | Iterable[Signal],
        *,
        reserve: float = 0.0,
        above: float = 0.9,
        below: float = 0.7,
        rise: float = 0.5,
        fall: float = 2.0,
        clock: Clock | None = None,
        hook: Hook = nobody,
        draw: Callable[[], float] = random.random,
    ) -> None:
        below, above = rising("below and above", below, above)
        self._pace = Pace(above, below, micros("rise", rise), micros("fall", fall))
        self._smoothed = Smoothed(self._pace.rise)
        self._gauges = Gauges(signals, hook)
        self._hook = hook
        self._draw = draw
        counting = [signal for signal in self._gauges.signals if isinstance(signal, InFlight)]
        self._common: set[int] = set()  # requests that are not critical, if there is a reserve
        self._room = _room(reserve, [signal.capacity for signal in counting])
        self._was_full = False  # whether the reserve refused a request since the last sample
        self._counted = tuple(signal.begun for signal in counting)
        self._state = LevelState()
        self._terms = self._terms_at(0)
        self._time_ns = (clock or SteadyClock()).time_ns
        self._schedule = SampleSchedule(max(self._pace.rise // SAMPLES_PER_RISE, 1))
        renew_in_children(self)

    def admit(self, priority: str = "normal") -> Admission:
        """Decide on a request that is about to begin. If admitted, it is in flight until the admission ends."""
        time_ns = self._time_ns  # a local, because calling it as self._time_ns() is slower
        now = time_ns() // 1_000
        schedule = self._schedule
        if not schedule.sampled_at <= now < schedule.due:
            schedule.run(now, self._sample)
        try:
            share, refusal, yes, full = self._terms[priority]
        except (KeyError, TypeError):
            raise unknown_priority(priority) from None
        if share and self._draw() < share:
            return refusal
        admission: Admission = new(Admission, yes)
        token = id(admission)
        if full is not None:
            # Count first, then compare: two concurrent requests may both be refused, but never one too many admitted.
            self._common.add(token)
            if len(self._common) > self._room:
                admission.end()
                self._was_full = True
                return full
        for begun in self._counted:
            begun.add(token)
        return admission

    @property
    def level(self) -> int:
        """How much is shed by pressure: from 0, nothing, to 30, all but `critical`."""
        self._sample_if_due()
        return self._state.level

    @property
    def shares(self) -> dict[str, float]:
        """The share of each class that is refused by pressure."""
        self._sample_if_due()
        return {priority: terms.share for priority, terms in self._terms.items()}

    @property
    def faults(self) -> int:
        """How often reading a signal failed."""
        return self._gauges.faults

    def _sample_if_due(self) -> None:
        now = self._time_ns() // 1_000
        if not self._schedule.sampled_at <= now < self._schedule.due:
            self._schedule.run(now, self._sample)

    def _sample(self, now: Micros) -> None:
        # The reserve refuses all classes alike, so a full reserve is a reason to shed the lower classes.
        reading = max(self._gauges.read(), Reading(float(self._was_full), "reserve"))
        self._was_full = False
        pressure = self._smoothed.take(reading.pressure, now)
        was, state = self._state.level, stepped(self._state, pressure, now, self._pace)
        if state.level != was:
            self._terms = self._terms_at(state.level)
        self._state = state  # after the terms: a call interrupted in between leaves the step to the next sample
        if state.level != was:
            tell(self._hook, SheddingChanged(was, state.level, pressure, reading.why))

    def _terms_at(self, level: int) -> dict[str, _Terms]:
        return {priority: self._terms_of(priority, level) for priority in PRIORITIES}

    def _terms_of(self, priority: str, level: int) -> _Terms:
        rank, fall = RANKS[priority], self._pace.fall
        reserved = priority != CRITICAL and self._room < sys.maxsize
        begun = (self._common, *self._counted) if reserved else self._counted
        return _Terms(
            shed_share(level, rank),
            _refusal(priority, "pressure", fall * steps_into(level, rank)),
            tuple(Admission(True, priority, begun=begun)),
            _refusal(priority, "reserve", fall) if reserved else None,
        )

    def _renew(self) -> None:
        self._common.clear()


def _room(reserve: float, capacities: list[int]) -> int:
    """Return how many requests that are not critical may be in flight."""
    if not is_number(reserve) or not 0 <= reserve < 1:
        raise InvalidOption(f"reserve {shown(reserve)}: expected a share of capacity, at least 0 and less than 1")
    if not reserve:
        return sys.maxsize
    if not capacities:
        raise InvalidOption(f"reserve {reserve}: no signal has a capacity (expected an InFlight or Utilisation)")
    capacity = min(capacities)
    room = capacity - ceil(round(capacity * reserve, 9))
    if room < 1:
        raise InvalidOption(f"reserve {reserve}: leaves nothing of {capacity} for other requests (expected less)")
    return room


def _refusal(priority: str, by: str, retry_after: Micros) -> Admission:
    return Admission(admitted=False, priority=priority, reason=SHED, by=by, retry_after=retry_after / SECOND)

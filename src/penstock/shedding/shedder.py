"""Shedder: refuses what matters least when the system is under pressure. Two mechanisms, and one promise.

**Reserve** acts at once: of the capacity in flight a share is kept free for `critical`. What is not critical is refused
when it has taken all the rest. Never more than that is admitted, from however many threads.

**Pressure** acts slowly: the longer the signals stay high, the larger a share of requests is refused, `low` first,
then `normal`, then `high`; see `penstock.shedding.levels`. Pressure is what the highest signal says, averaged over
about as long as one step up takes.

`critical` is never refused, and at any moment a class is refused only if every lower one is too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple

from penstock.clock import SECOND, Clock, Micros
from penstock.engine.options import is_number, micros, rising
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, nobody, tell
from penstock.events import Shedding as SheddingChanged
from penstock.model import new
from penstock.shedding.admission import CRITICAL, PRIORITIES, RANKS, SHED, Admission, unknown_priority
from penstock.shedding.levels import Pace, Smoothed, State, shed_share, stepped, steps_into
from penstock.shedding.signals import Gauges, InFlight, Looking, Reading, Signal

LOOKS_PER_RISE = 5


class _Terms(NamedTuple):
    """How a class is treated at a level: the share to refuse, and the answers to give."""

    share: float
    refusal: Admission
    yes: tuple[object, ...]  # the fields of an admission
    full: Admission | None  # the refusal by the reserve, if that is for this class


class Shedder(Looking):
    """Decides whether a request of some priority may begin, by how busy the system is.

    - `signals`: one or several functions that return pressure. `InFlight` and `Utilisation` among them count the
      admitted requests.
    - `reserve`: the share of capacity (of the smallest `InFlight` or `Utilisation`) kept for `critical`; 0 for none.
    - `above`, `below`: shed more while pressure is at least the one, less while it is under the other.
    - `rise`, `fall`: seconds for each step up or down; a class has ten.
    - `draw`: a random number from 0 to 1.

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
        self._common: set[int] = set()  # what is not critical, if there is a reserve
        self._room = _room(reserve, [signal.capacity for signal in counting])
        self._was_full = False  # since the last look
        self._counted = tuple(signal.begun for signal in counting)
        self._state = State()
        self._terms = self._terms_at(0)
        super().__init__(clock, max(self._pace.rise // LOOKS_PER_RISE, 1))

    def admit(self, priority: str = "normal") -> Admission:
        """Decide on a request that is about to begin. If the answer is yes, it is in flight until the answer ends."""
        time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
        now = time_ns() // 1_000
        if not self._looked_at <= now < self._due:
            self._take_turn(now)
        try:
            share, refusal, yes, full = self._terms[priority]
        except (KeyError, TypeError):
            raise unknown_priority(priority) from None
        if share and self._draw() < share:
            return refusal
        admission: Admission = new(Admission, yes)
        token = id(admission)
        if full is not None:
            # Count first, then compare: of two who come at once both may be refused, but never one too many admitted.
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
        self._look_if_due()
        return self._state.level

    @property
    def shares(self) -> dict[str, float]:
        """Which share of each class is refused by pressure."""
        self._look_if_due()
        return {priority: terms.share for priority, terms in self._terms.items()}

    @property
    def faults(self) -> int:
        """How often a signal raised, or returned what is no pressure."""
        return self._gauges.faults

    def _look(self, now: Micros) -> None:
        # The reserve does not tell low from high: what it refuses is a reason to shed the lower classes.
        reading = max(self._gauges.read(), Reading(float(self._was_full), "reserve"))
        self._was_full = False
        pressure = self._smoothed.take(reading.pressure, now)
        was, state = self._state.level, stepped(self._state, pressure, now, self._pace)
        if state.level != was:
            self._terms = self._terms_at(state.level)
        self._state = state  # after the terms: who is interrupted in between will take the same step again
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
        super()._renew()
        self._common.clear()


def _room(reserve: float, capacities: list[int]) -> int:
    """How many requests that are not critical may be in flight."""
    if not is_number(reserve) or not 0 <= reserve < 1:
        raise InvalidOption(f"reserve {shown(reserve)}: expected a share of capacity, at least 0 and less than 1")
    if not reserve:
        return sys.maxsize
    if not capacities:
        raise InvalidOption(f"reserve {reserve}: a share of what? (expected InFlight or Utilisation among the signals)")
    capacity = min(capacities)
    room = capacity - ceil(round(capacity * reserve, 9))
    if room < 1:
        raise InvalidOption(f"reserve {reserve}: leaves nothing of {capacity} for others (expected less)")
    return room


def _refusal(priority: str, by: str, retry_after: Micros) -> Admission:
    return Admission(admitted=False, priority=priority, reason=SHED, by=by, retry_after=retry_after / SECOND)

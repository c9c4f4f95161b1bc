"""Scaled: a limit that follows pressure, between two bounds that you state.

It takes few values (16 steps between the bounds), each for a while, and returns only when pressure has really changed:
so counters keep what was used (amounts are no part of their identity), and there are never more than 17 quotas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.clock import Clock, Micros
from penstock.engine.options import micros, rising, whole
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, LimitScaled, nobody, tell
from penstock.quota import Quota
from penstock.shedding.levels import Smoothed
from penstock.shedding.signals import Gauges, Looking, Signal

NEARLY = 7 / 8
AMOUNTS = ("limit", "burst", "queue")


class Slope(NamedTuple):
    """The pressures at which a limit begins to shrink and stops shrinking, and in how many steps it does."""

    begins: float
    ends: float
    steps: int

    def stepped(self, step: int, pressure: float) -> int:
        """The step after `step`: one up, one down, or the same.

        Pressure must be nearly a whole step away, so what turned one way turns back only after going back about as
        far. Nearly: a mean comes ever closer to the end of the slope without reaching it.
        """
        share = min(max((pressure - self.begins) / (self.ends - self.begins), 0.0), 1.0)
        aim = share * self.steps
        return step + 1 if aim >= step + NEARLY else step - 1 if aim <= step - NEARLY else step


class Scaled(Looking):
    """`most` while there is little pressure, `least` under full pressure, and in steps between.

    - `most`, `least`: quotas, or their text, that differ in nothing but amounts (limit, burst, queue).
    - `signal`: one or several functions that return pressure.
    - `between`: the pressures at which it begins and stops to shrink.
    - `interval`: seconds that each step takes; `over`: about how many seconds of pressure are averaged.

    >>> scaled = Scaled("100/minute", "20/minute", LoopLag())
    >>> limiter.acquire("alice", scaled())
    """

    def __init__(
        self,
        most: Quota | str,
        least: Quota | str,
        signal: Signal,
        *,
        between: tuple[float, float] = (0.7, 1.0),
        steps: int = 16,
        interval: float = 0.5,
        over: float = 2.0,
        clock: Clock | None = None,
        hook: Hook = nobody,
    ) -> None:
        self._slope = Slope(*_pair(between), whole("steps", steps, 64))
        self._quotas = _between(_quota(most), _quota(least), steps)
        self._step = 0
        self._gauges = Gauges(signal, hook)
        self._smoothed = Smoothed(micros("over", over))
        self._hook = hook
        super().__init__(clock, micros("interval", interval))

    def __call__(self) -> Quota:
        """The quota that holds now."""
        now = self._time_ns() // 1_000
        if not self._looked_at <= now < self._due:
            self._take_turn(now)
        return self._quotas[self._step]

    @property
    def faults(self) -> int:
        """How often a signal raised, or returned what is no pressure."""
        return self._gauges.faults

    def _look(self, now: Micros) -> None:
        pressure = self._smoothed.take(self._gauges.read().pressure, now)
        was, self._step = self._step, self._slope.stepped(self._step, pressure)
        if self._quotas[was] is not self._quotas[self._step]:
            tell(self._hook, LimitScaled(str(self._quotas[was]), str(self._quotas[self._step])))


def _pair(between: tuple[float, float]) -> tuple[float, float]:
    if not isinstance(between, tuple) or len(between) != 2:
        raise InvalidOption(f"between {shown(between)}: expected two pressures, such as (0.7, 1.0)")
    return rising("between", *between)


def _quota(quota: Quota | str) -> Quota:
    return quota if isinstance(quota, Quota) else Quota.parse(quota)


def _between(most: Quota, least: Quota, steps: int) -> list[Quota]:
    """The quotas of all steps, from `most` to `least`."""
    if _kind(most) != _kind(least):
        raise InvalidOption(f'"{most}" to "{least}": expected quotas that differ in limit, burst and queue alone')
    amounts = [(getattr(most, amount), getattr(least, amount)) for amount in AMOUNTS]
    spans = [(high, (high or 0) - (low or 0)) for high, low in amounts]
    if min(span for _, span in spans) < 0 or not any(span for _, span in spans):
        raise InvalidOption(f'"{most}" to "{least}": expected the larger first, then the smaller')
    return [
        _with_amounts(most, [high and high - span * step // steps for high, span in spans]) for step in range(steps + 1)
    ]


def _kind(quota: Quota) -> tuple[object, ...]:
    """All that two bounds must have in common."""
    return (
        quota.identity,
        quota.period_us,
        quota.min_interval_us,
        quota.penalty_us,
        quota.count_denied,
        quota.burst is None,
        quota.queue is None,
    )


def _with_amounts(quota: Quota, amounts: Sequence[Any]) -> Quota:
    """The same quota with another limit, burst and queue."""
    limit, burst, queue = amounts
    return Quota(
        limit,
        quota.calendar or quota.period,
        None if quota.calendar else quota.algorithm,
        burst=burst,
        queue=queue,
        min_interval=quota.min_interval,
        penalty=quota.penalty,
        count_denied=quota.count_denied,
        name=quota.name,
    )

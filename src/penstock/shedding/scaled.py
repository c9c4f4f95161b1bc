"""Scaled: a limit that follows pressure, between two given bounds.

The limit moves in 16 steps, one at a time, and turns back only when pressure has clearly changed. So there are never
more than 17 quotas. Counters keep what was used, because amounts are no part of a counter's identity.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.clock import Clock, Micros, SteadyClock
from penstock.engine.options import micros, rising, whole
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, LimitScaled, nobody, tell
from penstock.quota import Quota
from penstock.shedding.levels import Smoothed
from penstock.shedding.signals import Gauges, SampleSchedule, Signal

NEARLY = 7 / 8
AMOUNTS = ("limit", "burst", "queue")


class Slope(NamedTuple):
    """The pressures between which a limit shrinks, and in how many steps."""

    begins: float
    ends: float
    steps: int

    def stepped(self, step: int, pressure: float) -> int:
        """Return the step after `step`: one up, one down, or the same.

        Pressure must be nearly a whole step away, so the limit does not flap around a step. Nearly, because a mean
        approaches the end of the slope without ever reaching it.
        """
        share = min(max((pressure - self.begins) / (self.ends - self.begins), 0.0), 1.0)
        aim = share * self.steps
        return step + 1 if aim >= step + NEARLY else step - 1 if aim <= step - NEARLY else step


class Scaled:
    """A quota that is `most` at low pressure, `least` at full pressure, and scaled in steps between.

    - `most`, `least`: quotas, or their text, that differ only in amounts (limit, burst, queue).
    - `signal`: one or several functions that return pressure.
    - `between`: the pressures at which the limit starts and stops shrinking.
    - `interval`: seconds per step; `over`: about how many seconds of pressure are averaged.

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
        self._time_ns = (clock or SteadyClock()).time_ns
        self._schedule = SampleSchedule(micros("interval", interval))

    def __call__(self) -> Quota:
        """Return the quota that applies now."""
        now = self._time_ns() // 1_000
        schedule = self._schedule
        if not schedule.sampled_at <= now < schedule.due:
            schedule.run(now, self._sample)
        return self._quotas[self._step]

    @property
    def faults(self) -> int:
        """How often reading a signal failed."""
        return self._gauges.faults

    def _sample(self, now: Micros) -> None:
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
    """Return the quotas of all steps, from `most` to `least`."""
    if _kind(most) != _kind(least):
        raise InvalidOption(f'"{most}" to "{least}": expected quotas that differ in limit, burst and queue alone')
    amounts: list[tuple[Any, Any]] = [(getattr(most, amount), getattr(least, amount)) for amount in AMOUNTS]
    spans = [(high, (high or 0) - (low or 0)) for high, low in amounts]
    if min(span for _, span in spans) < 0 or not any(span for _, span in spans):
        raise InvalidOption(f'"{most}" to "{least}": expected the larger first, then the smaller')
    return [
        most.with_amounts(*[high and high - span * step // steps for high, span in spans]) for step in range(steps + 1)
    ]


def _kind(quota: Quota) -> tuple[object, ...]:
    """Return everything that two bounds must have in common."""
    return (
        quota.identity,
        quota.period_us,
        quota.min_interval_us,
        quota.penalty_us,
        quota.count_denied,
        quota.burst is None,
        quota.queue is None,
    )

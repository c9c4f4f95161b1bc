"""How much is shed: a level that rises and falls one step at a time. Pure: pressure and time are arguments.

Each class but `critical` has ten steps. The first ten levels shed 10 % to 100 % of `low`, the next ten shed `normal`,
the last ten `high`; `critical` is never shed.

The level moves slowly, so that it does not flap. It rises a step when pressure was at least `above` in every sample for
`rise`, and falls a step when pressure was under `below` for `fall`; in between it stays. So k steps take at least k
times that long. Signals are sampled only while requests come, so after a silence the level falls as many steps as fit
into it.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from penstock.clock import Micros
from penstock.shedding.admission import PRIORITIES

STEPS = 10
HIGHEST = STEPS * (len(PRIORITIES) - 1)


class Pace(NamedTuple):
    """The pressures that move the level, and how long each step takes."""

    above: float
    below: float
    rise: Micros
    fall: Micros


class LevelState(NamedTuple):
    """The level, the time of the last sample, and since when pressure has been high or low."""

    level: int = 0
    at: Micros = 0
    high_since: Micros | None = None
    low_since: Micros | None = None


def stepped(state: LevelState, pressure: float, now: Micros, pace: Pace) -> LevelState:
    """Return the state after a sample of `pressure` at `now`."""
    level = state.level
    if now < state.at:  # the clock was set back: start counting anew
        return LevelState(level, now)
    if pressure >= pace.above:
        since = now if state.high_since is None else state.high_since
        if level < HIGHEST and now - since >= pace.rise:
            return LevelState(level + 1, now, high_since=now)
        return LevelState(level, now, high_since=since)
    if pressure < pace.below:
        since = state.at if state.low_since is None else state.low_since
        steps = min(level, (now - since) // pace.fall)
        return LevelState(level - steps, now, low_since=now if steps else since)
    return LevelState(level, now)


def shed_share(level: int, rank: int) -> float:
    """Return the share of a class that is refused at a level."""
    return min(steps_into(level, rank), STEPS) / STEPS


def steps_into(level: int, rank: int) -> int:
    """Return by how many steps a level exceeds the last one that sheds nothing of a class."""
    return max(level - STEPS * (len(PRIORITIES) - 1 - rank), 0)


class Smoothed:
    """An exponentially weighted mean of a value over about the last `over` microseconds.

    A value counts for all the time since the value before it.
    """

    __slots__ = ("_at", "_over", "mean")

    def __init__(self, over: Micros) -> None:
        self._over = over
        self._at: Micros | None = None
        self.mean = 0.0

    def take(self, value: float, now: Micros) -> float:
        """Add `value` and return the mean. The mean starts at 0, so a single early peak moves it little."""
        elapsed = 0 if self._at is None else max(now - self._at, 0)
        self._at = now
        self.mean += (value - self.mean) * (1 - exp(-elapsed / self._over))
        return self.mean

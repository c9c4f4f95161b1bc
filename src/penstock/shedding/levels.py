"""How much is shed: a level that rises and falls a step at a time. Pure: pressure and time are arguments.

Each class has ten steps: the first ten levels shed 10 % to 100 % of `low`, the next ten the same of `normal`, the last
ten of `high`. `critical` has none.

Slow on purpose, so that it does not flap. The level rises a step when pressure was at least `above` at every look for
`rise`, falls a step when it was under `below` for `fall`, and stays in between: k steps take at least k times that
long. Nobody looks while no request comes, so after a silence the level falls as many steps as there was time for.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from penstock.clock import Micros
from penstock.shedding.admission import PRIORITIES

STEPS = 10
HIGHEST = STEPS * (len(PRIORITIES) - 1)


class Pace(NamedTuple):
    """Which pressures move the level, and how long each step takes."""

    above: float
    below: float
    rise: Micros
    fall: Micros


class State(NamedTuple):
    """The level, when was last looked, and since when pressure has been high, or low."""

    level: int = 0
    at: Micros = 0
    high_since: Micros | None = None
    low_since: Micros | None = None


def stepped(state: State, pressure: float, now: Micros, pace: Pace) -> State:
    """The state after a look at `now`."""
    level = state.level
    if now < state.at:  # somebody set the clock back: begin to count anew
        return State(level, now)
    if pressure >= pace.above:
        since = now if state.high_since is None else state.high_since
        if level < HIGHEST and now - since >= pace.rise:
            return State(level + 1, now, high_since=now)
        return State(level, now, high_since=since)
    if pressure < pace.below:
        since = state.at if state.low_since is None else state.low_since
        steps = min(level, (now - since) // pace.fall)
        return State(level - steps, now, low_since=now if steps else since)
    return State(level, now)


def shed_share(level: int, rank: int) -> float:
    """The share of a class that is refused at a level."""
    return min(steps_into(level, rank), STEPS) / STEPS


def steps_into(level: int, rank: int) -> int:
    """How many steps a level lies above the last one that sheds nothing of a class."""
    return max(level - STEPS * (len(PRIORITIES) - 1 - rank), 0)


# ---------------------------------------------------------------- smoothing


# A mean that forgets. Pure: time is an argument.


class Smoothed:
    """The mean of a value over about the last `over` microseconds; older times weigh less and less.

    A value stands for all the time since the one before it.
    """

    __slots__ = ("_at", "_over", "mean")

    def __init__(self, over: Micros) -> None:
        self._over = over
        self._at: Micros | None = None
        self.mean = 0.0

    def take(self, value: float, now: Micros) -> float:
        """The mean, with `value` in it. The first one starts from nothing, so that a lone peak moves little."""
        elapsed = 0 if self._at is None else max(now - self._at, 0)
        self._at = now
        self.mean += (value - self.mean) * (1 - exp(-elapsed / self._over))
        return self.mean

"""A mean that forgets. Pure: time is an argument."""

from __future__ import annotations

from math import exp

from penstock.clock import Micros


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

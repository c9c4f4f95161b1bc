"""What one worker has counted. Plain dicts, added to by the event loop, or under a lock by hooks of other threads."""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from penstock.observability.series import CPU, FILES, MEMORY, OTHER, Series

# ---------------------------------------------------------------- process


# What the operating system says of this process.


_SELF = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def figures() -> dict[Series, float]:
    """As far as the system tells."""
    times = os.times()
    found: dict[Series, float] = {CPU: times.user + times.system}
    with suppress(OSError, ValueError, IndexError):  # only Linux has it
        found[MEMORY] = int((_SELF / "statm").read_bytes().split()[1]) * _PAGE
        # Newer kernels say how many there are; else they are counted, which takes a while if they are many.
        found[FILES] = (_SELF / "fd").stat().st_size or len(os.listdir(_SELF / "fd")) - 1  # noqa: PTH208  ten times faster
    return found


# ---------------------------------------------------------------- tally


MAX_LENGTH = 128
"""Characters of a label's value."""

Values = dict[str, dict[str, float]]
"""By name and labels."""


class Snapshot(msgspec.Struct, array_like=True):
    """Everything that one worker exports, or all workers together that are gone.

    - `totals` are kept when the worker ends, `now` is not.
    - `histograms`: the count in each bucket, and the sum last.
    - `folded`: whose figures are part of these.
    - `sampled`: see `penstock.observability.accuracy`.
    """

    worker: str = ""
    totals: Values = {}
    now: Values = {}
    histograms: dict[str, dict[str, list[int]]] = {}
    folded: list[str] = []
    sampled: bytes = b""


class Bounded:
    """At most so many different texts; whatever comes beyond them is `other`. So no client can make labels grow."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def of(self, value: str) -> str:
        known = self._known.get(value)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        short = value if len(value) <= MAX_LENGTH else OTHER
        self._known[value] = short
        return short


class Histogram:
    """How often values fell into each bucket; the last number is their sum."""

    __slots__ = ("bounds", "counts")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 2)

    def observe(self, value: int, times: int = 1) -> None:
        counts = self.counts
        counts[bisect_left(self.bounds, value)] += times
        counts[-1] += value * times


class Tally:
    """Totals by series and labels."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._totals: Values = {}
        self._histograms: dict[str, dict[str, Histogram]] = {}

    def add(self, series: Series, labels: str, amount: float = 1) -> None:
        """`labels` as `series.labelled` spells them. From any thread."""
        with self._lock:
            of_series = self._totals.setdefault(series.name, {})
            of_series[labels] = of_series.get(labels, 0) + amount

    def histogram(self, series: Series, labels: str = "") -> Histogram:
        """To be observed by one thread alone, the event loop's."""
        with self._lock:
            of_series = self._histograms.setdefault(series.name, {})
            return of_series.setdefault(labels, Histogram(series.bounds))

    def snapshot(self, worker: str, now: Values) -> Snapshot:
        """As things stand. A copy: what is counted later does not change it."""
        with self._lock:
            totals = {name: dict(of_series) for name, of_series in self._totals.items()}
            histograms = {
                name: {labels: list(one.counts) for labels, one in of_series.items()}
                for name, of_series in self._histograms.items()
            }
        return Snapshot(worker, totals, now, histograms)

"""The counts of one worker, and the figures that the operating system has about it.

Counts are plain dicts. The event loop and hooks in other threads add to them under a lock; each histogram belongs to
one thread.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from penstock.observability.series import CPU, FILES, MEMORY, OTHER, Series

MAX_LENGTH = 128
"""Characters of a label's value; longer ones are counted as `other`."""

Values = dict[str, dict[str, float]]
"""Numbers by the name and the labels of a series."""

_SELF = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def figures() -> dict[Series, float]:
    """Return the processor time, memory and open files of this process, as far as the system has them."""
    times = os.times()
    found: dict[Series, float] = {CPU: times.user + times.system}
    with suppress(OSError, ValueError, IndexError):  # only Linux has /proc
        found[MEMORY] = int((_SELF / "statm").read_bytes().split()[1]) * _PAGE
        # Newer kernels give the number as a size; on others the files are counted, which is slow if they are many.
        found[FILES] = (_SELF / "fd").stat().st_size or len(os.listdir(_SELF / "fd")) - 1  # noqa: PTH208  ten times faster
    return found


class Snapshot(msgspec.Struct, array_like=True):
    """All figures of one worker, or the sums of all workers that have ended.

    - `totals` are kept when the worker ends; `now` is dropped.
    - `histograms`: the count of each bucket, then the sum.
    - `folded`: the workers that these sums include.
    - `sampled`: see `penstock.observability.accuracy`.
    """

    worker: str = ""
    totals: Values = {}
    now: Values = {}
    histograms: dict[str, dict[str, list[int]]] = {}
    folded: list[str] = []
    sampled: bytes = b""


class Bounded:
    """Maps texts to label values, at most `most` different ones; all others become `other`, so labels stay bounded."""

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
    """The count of values in each bucket; the last number is the sum of the values."""

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
        """Add to a total, from any thread; `labels` as written by `series.labelled`."""
        with self._lock:
            of_series = self._totals.setdefault(series.name, {})
            of_series[labels] = of_series.get(labels, 0) + amount

    def histogram(self, series: Series, labels: str = "") -> Histogram:
        """Return a histogram, to be used by one thread alone."""
        with self._lock:
            of_series = self._histograms.setdefault(series.name, {})
            return of_series.setdefault(labels, Histogram(series.bounds))

    def snapshot(self, worker: str, now: Values) -> Snapshot:
        """Return a copy of all counts."""
        with self._lock:
            totals = {name: dict(of_series) for name, of_series in self._totals.items()}
            histograms = {
                name: {labels: list(one.counts) for labels, one in of_series.items()}
                for name, of_series in self._histograms.items()
            }
        return Snapshot(worker, totals, now, histograms)

"""The fullest span of a history, when all that is known of a charge is an interval in which it happened.

A charge that was made at some instant from `invoked` to `returned` lies in a span for certain if all of that interval
does. So the units that a span holds *for certain* are those of the intervals within it, and a promise about spans is
broken for certain, wherever in their intervals the charges really were, only if these are too many. Every span that
matters begins with some `invoked` and ends with some `returned`. There are n² of them; a tree of suffix sums finds the
worst in n log n, so that histories of 100,000 calls can be checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.clock import Micros
from penstock.quota import CALENDAR, Quota

_NEVER = -(10**60)


class Stretch(NamedTuple):
    """Units that were charged at some instant from `invoked` to `returned`."""

    invoked: Micros
    returned: Micros
    units: int


class SpanBound(NamedTuple):
    """At most (`base` + `slope`·length) / `scale` units in each span shorter than `below`, if that is given.

    Lengths are differences of positions: of instants, or of the windows they lie in.
    """

    base: int
    slope: int = 0
    scale: int = 1
    below: int | None = None
    position: Callable[[Micros], int] = int


class Span(NamedTuple):
    """A span from one instant to another, the units it holds for certain, and how many it may."""

    start: Micros
    end: Micros
    units: int
    allowed: int

    @property
    def excess(self) -> int:
        return self.units - self.allowed


def bounds(quota: Quota) -> tuple[SpanBound, ...]:
    """What the algorithm of a rate promises of all spans; for windows it takes the clock that aligns them."""
    limit, period = quota.limit, quota.period_us
    window = SpanBound(limit, slope=limit, position=lambda instant: instant // period)
    if quota.algorithm == "fixed_window":
        return (window,)
    if quota.algorithm == "sliding_window":  # its estimate holds at least all of the current window
        return window, SpanBound(2 * limit - 1, below=period)
    if quota.algorithm == "rolling_window":
        return SpanBound(limit, below=period), SpanBound(limit * period, slope=limit, scale=period)
    if quota.algorithm == CALENDAR:
        calendar = quota.calendar
        assert calendar is not None
        return (SpanBound(limit, below=1, position=lambda instant: calendar.bounds(instant)[0]),)
    return (SpanBound(quota.capacity * period, slope=limit, scale=period),)


class _Placed(NamedTuple):
    """A stretch, and the positions of its ends."""

    start: int
    end: int
    stretch: Stretch


def fullest(stretches: Iterable[Stretch], bound: SpanBound) -> Span | None:
    """The span that exceeds its bound by most, or comes closest to it; None if there is none that holds anything."""
    placed = [_Placed(bound.position(s.invoked), bound.position(s.returned), s) for s in stretches]
    if bound.below is not None:  # what may have been anywhere in a longer time is in none of these spans for certain
        placed = [stretch for stretch in placed if stretch.end - stretch.start < bound.below]
    placed.sort(key=lambda stretch: stretch.end)
    starts = sorted({stretch.start for stretch in placed})
    indices = {start: index for index, start in enumerate(starts)}
    sums = _SuffixSums([bound.slope * start for start in starts])
    worst, ended = _NEVER, 0
    for number, (start, end, stretch) in enumerate(placed, start=1):
        sums.add(indices[start], stretch.units * bound.scale)
        first = 0 if bound.below is None else bisect_right(starts, end - bound.below)
        excess = sums.most_from(first) - bound.slope * end
        if excess > worst:
            worst, ended = excess, number
    return max(_spans(placed[:ended], bound), key=lambda span: span[0], default=(0, None))[1]


def _spans(placed: Sequence[_Placed], bound: SpanBound) -> Iterator[tuple[int, Span]]:
    """All spans that end where the last of `placed` does, each after its excess, which is scaled."""
    units = 0
    for start, _, stretch in sorted(placed, reverse=True):
        length = placed[-1].end - start
        if bound.below is not None and length >= bound.below:
            return
        units += stretch.units
        room = bound.base + bound.slope * length
        span = Span(stretch.invoked, placed[-1].stretch.returned, units, room // bound.scale)
        yield units * bound.scale - room, span


class _SuffixSums:
    """Numbers in a row; finds the largest of `offsets[i]` + all numbers from i on, among those i that have a number."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self._offsets = offsets
        self._size = 1 << max(0, len(offsets) - 1).bit_length()
        self._sums = [0] * (2 * self._size)
        self._most = [_NEVER] * (2 * self._size)

    def add(self, index: int, number: int) -> None:
        node = index + self._size
        self._sums[node] += number
        self._most[node] = self._offsets[index] + self._sums[node]
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            self._sums[node] += number
            self._most[node] = max(self._most[right], self._most[left] + self._sums[right])

    def most_from(self, index: int) -> int:
        node = index + self._size
        most = self._most[node]
        while node > 1:
            if node % 2 == 0:  # what stands to the right of a left child is all in
                most = max(self._most[node + 1], most + self._sums[node + 1])
            node //= 2
        return most

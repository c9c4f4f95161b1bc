"""Admissions made without the store, kept to be reported when it is back. Pure, bounded.

Units are kept by counter and instant of admission, as finely as the report needs: the store charges them to the window
of that instant, and ignores units that no longer count.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

from penstock.clock import Micros
from penstock.model import Amend, Charge, Key, Receipt, own_mark
from penstock.quota import CONCURRENCY, DRAINING, LOGGED, MIN_INTERVAL, Quota

Counter: TypeAlias = tuple[Key, Quota]
Times: TypeAlias = list[list[int]]
"""The admissions of one counter: [instant, units], in order of time."""

SHARES = 16
"""How many instants per period are kept of a log. Of a window, only the window is kept."""

WINDOWS = 3
"""How many windows are kept: older ones no longer count."""

DRAINED = (*DRAINING, MIN_INTERVAL)

CHARGES = 16
"""The most charges of one report."""


class Admissions:
    """Admissions to report, of at most `most` counters. `lost` counts units without room, or of an uncertain report."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counters: dict[Counter, Times] = {}
        self.lost = 0

    def __len__(self) -> int:
        return len(self._counters)

    def add(self, key: Key, quota: Quota, units: int, now: Micros) -> None:
        if quota.algorithm == CONCURRENCY or not units:
            return
        times = self._counters.get((key, quota))
        drains = quota.algorithm in DRAINED
        if times is None:
            if len(self._counters) >= self._most:
                self.lost += units
                return
            times = self._counters[key, quota] = []
        if times and drains:
            # A bucket gets one charge, dated when it was last empty. The store reduces each charge by what drained
            # since its instant, so many small charges would be reduced too much.
            start, sum_ = times[-1]
            if sum_ * quota.period_us > (now - start) * quota.limit:
                times[-1][1] += units
                return
            times.clear()
        elif times and _count_alike(quota, times[-1][0], now):
            times[-1][1] += units
            return
        times.append([now, units])
        del times[: -(SHARES + 1 if quota.algorithm in LOGGED else WINDOWS)]

    def take_back(self, key: Key, quota: Quota, units: int) -> None:
        """Remove units that were given back before they were reported, the latest first."""
        times = self._counters.get((key, quota), [])
        while times and units > 0:
            back = min(units, times[-1][1])
            times[-1][1] -= back
            units -= back
            if not times[-1][1]:
                times.pop()
        if not times:
            self._counters.pop((key, quota), None)

    def forget(self, key: Key, quota: Quota) -> None:
        for counter in [c for c in self._counters if c[0] == key and c[1].identity == quota.identity]:
            del self._counters[counter]

    def tell(self, most: int) -> list[Amend]:
        """Remove up to `most` counters, and return the operations that report them."""
        ops = []
        for counter in list(islice(self._counters, most)):
            times = self._counters.pop(counter)
            charges = [Charge(*counter, units, at) for at, units in times]
            ops += [
                Amend(Receipt(tuple(charges[first : first + CHARGES])), "report")
                for first in range(0, len(charges), CHARGES)
            ]
        return ops

    def put_back(self, op: Amend) -> None:
        """Keep the admissions of a failed report again, beside those added meanwhile."""
        for key, quota, units, mark in op.receipt.charges:
            at = own_mark(mark)
            times = self._counters.get((key, quota))
            if times is None:
                self.add(key, quota, units, at)
            elif quota.algorithm in DRAINED:
                times[0] = [min(times[0][0], at), times[0][1] + units]
            else:
                times.append([at, units])
                times.sort()

    def drop(self, op: Amend) -> None:
        """Count a report as lost that may have been charged, and so must not be sent again."""
        self.lost += op.receipt.cost


def _count_alike(quota: Quota, before: Micros, now: Micros) -> bool:
    """Return whether units admitted at two instants may be reported at the first: in one window, or close in a log."""
    if quota.calendar is not None:
        start, end = quota.calendar.bounds(before)
        return start <= now < end
    if quota.algorithm in LOGGED:
        return 0 <= now - before < quota.period_us // SHARES
    return before // quota.period_us == now // quota.period_us

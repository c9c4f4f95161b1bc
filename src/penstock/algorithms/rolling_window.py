"""Rolling window: an exact log of admissions.

Promise: at most `limit` units in every span (t - period, t]. Costs O(log limit) time and up to `limit` entries a key.
State: (times, totals, first, last, base). `times` and `totals` are parallel lists with an entry per admission: when,
and how many units had been charged up to and with it. Entries first to last-1 are live; `base` is the total before
`first`. Totals only grow, so units used are a difference and every search is a bisection.

The lists are shared between a state and its successors. An admission appends past `last`, where no earlier state
looks, so the state that was passed in stays true; if its successor is dropped, the next admission cuts the tail off.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TypeAlias

from penstock.algorithms.base import Bound, State, Step, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota

Log: TypeAlias = tuple[list[Micros], list[int], int, int, int]


def bind(quota: Quota) -> Bound:
    limit, period = quota.limit, quota.period_us

    def decide(state: State, cost: int, now: Micros) -> Step:
        if state is None:
            times, totals, first, last, base, at = [], [], 0, 0, 0, now
        else:
            times, totals, first, last, base = state
            at = now
            if times[first] <= now - period or times[last - 1] > now:
                (times, totals, first, last, base), at = live(state, now)
        total = totals[last - 1] if last else base
        used = total - base
        leaves = period - now
        if used + cost <= limit:
            until_oldest = (times[first] if first < last else at) + leaves if used + cost else 0
            after = append((times, totals, first, last, base), at, cost) if cost else state
            return (True, limit - used - cost, 0, until_oldest, until_oldest, 0, at), after
        until_oldest = times[first] + leaves
        retry_after = until(total + cost - limit, times, totals, first, last) + leaves
        until_more = until_oldest if used <= limit else until(total + 1 - limit, times, totals, first, last) + leaves
        left = limit - used if used < limit else 0
        kept = state if times is state[0] else (times, totals, first, last, base)  # what was pulled back stays so
        return (False, left, retry_after, until_oldest, until_more, 0, NOT_CHARGED), kept

    def live(state: State, now: Micros) -> tuple[Log, Micros]:
        """The log without what has left the window, and the instant at which that is so."""
        if state is None:
            return ([], [], 0, 0, 0), now
        times, totals, first, last, base = state
        at, newest = now, times[last - 1]
        if newest > now:
            if newest - now <= period:  # time went back: stand still until it has caught up
                at = newest
            else:  # the clock was stepped: what lies ahead of now happens now
                times, totals = [min(time, now) for time in times[first:last]], totals[first:last]
                first, last = 0, len(times)
        gone = bisect_right(times, at - period, first, last)
        return (times, totals, gone, last, totals[gone - 1] if gone > first else base), at

    def force(state: State, cost: int, now: Micros) -> State:
        log, at = live(state, now)
        times, totals, first, last, base = append(log, at, cost)
        enough = bisect_right(totals, totals[last - 1] - limit, first, last)  # the newest `limit` units decide all
        return times, totals, enough, last, totals[enough - 1] if enough > first else base

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        (times, totals, first, last, base), _ = live(state, now)
        costs = [later - earlier for earlier, later in pairwise((base, *totals[first:last]))]
        back = 0
        for entry in range(bisect_left(times, mark, first, last), bisect_right(times, mark, first, last)):
            given = min(costs[entry - first], units - back)
            costs[entry - first] -= given
            back += given
        log: Log = ([], [], 0, 0, base)
        for time, cost in zip(times[first:last], costs, strict=True):
            if cost:
                log = append(log, time, cost)
        return back, log if log[0] else None

    def expiry(state: State) -> Micros:
        times, _, _, last, _ = state
        newest: Micros = times[last - 1]
        return newest + period

    return Bound(decide, peek_by(decide), force, refund, expiry)


def until(total: int, times: list[Micros], totals: list[int], first: int, last: int) -> Micros:
    """When the entry was made with which the log reached `total`."""
    return times[first] if totals[first] >= total else times[bisect_left(totals, total, first, last)]


def append(log: Log, at: Micros, cost: int) -> Log:
    times, totals, first, last, base = log
    total = (totals[last - 1] if last else base) + cost
    if first * 2 > last:  # more dead than alive: copying costs no more than what died since the last copy
        times, totals = times[first:last], totals[first:last]
        first, last = 0, last - first
    elif len(times) > last:
        del times[last:], totals[last:]
    times.append(at)
    totals.append(total)
    return times, totals, first, last + 1, base

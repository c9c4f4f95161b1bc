"""Rolling window: an exact log of admissions.

Promise: at most `limit` units in every span (t - period, t]. Costs O(log limit) time and up to `limit` entries a key;
giving back what is not the newest entry, or reporting what is not, costs as much as the log is long.
State: (units used, the oldest entry's instant, the newest one's, log). Most decisions need no more than the first
three. A single entry needs no log, nor do two of one unit at different instants; otherwise it is (times, totals, first,
last): parallel lists with an entry per admission, when it was and how many units had been charged up to and with it.
Entries first to last-1 are live. Totals only grow, so units used are a difference and every search is a bisection. As
long as every entry cost one unit, totals would say 1, 2, 3, …, and are left out.

The lists are shared between a state and its successors. An admission appends past `last`, where no earlier state
looks, so the state that was passed in stays true; if its successor is dropped, the next admission cuts the tail off.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TypeAlias

from penstock.algorithms.base import Bound, State, Step, peek_by
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota

Log: TypeAlias = tuple[list[Micros], list[int] | None, int, int]


def bind(quota: Quota) -> Bound:
    limit, period, count_denied = quota.limit, quota.period_us, quota.count_denied

    def decide(state: State, cost: int, now: Micros) -> Step:
        if state is None:
            return first(cost, now)
        at = now
        used, oldest, newest, _ = state
        until_oldest = oldest + period - now
        if until_oldest <= 0 or newest > now:
            state, at = live(state, now)
            if state is None:
                return first(cost, at)
            used, oldest, _, _ = state
            until_oldest = oldest + period - now
        free = limit - used
        if cost <= free:
            after = grown(state, at, cost) if cost else state
            return (True, free - cost, 0, until_oldest, until_oldest, 0, at), after
        if not free and cost == 1:  # the oldest entry makes room
            return (False, 0, until_oldest, until_oldest, until_oldest, 0, NOT_CHARGED), state
        retry_after = until(cost - free, state) + period - now
        until_more = until(1 - free, state) + period - now if free < 0 else until_oldest
        return (False, free if free > 0 else 0, retry_after, until_oldest, until_more, 0, NOT_CHARGED), state

    def first(cost: int, at: Micros) -> Step:
        """The answer when nothing is in the log."""
        left = period if cost else 0
        return (True, limit - cost, 0, left, left, 0, at), (cost, at, at, None) if cost else None

    def live(state: State, now: Micros) -> tuple[State, Micros]:
        """The state without what has left the window, and the instant at which that is so."""
        if state is None:
            return None, now
        _, oldest, newest, _ = state
        at = now
        if newest > now:
            if newest - now <= period:  # time went back: stand still until it has caught up
                at = newest
            else:  # the clock was stepped: what lies ahead of now happens now
                times, totals = entries(state)
                state = _, oldest, newest, _ = rebuilt([min(time, now) for time in times], totals)
        if oldest > at - period:
            return state, at
        if newest <= at - period:
            return None, at
        log = written(state)
        return since(bisect_right(log[0], at - period, log[2], log[3]), newest, log), at

    def force(state: State, cost: int, now: Micros) -> State:
        kept, at = live(state, now)
        if kept is None:
            return cost, at, at, None
        return trimmed(grown(kept, at, cost))

    def trimmed(after: State) -> State:
        """The state after units were charged that may not fit."""
        total, _, newest, _ = after
        if total <= limit or not count_denied:  # what was settled stays, as its limit may have been raised since
            return after
        log = written(after)
        enough = reaching(total - limit + 1, total, log)  # the newest `limit` units decide all
        return since(enough, newest, log) if enough > log[2] else after

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        kept, _ = live(state, now)
        if kept is None:
            return 0, None
        if (shorter := without_newest(kept, units, mark)) is not None:
            return units, shorter
        times, totals = entries(kept)
        start, stop = bisect_left(times, mark), bisect_right(times, mark)
        if start == stop:
            return 0, kept
        before = totals[start - 1] if start else 0
        back = min(units, totals[stop - 1] - before)
        gone = bisect_right(totals, before + back, start, stop)
        return back, rebuilt(times[:start] + times[gone:], totals[:start] + [total - back for total in totals[gone:]])

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        kept, last = live(state, now)
        at = at if at < now else last
        if at <= last - period:
            return 0, state
        if kept is None:
            return units, (units, at, at, None)
        return units, trimmed(grown(kept, at, units) if at >= kept[2] else with_earlier(kept, at, units))

    def expiry(state: State) -> Micros:
        newest: Micros = state[2]
        return newest + period

    return Bound(decide, peek_by(decide), force, refund, report, expiry)


def without_newest(state: State, units: int, mark: int) -> State:
    """The state without its newest entry, if `units` at `mark` are just that: the usual refund, at no price."""
    used, oldest, newest, _ = state
    times, totals, first, last = written(state)
    if newest != mark or last - first < 2:
        return None
    cost = 1 if totals is None else totals[last - 1] - totals[last - 2]
    if cost != units or times[last - 2] == mark:
        return None
    return used - units, oldest, times[last - 2], (times, totals, first, last - 1)


def with_earlier(state: State, at: Micros, units: int) -> State:
    """The state with an entry more, which is not the newest."""
    times, totals = entries(state)
    place = bisect_right(times, at)
    before = totals[place - 1] if place else 0
    later = [total + units for total in totals[place:]]
    return rebuilt([*times[:place], at, *times[place:]], [*totals[:place], before + units, *later])


def until(units: int, state: State) -> Micros:
    """When the entry was made with whose leaving at least `units` will have left."""
    used, oldest, newest, log = state
    if log is None:
        return oldest if units == 1 else newest  # type: ignore[no-any-return]
    return log[0][reaching(units, used, log)]  # type: ignore[no-any-return]


def reaching(units: int, used: int, log: Log) -> int:
    """Which entry is the first with which at least `units` of the `used` ones had been charged."""
    _, totals, first, last = log
    if totals is None:
        return first + units - 1
    return bisect_left(totals, totals[last - 1] - used + units, first, last)


def since(first: int, newest: Micros, log: Log) -> State:
    """The state in which only the entries from `first` on are live; there was one before."""
    times, totals, _, last = log
    used = last - first if totals is None else totals[last - 1] - totals[first - 1]
    return used, times[first], newest, (times, totals, first, last)


def written(state: State) -> Log:
    """The log of a state, or the one it would have."""
    used, oldest, newest, log = state
    if log is not None:
        return log  # type: ignore[no-any-return]
    if oldest != newest:
        return [oldest, newest], None, 0, 2
    return [oldest], None if used == 1 else [used], 0, 1


def grown(state: State, at: Micros, cost: int) -> State:
    """The state with an entry more."""
    used, oldest, _, log = state
    if log is None:
        if used == cost == 1 and at != oldest:  # at one instant they would look like one entry of two units
            return 2, oldest, at, None
        log = written(state)
    times, totals, first, last = log
    if first * 2 > last:  # more dead than alive: copying costs no more than what died since the last copy
        times, totals = times[first:last], totals and totals[first:last]
        first, last = 0, last - first
    elif len(times) > last:
        del times[last:]
        if totals:
            del totals[last:]
    times.append(at)
    if totals:
        totals.append(totals[-1] + cost)
    elif cost != 1:
        totals = [*range(1, last + 1), last + cost]
    return used + cost, oldest, at, (times, totals, first, last + 1)


def entries(state: State) -> tuple[list[Micros], list[int]]:
    """When each live entry was made, and the units used up to and with it."""
    used = state[0]
    times, totals, first, last = written(state)
    if totals is None:
        return times[first:last], list(range(1, used + 1))
    base = totals[last - 1] - used
    return times[first:last], [total - base for total in totals[first:last]]


def rebuilt(times: list[Micros], totals: list[int]) -> State:
    """The state with these entries; None if there are none."""
    return (totals[-1], times[0], times[-1], (times, totals, 0, len(times))) if times else None

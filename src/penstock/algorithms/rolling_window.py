"""Rolling window: an exact log of admissions.

Promise: at most `limit` units in every span (t - period, t]. Costs O(log limit) time and up to `limit` entries a key.
A refund or report of any entry but the newest takes time in proportion to the log.
State: (units used, instant of the oldest entry, instant of the newest, log). Most decisions need only the first three.
The log is (times, totals, first, last): two parallel lists with, per admission, its instant and the units charged up to
and with it. Entries first to last-1 are live. Totals only grow, so the units used are a difference and every search is
a bisection. Without a log (None) there is one entry, or two of one unit each at different instants. While every entry
costs one unit, totals would be 1, 2, 3, …, and are None.

The lists are shared between a state and its successors. An admission appends past `last`, which no earlier state reads,
so the state that was passed in stays valid. If its successor is dropped, the next admission cuts the tail off.
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
        if not free and cost == 1:  # the oldest entry leaves first
            return (False, 0, until_oldest, until_oldest, until_oldest, 0, NOT_CHARGED), state
        retry_after = until(cost - free, state) + period - now
        until_more = until(1 - free, state) + period - now if free < 0 else until_oldest
        return (False, free if free > 0 else 0, retry_after, until_oldest, until_more, 0, NOT_CHARGED), state

    def first(cost: int, at: Micros) -> Step:
        """Return the answer of an empty log."""
        left = period if cost else 0
        return (True, limit - cost, 0, left, left, 0, at), (cost, at, at, None) if cost else None

    def live(state: State, now: Micros) -> tuple[State, Micros]:
        """Return the state without the entries that have left the window, and the instant that counts as now."""
        if state is None:
            return None, now
        _, oldest, newest, _ = state
        at = now
        if newest > now:
            if newest - now <= period:  # time went back: stand still until it has caught up
                at = newest
            else:  # the clock was stepped: entries ahead of now move to now
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
        """Return the state after a charge that may exceed the limit."""
        total, _, newest, _ = after
        if total <= limit or not count_denied:  # forced charges stay, as the limit may be raised later
            return after
        log = written(after)
        enough = reaching(total - limit + 1, total, log)  # only the newest `limit` units decide
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
    """Return the state without its newest entry, if that is `units` at `mark`; else None. The cheap, usual refund."""
    used, oldest, newest, _ = state
    times, totals, first, last = written(state)
    if newest != mark or last - first < 2:
        return None
    cost = 1 if totals is None else totals[last - 1] - totals[last - 2]
    if cost != units or times[last - 2] == mark:
        return None
    return used - units, oldest, times[last - 2], (times, totals, first, last - 1)


def with_earlier(state: State, at: Micros, units: int) -> State:
    """Return the state with one more entry, which is not the newest."""
    times, totals = entries(state)
    place = bisect_right(times, at)
    before = totals[place - 1] if place else 0
    later = [total + units for total in totals[place:]]
    return rebuilt([*times[:place], at, *times[place:]], [*totals[:place], before + units, *later])


def until(units: int, state: State) -> Micros:
    """Return the instant of the entry with which at least `units` will have left the window."""
    used, oldest, newest, log = state
    if log is None:
        return oldest if units == 1 else newest  # type: ignore[no-any-return]
    return log[0][reaching(units, used, log)]  # type: ignore[no-any-return]


def reaching(units: int, used: int, log: Log) -> int:
    """Return the index of the first entry up to which at least `units` of the `used` ones are charged."""
    _, totals, first, last = log
    if totals is None:
        return first + units - 1
    return bisect_left(totals, totals[last - 1] - used + units, first, last)


def since(first: int, newest: Micros, log: Log) -> State:
    """Return the state whose live entries begin at `first`; there is an entry before it."""
    times, totals, _, last = log
    used = last - first if totals is None else totals[last - 1] - totals[first - 1]
    return used, times[first], newest, (times, totals, first, last)


def written(state: State) -> Log:
    """Return the log of a state, made if it has none."""
    used, oldest, newest, log = state
    if log is not None:
        return log  # type: ignore[no-any-return]
    if oldest != newest:
        return [oldest, newest], None, 0, 2
    return [oldest], None if used == 1 else [used], 0, 1


def grown(state: State, at: Micros, cost: int) -> State:
    """Return the state with one more entry, the newest."""
    used, oldest, _, log = state
    if log is None:
        if used == cost == 1 and at != oldest:  # two at one instant would read as one of two units
            return 2, oldest, at, None
        log = written(state)
    times, totals, first, last = log
    if first * 2 > last:  # more dead than live entries: the copy is paid for by those that died since the last
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
    """Return the instants of the live entries, and the units used up to and with each."""
    used = state[0]
    times, totals, first, last = written(state)
    if totals is None:
        return times[first:last], list(range(1, used + 1))
    base = totals[last - 1] - used
    return times[first:last], [total - base for total in totals[first:last]]


def rebuilt(times: list[Micros], totals: list[int]) -> State:
    """Return the state with these entries; None if there are none."""
    return (totals[-1], times[0], times[-1], (times, totals, 0, len(times))) if times else None

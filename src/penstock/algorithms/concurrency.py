"""Concurrency: places that are held until they are released or expire.

Promise: at most `limit` places are held at every instant. The place of a crashed holder becomes free after `ttl`.
State: (earliest expiry, latest change, {mark: (expiry, ttl)}). A place is released by its mark, which only its holder
has. Releasing it twice, or after it expired, changes nothing. `retry_after` is when enough places will have expired:
sufficient, but a release may come earlier.

A mark must be unique even if the state was lost or the clock stepped back. So marks are drawn from a counter of the
process, the only input in this package that is not an argument.
"""

from __future__ import annotations

from itertools import count
from typing import TypeAlias

from penstock.algorithms.base import Bound, State, Step
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota

Places: TypeAlias = dict[int, tuple[Micros, Micros]]

NO_PLACES: Places = {}  # never written to

_next_mark = count(1).__next__


def bind(quota: Quota) -> Bound:
    limit, ttl = quota.limit, quota.period_us

    def decide(state: State, cost: int, now: Micros) -> Step:
        first, changed_at, held = state or (0, now, NO_PLACES)
        if held and not first > now >= changed_at:
            first, held = live(state, now)
        if not cost or len(held) >= limit:
            answer, _ = peek(state, cost, now)
            return answer, state if state is None or held is state[2] else kept(held, now)
        mark, end = _next_mark(), now + ttl
        if not held:
            return (True, limit - 1, 0, ttl, ttl, 0, mark), (end, now, {mark: (end, ttl)})
        if end < first:
            first = end
        left = first - now
        return (True, limit - len(held) - 1, 0, left, left, 0, mark), (first, now, {**held, mark: (end, ttl)})

    def peek(state: State, cost: int, now: Micros) -> Step:
        first, held = live(state, now)
        left = first - now if held else 0
        if len(held) < limit:
            return (True, limit - len(held), 0, left, left, 0, NOT_CHARGED), state
        free_at = first if len(held) == limit else sorted(end for end, _ in held.values())[len(held) - limit]
        until_free = free_at - now
        return (not cost, 0, until_free if cost else 0, left, until_free, 0, NOT_CHARGED), state

    def force(state: State, cost: int, now: Micros) -> State:
        return state  # a place can only be held by a request that was admitted

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        first, changed_at, held = state
        if not first > now >= changed_at:
            _, held = live(state, now)
        if mark not in held:
            return 0, kept(held, now)
        if len(held) == 1:
            return 1, (now, now, NO_PLACES)
        left = held.copy()
        del left[mark]
        return 1, kept(left, now)

    def report(state: State, units: int, at: Micros, now: Micros) -> tuple[int, State]:
        return 0, state  # a place that is held elsewhere is not held here

    def renew(state: State, mark: int, now: Micros) -> State:
        _, held = live(state, now)
        return kept({**held, mark: (now + ttl, ttl)}, now) if mark in held else None

    def expiry(state: State) -> Micros:
        _, changed_at, held = state
        latest: Micros = max([end for end, _ in held.values()], default=changed_at)
        return latest

    return Bound(decide, peek, force, refund, report, expiry, renew)


def live(state: State, now: Micros) -> tuple[Micros, Places]:
    """Return when the first place expires, and the places still held."""
    if state is None:
        return 0, NO_PLACES
    first: Micros
    changed_at: Micros
    held: Places
    first, changed_at, held = state
    if first > now >= changed_at or not held:
        return first, held
    # A place expired; or time went back, and then no place may last longer than its ttl from now.
    held = {mark: (min(end, now + ttl), ttl) for mark, (end, ttl) in held.items() if end > now}
    return min((end for end, _ in held.values()), default=0), held


def kept(held: Places, now: Micros) -> State:
    """Return the state in which these places are held."""
    return (min([end for end, _ in held.values()]) if held else now), now, held

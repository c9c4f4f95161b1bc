"""Concurrency: places that are held, and come back when they are released or their time is up.

Promise: at most `limit` places are held at every instant. A holder that crashes frees its place after `ttl`.
State: (earliest expiry, {mark: (expiry, ttl)}). A mark is the instant at which the place was taken, moved on until it
is unique, so the mark of a place from before a loss of state never fits another's.

A place is given back by its mark, which only its holder knows; giving it back twice, or after it expired, changes
nothing. `retry_after` is when the next place expires: sufficient, but a release may come earlier.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.algorithms.base import Bound, State, Step
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota

Places: TypeAlias = dict[int, tuple[Micros, Micros]]


def bind(quota: Quota) -> Bound:
    limit, ttl = quota.limit, quota.period_us

    def decide(state: State, cost: int, now: Micros) -> Step:
        first, held = live(state, now)
        if not cost or len(held) >= limit:
            return peek(state, cost, now)
        mark = now
        while mark in held:
            mark += 1
        end = now + ttl
        if not held or end < first:
            first = end
        left = first - now
        return (True, limit - len(held) - 1, 0, left, left, 0, mark), (first, {**held, mark: (end, ttl)})

    def peek(state: State, cost: int, now: Micros) -> Step:
        first, held = live(state, now)
        left = first - now if held else 0
        if cost and len(held) >= limit:
            return (False, 0, left, left, left, 0, NOT_CHARGED), state
        return (True, max(limit - len(held), 0), 0, left, left, 0, NOT_CHARGED), state

    def force(state: State, cost: int, now: Micros) -> State:
        return state  # a place cannot be taken from nobody

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        _, held = live(state, now)
        if mark not in held:
            return 0, kept(held)
        return 1, kept({other: place for other, place in held.items() if other != mark})

    def renew(state: State, mark: int, now: Micros) -> State:
        _, held = live(state, now)
        return kept({**held, mark: (now + ttl, ttl)}) if mark in held else None

    def expiry(state: State) -> Micros:
        latest: Micros = max(end for end, _ in state[1].values())
        return latest

    return Bound(decide, peek, force, refund, expiry, renew)


def live(state: State, now: Micros) -> tuple[Micros, Places]:
    """The places still held, and when the first of them expires."""
    if state is None:
        return 0, {}
    first: Micros
    held: Places
    first, held = state
    if first > now >= max(held):  # nothing expired, and nothing taken in a future that a clock step took away
        return first, held
    held = {mark: (min(end, now + ttl), ttl) for mark, (end, ttl) in held.items() if end > now}
    return min((end for end, _ in held.values()), default=0), held


def kept(held: Places) -> State:
    return (min(end for end, _ in held.values()), held) if held else None

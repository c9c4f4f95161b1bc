"""Concurrency: places that are held, and come back when they are released or their time is up.

Promise: at most `limit` places are held at every instant. A holder that crashes frees its place after `ttl`.
State: {mark: (expiry, ttl)}, copied on every change. A mark is the instant at which the place was taken, moved on to be
unique, so that the mark of a place from before a loss of state never fits another.

A place is given back by its mark, which only its holder knows; giving it back twice, or after it expired, changes
nothing. `retry_after` is when the next place expires: sufficient, but a release may come earlier.
"""

from __future__ import annotations

from penstock.algorithms.base import Bound, State, Step
from penstock.clock import Micros
from penstock.model import NOT_CHARGED
from penstock.quota import Quota


def bind(quota: Quota) -> Bound:
    limit, ttl = quota.limit, quota.period_us

    def decide(state: State, cost: int, now: Micros) -> Step:
        held = live(state, now)
        if not cost or len(held) >= limit:
            return peek(state, cost, now)
        mark = now
        while mark in held:
            mark += 1
        held = {**held, mark: (now + ttl, ttl)}
        until_next = next_expiry(held, now)
        return (True, limit - len(held), 0, until_next, until_next, 0, mark), held

    def peek(state: State, cost: int, now: Micros) -> Step:
        held = live(state, now)
        until_next = next_expiry(held, now)
        if cost and len(held) >= limit:
            return (False, 0, until_next, until_next, until_next, 0, NOT_CHARGED), state
        return (True, max(limit - len(held), 0), 0, until_next, until_next, 0, NOT_CHARGED), state

    def live(state: State, now: Micros) -> dict[int, tuple[Micros, Micros]]:
        """The places still held; one that would last longer than its own ttl is from before a clock step."""
        return {mark: (min(end, now + own), own) for mark, (end, own) in (state or {}).items() if end > now}

    def next_expiry(held: dict[int, tuple[Micros, Micros]], now: Micros) -> Micros:
        return min((end for end, _ in held.values()), default=now) - now

    def force(state: State, cost: int, now: Micros) -> State:
        return state  # a place cannot be taken from nobody

    def refund(state: State, units: int, mark: int, now: Micros) -> tuple[int, State]:
        held = live(state, now)
        return int(held.pop(mark, None) is not None), held or None

    def renew(state: State, mark: int, now: Micros) -> State:
        held = live(state, now)
        return {**held, mark: (now + ttl, ttl)} if mark in held else None

    def expiry(state: State) -> Micros:
        latest: Micros = max(end for end, _ in state.values())
        return latest

    return Bound(decide, peek, force, refund, expiry, renew)

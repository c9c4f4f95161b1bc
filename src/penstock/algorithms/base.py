"""What every algorithm provides, and what it may rely on.

`decide(state, cost, now)` returns a `Step`: the answer, and the state to keep. State None is a counter nobody has
touched. If the answer is yes, the state to keep includes the charge; if it is no, it is the very object passed in,
unless that had to be pulled back after a clock step, or refusing leaves a trace (see `options`). The caller keeps a
step's state only if the whole request goes that way, so `decide` leaves the state it was given usable. A cost of 0
describes the state and changes nothing.

All algorithms keep these promises, and the conformance kit checks them:

- `retry_after` is sufficient and minimal: nobody else coming, the ask passes then and not a microsecond earlier.
- Time going back admits no more than time standing still. State that lies ahead of now by more than one period
  (buckets: by more than a full burst) can only come from a clock that was stepped; it is pulled back to now, which
  costs at most one extra budget. What lies ahead by less stands still until time has caught up, so no refusal lasts
  longer than its ordinary wait and one period.
- Dropping a counter's state from `expiry` on changes no answer; dropping it earlier gives away at most one budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer

State: TypeAlias = Any
"""What one counter remembers; its shape is the algorithm's own business."""

Step: TypeAlias = tuple[Answer, State]
"""An answer, and the state to keep if the whole request goes that way."""

Decide: TypeAlias = Callable[[State, int, Micros], Step]
Force: TypeAlias = Callable[[State, int, Micros], State]
Refund: TypeAlias = Callable[[State, int, int, Micros], tuple[int, State]]
Report: TypeAlias = Callable[[State, int, Micros, Micros], tuple[int, State]]
Expiry: TypeAlias = Callable[[State], Micros]
Renew: TypeAlias = Callable[[State, int, Micros], State]

MAX_USED = 2**33 - 1
"""Where counters stop: about twice the largest limit, and times 2^20 ticks still exact in a double, as Lua needs it."""


class Bound(NamedTuple):
    """An algorithm bound to a quota.

    - `decide(state, cost, now) -> Step`
    - `peek(state, cost, now) -> Step`: would `cost` pass? Describes the state as it is.
    - `force(state, cost, now) -> state`: charge `cost`, whether it fits or not.
    - `refund(state, units, mark, now) -> (units, state)`: give back what is provably still charged.
    - `report(state, units, at, now) -> (units, state)`: charge what was admitted elsewhere at an instant, fit or not,
      into the window it happened in, as far as it still counts. Says how many units do; if none, the state stays the
      very object passed in. What lies ahead of now happened now: it is charged as `force` would.
    - `expiry(state) -> instant`: from then on the state says nothing more than None.
    - `renew(state, mark, now) -> state`: hold on to a place; None if it is no longer held. Only where places are held.
    """

    decide: Decide
    peek: Decide
    force: Force
    refund: Refund
    report: Report
    expiry: Expiry
    renew: Renew | None = None


def bind_window_end(period: Micros) -> Callable[[Micros], Micros]:
    """The end of the aligned window around an instant. Within a window it is one object, which all its states share."""
    latest: Micros = 0

    def window_end(now: Micros) -> Micros:
        nonlocal latest
        end = latest
        if not 0 < end - now <= period:
            latest = end = now - now % period + period
        return end

    return window_end


def peek_by(decide: Decide) -> Decide:
    """The `peek` that follows from `decide`: ask with the cost and without, keep nothing."""

    def peek(state: State, cost: int, now: Micros) -> Step:
        (allowed, _, retry_after, _, _, delay, _), _ = decide(state, cost, now)
        (_, remaining, _, reset_after, more_after, _, _), _ = decide(state, 0, now)
        if cost == 0:  # what is overdrawn refuses everything but nothing
            allowed, retry_after = True, 0
        return (allowed, remaining, retry_after, reset_after, more_after, delay, NOT_CHARGED), state

    return peek

"""What every algorithm provides, and what it promises.

`decide(state, cost, now)` returns a `Step`: the answer, and the state to keep. State None is an untouched counter. If
the answer is yes, the state to keep includes the charge. If it is no, it is the same object that was passed in, except
if that was pulled back after a clock step, or if refusing leaves a trace (see `options`). The caller keeps the state of
a step only if every counter of the request admits it, so `decide` leaves the state that was passed in usable. A cost
of 0 describes the state and changes nothing.

All algorithms keep these promises, and the conformance kit checks them:

- `retry_after` is sufficient and minimal: without other requests, the ask passes then and not a microsecond earlier.
- Time going back admits no more than time standing still. State that lies ahead of now by more than one period
  (buckets: by more than a full burst) can only come from a clock that was stepped. It is pulled back to now, which
  costs at most one extra budget. State that lies ahead by less stays until time has caught up, so no refusal lasts
  longer than its ordinary wait and one period.
- Dropping the state of a counter from its `expiry` on changes no answer; dropping it earlier costs at most one budget.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from penstock.clock import Micros
from penstock.model import NOT_CHARGED, Answer

State: TypeAlias = Any
"""The state of one counter; each algorithm defines its shape."""

Step: TypeAlias = tuple[Answer, State]
"""An answer, and the state to keep if every counter of the request agrees."""

Decide: TypeAlias = Callable[[State, int, Micros], Step]
Force: TypeAlias = Callable[[State, int, Micros], State]
Refund: TypeAlias = Callable[[State, int, int, Micros], tuple[int, State]]
Report: TypeAlias = Callable[[State, int, Micros, Micros], tuple[int, State]]
Expiry: TypeAlias = Callable[[State], Micros]
Renew: TypeAlias = Callable[[State, int, Micros], State]

MAX_USED = 2**33 - 1
"""Where counters stop: about twice the largest limit. Times 2^20 ticks it is still exact in a double, as Lua needs."""


class Bound(NamedTuple):
    """An algorithm bound to a quota.

    - `decide(state, cost, now) -> Step`
    - `peek(state, cost, now) -> Step`: whether `cost` would pass; the state stays as it is.
    - `force(state, cost, now) -> state`: charge `cost`, whether it fits or not.
    - `refund(state, units, mark, now) -> (units, state)`: give back those units that are provably still charged.
    - `report(state, units, at, now) -> (units, state)`: charge units that were admitted elsewhere at the instant `at`,
      whether they fit or not, to the window of that instant. Returns how many of them still count; if none, with the
      same state object that was passed in. Units admitted after `now` are charged at `now`, as by `force`.
    - `expiry(state) -> instant`: from then on the state equals None.
    - `renew(state, mark, now) -> state`: extend the hold on a place; None if it is not held. For `concurrency` alone.
    """

    decide: Decide
    peek: Decide
    force: Force
    refund: Refund
    report: Report
    expiry: Expiry
    renew: Renew | None = None


def bind_window_end(period: Micros) -> Callable[[Micros], Micros]:
    """Return a function for the end of the aligned window around an instant; all states of a window share it."""
    latest: Micros = 0

    def window_end(now: Micros) -> Micros:
        nonlocal latest
        end = latest
        if not 0 < end - now <= period:
            latest = end = now - now % period + period
        return end

    return window_end


def peek_by(decide: Decide) -> Decide:
    """Return a `peek` made of `decide`: decide with the cost and with 0, and keep neither state."""

    def peek(state: State, cost: int, now: Micros) -> Step:
        (allowed, _, retry_after, _, _, delay, _), _ = decide(state, cost, now)
        (_, remaining, _, reset_after, more_after, _, _), _ = decide(state, 0, now)
        if cost == 0:  # an overdrawn counter refuses every cost but 0
            allowed, retry_after = True, 0
        return (allowed, remaining, retry_after, reset_after, more_after, delay, NOT_CHARGED), state

    return peek

"""The algorithms, as pure functions from state, cost and time to a decision and a new state.

An algorithm is a module with a function `bind(quota) -> Bound`, which does once what does not vary between decisions.
To add an algorithm, write its module, and list it here and in `penstock.quota.ALGORITHMS`. docs/architecture.md names
the other places: the script of Redis, the oracle and the conformance kit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.algorithms import (
    calendar,
    concurrency,
    fixed_window,
    gcra,
    leaky_bucket,
    rolling_window,
    sliding_window,
    token_bucket,
)
from penstock.algorithms.base import Bound
from penstock.algorithms.options import counting_denied, penalised
from penstock.quota import CALENDAR, CONCURRENCY, MIN_INTERVAL, Quota

BINDERS: Mapping[str, Callable[[Quota], Bound]] = {
    "fixed_window": fixed_window.bind,
    "sliding_window": sliding_window.bind,
    "rolling_window": rolling_window.bind,
    "token_bucket": token_bucket.bind,
    "gcra": gcra.bind,
    "leaky_bucket": leaky_bucket.bind,
    CALENDAR: calendar.bind,
    CONCURRENCY: concurrency.bind,
    MIN_INTERVAL: gcra.bind,
}


def bind(quota: Quota) -> Bound:
    """Return the functions that enforce `quota` (one of `Quota.parts`) on the state of a counter."""
    plain = BINDERS[quota.algorithm](quota)
    bound = counting_denied(plain) if quota.count_denied else plain
    return bound if quota.penalty_us is None else penalised(bound, plain, quota.penalty_us)


__all__ = ["BINDERS", "Bound", "bind"]

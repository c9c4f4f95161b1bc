"""The algorithms, as pure functions: state, cost and now in; state and decision out.

An algorithm is one module with one function, `bind(quota) -> Bound`. Binding does once what need not be done on every
decision. To add an algorithm, write its module, list it here and in `penstock.quota.ALGORITHMS`; every store's
conformance tests then demand it.
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
    """The functions that enforce `quota` (one of `Quota.parts`) on one counter's state."""
    plain = BINDERS[quota.algorithm](quota)
    bound = counting_denied(plain) if quota.count_denied else plain
    return bound if quota.penalty_us is None else penalised(bound, plain, quota.penalty_us)


__all__ = ["BINDERS", "Bound", "bind"]

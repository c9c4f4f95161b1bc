"""Limiters that break one promise each, to show that the checks find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.clock import Micros
from penstock.engine.fail_modes import admitted, marked
from penstock.layers import Fallback
from penstock.model import Acquire, Op, Outcome, Verdict


class Generous(Fallback):
    """Admits everything while the store is unavailable, as if the store had decided."""

    def _instead(self, op: Op, failed: Any, now: Micros) -> Outcome:
        outcome = super()._instead(op, failed, now)
        if isinstance(op, Acquire) and isinstance(outcome, Verdict):
            return marked(admitted(op, now), outcome.source)
        return outcome


class Making(NamedTuple):
    """The options of a limiter with some behaviour, and an addition to its URL."""

    options: Callable[[Any], dict[str, Any]]
    url: str = ""


BROKEN: dict[str | None, Making] = {
    None: Making(lambda behaviour: {"on_failure": behaviour}),
    "generous": Making(lambda behaviour: {"layers": [Generous(behaviour)]}),
    "resentful": Making(  # never retries a store that has failed
        lambda behaviour: {"on_failure": behaviour}, "&breaker_failures=1&breaker_dwell=3600"
    ),
    "raising": Making(lambda _: {"on_failure": "raise"}),
}
"""The limiters by their defect; None: no defect."""

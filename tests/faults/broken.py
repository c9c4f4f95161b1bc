"""Limiters that break a promise, each in one way: what shows that the checks of faults find it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.clock import Micros
from penstock.layers import Entered, Fallback
from penstock.layers.stand_ins import admitted, marked
from penstock.model import Acquire, Op, Outcome, Verdict
from penstock.stores.redis.replies import not_sent


class Generous(Fallback):
    """Admits everything when the store is gone, and says that it had decided."""

    def _instead(self, op: Op, failed: Any, now: Micros) -> Outcome:
        outcome = super()._instead(op, failed, now)
        if isinstance(op, Acquire) and isinstance(outcome, Verdict):
            return marked(admitted(op, now), outcome.source)
        return outcome


class Resentful(Fallback):
    """Never asks a store again that has failed once."""

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        return super().enter(ops, now) if self._failed_at < 0 else Entered((), ops)

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        if outcomes or not token:
            return super().leave(token, outcomes, now)
        return [self._instead(op, not_sent("not any more", "the store"), now) for op in token]


def _layers(kind: type[Fallback]) -> Callable[[str], dict[str, Any]]:
    return lambda behaviour: {"layers": [kind(behaviour)]}  # type: ignore[arg-type]


BROKEN: dict[str | None, Callable[[str], dict[str, Any]]] = {
    None: lambda behaviour: {"on_failure": behaviour},
    "generous": _layers(Generous),
    "resentful": _layers(Resentful),
    "raising": lambda _: {"on_failure": "raise"},
}
"""The options of a limiter that should behave so; None: of one that does."""

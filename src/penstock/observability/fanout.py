"""Fan-out to several observers or hooks where one is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import Micros
from penstock.events import Hook, tell
from penstock.model import Verdict

if TYPE_CHECKING:
    from penstock.engine.protocols import Observer


class Observers:
    """An observer that passes every call on to several."""

    def __init__(self, *observers: Observer) -> None:
        self._decided = tuple(observer.decided for observer in observers)
        self._answered = tuple(observer.answered for observer in observers)

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        for decided in self._decided:
            decided(verdicts, took)

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        for answered in self._answered:
            answered(route, statuses, took)


class Hooks:
    """A hook that passes every event on to several, even if one of them fails."""

    def __init__(self, *hooks: Hook) -> None:
        self._hooks = hooks

    def __call__(self, event: Any, /) -> None:
        for hook in self._hooks:
            tell(hook, event)

"""What a service tells whoever measures it: once per batch, never per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.clock import Micros
from penstock.model import Verdict


class Observer(Protocol):
    """Told of every batch, on the event loop: it must be quick and must not raise."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        """These were decided together, and the store took so long. By rules where they are `Ruling`s."""

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        """Calls of one route were answered with these statuses, so long after they had been read."""


class Unobserved:
    """Nobody measures."""

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None: ...

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...

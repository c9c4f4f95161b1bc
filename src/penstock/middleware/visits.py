"""A visit: one request in an application, with the passages that it was granted, as handlers see it.

A request has one visit, however many middlewares and decorators ask: `visit.cost = 1432` settles what it cost, and
`visit.verdict` tells what is left.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.errors import InvalidOption
from penstock.middleware.passing import AsyncPassage, Passage
from penstock.model import Verdict

P = TypeVar("P", bound=Passage | AsyncPassage)


class Visit(Generic[P]):
    """One request in an application, and the passages that it was granted."""

    __slots__ = ("passages",)

    def __init__(self) -> None:
        self.passages: list[P] = []

    @property
    def verdict(self) -> Verdict | None:
        """What the last that was asked said; None if nobody was."""
        return self.passages[-1].verdict if self.passages else None

    @property
    def cost(self) -> int | None:
        """What the request turned out to cost. To be set by who knows, before the response ends."""
        return next((passage.cost for passage in self.passages if passage.cost is not None), None)

    @cost.setter
    def cost(self, units: int) -> None:
        settling = [passage for passage in self.passages if passage.gate.settles]
        if not settling:
            raise InvalidOption("cost of a visit: nothing is to be settled (expected a middleware with settle=True)")
        for passage in settling:
            passage.cost = units

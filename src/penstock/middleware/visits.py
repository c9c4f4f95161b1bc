"""A visit: one request in an application, with the passages that it was granted, as handlers see it.

A request has one visit, however many middlewares and decorators ask: `visit.cost = 1432` settles what it cost, and
`visit.verdict` tells what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from penstock.errors import InvalidOption, RateLimited
from penstock.headers import Header
from penstock.middleware.gate import Refusal, refusal_of
from penstock.middleware.passing import AsyncPassage, Passage
from penstock.model import Verdict

P = TypeVar("P", bound=Passage | AsyncPassage)

LISTS = frozenset(("RateLimit", "RateLimit-Policy"))
"""Headers that may be said by several: each limit adds its items. All others say one thing only."""


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


def told(passages: Sequence[Passage | AsyncPassage]) -> list[Header]:
    """What a client is told of all limits that it passed; where there is room for one, of the innermost."""
    if len(passages) == 1:
        return passages[0].headers()
    headers: list[Header] = []
    for passage in reversed(passages):
        said = {name for name, _ in headers} - LISTS
        headers = [header for header in passage.headers() if header[0] not in said] + headers
    return headers


def raised_refusal(raised: RateLimited, passages: Sequence[Passage | AsyncPassage]) -> Refusal:
    """The response where a handler raised a refusal; it tells no more than the limits that the request has passed."""
    return passages[-1].gate.refusal(raised.verdict) if passages else refusal_of(raised.verdict)

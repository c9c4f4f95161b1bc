"""Hits of each limit by outcome: the statistics of envoyproxy/ratelimit, under its names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

MAX_TITLES = 1_000
"""With `detailed_metric` clients choose the titles: those beyond this number are counted as `other`."""

OTHERS = "other"


class LimitHits:
    """Hits of one limit, by outcome."""

    __slots__ = ("near_limit", "over_limit", "shadow_mode", "total_hits", "within_limit")

    def __init__(self) -> None:
        self.total_hits = self.over_limit = self.near_limit = self.within_limit = self.shadow_mode = 0


class Count(NamedTuple):
    """The hits of one limit, such as `domain.key_value`, with one outcome."""

    title: str
    name: str
    hits: int


class Counts:
    """The hits of all limits."""

    def __init__(self) -> None:
        self._tallies: dict[str, LimitHits] = {}

    def tally(self, title: str) -> LimitHits:
        tally = self._tallies.get(title)
        if tally is None:
            tally = self._tallies.setdefault(title if len(self._tallies) < MAX_TITLES else OTHERS, LimitHits())
        return tally

    def read(self) -> Iterator[Count]:
        for title, tally in list(self._tallies.items()):
            for name in LimitHits.__slots__:
                yield Count(title, name, getattr(tally, name))

"""Patterns of path segments: many of them are matched in one walk along the value, whatever the value.

    *     any characters within one segment, also none:  /v1/*/orders   /files/*.csv
    **    any segments, also none; stands alone between slashes:  /v1/**   /v1/**/orders

So `/v1/**` matches `/v1`, `/v1/` and `/v1/a/b`. Every other character means itself. The patterns form a tree over their
segments, and a walk keeps the set of places in it that the value may have reached: its cost is at most the number of
segments times the number of patterns, there is nothing to go back to, and equal beginnings are walked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.errors import InvalidInput, shown
from penstock.rules.networks import Positions

MatchSegment = Callable[[str], bool]


class _Place:
    """A place in the tree: where it leads to, by the next segment of a value, and which patterns end here."""

    __slots__ = ("anything", "beyond", "hits", "is_plain", "literal", "shaped")

    def __init__(self) -> None:
        self.literal: dict[str, _Place] = {}
        self.shaped: dict[str, tuple[MatchSegment, _Place]] = {}
        self.anything: _Place | None = None  # by *
        self.beyond: _Place | None = None  # by **, which is reached at once, as it may stand for no segment
        self.hits: Positions = ()
        self.is_plain = True  # whether it leads on by literal segments alone

    def child(self, segment: str) -> _Place:
        """The place behind a segment of a pattern, made if there is none."""
        self.is_plain = self.is_plain and "*" not in segment
        if segment == "**":
            self.beyond = self.beyond or _Place()
            return self.beyond
        if segment == "*":
            self.anything = self.anything or _Place()
            return self.anything
        if "*" in segment:
            return self.shaped.setdefault(segment, (_segment_matcher(segment), _Place()))[1]
        return self.literal.setdefault(segment, _Place())


class GlobTree:
    """Which of many patterns a value matches."""

    def __init__(self, patterns: Iterable[tuple[str, int]]) -> None:
        self._root = _Place()
        for pattern, position in patterns:
            place = self._root
            for segment in check_pattern(pattern).split("/"):
                place = place.child(segment)
            place.hits += (position,)

    def find(self, value: str) -> Positions:
        """What stands at all patterns that `value` matches. An empty value is absent, and matches none."""
        if not value:
            return ()
        segments = iter(value.split("/"))
        place = self._root
        while place.is_plain:  # as most patterns begin: there is one way on, or none
            segment = next(segments, None)
            if segment is None:
                return place.hits
            following = place.literal.get(segment)
            if following is None:
                return ()
            place = following
        return _walk(place, segments)


def _walk(start: _Place, segments: Iterable[str]) -> Positions:
    """What stands where the rest of a value may lead from a place."""
    places = [start]
    deep: dict[_Place, None] = {}
    _go_beyond(start, deep)
    for segment in segments:
        following: list[_Place] = []
        for place in (*places, *deep) if deep else places:
            child = place.literal.get(segment)
            if child is not None:
                following.append(child)
            if place.anything is not None:
                following.append(place.anything)
            if place.shaped:
                following += [child for matches, child in place.shaped.values() if matches(segment)]
        places = following
        for place in places:
            if place.beyond is not None:
                _go_beyond(place, deep)
        if not places and not deep:
            return ()
    return tuple([hit for place in (*places, *deep) for hit in place.hits])


def _go_beyond(place: _Place, deep: dict[_Place, None]) -> None:
    """Add the deep places that are reached at once from here.

    A place behind `**` is never left again. It may be reached in many ways, and is kept once; any other place can only
    be reached from the one before it, so it never comes twice.
    """
    while place.beyond is not None:
        place = place.beyond
        deep[place] = None


def check_pattern(pattern: str) -> str:
    """`pattern` itself, if it says something."""
    for segment in pattern.split("/"):
        if "**" in segment and segment != "**":
            raise InvalidInput(f"glob {shown(pattern)}: expected ** to stand alone between slashes, and * elsewhere")
    return pattern


def _segment_matcher(pattern: str) -> MatchSegment:
    """Whether a segment has the pieces of `pattern` in order. The first place for a piece is as good as any later."""
    head, *pieces, tail = pattern.split("*")
    least = len(head) + len(tail)
    after = -len(tail) or None

    def matches(segment: str) -> bool:
        if len(segment) < least or not segment.startswith(head) or not segment.endswith(tail):
            return False
        middle = segment[len(head) : after]
        at = 0
        for piece in pieces:
            at = middle.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches

"""Patterns of path segments, many of which are matched in one walk along a value.

    *     any characters within one segment, also none:  /v1/*/orders   /files/*.csv
    **    any segments, also none; stands alone between slashes:  /v1/**   /v1/**/orders

So `/v1/**` matches `/v1`, `/v1/` and `/v1/a/b`. Every other character stands for itself. The patterns form a tree over
their segments. A walk keeps the set of nodes that the value may have reached, so it never backtracks, and walks equal
beginnings once. Its cost is at most the number of segments times the number of patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.errors import InvalidInput, shown
from penstock.rules.networks import Positions

MatchSegment = Callable[[str], bool]


class _Node:
    """A node of the tree: the nodes that the next segment leads to, and the patterns that end here."""

    __slots__ = ("anything", "beyond", "hits", "is_plain", "literal", "shaped")

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.shaped: dict[str, tuple[MatchSegment, _Node]] = {}
        self.anything: _Node | None = None  # by *
        self.beyond: _Node | None = None  # by **, reached at once, because ** may stand for no segment
        self.hits: Positions = ()
        self.is_plain = True  # whether only literal segments lead on

    def child(self, segment: str) -> _Node:
        """Return the node behind a segment of a pattern, made if there is none."""
        self.is_plain = self.is_plain and "*" not in segment
        if segment == "**":
            self.beyond = self.beyond or _Node()
            return self.beyond
        if segment == "*":
            self.anything = self.anything or _Node()
            return self.anything
        if "*" in segment:
            return self.shaped.setdefault(segment, (_segment_matcher(segment), _Node()))[1]
        return self.literal.setdefault(segment, _Node())


class GlobTree:
    """Finds which of many patterns a value matches."""

    def __init__(self, patterns: Iterable[tuple[str, int]]) -> None:
        self._root = _Node()
        for pattern, position in patterns:
            node = self._root
            for segment in check_pattern(pattern).split("/"):
                node = node.child(segment)
            node.hits += (position,)

    def find(self, value: str) -> Positions:
        """Return the positions of all patterns that `value` matches. An empty value is absent, and matches none."""
        if not value:
            return ()
        segments = iter(value.split("/"))
        node = self._root
        while node.is_plain:  # the beginning of most patterns: one way on, or none
            segment = next(segments, None)
            if segment is None:
                return node.hits
            following = node.literal.get(segment)
            if following is None:
                return ()
            node = following
        return _walk(node, segments)


def _walk(start: _Node, segments: Iterable[str]) -> Positions:
    """Return the positions of all patterns that the rest of a value matches from a node."""
    nodes = [start]
    deep: dict[_Node, None] = {}
    _go_beyond(start, deep)
    for segment in segments:
        following: list[_Node] = []
        for node in (*nodes, *deep) if deep else nodes:
            child = node.literal.get(segment)
            if child is not None:
                following.append(child)
            if node.anything is not None:
                following.append(node.anything)
            if node.shaped:
                following += [child for matches, child in node.shaped.values() if matches(segment)]
        nodes = following
        for node in nodes:
            if node.beyond is not None:
                _go_beyond(node, deep)
        if not nodes and not deep:
            return ()
    return tuple([hit for node in (*nodes, *deep) for hit in node.hits])


def _go_beyond(node: _Node, deep: dict[_Node, None]) -> None:
    """Add the deep nodes that are reached at once from here.

    A node behind `**` stays reached. It may be reached in several ways, so it is kept in a set; any other node is
    reached only from its parent, so never twice.
    """
    while node.beyond is not None:
        node = node.beyond
        deep[node] = None


def check_pattern(pattern: str) -> str:
    """Return a valid pattern."""
    for segment in pattern.split("/"):
        if "**" in segment and segment != "**":
            raise InvalidInput(f"glob {shown(pattern)}: expected ** to stand alone between slashes, and * elsewhere")
    return pattern


def _segment_matcher(pattern: str) -> MatchSegment:
    """Return a test whether a segment has the pieces of `pattern` in order; the first occurrence of each will do."""
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

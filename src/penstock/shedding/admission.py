"""Priorities, and `Admission`: a shedder's answer, with the request's entry in the in-flight counts."""

from __future__ import annotations

from typing import NamedTuple, Self

from penstock.errors import InvalidOption, shown

SHED = "shed"

CRITICAL = "critical"
PRIORITIES = (CRITICAL, "high", "normal", "low")
"""The classes of traffic, the most important first. Four, because more are hard to tell apart in practice."""

RANKS = {priority: rank for rank, priority in enumerate(PRIORITIES)}


class Admission(NamedTuple):
    """The answer to one request: true if it may begin. Use it in a `with` block, so that it always ends.

    - `reason`: "" or "shed"; `by`: what refused it, "reserve" or "pressure".
    - `retry_after`: seconds after which a retry makes sense.
    - `begun`: the sets that count the request while it is in flight.

    Each set holds the identity of this object. So ending it late, twice, or from another thread changes nothing else,
    and an admission that is garbage collected has ended.
    """

    admitted: bool
    priority: str
    reason: str = ""
    by: str = ""
    retry_after: float = 0.0
    begun: tuple[set[int], ...] = ()

    def end(self) -> None:
        """End the request: it is no longer in flight."""
        token = id(self)
        for begun in self[5]:
            begun.discard(token)

    def __bool__(self) -> bool:
        return self[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        token = id(self)  # the body of end(), because a call would cost more than the body
        for begun in self[5]:
            begun.discard(token)

    def __del__(self) -> None:
        # An admission that was only tested, or interrupted before its block was entered, has no other end.
        token = id(self)
        for begun in self[5]:
            begun.discard(token)

    def __repr__(self) -> str:
        if self.admitted:
            return f"Admission({self.priority}: admitted)"
        return f"Admission({self.priority}: {self.reason} by {self.by}, retry after {self.retry_after:g} s)"


def unknown_priority(priority: object) -> InvalidOption:
    """Return the error for a priority that does not exist."""
    return InvalidOption(f"priority {shown(priority)}: expected {', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}")

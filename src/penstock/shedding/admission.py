"""Admission: a shedder's answer, and the place in flight that comes with a yes."""

from __future__ import annotations

from typing import NamedTuple, Self

from penstock.errors import InvalidOption, shown

SHED = "shed"


class Admission(NamedTuple):
    """True if the request may begin. Use it in a `with` block, so that it ends when the request does, however it does.

    - `reason`: "" or "shed"; `by`: what refused it, "reserve" or "pressure".
    - `retry_after`: seconds after which another try makes sense.
    - `begun`: who counts the request as long as it runs.

    It is counted under its own identity, so ending it late, twice, or from another thread changes nothing. Who drops
    it has ended it.
    """

    admitted: bool
    priority: str
    reason: str = ""
    by: str = ""
    retry_after: float = 0.0
    begun: tuple[set[int], ...] = ()

    def end(self) -> None:
        """The request is over."""
        token = id(self)
        for begun in self[5]:
            begun.discard(token)

    def __bool__(self) -> bool:
        return self[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        token = id(self)  # as end() does, without the price of calling it
        for begun in self[5]:
            begun.discard(token)

    def __del__(self) -> None:
        # Who only looks whether it is true, or is interrupted before entering the block, leaves nobody to end it.
        token = id(self)
        for begun in self[5]:
            begun.discard(token)

    def __repr__(self) -> str:
        if self.admitted:
            return f"Admission({self.priority}: admitted)"
        return f"Admission({self.priority}: {self.reason} by {self.by}, retry after {self.retry_after:g} s)"


# ---------------------------------------------------------------- priorities


# The classes of traffic, from what must not be lost to what nobody would miss. Four: more cannot be told apart.


CRITICAL = "critical"
PRIORITIES = (CRITICAL, "high", "normal", "low")
"""The most important first."""

RANKS = {priority: rank for rank, priority in enumerate(PRIORITIES)}


def unknown_priority(priority: object) -> InvalidOption:
    """The error for what is not one of them."""
    return InvalidOption(f"priority {shown(priority)}: expected {', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}")

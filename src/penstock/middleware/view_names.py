"""What the limits of views are called, so that each counts apart: alike in every process, and no two the same.

A view is known by its module and name. Where several views have the same one, as those that a factory makes, each is
told apart by the route that leads to it. Where one view has several limits, they are numbered from the innermost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

Called: TypeAlias = Callable[[Callable[[], str | None]], str]
"""What a limit is called, for whoever can say on which route, if that matters."""

_LIMITS = "penstock_limits"
"""Where a view says how many limits without a name it has; decorators that wrap it pass it on."""


def name_of(view: Any) -> str:
    """The module and name of a function, of a class, or of the class of an object that can be called."""
    while isinstance(view, partial):
        view = view.func
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"


class Names:
    """The names of the views that somebody has limited."""

    def __init__(self) -> None:
        self._origins: dict[str, dict[int, Any]] = {}

    def join(self, view: Any, origin: Any = None, name: str | None = None) -> Called:
        """One more limit; returns what it is called.

        `origin` is what makes two views the same, if not the view itself, and `name` what that is called.
        """
        name = name_of(view) if name is None else name
        position = getattr(view, _LIMITS, 0)
        origins = self._origins.setdefault(name, {})
        if position == 0:
            origin = view if origin is None else origin
            origins[id(origin)] = origin  # which keeps it, so that its id is nobody else's
        suffix = f" {position + 1}" if position else ""

        def called(route: Callable[[], str | None]) -> str:
            return f"{name} {route()}{suffix}" if len(origins) > 1 else f"{name}{suffix}"

        return called

    @staticmethod
    def mark(limited: Any) -> None:
        """Remember that a view has one limit more."""
        setattr(limited, _LIMITS, getattr(limited, _LIMITS, 0) + 1)

"""Names for the limits of views, so that each counts apart: alike in every process, and no two the same.

A view is known by its module and name. Where several views have the same one, as those that a factory makes, each is
told apart by the route that leads to it. Where one view has several limits, they are numbered from the innermost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

Called: TypeAlias = Callable[[Callable[[], str | None]], str]
"""A function that returns the name of a limit. It receives one that returns the route, if that matters."""

_LIMITS = "penstock_limits"
"""The attribute of a view that counts its limits without a name; decorators that wrap a view copy it."""


def name_of(view: Any) -> str:
    """Return the module and name of a function, of a class, or of the class of a callable object."""
    while isinstance(view, partial):
        view = view.func
    named = view if hasattr(view, "__qualname__") else type(view)
    return f"{named.__module__}.{named.__qualname__}"


class Names:
    """The names of limited views."""

    def __init__(self) -> None:
        self._origins: dict[str, dict[int, Any]] = {}

    def join(self, view: Any, origin: Any = None, name: str | None = None) -> Called:
        """Add a limit, and return the function that names it.

        `origin` is what makes two views the same, if not the view itself, and `name` is its name.
        """
        name = name_of(view) if name is None else name
        position = getattr(view, _LIMITS, 0)
        origins = self._origins.setdefault(name, {})
        if position == 0:
            origin = view if origin is None else origin
            origins[id(origin)] = origin  # a reference, so that its id stays its own
        suffix = f" {position + 1}" if position else ""

        def called(route: Callable[[], str | None]) -> str:
            return f"{name} {route()}{suffix}" if len(origins) > 1 else f"{name}{suffix}"

        return called

    @staticmethod
    def mark(limited: Any) -> None:
        """Count one more limit of a view."""
        setattr(limited, _LIMITS, getattr(limited, _LIMITS, 0) + 1)

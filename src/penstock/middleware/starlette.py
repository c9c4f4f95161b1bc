"""Starlette: the ASGI middleware, with route templates.

    app.add_middleware(RateLimitMiddleware, limiter=AsyncLimiter(), quota="100/minute")

A middleware runs before Starlette has found the route, so it is looked up among the application's routes, and only if a
key or a rule needs it. Behind a `Mount`, routes are found if it has any; of another application the path of the mount
is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, Unpack

from starlette.routing import Match

from penstock.middleware import asgi
from penstock.middleware.asgi import App, AsgiVisit, Scope
from penstock.middleware.gate import GateOptions

Spread: TypeAlias = Callable[[Iterable[Any]], Iterable[Any]]
"""A function that turns the routes of an application into those that can be matched one by one."""


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits for a Starlette application. See `penstock.middleware.asgi.RateLimitMiddleware`."""

    def __init__(self, app: App, **options: Unpack[GateOptions]) -> None:
        super().__init__(app, route=route_of, **options)


def route_of(scope: Scope) -> str | None:
    """Return the template of the route that a scope leads to, or None."""
    return asgi.route_of(scope) or found(getattr(scope.get("app"), "routes", ()), scope)


def visit_of(connection: Any) -> AsgiVisit:
    """Return the visit of a Starlette or FastAPI request, to settle its cost or read its verdict."""
    visit: AsgiVisit = connection.scope[asgi.VISIT]
    return visit


def found(routes: Iterable[Any], scope: Scope, before: str = "", spread: Spread = iter) -> str | None:
    """Return the template of the first among `routes` that a scope leads to."""
    partial: str | None = None
    for route in spread(routes):
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        template = before + (getattr(route, "path", None) or "")
        inner = getattr(route, "routes", None)
        if inner:
            template = found(inner, {**scope, **child}, template, spread) or template
        if match is Match.FULL:
            return template or None
        partial = partial or template  # the path matches, the method does not: the response will be 405
    return partial

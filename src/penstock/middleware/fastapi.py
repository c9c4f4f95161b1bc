"""FastAPI: limits as dependencies and as decorators.

    limit = RateLimit(app, limiter=AsyncLimiter())           # or limit.init_app(app) later

    @app.get("/search", dependencies=[Depends(limit("10/second"))])     # a dependency
    @limit.on("10/second")                                              # or a decorator, below the route's

Both count each handler apart, unless several have the same `name`; a router or application may have them as
dependencies too. Several limits of one handler have a counter each. They run when the route is known, so keys and rules
can use routes at no cost. A refusal is raised, and a middleware that `RateLimit` adds to the application answers it;
the middleware also adds the headers, and ends the passages with the response. One limit for the whole application is
the middleware alone:

    app.add_middleware(RateLimitMiddleware, limiter=AsyncLimiter(), quota="1000/minute")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack, cast

import fastapi.routing
from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from penstock.engine.decorator import is_coroutine_function
from penstock.engine.operations import QuotaLike
from penstock.errors import InvalidOption
from penstock.middleware import asgi, starlette
from penstock.middleware.asgi import App, AsgiRequest, AsgiVisit, Refused, Scope
from penstock.middleware.gate import GateOptions
from penstock.middleware.passage import AsyncGate
from penstock.middleware.starlette import visit_of
from penstock.middleware.view_names import name_of
from penstock.model import Verdict

P = ParamSpec("P")
R = TypeVar("R")

_PARAMETER = "penstock_limit"

# Newer versions keep included routers as they are; this lists their routes with all prefixes.
_spread = getattr(fastapi.routing, "iter_route_contexts", iter)

__all__ = ["LimitDependency", "RateLimit", "RateLimitMiddleware", "visit_of"]


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """Limits for a whole application. See `penstock.middleware.asgi.RateLimitMiddleware`."""

    def __init__(self, app: App, **options: Unpack[GateOptions]) -> None:
        super().__init__(app, route=route_of, **options)


def route_of(scope: Scope) -> str | None:
    """Return the template of the route that a scope leads to, with the prefixes of all routers, or None."""
    context = scope.get("fastapi", {}).get("effective_route_context")
    known = getattr(context, "path", None) or asgi.route_of(scope)
    return known or starlette.found(getattr(scope.get("app"), "routes", ()), scope, spread=_spread)


class RateLimit:
    """Limits for the handlers of one application.

    `options` are for all of them, see `penstock.middleware.gate.GateOptions`; each handler may add its own.
    """

    def __init__(self, app: FastAPI | None = None, **options: Unpack[GateOptions]) -> None:
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: FastAPI) -> None:
        """Answer refusals in an application, and end its passages."""
        app.add_middleware(RateLimitMiddleware)

    def __call__(self, quota: QuotaLike | None = None, /, **options: Unpack[GateOptions]) -> LimitDependency:
        """Return a dependency that charges requests to `quota`; without one, the rules of an enforcer decide."""
        own = {**self._options, **options}
        return LimitDependency(cast("GateOptions", own if quota is None else {**own, "quota": quota}))

    def on(
        self, quota: QuotaLike | None = None, /, **options: Unpack[GateOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Return a decorator that charges requests to a handler. It stands below the decorator of the route."""
        return self(quota, **options).decorate


class LimitDependency:
    """A dependency of FastAPI: charges a request, raises if it may not pass, and returns the verdict."""

    def __init__(self, options: GateOptions) -> None:
        self._gate = AsyncGate(options)
        self._unnamed = "name" not in options and "enforcer" not in options
        self._names: dict[Any, str] = {}  # by handler

    async def __call__(self, connection: HTTPConnection) -> Verdict | None:
        scope = connection.scope
        visit = scope.get(asgi.VISIT)
        if visit is None:
            raise InvalidOption("limit: a request that did not come through its application (expected RateLimit(app))")
        websocket = scope["type"] == "websocket"
        request = AsgiRequest(scope, self._gate.entries, route_of, "WEBSOCKET" if websocket else None)
        name = self._name(scope, visit) if self._unnamed else None
        passage = await self._gate.enter(request, lasting=websocket, name=name)
        if passage is None:
            return None
        if not passage:
            raise Refused(passage)
        visit.grant(passage)
        return passage.verdict

    def _name(self, scope: Scope, visit: AsgiVisit) -> str:
        """Return the name of the handler. Several limits of one handler without a name are numbered."""
        handler = scope.get("endpoint")
        name = self._names.get(handler)
        if name is None:
            name = self._names[handler] = _called(handler, scope)
        visit.unnamed += 1
        return name if visit.unnamed == 1 else f"{name} {visit.unnamed}"

    def decorate(self, handler: Callable[P, R]) -> Callable[P, R]:
        """Return the handler with this dependency, which is not passed on to it."""
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidOption(f"{name_of(handler)}: a generator (expected the limit as a dependency of its route)")
        signature = inspect.signature(handler)
        dependency = inspect.Parameter(_PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=Depends(self))
        if is_coroutine_function(handler):

            @wraps(handler)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                kwargs.pop(_PARAMETER, None)
                return await cast("Any", handler)(*args, **kwargs)
        else:

            @wraps(handler)
            def limited(*args: Any, **kwargs: Any) -> Any:
                kwargs.pop(_PARAMETER, None)
                return cast("Any", handler)(*args, **kwargs)

        cast("Any", limited).__signature__ = signature.replace(parameters=_with(signature, dependency))
        return cast("Callable[P, R]", limited)


def _with(signature: inspect.Signature, parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameters of a signature and one more, before `**kwargs` if there are such."""
    parameters = list(signature.parameters.values())
    at = len(parameters)
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        at -= 1
    return [*parameters[:at], parameter, *parameters[at:]]


def _called(handler: Any, scope: Scope) -> str:
    """Return the module and name of a handler, alike in every process. Handlers that share them, as those of a factory
    do, are told apart by the first route that leads to each.
    """
    name = name_of(handler)
    twins = [
        (endpoint, path)
        for endpoint, path in _handlers(getattr(scope.get("app"), "routes", ()))
        if name_of(endpoint) == name
    ]
    if all(endpoint is handler for endpoint, _ in twins):
        return name
    return next((f"{name} {path}" for endpoint, path in twins if endpoint is handler), f"{name} {route_of(scope)}")


def _handlers(routes: Iterable[Any], before: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the handlers of all routes, with the template and the methods that lead to each."""
    for route in _spread(routes):
        path = before + (getattr(route, "path", None) or "")
        endpoint = getattr(route, "endpoint", None)
        if endpoint is not None:
            methods = ",".join(sorted(getattr(route, "methods", None) or ()))
            yield endpoint, f"{methods} {path}"
        yield from _handlers(getattr(route, "routes", None) or (), path)

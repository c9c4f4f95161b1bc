"""Quart: the ASGI middleware, with route templates.

    RateLimit(app, limiter=AsyncLimiter(), quota="100/minute")

It runs before Quart has found the route, so that is looked up in the application's map of URLs, and only if a key or a
rule needs it.
"""

from __future__ import annotations

from typing import Unpack, cast

from quart import Quart, Response, has_request_context, request, websocket
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from penstock.errors import RateLimited
from penstock.middleware.asgi import VISIT, AsgiVisit, RateLimitMiddleware, Scope
from penstock.middleware.gate import GateOptions
from penstock.middleware.passage import raised_refusal


class RateLimit:
    """Limits for a Quart application. See `penstock.middleware.asgi.RateLimitMiddleware`."""

    def __init__(self, app: Quart | None = None, **options: Unpack[GateOptions]) -> None:
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Quart) -> None:
        """Guard an application."""

        def route_of(scope: Scope) -> str | None:
            return _route_of(app, scope)

        wrapped = RateLimitMiddleware(app.asgi_app, route=route_of, **self._options)
        app.asgi_app = wrapped  # type: ignore[method-assign]
        app.register_error_handler(RateLimited, _answered)


def _answered(raised: RateLimited) -> Response:
    """Return the response to a refusal that a handler raised."""
    scope: Scope = cast("Scope", request.scope if has_request_context() else websocket.scope)
    visit: AsgiVisit = scope[VISIT]
    status, headers, body = raised_refusal(raised, visit.passages)
    return Response(body, status, dict(headers))


def _route_of(app: Quart, scope: Scope) -> str | None:
    """Return the template of the route that a scope leads to, or None."""
    is_websocket = scope["type"] == "websocket"
    root = scope.get("root_path", "")
    path = scope["path"].removeprefix(root) if root else scope["path"]
    host = dict(scope.get("headers", ())).get(b"host", b"localhost").decode("latin-1")
    adapter = app.url_map.bind(app.config["SERVER_NAME"] or host, url_scheme=scope.get("scheme", "http"))
    try:
        rule, _ = adapter.match(path, scope.get("method", "GET"), return_rule=True, websocket=is_websocket)
    except (HTTPException, RequestRedirect, ValueError):  # no such route, or an invalid host
        return None
    return str(rule.rule)

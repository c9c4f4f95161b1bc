"""Litestar: the ASGI middleware as a plugin, which also answers what handlers raise.

    app = Litestar([...], plugins=[RateLimit(limiter=AsyncLimiter(), quota="100/minute")])

Litestar finds the route before any middleware runs, so its template costs nothing. It turns every exception of a
handler into a response; the plugin has it answer `RateLimited` with the refusal rather than with an error.
"""

from __future__ import annotations

from typing import Any, Unpack, cast

from litestar import Request, Response
from litestar.config.app import AppConfig
from litestar.middleware import DefineMiddleware
from litestar.plugins import InitPlugin

from penstock.errors import RateLimited
from penstock.headers import PROBLEM_JSON
from penstock.middleware.asgi import VISIT, AsgiVisit, RateLimitMiddleware
from penstock.middleware.gate import GateOptions
from penstock.middleware.passage import raised_refusal

__all__ = ["RateLimit", "answered"]

_ABOUT_THE_BODY = ("Content-Type", "Content-Length")


class RateLimit(InitPlugin):
    """Limits for a Litestar application. See `penstock.middleware.asgi.RateLimitMiddleware`."""

    def __init__(self, **options: Unpack[GateOptions]) -> None:
        self._middleware = DefineMiddleware(RateLimitMiddleware, **options)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware = [self._middleware, *app_config.middleware]
        app_config.exception_handlers = {RateLimited: cast("Any", answered), **app_config.exception_handlers}
        return app_config


def answered(request: Request[Any, Any, Any], raised: RateLimited) -> Response[bytes]:
    """Return the response to a refusal that a handler raised; an exception handler of Litestar."""
    visit: AsgiVisit | None = cast("Any", request.scope).get(VISIT)
    status, headers, body = raised_refusal(raised, visit.passages if visit else ())
    own = {name: value for name, value in headers if name not in _ABOUT_THE_BODY}
    return Response(body, status_code=status, headers=own, media_type=PROBLEM_JSON)

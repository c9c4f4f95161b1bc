"""aiohttp: limits for all requests of a server.

    RateLimit(app, limiter=AsyncLimiter(), quota="100/minute")

The route is the canonical form of the resource that matched, `/users/{id}`. A WebSocket is one request, with
`GET` as its method; its places are held, and renewed, as long as its handler runs. In a handler,
`visit_of(request).cost = 1432` settles. aiohttp knows no users: `entries` can read yours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, Unpack

from aiohttp import web

from penstock.errors import RateLimited
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions
from penstock.middleware.passage import LISTS, AsyncGate, AsyncPassage, Visit, headers_of, raised_refusal
from penstock.middleware.request import Request
from penstock.rules.refusal import RefusalResponse

BAD_REQUEST = 400

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _key(name: str, kind: Any) -> Any:
    """Return a key for values kept in a request; older versions of aiohttp take plain text."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


_VISIT = _key("penstock", Visit)
_HEADERS_SENT = _key("penstock.headers_sent", bool)


class AiohttpRequest(Request):
    """A request of aiohttp."""

    __slots__ = ()

    def method(self) -> str | None:
        """Return the method as it was sent, also for WebSockets: only the handler decides whether one is opened. The
        header that asks for one may come with any request, to slip past rules for its method.
        """
        return self.native.method  # type: ignore[no-any-return]

    def path(self) -> str | None:
        return self.native.path  # type: ignore[no-any-return]

    def route(self) -> str | None:
        resource = self.native.match_info.route.resource
        return None if resource is None else resource.canonical

    def user(self) -> Any:
        return None

    def peer(self) -> str | None:
        return self.native.remote  # type: ignore[no-any-return]

    def lines(self, name: str) -> Sequence[str]:
        return self.native.headers.getall(name, ())  # type: ignore[no-any-return]


class RateLimit:
    """Limits every request to an application, those of its sub-applications included."""

    def __init__(self, app: web.Application | None = None, **options: Unpack[GateOptions]) -> None:
        self._gate = AsyncGate(options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: web.Application) -> None:
        """Guard an application."""
        gate = self._gate

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            passage = await gate.enter(AiohttpRequest(request, gate.entries), lasting=_is_websocket(request))
            if passage is None or passage:
                return await _handled(request, handler, passage)
            return _answered(passage.refusal())

        app.middlewares.append(guard)
        app.on_response_prepare.append(_tell)


def visit_of(request: web.Request) -> Visit[AsyncPassage]:
    """Return the visit of a request."""
    known: Visit[AsyncPassage] | None = request.get(_VISIT)
    visit = request[_VISIT] = Visit() if known is None else known
    return visit


def _is_websocket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _answered(refusal: RefusalResponse) -> web.Response:
    return web.Response(status=refusal.status, headers=refusal.headers, body=refusal.body)


async def _handled(request: web.Request, handler: Handler, passage: AsyncPassage | None) -> web.StreamResponse:
    status = 500
    try:
        if passage is not None:
            visit_of(request).passages.append(passage)
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as raised:  # a response
        status = raised.status
        raise
    except RateLimited as raised:
        if _HEADERS_SENT in request:  # a response was begun
            raise
        refusal = raised_refusal(raised, visit_of(request).passages)
        status = refusal.status
        return _answered(refusal)
    except asyncio.CancelledError:
        status = CLIENT_CLOSED
        raise
    except web.RequestPayloadError:
        status = BAD_REQUEST
        raise
    except Exception:
        if _is_gone(request):
            status = CLIENT_CLOSED  # reading or writing failed
        raise
    finally:
        if passage is not None:
            await passage.leave(status)


async def _tell(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers just before any are sent, which a handler that streams does itself.

    They are added once, though the application and a sub-application may both be limited.
    """
    if _HEADERS_SENT not in request:
        request[_HEADERS_SENT] = True
        for name, value in headers_of(visit_of(request).passages):
            if name in LISTS or name not in response.headers:
                response.headers.add(name, value)

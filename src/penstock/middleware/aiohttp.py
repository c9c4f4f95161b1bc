"""aiohttp: a server whose requests are limited.

    setup(app, limiter=AsyncLimiter(), quota="100/minute")

The route is the canonical form of the resource that matched, `/users/{id}`. A WebSocket is one request, which lasts as
long as its handler. Handlers find their passage by `passage_of(request)`. aiohttp knows no users: `entries` says where
yours are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

from aiohttp import web

from penstock.middleware.gate import CLIENT_CLOSED, Options
from penstock.middleware.passing import AsyncGate, AsyncPassage
from penstock.middleware.request import Request


def _key(name: str, kind: type) -> Any:
    """Where something is kept in a request; plain text in versions of aiohttp that know no better."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


_ENTERED = _key("penstock.entered", list)
_UNTOLD = _key("penstock.untold", list)


class AiohttpRequest(Request):
    """What aiohttp tells of a request."""

    __slots__ = ()

    def method(self) -> str | None:
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


def setup(app: web.Application, **options: Unpack[Options]) -> None:
    """Guard every request to an application, those of its sub-applications included."""
    gate = AsyncGate(options)

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        passage = await gate.enter(AiohttpRequest(request, gate.entries))
        if passage is None:
            return await handler(request)
        if not passage:
            status, headers, body = passage.refusal()
            return web.Response(status=status, headers=headers, body=body)
        return await _handled(request, handler, passage)

    app.middlewares.append(guard)
    app.on_response_prepare.append(_tell)


def passage_of(request: web.Request) -> AsyncPassage | None:
    """The passage of a request, the innermost if there are several; None if it is exempt."""
    entered = request.get(_ENTERED)
    return entered[-1] if entered else None


async def _handled(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], passage: AsyncPassage
) -> web.StreamResponse:
    status = 500
    try:
        request[_UNTOLD] = request[_ENTERED] = [*request.get(_ENTERED, ()), passage]
        response = await handler(request)
        status = response.status
        return response
    except web.HTTPException as raised:  # a response by another way
        status = raised.status
        raise
    except asyncio.CancelledError:
        status = CLIENT_CLOSED
        raise
    finally:
        await passage.leave(status)


async def _tell(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers just before any are sent, which a handler that streams does by itself.

    Once: an application and the sub-application that matched may both have been set up.
    """
    for passage in request.pop(_UNTOLD, ()):
        response.headers.extend(passage.headers())

"""One small application in every framework, for tests of behaviour that all share.

`/` answers, `/fails` raises. An adapter is entered with the options of the middleware, and hands out a function that
gets a path and returns the status and the headers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import flask
import httpx
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.test import AsyncClient, Client, override_settings
from fastapi import Depends, FastAPI
from litestar import Litestar
from litestar import get as litestar_get
from quart import Quart
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.middleware import aiohttp, asgi, fastapi, litestar, quart, starlette, wsgi
from penstock.middleware import flask as flask_adapter
from tests.unit.middleware import django_shop  # noqa: F401  (has settings)
from tests.unit.middleware.http_support import client

Get: TypeAlias = Callable[[str], Awaitable[tuple[int, Mapping[str, str]]]]
Adapter: TypeAlias = Callable[..., AbstractAsyncContextManager[Get]]


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def fails(request: Request) -> PlainTextResponse:
    raise ValueError("on purpose")


@asynccontextmanager
async def _asked(app: Any) -> AsyncIterator[Get]:
    async with client(app) as http:

        async def get(path: str) -> tuple[int, Mapping[str, str]]:
            answer = await http.get(path)
            return answer.status_code, answer.headers

        yield get


def by_asgi(**options: Any) -> AbstractAsyncContextManager[Get]:
    app = Starlette(routes=[Route("/", hello), Route("/fails", fails)])
    return _asked(asgi.RateLimitMiddleware(app, **options))


def by_starlette(**options: Any) -> AbstractAsyncContextManager[Get]:
    app = Starlette(routes=[Route("/", hello), Route("/fails", fails)])
    app.add_middleware(starlette.RateLimitMiddleware, **options)
    return _asked(app)


def by_fastapi(**options: Any) -> AbstractAsyncContextManager[Get]:
    app = FastAPI()
    limiter, quota = options.pop("limiter"), options.pop("quota")
    limit = Depends(fastapi.RateLimit(app, limiter=limiter, name="all", **options)(quota))
    app.get("/", dependencies=[limit])(hello)
    app.get("/fails", dependencies=[limit])(fails)
    return _asked(app)


def by_litestar(**options: Any) -> AbstractAsyncContextManager[Get]:
    @litestar_get("/")
    async def hello() -> str:
        return "hello"

    @litestar_get("/fails")
    async def fails() -> None:
        raise ValueError("on purpose")

    return _asked(Litestar([hello, fails], plugins=[litestar.RateLimit(**options)], logging_config=None))


def by_quart(**options: Any) -> AbstractAsyncContextManager[Get]:
    app = Quart("shop")

    @app.get("/")
    async def hello() -> str:
        return "hello"

    @app.get("/fails")
    async def fails() -> str:
        raise ValueError("on purpose")

    quart.RateLimit(app, **options)
    return _asked(app)


@asynccontextmanager
async def by_aiohttp(**options: Any) -> AsyncIterator[Get]:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def fails(request: web.Request) -> web.Response:
        raise ValueError("on purpose")

    app = web.Application()
    app.router.add_get("/", hello)
    app.router.add_get("/fails", fails)
    aiohttp.RateLimit(app, **options)
    async with TestClient(TestServer(app)) as http:

        async def get(path: str) -> tuple[int, Mapping[str, str]]:
            async with http.get(path) as answer:
                return answer.status, answer.headers

        yield get


def _by_django(stack: Any) -> Adapter:
    @asynccontextmanager
    async def by_django(**options: Any) -> AsyncIterator[Get]:
        with override_settings(PENSTOCK=options):
            http = stack(raise_request_exception=False)

            async def get(path: str) -> tuple[int, Mapping[str, str]]:
                path = "/hello" if path == "/" else path
                answer = await (http.get(path) if stack is AsyncClient else asyncio.to_thread(http.get, path))
                return answer.status_code, answer.headers

            yield get

    return by_django


@asynccontextmanager
async def _asked_in_threads(app: Any) -> AsyncIterator[Get]:
    transport = httpx.WSGITransport(app, raise_app_exceptions=False, remote_addr="192.0.2.7")
    with httpx.Client(transport=transport, base_url="http://testserver") as http:

        async def get(path: str) -> tuple[int, Mapping[str, str]]:
            answer = await asyncio.to_thread(http.get, path)
            return answer.status_code, answer.headers

        yield get


def _flask() -> flask.Flask:
    app = flask.Flask("shop")

    @app.get("/")
    def hello() -> str:
        return "hello"

    @app.get("/fails")
    def fails() -> str:
        raise ValueError("on purpose")

    return app


def by_flask(**options: Any) -> AbstractAsyncContextManager[Get]:
    app = _flask()
    flask_adapter.RateLimit(app, **options)
    return _asked_in_threads(app)


def by_wsgi(**options: Any) -> AbstractAsyncContextManager[Get]:
    return _asked_in_threads(wsgi.RateLimitMiddleware(_flask(), **options))


AWAITING: dict[str, Adapter] = {
    "asgi": by_asgi,
    "starlette": by_starlette,
    "fastapi": by_fastapi,
    "litestar": by_litestar,
    "quart": by_quart,
    "aiohttp": by_aiohttp,
    "django": _by_django(AsyncClient),
}
"""The adapters that take an `AsyncLimiter`."""

BLOCKING: dict[str, Adapter] = {"wsgi": by_wsgi, "flask": by_flask, "django-wsgi": _by_django(Client)}

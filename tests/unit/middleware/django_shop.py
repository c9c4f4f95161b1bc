"""A Django project without a database, for the tests of the adapter: its settings, views and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.urls import path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from penstock import Limiter, RateLimited
from penstock.middleware.django import exempt


class User:
    """A user who is logged in."""

    def __init__(self, name: str) -> None:
        self.pk = name
        self.is_authenticated = bool(name)


def log_in(get_response: Any) -> Any:
    """As AuthenticationMiddleware does: the user is fetched when needed, which must not be on an event loop."""

    def fetch(request: HttpRequest) -> User:
        return User(request.GET.get("as", ""))

    fetched = async_unsafe(fetch)

    def prepare(request: HttpRequest) -> None:
        async def auser() -> User:
            request._acached_user = User(request.GET.get("as", ""))
            return request._acached_user  # type: ignore[no-any-return]

        request.user = SimpleLazyObject(lambda: fetched(request))
        request.auser = auser

    if asyncio.iscoroutinefunction(get_response):

        async def middleware(request: HttpRequest) -> Any:
            prepare(request)
            return await get_response(request)

        return middleware

    def blocking_middleware(request: HttpRequest) -> Any:
        prepare(request)
        return get_response(request)

    return blocking_middleware


log_in.sync_capable = log_in.async_capable = True  # type: ignore[attr-defined]


def hello(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("hello")


async def hello_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("well")


def fails(request: HttpRequest) -> HttpResponse:
    raise ValueError("on purpose")


def forbids(request: HttpRequest) -> HttpResponse:
    raise PermissionDenied


def stream(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield b"one"
        if "fail" in request.GET:
            raise ValueError("on purpose")
        yield b"two"

    return StreamingHttpResponse(parts())


async def stream_async(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        if "fail" in request.GET:
            raise ValueError("on purpose")
        yield b"two"

    return StreamingHttpResponse(parts())


def tokens(request: HttpRequest) -> HttpResponse:
    request.penstock.cost = 60
    return HttpResponse()


def limited(request: HttpRequest) -> HttpResponse:
    limiter = Limiter()
    limiter.acquire("all", "1/hour name inner")
    raise RateLimited(limiter.acquire("all", "1/hour name inner"))


urlpatterns = [
    path("limited", limited),
    path("hello", hello),
    path("hello-async", hello_async),
    path("users/<int:number>/", hello),
    path("health", health),
    path("fails", fails),
    path("forbids", forbids),
    path("stream", stream),
    path("stream-async", stream_async),
    path("tokens", tokens),
]

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
        MIDDLEWARE=[f"{__name__}.log_in", "penstock.middleware.django.RateLimitMiddleware"],
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
        ROOT_URLCONF=__name__,
        SECRET_KEY="not one",
        USE_TZ=True,
    )
    django.setup()

from rest_framework.authentication import BaseAuthentication  # noqa: E402
from rest_framework.decorators import api_view, authentication_classes, throttle_classes  # noqa: E402

from penstock.middleware.drf import RateLimitThrottle  # noqa: E402

Throttle = RateLimitThrottle  # to be imported from here: the framework must not be, before there are settings


class ByName(BaseAuthentication):  # type: ignore[misc]
    """Authenticates by a header, without any proof."""

    def authenticate(self, request: Any) -> tuple[User, None] | None:
        name = request.GET.get("as", "")
        return (User(name), None) if name else None


def throttled(throttle: type[RateLimitThrottle]) -> Any:
    """Return a function that calls a view of Django REST framework with this throttle."""

    def view(request: Any) -> HttpResponse:
        return HttpResponse("hello")

    authenticated = authentication_classes([ByName])(throttle_classes([throttle])(view))
    decorated = api_view(["GET"])(authenticated)

    def get(user: str = "") -> Any:
        response = decorated(RequestFactory().get("/", {"as": user}))
        return response.render() if hasattr(response, "render") else response

    return get

"""Every framework is set up by the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter
from penstock.errors import InvalidOption
from penstock.middleware import aiohttp, asgi, fastapi, flask, grpc, litestar, quart, starlette, wsgi
from tests.unit.middleware import django_shop  # noqa: F401  Django wants settings before its parts are imported

Parameter = tuple[str, Any, Any, str]
APP: Parameter = ("app", inspect.Parameter.POSITIONAL_OR_KEYWORD, None, "")
OPTIONS: Parameter = ("options", inspect.Parameter.VAR_KEYWORD, inspect.Parameter.empty, "Unpack[GateOptions]")
QUOTA = "quota", inspect.Parameter.POSITIONAL_ONLY


def _parameters(function: Any) -> list[Parameter]:
    """Name, kind, default and annotation of each parameter; an application is of another class in each framework."""
    own = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]
    return [(one.name, one.kind, one.default, one.annotation if one.kind is one.VAR_KEYWORD else "") for one in own]


@pytest.mark.parametrize("framework", [aiohttp, fastapi, flask, quart], ids=lambda module: module.__name__)
def test_extensions_have_one_signature(framework: Any) -> None:
    assert _parameters(framework.RateLimit) == [APP, OPTIONS]
    ((name, *_),) = _parameters(framework.RateLimit.init_app)
    assert name == "app"


def test_a_plugin_is_given_to_the_application_and_takes_the_rest() -> None:
    assert _parameters(litestar.RateLimit) == [OPTIONS]


@pytest.mark.parametrize("framework", [fastapi, starlette, wsgi], ids=lambda module: module.__name__)
def test_middlewares_have_one_signature(framework: Any) -> None:
    name, kind, _, annotation = APP
    wrapped = (name, kind, inspect.Parameter.empty, annotation)
    assert _parameters(framework.RateLimitMiddleware) == [wrapped, OPTIONS]
    assert [one for one in _parameters(asgi.RateLimitMiddleware) if one[0] != "route"] == [wrapped, OPTIONS]


@pytest.mark.parametrize("interceptor", [grpc.RateLimitInterceptor, grpc.AsyncRateLimitInterceptor])
def test_interceptors_take_the_same_options(interceptor: Any) -> None:
    assert _parameters(interceptor) == [OPTIONS]


def test_django_decorator_takes_the_same_options() -> None:
    from penstock.middleware import django

    assert _parameters(django.rate_limit) == [OPTIONS]


@pytest.mark.parametrize("framework", [fastapi, flask], ids=lambda module: module.__name__)
def test_limits_of_handlers_take_a_quota_and_the_same_options(framework: Any) -> None:
    (name, kind, *_), options = _parameters(framework.RateLimit.on)
    assert ((name, kind), options) == (QUOTA, OPTIONS)


def test_messages_are_refused_where_there_are_none() -> None:
    problem = r"messages: not supported here \(expected it with an ASGI middleware\)"
    with pytest.raises(InvalidOption, match=problem):
        flask.RateLimit(limiter=Limiter(), quota="1/hour", messages="1/hour")
    with pytest.raises(InvalidOption, match=problem):
        aiohttp.RateLimit(limiter=AsyncLimiter(), quota="1/hour", messages="1/hour")


def test_application_may_be_named_later() -> None:
    from quart import Quart

    app = Quart(__name__)
    limit = quart.RateLimit(limiter=AsyncLimiter(), quota="1/hour")
    assert not isinstance(app.asgi_app, asgi.RateLimitMiddleware)
    limit.init_app(app)
    assert isinstance(app.asgi_app, asgi.RateLimitMiddleware)

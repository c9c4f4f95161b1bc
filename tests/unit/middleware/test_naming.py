"""Each limit counts apart: whatever its handler is called, and however many limits that handler has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI
from flask.views import MethodView

from penstock import AsyncLimiter, Limiter
from penstock.middleware.fastapi import RateLimit
from penstock.middleware.flask import RateLimit as FlaskLimit
from tests.unit.middleware import django_shop  # noqa: F401  (has settings)
from tests.unit.middleware.http_support import client, statuses

# isort: split
from penstock.middleware.django import rate_limit

# ---------------------------------------------------------------- FastAPI


def made(answer: str) -> Callable[[], Any]:
    """Return a handler; all that this makes have the same name."""

    async def handler() -> str:
        return answer

    return handler


async def test_two_limits_of_one_handler_are_two_counters() -> None:
    app = FastAPI()
    limit = RateLimit(app, limiter=AsyncLimiter())
    router = APIRouter(dependencies=[Depends(limit("6/hour"))])

    @router.get("/", dependencies=[Depends(limit("4/hour"))])
    @limit.on("3/hour")
    async def handler() -> None: ...

    app.include_router(router)
    async with client(app) as http:
        told = (await http.get("/")).headers.get_list("ratelimit")
    assert [each.partition(";t=")[0] for each in told] == ['"6-per-hour";r=5', '"4-per-hour";r=3', '"3-per-hour";r=2']
    assert await statuses(app, *["/"] * 3) == [200, 200, 429]


async def test_an_exemption_from_one_limit_of_a_handler_does_not_charge_its_counter_by_another() -> None:
    app = FastAPI()
    limit = RateLimit(app, limiter=AsyncLimiter())
    first = limit("1/hour", exempt=lambda request: request.header("x-internal") == "yes")

    @app.get("/", dependencies=[Depends(first), Depends(limit("5/hour"))])
    async def handler() -> None: ...

    assert await statuses(app, *["/"] * 3, headers={"X-Internal": "yes"}) == [200] * 3
    assert await statuses(app, *["/"] * 2) == [200, 429]


async def test_handlers_that_a_factory_makes_count_apart() -> None:
    app, mounted = FastAPI(), FastAPI()
    limits = [RateLimit(app, limiter=AsyncLimiter()), RateLimit(mounted, limiter=AsyncLimiter())]
    router = APIRouter(prefix="/v1", dependencies=[Depends(limits[0]("1/hour"))])
    for name in ("a", "b"):
        app.get(f"/{name}", dependencies=[Depends(limits[0]("1/hour"))])(made(name))
        app.get(f"/on-{name}")(limits[0].on("1/hour")(made(name)))
        router.get(f"/{name}")(made(name))
        router.post(f"/{name}")(made(name))
        mounted.get(f"/{name}", dependencies=[Depends(limits[1]("1/hour"))])(made(name))
    app.include_router(router)
    app.mount("/mounted", mounted)
    paths = ["/a", "/b", "/on-a", "/on-b", "/v1/a", "/v1/b", "/mounted/a", "/mounted/b"]
    assert await statuses(app, *paths) == [200] * 8
    assert await statuses(app, *paths) == [429] * 8
    assert await statuses(app, "/v1/a", "/v1/b", "/v1/a", method="POST") == [200, 200, 429]


async def test_one_handler_is_one_counter_whichever_route_leads_to_it() -> None:
    app = FastAPI()
    limit = RateLimit(app, limiter=AsyncLimiter())
    handler = limit.on("1/hour")(made("one"))
    for route in ("/a", "/b"):
        app.get(route)(handler)
    assert await statuses(app, "/a", "/b") == [200, 429]
    app.get("/other")(made("other"))  # of the same name, and yet another
    app.get("/c", dependencies=[Depends(limit("1/hour"))])(made("c"))
    assert await statuses(app, "/a", "/b", "/c", "/c") == [429, 429, 200, 429]


# ---------------------------------------------------------------- Flask


def flask_statuses(app: flask.Flask, *paths: str) -> list[int]:
    return [app.test_client().get(path).status_code for path in paths]


def viewed(answer: str) -> Callable[[], str]:
    def view() -> str:
        return answer

    return view


def test_limits_of_one_view_and_views_of_one_name_count_apart_in_flask() -> None:
    app = flask.Flask("shop")
    limit = FlaskLimit(app, limiter=Limiter())
    for name in ("a", "b"):
        app.add_url_rule(f"/{name}", name, limit.on("2/hour")(limit.on("9/hour")(viewed(name))))
    response = app.test_client().get("/a")
    assert [each.partition(";t=")[0] for each in response.headers.getlist("RateLimit")] == [
        '"2-per-hour";r=1',
        '"9-per-hour";r=8',
    ]
    assert flask_statuses(app, "/a", "/a", "/b", "/b", "/b") == [200, 429, 200, 200, 429]


def test_classes_of_views_count_apart_and_one_view_is_one_counter_in_flask() -> None:
    app = flask.Flask("shop")
    limit = FlaskLimit(app, limiter=Limiter())

    class Orders(MethodView):
        decorators = [limit.on("1/hour")]  # noqa: RUF012

        def get(self) -> str:
            return "orders"

    class Users(Orders): ...

    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/users", view_func=Users.as_view("users"))
    one = limit.on("1/hour")(viewed("one"))
    app.add_url_rule("/x", "x", one)
    app.add_url_rule("/y", "y", one)
    assert flask_statuses(app, "/orders", "/users", "/orders", "/users") == [200, 200, 429, 429]
    assert flask_statuses(app, "/x", "/y") == [200, 429]


# ---------------------------------------------------------------- Django

limiter = Limiter()


def django_view(answer: str) -> Any:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(answer)

    return view


class Orders(View):  # type: ignore[misc]
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("orders")


class Users(Orders): ...


@method_decorator(rate_limit(limiter=limiter, quota="1/hour"), name="dispatch")
class Left(Orders): ...


@method_decorator(rate_limit(limiter=limiter, quota="1/hour"), name="dispatch")
class Right(Orders): ...


@method_decorator([rate_limit(limiter=limiter, quota=f"{limit}/hour") for limit in (9, 5)], name="dispatch")
class Both(Orders): ...


@method_decorator(rate_limit(limiter=limiter, quota="5/hour"), name="dispatch")
@method_decorator(rate_limit(limiter=limiter, quota="9/hour"), name="dispatch")
class Stacked(Orders): ...


def once(view: Any) -> Any:
    return rate_limit(limiter=limiter, quota="1/hour")(view)


urlpatterns = [
    path("a", once(django_view("a"))),
    path("b", once(django_view("b"))),
    path("orders", once(Orders.as_view())),
    path("old-orders", once(Orders.as_view())),
    path("users", once(Users.as_view())),
    path("left", Left.as_view()),
    path("right", Right.as_view()),
]


@override_settings(ROOT_URLCONF=__name__)  # type: ignore[untyped-decorator]
def test_views_of_one_name_and_classes_of_views_count_apart_in_django() -> None:
    views = {str(pattern.pattern): pattern.callback for pattern in urlpatterns}

    def status(name: str) -> int:
        return views[name](RequestFactory().get(f"/{name}")).status_code  # type: ignore[no-any-return]

    names = ["a", "b", "orders", "users", "left", "right"]
    assert [status(name) for name in names] == [200] * 6
    assert [status(name) for name in [*names, "old-orders"]] == [429] * 7


def test_limits_of_one_class_count_apart_in_django() -> None:
    for view in (Both.as_view(), Stacked.as_view()):
        told = view(RequestFactory().get("/"))["RateLimit"]
        assert (told.count(";r="), told.count(";r=8"), told.count(";r=4")) == (2, 1, 1)


def test_limits_of_one_view_count_apart_in_django() -> None:
    view = rate_limit(limiter=limiter, quota="2/hour")(rate_limit(limiter=limiter, quota="9/hour")(_alone))
    responses = [view(RequestFactory().get("/")) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[0]["RateLimit"].count(";r=8") == responses[0]["RateLimit"].count(";r=1") == 1


def _alone(request: HttpRequest) -> HttpResponse:
    return HttpResponse("alone")

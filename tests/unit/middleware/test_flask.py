"""Flask: the extension against the real framework."""

from __future__ import annotations

from collections.abc import Iterator

import flask
import pytest

from penstock import Limiter
from penstock.enforcer import Enforcer
from penstock.errors import InvalidOption
from penstock.middleware import flask as adapter
from penstock.middleware.flask import RateLimit
from penstock.middleware.gate import unless_server_error
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet

CLIENT = "127.0.0.1"
PLACES = "1 concurrent ttl 1h"


@pytest.fixture
def app() -> flask.Flask:
    app = flask.Flask("shop")

    @app.get("/hello")
    def hello() -> str:
        return "hello"

    @app.get("/users/<int:number>")
    def user(number: int) -> str:
        return str(number)

    @app.get("/fails")
    def fails() -> str:
        raise ValueError("on purpose")

    @app.get("/stream")
    def stream() -> flask.Response:
        def parts() -> Iterator[str]:
            yield "one"
            yield "two"

        return flask.Response(parts())

    return app


def test_all_views_are_limited_and_responses_have_headers(app: flask.Flask) -> None:
    RateLimit(app, limiter=Limiter(), quota="2/hour name api")
    client = app.test_client()
    first, second, refused = (client.get("/hello") for _ in range(3))
    assert (first.status_code, first.text, second.status_code) == (200, "hello", 200)
    assert first.headers["RateLimit"].startswith('"api";r=1')
    assert (refused.status_code, refused.mimetype) == (429, "application/problem+json")
    problem = refused.get_json(force=True)
    assert (problem["reason"], problem["violated-policies"]) == ("rate", ["api"])
    assert int(refused.headers["Retry-After"]) > 0
    assert client.get("/nowhere").status_code == 429  # what matches no view is charged, too


def test_init_app_comes_later_and_once(app: flask.Flask) -> None:
    limit = RateLimit(limiter=Limiter(), quota="1/hour")
    limit.init_app(app)
    assert [app.test_client().get("/hello").status_code for _ in range(2)] == [200, 429]
    with pytest.raises(
        InvalidOption, match=r"^shop: has its limits already \(expected init_app once per application\)$"
    ):
        limit.init_app(app)


def test_a_view_has_a_limit_of_its_own_beside_the_one_for_all() -> None:
    app = flask.Flask("shop")
    limit = RateLimit(app, limiter=Limiter(), quota="4/hour")

    @app.get("/login")
    @limit.on("1/hour")
    def login() -> str:
        return "in"

    @app.get("/logout")
    @limit.on("1/hour")
    def logout() -> str:
        return "out"

    @app.get("/health")
    @limit.exempt
    def health() -> str:
        return "well"

    client = app.test_client()
    got = client.get("/login")
    assert (got.status_code, len(got.headers.getlist("RateLimit"))) == (200, 2)
    assert client.get("/login").status_code == 429
    assert client.get("/logout").status_code == 200  # counted apart
    assert client.get("/nowhere").status_code == 404
    assert client.get("/logout").status_code == 429  # by the limit for all
    assert [client.get("/health").status_code for _ in range(3)] == [200, 200, 200]


def test_only_decorated_views_are_limited_without_a_quota_for_all(app: flask.Flask) -> None:
    limit = RateLimit(app, limiter=Limiter())

    @app.get("/search")
    @limit.on("1/hour", key="api_key | ip")
    async def search() -> str:
        return "found"

    client = app.test_client()
    assert [client.get("/hello").status_code for _ in range(3)] == [200] * 3
    assert [client.get("/search").status_code for _ in range(2)] == [200, 429]


def test_a_limit_without_init_app_is_an_error(app: flask.Flask) -> None:
    limit = RateLimit(limiter=Limiter())

    @app.get("/search")
    @limit.on("1/hour")
    def search() -> str:
        return "found"

    app.testing = True
    with pytest.raises(
        InvalidOption,
        match=r"a request that did not come through its application \(expected init_app of this application\)$",
    ):
        app.test_client().get("/search")


def test_rules_see_the_route_rather_than_the_path(app: flask.Flask) -> None:
    rules = parse("rules: [{id: users, match: {route: /users/<int:number>}, key: [route], quota: 2/hour}]")
    RateLimit(app, enforcer=Enforcer(RuleSet(rules), Limiter()))
    client = app.test_client()
    assert [client.get(f"/users/{number}").status_code for number in range(3)] == [200, 200, 429]
    assert client.get("/hello").status_code == 200
    assert client.get("/nowhere").status_code == 404


def test_a_view_may_have_a_limit_beside_rules(app: flask.Flask) -> None:
    rules = parse("rules: [{id: all, key: ip, quota: 3/hour}]")
    limit = RateLimit(app, enforcer=Enforcer(RuleSet(rules), Limiter()))
    app.add_url_rule("/search", "search", limit.on("1/hour")(lambda: "found"))
    client = app.test_client()
    assert [client.get("/search").status_code for _ in range(2)] == [200, 429]
    assert [client.get("/hello").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("testing", [False, True], ids=["handled", "propagated"])
def test_a_view_that_raises_gives_back_its_place_and_is_not_charged(app: flask.Flask, testing: bool) -> None:
    limiter = Limiter()
    RateLimit(app, limiter=limiter, quota=[PLACES, "5/hour"], charge=unless_server_error)
    app.testing = testing
    for _ in range(7):
        if testing:
            with pytest.raises(ValueError, match="on purpose"):
                app.test_client().get("/fails")
        else:
            assert app.test_client().get("/fails", buffered=True).status_code == 500  # buffered: read and closed
    assert limiter.peek(f"ip={CLIENT}", [PLACES, "5/hour"], cost=0).decisions[1].remaining == 5
    assert limiter.peek(f"ip={CLIENT}", PLACES, cost=0).remaining == 1


def test_a_stream_holds_its_place_until_it_is_closed(app: flask.Flask) -> None:
    RateLimit(app, limiter=Limiter(), quota=PLACES)
    client = app.test_client()
    stream = client.get("/stream")
    assert next(stream.iter_encoded()) == b"one"
    assert client.get("/hello", buffered=True).status_code == 429
    stream.close()
    assert client.get("/hello", buffered=True).status_code == 200


def test_a_replaced_response_holds_no_place(app: flask.Flask) -> None:
    limiter = Limiter()
    RateLimit(app, limiter=limiter, quota=PLACES)

    @app.after_request
    def other(response: flask.Response) -> flask.Response:
        return flask.Response("other")

    app.test_client().get("/stream", buffered=True)
    assert limiter.peek(f"ip={CLIENT}", PLACES, cost=0).remaining == 1


def test_the_true_cost_is_settled(app: flask.Flask) -> None:
    limiter = Limiter()
    RateLimit(app, limiter=limiter, quota="100/hour", cost=10, settle=True)

    @app.get("/tokens")
    def tokens() -> str:
        adapter.visit().cost = 60
        return ""

    app.test_client().get("/tokens")
    assert limiter.peek(f"ip={CLIENT}", "100/hour", cost=0).remaining == 40


def test_a_view_that_raises_a_refusal_is_answered_with_it(app: flask.Flask) -> None:
    limiter = Limiter()
    RateLimit(app, limiter=limiter, quota="9/hour")

    @limiter.limit("1/hour name inner")
    def work() -> str:
        return "done"

    app.add_url_rule("/work", "work", lambda: work())
    client = app.test_client()
    got, refused = client.get("/work"), client.get("/work")
    assert (got.text, refused.status_code) == ("done", 429)
    assert refused.get_json(force=True)["violated-policies"] == ["inner"]


def test_an_entry_can_read_the_user_from_flask(app: flask.Flask) -> None:
    @app.before_request
    def log_in() -> None:
        flask.g.user = flask.request.args.get("as")

    RateLimit(app, limiter=Limiter(), quota="1/hour", key="user | ip", entries={"user": lambda _: flask.g.user})
    client = app.test_client()
    assert [client.get(f"/hello?as={user}").status_code for user in ("ann", "bob", "ann", "")] == [200, 200, 429, 200]

"""WSGI: whatever servers and applications do, no place is left held."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from penstock import Limiter, ManualClock
from penstock.enforcer import Enforcer
from penstock.errors import InvalidOption, RateLimited
from penstock.middleware.gate import failed_logins, unless_server_error
from penstock.middleware.wsgi import RateLimitMiddleware, WSGIRequest
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from tests.unit.flaky import Flaky

CLIENT = "192.0.2.7"


class Got(NamedTuple):
    """The response that a client got."""

    status: int
    headers: dict[str, str]
    body: bytes


class Server:
    """Calls an application as a server does: takes the body, and closes it whatever happened."""

    def __init__(self, app: Any) -> None:
        self.app = validator(app)

    def open(self, **environ: Any) -> tuple[Callable[[], Got], Any]:
        """Begin a response. Return it so far, and its body."""
        defaults: dict[str, Any] = {"REMOTE_ADDR": CLIENT, "QUERY_STRING": ""}
        setup_testing_defaults(defaults)
        defaults |= environ
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None
        ) -> Callable[[bytes], None]:
            started.append((status, headers))
            return lambda data: None

        body = self.app(defaults, start_response)
        return lambda: Got(int(started[-1][0][:3]), dict(started[-1][1]), b""), body

    def get(self, **environ: Any) -> Got:
        got, body = self.open(**environ)
        try:
            content = b"".join(body)
        finally:
            body.close()
        return got()._replace(body=content)


def _hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response(environ.get("test.status", "200 OK"), [("Content-Type", "text/plain")])
    return [b"hello"]


def _streaming(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"one"
    yield b"two"


def _places_left(limiter: Limiter, quota: str, key: str = f"ip={CLIENT}") -> int:
    return limiter.peek(key, quota).remaining


# ---------------------------------------------------------------- answers


def test_an_admitted_request_gets_headers_and_a_refused_one_the_reason() -> None:
    clock = ManualClock(1_767_268_800)
    server = Server(RateLimitMiddleware(_hello, limiter=Limiter(clock=clock), quota="2/minute fixed_window name api"))
    first = server.get()
    assert (first.status, first.body) == (200, b"hello")
    assert first.headers["RateLimit"] == '"api";r=1;t=60'
    assert first.headers["Content-Type"] == "text/plain"
    server.get()
    refused = server.get()
    assert refused.status == 429
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.headers["Retry-After"] == "60"
    assert refused.headers["Content-Length"] == str(len(refused.body))
    problem = json.loads(refused.body)
    assert (problem["violated-policies"], problem["reason"]) == (["api"], "rate")
    assert server.get(REMOTE_ADDR="192.0.2.8").status == 200
    clock.advance(60)
    assert server.get().status == 200


def test_the_server_is_unavailable_if_the_store_fails_closed() -> None:
    store = Flaky(ManualClock())
    server = Server(RateLimitMiddleware(_hello, limiter=Limiter(store, on_failure="closed"), quota="9/hour"))
    assert server.get().status == 200
    store.up = False
    got = server.get()
    assert (got.status, json.loads(got.body)["reason"]) == (503, "degraded")
    assert int(got.headers["Retry-After"]) > 0


def test_a_refused_head_request_has_no_body() -> None:
    server = Server(RateLimitMiddleware(_hello, limiter=Limiter(), quota="1/hour"))
    server.get()
    got = server.get(REQUEST_METHOD="HEAD")
    assert (got.status, got.body) == (429, b"")


def test_the_client_behind_proxies_is_the_caller_of_the_first() -> None:
    server = Server(RateLimitMiddleware(_hello, limiter=Limiter(), quota="1/hour", trusted_proxies=["10.0.0.0/8"]))
    spoofed = [
        server.get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=f"203.0.113.{number}, {CLIENT}").status
        for number in range(3)
    ]
    assert spoofed == [200, 429, 429]
    assert server.get(REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR="192.0.2.8").status == 200
    assert server.get(REMOTE_ADDR=CLIENT, HTTP_X_FORWARDED_FOR="192.0.2.9").status == 429


@pytest.mark.parametrize("environ", [{"REMOTE_ADDR": ""}, {"REMOTE_ADDR": "unix:"}])
def test_requests_without_an_address_share_one_counter(environ: dict[str, str]) -> None:
    server = Server(RateLimitMiddleware(_hello, limiter=Limiter(), quota="1/hour"))
    assert [server.get(**environ).status for _ in range(2)] == [200, 429]
    assert server.get().status == 200


def test_rules_see_method_path_key_and_address() -> None:
    rules = RuleSet(
        parse("""
        rules:
          - {id: posts, match: {method: POST, path: /café/x}, key: api_key | ip, quota: 1/hour}
          - {id: blocked, action: deny, match: {ip: {cidr: 203.0.113.0/24}}}
        """)
    )
    server = Server(RateLimitMiddleware(_hello, enforcer=Enforcer(rules, Limiter())))
    post = {"REQUEST_METHOD": "POST", "SCRIPT_NAME": "/caf\xc3\xa9", "PATH_INFO": "/x"}
    assert [server.get(**post).status for _ in range(2)] == [200, 429]
    assert [server.get(**post, HTTP_X_API_KEY="k").status for _ in range(2)] == [200, 429]
    assert server.get(**post | {"REQUEST_METHOD": "GET"}).status == 200
    blocked = server.get(REMOTE_ADDR="203.0.113.9")
    assert (blocked.status, json.loads(blocked.body)["reason"]) == (403, "blocked")


def test_an_empty_environ_has_no_entries() -> None:
    request = WSGIRequest({}, {})
    assert (request.method(), request.path(), request.route(), request.user(), request.peer()) == (
        None,
        "",
        None,
        None,
        None,
    )
    assert request.header("x-api-key") is None


def test_exempt_requests_are_not_charged_and_get_no_headers() -> None:
    health = RateLimitMiddleware(
        _hello, limiter=Limiter(), quota="1/hour", exempt=lambda request: request["path"] == "/health"
    )
    server = Server(health)
    answers = [server.get(PATH_INFO="/health") for _ in range(3)]
    assert [got.status for got in answers] == [200, 200, 200]
    assert "RateLimit" not in answers[0].headers


def test_shaping_delays_by_the_limiters_clock() -> None:
    clock = ManualClock()
    began = clock.micros
    starts = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        starts.append(clock.micros - began)
        return _hello(environ, start_response)

    server = Server(RateLimitMiddleware(app, limiter=Limiter(clock=clock), quota="60/minute leaky_bucket queue 5"))
    for _ in range(3):
        server.get()
    assert starts == [0, 1_000_000, 2_000_000]


# ---------------------------------------------------------------- nothing leaks

PLACES = "1 concurrent ttl 1h"


def test_a_place_is_held_until_the_response_is_closed() -> None:
    limiter = Limiter()
    server = Server(RateLimitMiddleware(_streaming, limiter=limiter, quota=PLACES))
    _, body = server.open()
    assert next(iter(body)) == b"one"
    refused = server.get()
    assert (refused.status, json.loads(refused.body)["reason"]) == (429, "concurrency")
    assert b"".join(body) == b"two"
    assert server.get().status == 429  # all was sent, but the server is not done with it
    body.close()
    assert server.get().status == 200


def test_a_client_that_leaves_gives_its_place_back() -> None:
    limiter = Limiter()
    server = Server(RateLimitMiddleware(_streaming, limiter=limiter, quota=PLACES))
    _, unread = server.open()
    unread.close()
    _, begun = server.open()
    next(iter(begun))
    begun.close()
    assert _places_left(limiter, PLACES) == 1


def test_a_server_that_forgets_to_close_gives_it_back_when_it_drops_the_response() -> None:
    limiter = Limiter()
    app = RateLimitMiddleware(_hello, limiter=limiter, quota=PLACES)
    body: Iterable[bytes] | None = app({"REMOTE_ADDR": CLIENT}, lambda *_: lambda _: None)
    assert _places_left(limiter, PLACES) == 0
    body = None
    assert body is None
    assert _places_left(limiter, PLACES) == 1


class _Boom(BaseException):
    """Not an Exception, like SystemExit."""


@pytest.mark.parametrize("error", [ValueError, _Boom])
@pytest.mark.parametrize("when", ["called", "started", "half way", "closed"])
def test_an_application_that_raises_gives_its_place_back_and_is_not_charged(
    error: type[BaseException], when: str
) -> None:
    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield b"one"
            if when == "half way":
                raise error

        def close(self) -> None:
            if when == "closed":
                raise error

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if when == "called":
            raise error
        start_response("200 OK", [("Content-Type", "text/plain")])
        if when == "started":
            raise error
        return Body()

    limiter = Limiter()
    quota = f"{PLACES}; 10/hour"
    server = Server(RateLimitMiddleware(app, limiter=limiter, quota=quota.split("; "), charge=unless_server_error))
    with pytest.raises(error):
        server.get()
    assert _places_left(limiter, PLACES) == 1
    assert _places_left(limiter, "10/hour") == (9 if when == "closed" else 10)


def test_outcomes_that_are_not_charged_are_refunded() -> None:
    limiter = Limiter()
    server = Server(RateLimitMiddleware(_hello, limiter=limiter, quota="2/hour", charge=failed_logins))
    logins = [server.get(**{"test.status": "200 OK"}).status for _ in range(5)]
    assert logins == [200] * 5
    attempts = [server.get(**{"test.status": "401 Unauthorized"}).status for _ in range(3)]
    assert attempts == [401, 401, 429]


def test_the_true_cost_is_settled_when_the_response_is_over() -> None:
    limiter = Limiter()

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["penstock"].cost = 70
        return _hello(environ, start_response)

    server = Server(RateLimitMiddleware(app, limiter=limiter, quota="100/hour", cost=10, settle=True))
    server.get()
    assert limiter.peek(f"ip={CLIENT}", "100/hour", cost=0).remaining == 30


def test_two_middlewares_are_two_limits_and_each_gives_back_what_it_took() -> None:
    limiter = Limiter()
    inner = RateLimitMiddleware(_streaming, limiter=limiter, quota=PLACES, name="inner")
    server = Server(RateLimitMiddleware(inner, limiter=limiter, quota="3 concurrent ttl 1h", name="outer"))
    _, body = server.open()
    assert server.get().status == 429
    assert limiter.peek(("outer", f"ip={CLIENT}"), "3 concurrent ttl 1h", cost=0).remaining == 2
    list(body)
    body.close()
    assert limiter.peek(("outer", f"ip={CLIENT}"), "3 concurrent ttl 1h", cost=0).remaining == 3
    assert limiter.peek(("inner", f"ip={CLIENT}"), PLACES, cost=0).remaining == 1


def test_a_response_without_followup_is_passed_on_unchanged() -> None:
    content = [b"hello"]
    app = RateLimitMiddleware(lambda environ, start_response: content, limiter=Limiter(), quota="9/hour")
    assert app({}, lambda *_: lambda _: None) is content


@pytest.mark.parametrize("lazy", [False, True], ids=["called", "first part"])
def test_an_application_that_raises_a_refusal_before_it_responds_is_answered_with_it(lazy: bool) -> None:
    limiter = Limiter()

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise RateLimited(limiter.acquire("all", "1/hour name inner"))

    def lazily(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield from app(environ, start_response)

    limiter.acquire("all", "1/hour name inner")
    server = Server(RateLimitMiddleware(lazily if lazy else app, limiter=limiter, quota=PLACES))
    for _ in range(2):
        got = server.get()
        assert (got.status, json.loads(got.body)["violated-policies"]) == (429, ["inner"])
        assert server.get(REQUEST_METHOD="HEAD").body == b""
    assert _places_left(limiter, PLACES) == 1


def test_a_refusal_that_is_raised_too_late_is_a_failure() -> None:
    limiter = Limiter()
    limiter.acquire("all", "1/hour")

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"one"
        raise RateLimited(limiter.acquire("all", "1/hour"))

    server = Server(RateLimitMiddleware(app, limiter=limiter, quota="5/hour", charge=unless_server_error))
    with pytest.raises(RateLimited):
        server.get()
    assert limiter.peek(f"ip={CLIENT}", "5/hour", cost=0).remaining == 5


def test_a_charge_function_that_fails_leaves_the_charge_and_gives_the_place_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = Limiter()
    quota = [PLACES, "5/hour"]
    server = Server(RateLimitMiddleware(_hello, limiter=limiter, quota=quota, charge=lambda status: status < 1 // 0))
    assert [server.get().status for _ in range(2)] == [200, 200]
    assert _places_left(limiter, PLACES) == 1
    assert _places_left(limiter, "5/hour") == 3
    assert "charge: raised, so the request stays charged: ZeroDivisionError" in caplog.text


def test_a_middleware_that_is_called_late_gives_back_what_it_took() -> None:
    limiter = Limiter()
    inner = RateLimitMiddleware(_hello, limiter=limiter, quota=PLACES)

    def late(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        yield from inner(environ, start_response)

    server = Server(RateLimitMiddleware(late, limiter=limiter, quota="9/hour"))
    assert [server.get().status for _ in range(3)] == [200] * 3
    assert _places_left(limiter, PLACES) == 1


def test_an_invalid_status_counts_as_a_failure() -> None:
    limiter = Limiter()
    app = RateLimitMiddleware(_hello, limiter=limiter, quota="2/hour", charge=unless_server_error)
    for _ in range(5):
        app({"test.status": "oops", "REMOTE_ADDR": CLIENT}, lambda *_: lambda _: None).close()  # type: ignore[attr-defined]
    assert limiter.peek(f"ip={CLIENT}", "2/hour", cost=0).remaining == 2


def test_an_async_limiter_is_refused() -> None:
    from penstock import AsyncLimiter

    with pytest.raises(InvalidOption, match=r"^limiter: expected Limiter, not AsyncLimiter$"):
        RateLimitMiddleware(_hello, limiter=AsyncLimiter(), quota="1/hour")

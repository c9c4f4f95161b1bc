"""Django: the middleware and the decorator under WSGI and ASGI, with either kind of limiter; and the throttle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings

from penstock import AsyncLimiter, Limiter, ManualClock
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import InvalidOption
from penstock.middleware.django import RateLimitMiddleware, rate_limit
from penstock.middleware.gate import unless_server_error
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from tests.rig.processes import DEADLINE, wait_until
from tests.unit.flaky import Flaky
from tests.unit.middleware import django_shop
from tests.unit.middleware.django_shop import Throttle, throttled

PEER = "ip=127.0.0.1"
PLACES = "1 concurrent ttl 1h"

Get = Callable[[str], Awaitable[Any]]
LIMITERS = pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
STACKS = pytest.mark.parametrize("stack", ["wsgi", "asgi"])


def _client(stack: str, **options: Any) -> Get:
    """Return a function that gets a path from the project, under a server of this kind with its own middlewares."""
    client: Any = (Client if stack == "wsgi" else AsyncClient)(raise_request_exception=False)

    async def get(path: str) -> Any:
        with override_settings(PENSTOCK=options):
            if stack == "asgi":
                return await client.get(path)
            return await asyncio.to_thread(client.get, path)

    return get


async def _left(limiter: Any, quota: str, key: str = PEER) -> int:
    peeked = limiter.peek(key, quota, cost=0)
    return (await peeked if isinstance(limiter, AsyncLimiter) else peeked).remaining  # type: ignore[no-any-return]


@LIMITERS
@STACKS
async def test_views_are_limited_and_responses_have_headers(kind: Any, stack: str) -> None:
    get = _client(stack, limiter=kind(), quota="2/hour name api")
    first, second, refused = [await get("/hello") for _ in range(3)]
    assert (first.status_code, first.content, second.status_code) == (200, b"hello", 200)
    assert first["RateLimit"].startswith('"api";r=1')
    assert (refused.status_code, refused["Content-Type"]) == (429, "application/problem+json")
    assert (refused.json()["reason"], refused.json()["violated-policies"]) == ("rate", ["api"])
    assert int(refused["Retry-After"]) > 0
    assert (await get("/nowhere")).status_code == 429
    assert [(await get("/health")).status_code for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(("enforcer", "kind"), [(Enforcer, Limiter), (AsyncEnforcer, AsyncLimiter)])
@STACKS
async def test_rules_see_the_route_rather_than_the_path(enforcer: Any, kind: Any, stack: str) -> None:
    rules = parse("rules: [{id: users, match: {route: 'users/<int:number>/'}, key: [route], quota: 2/hour}]")
    get = _client(stack, enforcer=enforcer(RuleSet(rules), kind()))
    assert [(await get(f"/users/{number}/")).status_code for number in range(3)] == [200, 200, 429]
    assert [(await get("/nowhere")).status_code for _ in range(3)] == [404] * 3


@LIMITERS
@STACKS
async def test_the_logged_in_user_is_fetched_where_that_may_wait(kind: Any, stack: str) -> None:
    get = _client(stack, limiter=kind(), quota="1/hour", key="user | ip")
    statuses = [(await get(f"/hello?as={user}")).status_code for user in ("ann", "bob", "ann", "", "")]
    assert statuses == [200, 200, 429, 200, 429]


@LIMITERS
@STACKS
async def test_views_that_raise_give_back_their_place_and_are_not_charged(kind: Any, stack: str) -> None:
    limiter = kind()
    get = _client(stack, limiter=limiter, quota=[PLACES, "2/hour"], charge=unless_server_error)
    assert [(await get("/fails")).status_code for _ in range(4)] == [500] * 4
    assert [(await get("/forbids")).status_code for _ in range(3)] == [403, 403, 429]
    assert await _left(limiter, PLACES) == 1


@LIMITERS
@pytest.mark.parametrize("path", ["/stream", "/stream-async"])
async def test_a_stream_holds_its_place_until_it_is_closed(kind: Any, path: str) -> None:
    limiter = kind()
    middleware = _blocking(path, limiter)
    response = await asyncio.to_thread(middleware)
    assert await _left(limiter, PLACES) == 0
    await asyncio.to_thread(response.close)
    assert await _left(limiter, PLACES) == 1


def _blocking(path: str, limiter: Any) -> Callable[[], Any]:
    """A request through the middleware, up to where a server would begin to send the response."""

    def respond(request: HttpRequest) -> Any:
        response = getattr(django_shop, path[1:].replace("-", "_"))(request)
        return asyncio.run(response) if asyncio.iscoroutine(response) else response

    def run() -> Any:
        with override_settings(PENSTOCK={"limiter": limiter, "quota": PLACES}):
            return RateLimitMiddleware(respond)(RequestFactory().get(path))

    return run


@LIMITERS
@pytest.mark.parametrize("query", ["", "?fail=1"])
@pytest.mark.parametrize("path", ["/stream", "/stream-async"])
async def test_a_stream_under_asgi_is_over_with_its_last_part_or_when_it_fails(
    kind: Any, path: str, query: str
) -> None:
    limiter = kind()
    view = getattr(django_shop, path[1:].replace("-", "_"))

    async def respond(request: HttpRequest) -> Any:
        response = view(request)
        return await response if asyncio.iscoroutine(response) else response

    with override_settings(PENSTOCK={"limiter": limiter, "quota": [PLACES, "9/hour"], "charge": unless_server_error}):
        response = await RateLimitMiddleware(respond)(AsyncRequestFactory().get(path + query))
    assert await _left(limiter, PLACES) == 0
    try:
        if path == "/stream":
            parts = await asyncio.to_thread(list, response.streaming_content)
        else:
            parts = [part async for part in response.streaming_content]
        assert parts == [b"one", b"two"]
    except ValueError:
        assert query
    await asyncio.to_thread(response.close)
    assert await _left(limiter, PLACES) == 1
    assert await _left(limiter, "9/hour") == (9 if query else 8)


@LIMITERS
@STACKS
@pytest.mark.parametrize("path", ["/stream", "/stream-async"])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")  # a stream of the other kind than the server
async def test_a_server_takes_a_stream_to_its_end(kind: Any, stack: str, path: str) -> None:
    limiter = kind()
    get = _client(stack, limiter=limiter, quota=PLACES)
    response = await get(path)
    if response.is_async:
        content = b"".join([part async for part in response.streaming_content])
    else:
        content = await asyncio.to_thread(b"".join, response.streaming_content)
    await asyncio.to_thread(response.close)
    assert content == b"onetwo"
    assert await _left(limiter, PLACES) == 1


async def test_a_client_that_leaves_a_server_of_asgi_gives_its_place_back() -> None:
    limiter = AsyncLimiter()
    began = asyncio.Event()

    @rate_limit(limiter=limiter, quota=PLACES, name="view")
    async def view(request: HttpRequest) -> HttpResponse:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    task = asyncio.create_task(view(AsyncRequestFactory().get("/")))
    await began.wait()
    key: Any = ("view", PEER)
    assert await _left(limiter, PLACES, key) == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _left(limiter, PLACES, key) == 1


async def test_a_client_that_leaves_while_a_thread_charges_gives_its_place_back() -> None:
    limiter = Limiter()
    entered, go = threading.Event(), threading.Event()

    def key(_: object) -> str:
        entered.set()
        go.wait(DEADLINE)
        return "one"

    task = asyncio.create_task(_limited(limiter, _never, key)(_request()))
    await asyncio.to_thread(entered.wait, DEADLINE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    await asyncio.to_thread(wait_until, lambda: _was_used(limiter), "the place to be granted and given back")


async def test_a_client_that_leaves_before_a_thread_is_free_to_end_it_gives_its_place_back() -> None:
    limiter = Limiter()
    go = threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as only:
        loop.set_default_executor(only)

        async def view(request: HttpRequest) -> HttpResponse:
            only.submit(go.wait, DEADLINE)  # before the thread that ends the request
            loop.call_later(0.01, task.cancel)
            return HttpResponse("hello")

        task = asyncio.create_task(_limited(limiter, view, lambda _: "one")(_request()))
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await loop.run_in_executor(None, str)  # behind all that was queued
    assert _was_used(limiter)


def _limited(limiter: Limiter, view: Any, key: Callable[[Any], str]) -> Any:
    return rate_limit(limiter=limiter, quota=[PLACES, "9/hour"], key=key, name="v")(view)


def _request() -> HttpRequest:
    return AsyncRequestFactory().get("/")


async def _never(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the client is gone")


def _was_used(limiter: Limiter) -> bool:
    """Return whether a request was charged, and its place is free again."""
    rate, places = [limiter.peek(("v", "one"), quota, cost=0).remaining for quota in ("9/hour", PLACES)]
    return (rate, places) == (8, 1)


@LIMITERS
@STACKS
async def test_the_true_cost_is_settled(kind: Any, stack: str) -> None:
    limiter = kind()
    get = _client(stack, limiter=limiter, quota="100/hour", cost=10, settle=True)
    assert (await get("/tokens")).status_code == 200
    assert await _left(limiter, "100/hour") == 40


@LIMITERS
@STACKS
async def test_a_view_that_raises_a_refusal_is_answered_with_it(kind: Any, stack: str) -> None:
    limiter = kind()
    get = _client(stack, limiter=limiter, quota=PLACES)
    refused = await get("/limited")
    assert (refused.status_code, refused.json()["violated-policies"]) == (429, ["inner"])
    assert await _left(limiter, PLACES) == 1

    def view(request: HttpRequest) -> HttpResponse:
        return django_shop.limited(request)

    decorated = rate_limit(limiter=Limiter(), quota=PLACES)(view)
    assert [decorated(RequestFactory().get("/")).status_code for _ in range(2)] == [429, 429]


def test_a_decorated_view_is_counted_apart_and_headers_have_both_limits() -> None:
    limiter = Limiter()

    @rate_limit(limiter=limiter, quota="1/hour name own")
    def login(request: HttpRequest) -> HttpResponse:
        return HttpResponse("in")

    @rate_limit(limiter=limiter, quota="1/hour name own")
    def logout(request: HttpRequest) -> HttpResponse:
        return HttpResponse("out")

    with override_settings(PENSTOCK={"limiter": limiter, "quota": "9/hour name all"}):
        middleware = RateLimitMiddleware(login)
    first = middleware(RequestFactory().get("/"))
    assert (first.status_code, first["RateLimit"].count(";r=")) == (200, 2)
    assert login(RequestFactory().get("/")).status_code == 429
    assert logout(RequestFactory().get("/")).status_code == 200


@LIMITERS
@STACKS
async def test_exempt_requests_are_not_charged_and_get_no_headers(kind: Any, stack: str) -> None:
    get = _client(stack, limiter=kind(), quota="1/hour", exempt=lambda request: request["path"] == "/hello")
    answers = [await get("/hello") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert "RateLimit" not in answers[0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_decorated_view_that_raises_gives_its_place_back(error: type[BaseException]) -> None:
    limiter = Limiter()

    @rate_limit(limiter=limiter, quota=PLACES, name="view")
    def view(request: HttpRequest) -> HttpResponse:
        raise error

    for _ in range(2):
        with pytest.raises(error):
            view(RequestFactory().get("/"))
    assert limiter.peek(("view", PEER), PLACES, cost=0).remaining == 1


class Renewing:
    """A limiter of either kind, on a manual clock, that counts renewals."""

    def __init__(self, kind: Any) -> None:
        self.limiter = kind(clock=ManualClock())
        self.renewals = 0
        renew = self.limiter.renew

        def counted(verdict: Any) -> Any:
            self.renewals += 1
            return renew(verdict)

        self.limiter.renew = counted

    def view(self, request: HttpRequest) -> HttpResponse:
        wait_until(lambda: self.renewals >= 2, "two renewals")
        return HttpResponse("renewed")

    async def view_async(self, request: HttpRequest) -> HttpResponse:
        async with asyncio.timeout(60):
            while self.renewals < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return HttpResponse("renewed")


@LIMITERS
@STACKS
async def test_places_are_renewed_while_a_view_runs(kind: Any, stack: str) -> None:
    quota = "1 concurrent ttl 60ms"
    renewing = Renewing(kind)
    limited = rate_limit(limiter=renewing.limiter, quota=quota, renew=True, name="view")
    if stack == "wsgi":
        response = await asyncio.to_thread(limited(renewing.view), RequestFactory().get("/"))
    else:
        response = await limited(renewing.view_async)(AsyncRequestFactory().get("/"))
    assert (response.status_code, response.content) == (200, b"renewed")
    peeked = renewing.limiter.peek(("view", PEER), quota, cost=0)
    assert (await peeked if kind is AsyncLimiter else peeked).remaining == 1
    wait_until(lambda: all(thread.name != "penstock-renew" for thread in threading.enumerate()), "renewals to end")


def test_rules_see_method_and_path() -> None:
    rules = RuleSet(parse("rules: [{id: posts, match: {method: POST, path: /x}, key: [], quota: 1/hour}]"))

    @rate_limit(enforcer=Enforcer(rules, Limiter()))
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert [view(RequestFactory().post("/x")).status_code for _ in range(2)] == [200, 429]
    assert view(RequestFactory().get("/x")).status_code == 200


@pytest.mark.parametrize("options", [None, "100/minute", []])
def test_a_setting_that_is_no_dictionary_is_refused(options: object) -> None:
    with override_settings(PENSTOCK=options), pytest.raises(InvalidOption, match=r"^PENSTOCK .*: expected a setting"):
        RateLimitMiddleware(lambda request: None)


@pytest.mark.parametrize("handler", [WSGIHandler, ASGIHandler])
def test_a_wrong_option_is_an_error_when_the_server_starts(handler: Any) -> None:
    with override_settings(PENSTOCK={"limiter": Limiter(), "qouta": "1/hour"}), pytest.raises(InvalidOption):
        handler()


# ---------------------------------------------------------------- Django REST framework


def test_a_throttle_refuses_in_the_frameworks_own_words() -> None:
    class Burst(Throttle):
        options: ClassVar[Any] = {"limiter": Limiter(), "quota": "1/minute fixed_window"}

    get = throttled(Burst)
    assert get().status_code == 200
    refused = get()
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 60
    assert b"throttled" in refused.content


def test_a_throttle_answers_a_denied_request_with_403() -> None:
    rules = RuleSet(
        parse("""
        rules:
          - {id: closed, action: deny, match: {ip: 127.0.0.1}, response: {message: Not from here.}}
        """)
    )

    class Blocked(Throttle):
        options: ClassVar[Any] = {"enforcer": Enforcer(rules, Limiter())}

    refused = throttled(Blocked)()
    assert (refused.status_code, refused.data["detail"]) == (403, "Not from here.")


def test_a_throttle_answers_503_if_the_store_cannot_decide() -> None:
    store = Flaky(ManualClock())
    store.up = False

    class Closed(Throttle):
        options: ClassVar[Any] = {"limiter": Limiter(store, on_failure="closed"), "quota": "9/hour"}

    refused = throttled(Closed)()
    assert refused.status_code == 503
    assert int(refused["Retry-After"]) > 0


def test_places_that_rules_ask_for_are_not_kept_by_a_throttle() -> None:
    rules = RuleSet(parse(f"rules: [{{id: places, key: ip, quota: {PLACES}}}]"))

    class Places(Throttle):
        options: ClassVar[Any] = {"enforcer": Enforcer(rules, Limiter())}

    get = throttled(Places)
    assert [get().status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quota": PLACES}, "quota with places: a throttle does not see the end of a request (expected a middleware)"),
        (
            {"quota": "1/hour", "settle": True},
            "settle: a throttle does not see the end of a request (expected a middleware)",
        ),
    ],
)
def test_a_throttle_refuses_what_needs_the_end_of_a_request(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        type("Wrong", (Throttle,), {"options": {"limiter": Limiter(), **options}})
    assert str(caught.value) == message


def test_a_throttle_knows_the_authenticated_user() -> None:
    class ByUser(Throttle):
        options: ClassVar[Any] = {
            "limiter": Limiter(),
            "quota": "1/hour",
            "key": "user | ip",
            "exempt": lambda request: request.get("user") == "root",
        }

    get = throttled(ByUser)
    assert [get(user).status_code for user in ("ann", "bob", "ann", "")] == [200, 200, 429, 200]
    assert [get("root").status_code for _ in range(2)] == [200, 200]


def test_throttles_count_apart() -> None:
    limiter = Limiter()
    Burst = type("Burst", (Throttle,), {"options": {"limiter": limiter, "quota": "1/hour"}})  # noqa: N806
    Other = type("Other", (Throttle,), {"options": {"limiter": limiter, "quota": "1/hour"}})  # noqa: N806
    assert [throttled(Burst)().status_code, throttled(Other)().status_code] == [200, 200]
    assert throttled(Burst)().status_code == 429


async def _nothing_async(request: HttpRequest) -> Any:
    return None


def _nothing(request: HttpRequest) -> Any:
    return None


async def test_a_view_without_a_response_gives_its_place_back() -> None:
    limiter = Limiter()
    request = RequestFactory().get("/")
    assert rate_limit(limiter=limiter, quota=PLACES, key=lambda _: "one")(_nothing)(request) is None
    assert await rate_limit(limiter=limiter, quota=PLACES, key=lambda _: "two")(_nothing_async)(request) is None
    assert [await _left(limiter, PLACES, key) for key in ("one", "two")] == [1, 1]


def test_a_refusal_by_a_decorator_sets_the_headers() -> None:
    @rate_limit(limiter=Limiter(), quota="1/hour", dialect="x-seconds")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    with override_settings(PENSTOCK={"limiter": Limiter(), "quota": "9/hour", "dialect": "x-seconds"}):
        guarded = RateLimitMiddleware(view)
    _, refused = [guarded(RequestFactory().get("/hello")) for _ in range(2)]
    assert (refused.status_code, refused["X-RateLimit-Limit"], refused["X-RateLimit-Remaining"]) == (429, "1", "0")


class _Gone:
    """The input that a server reads from a client that has left."""

    def read(self, *_: Any) -> bytes:
        raise OSError("gone")

    def close(self) -> None: ...


@pytest.mark.parametrize("decorated", [False, True])
def test_a_client_that_leaves_in_the_middle_of_a_request_stays_charged(*, decorated: bool) -> None:
    limiter = Limiter()
    options: Any = {"limiter": limiter, "quota": "9/hour", "charge": unless_server_error, "key": lambda _: "one"}

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.body)

    request = RequestFactory().post("/hello", b"text", "text/plain")
    request._stream = _Gone()
    if decorated:
        with pytest.raises(OSError, match="gone"):
            rate_limit(name="two", **options)(view)(request)
        assert limiter.peek(("two", "one"), "9/hour", cost=0).remaining == 8
        return

    def handled(request: HttpRequest) -> HttpResponse:  # as Django does with a view that raises
        try:
            return view(request)
        except OSError as error:
            guarded.process_exception(request, error)
            return HttpResponse(status=500)

    with override_settings(PENSTOCK=options):
        guarded = RateLimitMiddleware(handled)
    guarded(request)
    assert limiter.peek("one", "9/hour", cost=0).remaining == 8

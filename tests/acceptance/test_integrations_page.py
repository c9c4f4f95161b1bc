"""Each framework on the page: what a reader would paste runs in the real framework, and limits."""

from __future__ import annotations

from typing import Any
from wsgiref.util import setup_testing_defaults

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.test import Client, RequestFactory, override_settings
from litestar import Litestar, get

from penstock import ManualClock
from penstock.clock import SystemClock
from tests.acceptance.test_docs import DOCS, ROOT, Reader
from tests.acceptance.test_docs import _examples as examples_of
from tests.unit.middleware import django_shop
from tests.unit.middleware.http_support import client, statuses

PAGE = DOCS / "integrations.md"


@pytest.fixture(scope="module")
def pasted() -> dict[str, dict[str, Any]]:
    """What each section leaves behind, by its heading; sections may use what earlier ones have imported."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    reader, found = Reader(PAGE), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "time_ns", staticmethod(ManualClock().time_ns))  # no window may turn while we ask
        for example in examples_of(PAGE):
            reader.run(example)  # that it runs is not enough: what follows shows that it limits
            heading = next(line for line in reversed(lines[: example.line]) if line.startswith("##"))
            found[heading.lstrip("# ")] = dict(reader.namespace)
    return found


def _statuses(get: Any, times: int) -> list[int]:
    return [get() for _ in range(times)]


async def test_fastapi_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    app = pasted["FastAPI"]["app"]
    assert await statuses(app, *["/search"] * 11) == [200] * 10 + [429]
    assert await statuses(app, *["/export"] * 21) == [200] * 20 + [429]
    assert await statuses(app, *["/nowhere"] * 969) == [404] * 968 + [429]  # the middleware counts all


async def test_the_application_of_the_readme_can_be_pasted_and_limits() -> None:
    readme = ROOT / "README.md"
    (example,) = [example for example in examples_of(readme) if "FastAPI()" in example.code]
    reader = Reader(readme)  # with nothing of what stands before it
    reader.run(example)
    assert await statuses(reader.namespace["app"], *["/search"] * 4) == [200] * 3 + [429]


@pytest.mark.parametrize("framework", ["Starlette", "Quart"])
async def test_asgi_framework_example_works(pasted: dict[str, dict[str, Any]], framework: str) -> None:
    assert await statuses(pasted[framework]["app"], *["/nowhere"] * 101) == [404] * 100 + [429]


async def test_litestar_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    app: Litestar = pasted["Litestar"]["app"]

    @get("/")
    async def hello() -> str:
        return "hello"

    app.register(hello)
    assert await statuses(app, *["/"] * 101) == [200] * 100 + [429]


async def test_asgi_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    assert await statuses(pasted["ASGI"]["application"], *["/"] * 101) == [200] * 100 + [429]


async def test_outcomes_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    api = pasted["By outcome"]["api"]
    right, wrong = "/login?password=correct horse", "/login?password=battery"
    paths = [*[right] * 7, *[wrong] * 5, right]
    assert await statuses(api, *paths, method="POST") == [200] * 7 + [401] * 5 + [429]
    async with client(api) as http:
        answers = [await http.post("/ask") for _ in range(2)]
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=98000", "r=96568"]


def test_wsgi_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    application, statuses = pasted["WSGI"]["application"], []
    for _ in range(101):
        environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.7"}
        setup_testing_defaults(environ)
        b"".join(application(environ, lambda status, headers, *_: statuses.append(int(status[:3]))))
    assert statuses == [200] * 100 + [429]


def test_flask_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    flask = pasted["Flask"]["app"].test_client()
    assert _statuses(lambda: flask.post("/login").status_code, 6) == [200] * 5 + [429]
    assert _statuses(lambda: flask.get("/nowhere").status_code, 95)[-2:] == [404, 429]
    assert flask.get("/health").status_code == 200


def test_django_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    page = pasted["Django"]
    assert _statuses(lambda: page["login"](RequestFactory().post("/")).status_code, 6) == [200] * 5 + [429]
    with override_settings(MIDDLEWARE=page["MIDDLEWARE"], PENSTOCK=page["PENSTOCK"]):
        browser = Client()
        assert _statuses(lambda: browser.get("/hello").status_code, 101) == [200] * 100 + [429]
        assert browser.get("/health").status_code == 200


def test_django_rest_framework_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    get = django_shop.throttled(pasted["Django REST framework"]["Burst"])
    assert _statuses(lambda: get().status_code, 61) == [200] * 60 + [429]


async def test_aiohttp_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    app: web.Application = pasted["aiohttp"]["server"]
    async with TestClient(TestServer(app)) as browser:
        assert [(await browser.get("/nowhere")).status for _ in range(101)] == [404] * 100 + [429]


def _handlers(behaviour: Any) -> list[Any]:
    handler = grpc.unary_unary_rpc_method_handler(behaviour)
    return [grpc.method_handlers_generic_handler("shop.Orders", {"Get": handler})]


def test_grpc_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    server = pasted["gRPC"]["blocking_server"]
    server.add_generic_rpc_handlers(_handlers(lambda request, context: request))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        get = channel.unary_unary("/shop.Orders/Get")
        for _ in range(100):
            get(b"")
        with pytest.raises(grpc.RpcError) as caught:
            get(b"")
    server.stop(None).wait()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_grpc_for_asyncio_example_works(pasted: dict[str, dict[str, Any]]) -> None:
    async def behaviour(request: bytes, context: Any) -> bytes:
        return request

    server = await pasted["gRPC"]["serve"]()
    server.add_generic_rpc_handlers(_handlers(behaviour))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        get = channel.unary_unary("/shop.Orders/Get")
        for _ in range(100):
            await get(b"")
        with pytest.raises(grpc.RpcError) as caught:
            await get(b"")
    await server.stop(None)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

"""gRPC: real servers on loopback ports, of threads and of asyncio, without generated code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import pytest

from penstock import AsyncLimiter, Limiter, ManualClock
from penstock.enforcer import Enforcer
from penstock.middleware.gate import unless_server_error
from penstock.middleware.grpc import AsyncRateLimitInterceptor, GrpcCall, GrpcRequest, RateLimitInterceptor, visit
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from tests.rig.processes import wait_until
from tests.unit.flaky import Flaky

PEER = "ip=127.0.0.1"
PLACES = "1 concurrent ttl 1h"
Code = grpc.StatusCode


class Shop:
    """A service whose messages are bytes."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def get(self, request: bytes, context: Any) -> bytes:
        if request == b"fail":
            raise ValueError("on purpose")
        if request == b"abort":
            context.abort(Code.UNAUTHENTICATED, "who are you")
        if request == b"cost":
            visit().cost = 60
        return request

    def watch(self, request: bytes, context: Any) -> Iterator[bytes]:
        yield b"one"
        assert self.go_on.wait(60)
        yield b"two"

    def sum(self, requests: Iterator[bytes], context: Any) -> bytes:
        return b"".join(requests)

    def echo(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from requests


def _handlers(shop: Any) -> Any:
    return grpc.method_handlers_generic_handler(
        "shop.Orders",
        {
            "Get": grpc.unary_unary_rpc_method_handler(shop.get),
            "Watch": grpc.unary_stream_rpc_method_handler(shop.watch),
            "Sum": grpc.stream_unary_rpc_method_handler(shop.sum),
            "Echo": grpc.stream_stream_rpc_method_handler(shop.echo),
        },
    )


@contextmanager
def _serving(shop: Shop, **options: Any) -> Iterator[Any]:
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool, interceptors=[RateLimitInterceptor(**options)])
    server.add_generic_rpc_handlers([_handlers(shop)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    shop.go_on.set()
    server.stop(None).wait()
    pool.shutdown()


def _get(channel: Any, message: bytes = b"", key: str | None = None) -> Any:
    """Return the code of a call."""
    try:
        channel.unary_unary("/shop.Orders/Get")(
            message, metadata=[] if key is None else [("x-api-key", key)], timeout=60
        )
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


def _soon(condition: Any) -> None:
    wait_until(condition, "what ought to come soon")


@pytest.mark.parametrize(
    ("dialect", "told"), [("x-seconds", {"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0"}), ("none", {})]
)
def test_the_metadata_of_a_refused_call_has_the_dialect_that_was_chosen(dialect: str, told: dict[str, str]) -> None:
    options = {"limiter": Limiter(clock=ManualClock()), "quota": "1/minute gcra", "dialect": dialect}
    with _serving(Shop(), **options) as channel:
        assert _get(channel) == Code.OK
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/shop.Orders/Get")(b"", timeout=60)
    metadata = dict(caught.value.trailing_metadata())
    assert metadata["retry-after"] == "60"
    assert {name: value for name, value in metadata.items() if "ratelimit" in name and "reset" not in name} == told


def test_a_refused_call_has_the_reason_and_the_time_to_retry() -> None:
    with _serving(Shop(), limiter=Limiter(), quota="1/minute fixed_window name api") as channel:
        assert _get(channel) == Code.OK
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/shop.Orders/Get")(b"", timeout=60)
        refused = caught.value
        assert refused.code() == Code.RESOURCE_EXHAUSTED
        assert refused.details().startswith("Refused by api: try again in ")
        metadata = dict(refused.trailing_metadata())
        seconds, millis = int(metadata["retry-after"]), int(metadata["grpc-retry-pushback-ms"])
        assert 0 < millis <= 60_000
        assert seconds == -(-millis // 1_000)
        assert metadata["ratelimit"].startswith('"api";r=0')
        assert "content-type" not in metadata


def test_the_server_is_unavailable_if_the_store_fails_closed() -> None:
    store = Flaky(ManualClock())
    with _serving(Shop(), limiter=Limiter(store, on_failure="closed"), quota="9/hour") as channel:
        assert _get(channel) == Code.OK
        store.up = False
        assert _get(channel) == Code.UNAVAILABLE


def test_all_kinds_of_calls_are_guarded_and_work() -> None:
    with _serving(shop := Shop(), limiter=Limiter(), quota="4/hour") as channel:
        shop.go_on.set()
        assert channel.unary_unary("/shop.Orders/Get")(b"x") == b"x"
        assert list(channel.unary_stream("/shop.Orders/Watch")(b"")) == [b"one", b"two"]
        assert channel.stream_unary("/shop.Orders/Sum")(iter([b"a", b"b"])) == b"ab"
        assert list(channel.stream_stream("/shop.Orders/Echo")(iter([b"a", b"b"]))) == [b"a", b"b"]
        for call in (
            lambda: list(channel.unary_stream("/shop.Orders/Watch")(b"")),
            lambda: channel.stream_unary("/shop.Orders/Sum")(iter([b"a"])),
            lambda: list(channel.stream_stream("/shop.Orders/Echo")(iter([b"a"]))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == Code.RESOURCE_EXHAUSTED


def test_rules_see_the_method_the_key_and_the_address() -> None:
    rules = parse("""
        rules:
          - {id: get, match: {route: /shop.Orders/Get}, key: api_key | ip, quota: 1/hour}
          - {id: blocked, action: deny, match: {api_key: stolen}}
    """)
    with _serving(Shop(), enforcer=Enforcer(RuleSet(rules), Limiter())) as channel:
        assert [_get(channel) for _ in range(2)] == [Code.OK, Code.RESOURCE_EXHAUSTED]
        assert _get(channel, key="k") == Code.OK
        assert _get(channel, key="stolen") == Code.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/shop.Orders/Nothing")(b"", timeout=60)
        assert caught.value.code() == Code.UNIMPLEMENTED


def test_handlers_that_raise_give_back_places_and_codes_count_as_statuses() -> None:
    limiter = Limiter()
    quota = [PLACES, "2/hour"]
    with _serving(Shop(), limiter=limiter, quota=quota, charge=unless_server_error) as channel:
        assert [_get(channel, b"fail") for _ in range(4)] == [Code.UNKNOWN] * 4
        codes = [_get(channel, b"abort") for _ in range(3)]
        assert codes == [Code.UNAUTHENTICATED, Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED]
    assert limiter.peek(PEER, PLACES, cost=0).remaining == 1


def test_a_stream_holds_its_place_until_it_ends_or_its_client_leaves() -> None:
    limiter = Limiter()
    with _serving(shop := Shop(), limiter=limiter, quota=PLACES) as channel:
        watch = channel.unary_stream("/shop.Orders/Watch")
        stream = watch(b"")
        assert next(stream) == b"one"
        assert _get(channel) == Code.RESOURCE_EXHAUSTED
        stream.cancel()
        shop.go_on.set()
        _soon(lambda: limiter.peek(PEER, PLACES, cost=0).remaining == 1)
        assert list(watch(b"")) == [b"one", b"two"]
        _soon(lambda: limiter.peek(PEER, PLACES, cost=0).remaining == 1)


def test_exempt_calls_pass() -> None:
    with _serving(
        Shop(), limiter=Limiter(), quota="1/hour", exempt=lambda request: bool(request["api_key"])
    ) as channel:
        assert [_get(channel, key="k") for _ in range(3)] == [Code.OK] * 3
        assert [_get(channel) for _ in range(2)] == [Code.OK, Code.RESOURCE_EXHAUSTED]


def test_the_true_cost_is_settled() -> None:
    limiter = Limiter()
    with _serving(Shop(), limiter=limiter, quota="100/hour", cost=10, settle=True) as channel:
        assert _get(channel, b"cost") == Code.OK
        _soon(lambda: limiter.peek(PEER, "100/hour", cost=0).remaining == 40)


def test_a_handler_that_raises_a_refusal_is_answered_with_it() -> None:
    limiter = Limiter()
    shop = Shop()
    shop.get = limiter.limit("1/hour name inner")(shop.get)  # type: ignore[method-assign]
    with _serving(shop, limiter=limiter, quota=PLACES) as channel:
        assert _get(channel) == Code.OK
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/shop.Orders/Get")(b"", timeout=60)
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        assert caught.value.details().startswith("Refused by inner: ")
        _soon(lambda: limiter.peek(PEER, PLACES, cost=0).remaining == 1)


class _Context:
    def __init__(self, peer: str | None, names: list[bytes] | None = None) -> None:
        self._peer = peer
        self._names = names

    def peer(self) -> str | None:
        return self._peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {} if self._names is None else {"x509_common_name": self._names}


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:4711", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:4711", "2001:db8::7"),
        ("ipv6:[2001:db8::7]:4711", "2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::1"),
        ("unix:", None),
        ("unix:/run/app.sock", None),
        ("unknown", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses_are_read_as_grpc_writes_them(peer: str | None, address: str | None) -> None:
    assert GrpcRequest(GrpcCall("/shop.Orders/Get", (), _Context(peer)), {}).peer() == address


def test_the_user_is_the_name_in_the_certificate_and_bytes_are_no_header() -> None:
    metadata: list[tuple[str, str | bytes]] = [("x-api-key", "k"), ("trace-bin", b"\x00")]
    request = GrpcRequest(GrpcCall("/shop.Orders/Get", metadata, _Context(None, [b"ann"])), {})
    assert (request.user(), request.header("x-api-key"), request.header("trace-bin")) == ("ann", "k", None)
    assert GrpcRequest(GrpcCall("/shop.Orders/Get", (), _Context(None)), {}).user() is None


# ---------------------------------------------------------------- asyncio


class AsyncShop:
    """The same service for asyncio."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.ended = False

    async def get(self, request: bytes, context: Any) -> bytes:
        if request == b"fail":
            raise ValueError("on purpose")
        if request == b"abort":
            await context.abort(Code.UNAUTHENTICATED, "who are you")
        if request == b"cost":
            visit().cost = 60
        return request

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            yield b"one"
            await self.go_on.wait()
            yield b"two"
        finally:
            self.ended = True

    async def sum(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([message async for message in requests])

    async def echo(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for message in requests:
            await context.write(message)


@asynccontextmanager
async def _serving_async(shop: Any, **options: Any) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(**options)])
    server.add_generic_rpc_handlers([_handlers(shop)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def _aget(channel: Any, message: bytes = b"") -> Any:
    try:
        await channel.unary_unary("/shop.Orders/Get")(message, timeout=60)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


async def _places(limiter: AsyncLimiter) -> int:
    return (await limiter.peek(PEER, PLACES, cost=0)).remaining


async def test_asyncio_refuses_with_the_same_words() -> None:
    async with _serving_async(AsyncShop(), limiter=AsyncLimiter(), quota="1/minute fixed_window name api") as channel:
        assert await _aget(channel) == Code.OK
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary("/shop.Orders/Get")(b"", timeout=60)
        refused: Any = caught.value
        assert refused.code() == Code.RESOURCE_EXHAUSTED
        assert refused.details().startswith("Refused by api: try again in ")
        metadata = {key: value for key, value in refused.trailing_metadata()}  # noqa: C416
        assert int(metadata["grpc-retry-pushback-ms"]) > 0


async def test_asyncio_guards_all_kinds_of_calls() -> None:
    shop = AsyncShop()
    shop.go_on.set()
    async with _serving_async(shop, limiter=AsyncLimiter(), quota="4/hour") as channel:
        assert await channel.unary_unary("/shop.Orders/Get")(b"x") == b"x"
        assert [m async for m in channel.unary_stream("/shop.Orders/Watch")(b"")] == [b"one", b"two"]
        assert await channel.stream_unary("/shop.Orders/Sum")(iter([b"a", b"b"])) == b"ab"
        assert [m async for m in channel.stream_stream("/shop.Orders/Echo")(iter([b"a", b"b"]))] == [b"a", b"b"]
        with pytest.raises(grpc.RpcError) as caught:
            _ = [m async for m in channel.unary_stream("/shop.Orders/Watch")(b"")]
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED


async def test_asyncio_handlers_that_raise_give_back_places_and_codes_count_as_statuses() -> None:
    limiter = AsyncLimiter()
    async with _serving_async(
        AsyncShop(), limiter=limiter, quota=[PLACES, "2/hour"], charge=unless_server_error
    ) as channel:
        assert [await _aget(channel, b"fail") for _ in range(4)] == [Code.UNKNOWN] * 4
        codes = [await _aget(channel, b"abort") for _ in range(3)]
        assert codes == [Code.UNAUTHENTICATED, Code.UNAUTHENTICATED, Code.RESOURCE_EXHAUSTED]
    assert await _places(limiter) == 1


async def test_asyncio_streams_hold_their_place_until_they_end_or_their_client_leaves() -> None:
    limiter, shop = AsyncLimiter(), AsyncShop()
    async with _serving_async(shop, limiter=limiter, quota=PLACES) as channel:
        stream = channel.unary_stream("/shop.Orders/Watch")(b"")
        assert await stream.read() == b"one"
        assert await _aget(channel) == Code.RESOURCE_EXHAUSTED
        stream.cancel()
        async with asyncio.timeout(60):
            while await _places(limiter) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert shop.ended  # a place comes back when the handler is through, not before
        assert await _aget(channel) == Code.OK


async def test_asyncio_settles_the_true_cost() -> None:
    limiter = AsyncLimiter()
    async with _serving_async(AsyncShop(), limiter=limiter, quota="100/hour", cost=10, settle=True) as channel:
        assert await _aget(channel, b"cost") == Code.OK
        async with asyncio.timeout(60):
            while (await limiter.peek(PEER, "100/hour", cost=0)).remaining != 40:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_asyncio_answers_a_handler_that_raises_a_refusal_with_it() -> None:
    limiter = AsyncLimiter()
    shop = AsyncShop()
    shop.get = limiter.limit("1/hour name inner")(shop.get)  # type: ignore[method-assign]
    async with _serving_async(shop, limiter=limiter, quota=PLACES) as channel:
        assert [await _aget(channel) for _ in range(2)] == [Code.OK, Code.RESOURCE_EXHAUSTED]
    assert await _places(limiter) == 1


async def test_asyncio_refuses_a_handler_that_would_block() -> None:
    async with _serving_async(Shop(), limiter=AsyncLimiter(), quota="9/hour") as channel:
        assert await _aget(channel) == Code.UNKNOWN


def test_a_call_past_its_deadline_stays_charged() -> None:
    class Impatient(Shop):
        def get(self, request: bytes, context: Any) -> bytes:
            while context.is_active():
                threading.Event().wait(0.01)
            raise TimeoutError("as whatever it waits for does, with the same deadline")

    statuses: list[int] = []
    ended = threading.Event()

    def charge(status: int) -> bool:
        statuses.append(status)
        ended.set()
        return unless_server_error(status)

    limiter = Limiter()
    with _serving(Impatient(), limiter=limiter, quota="9/hour", charge=charge) as channel:
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/shop.Orders/Get")(b"", timeout=0.05)
        assert ended.wait(60)
    assert (statuses, limiter.peek(PEER, "9/hour", cost=0).remaining) == ([499], 8)

"""gRPC: server interceptors, for threads and for asyncio.

    server = grpc.server(pool, interceptors=[RateLimitInterceptor(limiter=Limiter(), quota="100/minute")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limiter=AsyncLimiter(), quota="100/minute")])

The route, like the path, is the full name of the method, `/shop.Orders/Get`; a header is an entry of the metadata. A
stream is one request, and over when its last message is. In a handler, `visit().cost = 1432` settles.

| refused | code | trailing metadata |
|---|---|---|
| by a quota | RESOURCE_EXHAUSTED | `retry-after`, `grpc-retry-pushback-ms`, and the headers that HTTP has |
| by a rule that denies | PERMISSION_DENIED | the same |
| because nobody could decide, or the system is too busy | UNAVAILABLE | the same |

`grpc-retry-pushback-ms` is what gRPC's own retries obey. For `charge`, a code counts as the status of HTTP that stands
for it: OK as 200, UNAUTHENTICATED as 401, UNAVAILABLE as 503.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Unpack
from urllib.parse import unquote

import grpc

from penstock.errors import InvalidOption, RateLimited
from penstock.middleware.gate import CLIENT_CLOSED, Options, Refusal
from penstock.middleware.passage import AsyncGate, AsyncPassage, BlockingGate, Passage, Visit, raised_refusal
from penstock.middleware.request import Request
from penstock.model import Verdict
from penstock.rules.client_ip import node_address

Code = grpc.StatusCode

STATUSES: dict[Any, int] = {
    Code.OK: 200,
    Code.CANCELLED: CLIENT_CLOSED,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
}
"""What a code counts as."""

_CODES = {429: Code.RESOURCE_EXHAUSTED, 403: Code.PERMISSION_DENIED, 503: Code.UNAVAILABLE}
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_NOT_FOR_GRPC = ("content-type", "content-length")
_MAX_PUSHBACK = 2**31 - 1

_current: ContextVar[Visit[Any]] = ContextVar("penstock_visit")


def visit() -> Visit[Any]:
    """What was granted to the call that is being handled."""
    return _current.get(None) or Visit()


class Call(NamedTuple):
    """A call, as an interceptor knows it."""

    method: str
    metadata: Sequence[tuple[str, str | bytes]]
    context: Any


class GrpcRequest(Request):
    """What gRPC tells of a call."""

    __slots__ = ()

    def method(self) -> str | None:
        return "POST"  # as every call over HTTP/2 is

    def path(self) -> str | None:
        return self.native.method  # type: ignore[no-any-return]

    def route(self) -> str | None:
        return self.native.method  # type: ignore[no-any-return]

    def user(self) -> Any:
        """Whom a certificate names."""
        names = self.native.context.auth_context().get("x509_common_name")
        return names[0].decode("utf-8", "replace") if names else None

    def peer(self) -> str | None:
        """Written as `ipv4:192.0.2.7:4711`, `ipv6:%5B::1%5D:4711`, `unix:`."""
        kind, _, rest = (self.native.context.peer() or "").partition(":")
        return node_address(unquote(rest)) if kind in ("ipv4", "ipv6") else None

    def lines(self, name: str) -> Sequence[str]:
        """Entries of the metadata; those with bytes in them are none."""
        return [value for key, value in self.native.metadata if key == name and isinstance(value, str)]


class RateLimitInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Guards every call to a server of threads."""

    def __init__(self, **options: Unpack[Options]) -> None:
        self._gate = BlockingGate(options)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        return None if handler is None else _rewrapped(handler, self._around(handler, details))

    def _around(self, handler: Any, details: Any) -> Callable[..., Any]:
        behaviour = _behaviour(handler)

        def respond(request: Any, context: Any) -> Any:
            entered = self._enter(details, context)
            with _left(entered, context):
                return behaviour(request, context)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            entered = self._enter(details, context)
            with _left(entered, context):
                yield from behaviour(request, context)

        return stream if handler.response_streaming else respond

    def _enter(self, details: Any, context: Any) -> Passage | None:
        call = Call(details.method, details.invocation_metadata, context)
        entered = self._gate.enter(GrpcRequest(call, self._gate.entries))
        if entered is not None and not entered:
            _abort(context, entered.verdict, entered.refusal())
        return entered


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Guards every call to a server of asyncio."""

    def __init__(self, **options: Unpack[Options]) -> None:
        self._gate = AsyncGate(options)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        return None if handler is None else _rewrapped(handler, self._around(handler, details))

    def _around(self, handler: Any, details: Any) -> Callable[..., Any]:
        behaviour = _behaviour(handler)

        async def respond(request: Any, context: Any) -> Any:
            entered = await self._enter(details, context)
            async with _left_async(entered, context):
                return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            entered = await self._enter(details, context)
            async with _left_async(entered, context), aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message

        if inspect.isasyncgenfunction(behaviour):
            return stream
        if inspect.iscoroutinefunction(behaviour):
            return respond
        raise InvalidOption(f"{details.method}: would block the event loop (expected a coroutine)")

    async def _enter(self, details: Any, context: Any) -> AsyncPassage | None:
        call = Call(details.method, details.invocation_metadata, context)
        entered = await self._gate.enter(GrpcRequest(call, self._gate.entries))
        if entered is not None and not entered:
            await context.abort(*_told(entered.verdict, entered.refusal()))
        return entered


@contextmanager
def _left(entered: Passage | None, context: Any) -> Iterator[None]:
    """What is done in this block is done in passing; whatever becomes of it, the passage is left."""
    token = _current.set(_with(entered))
    status = 500
    try:
        yield
        status = _status(context.code())
    except RateLimited as raised:
        refusal = raised_refusal(raised, visit().passages)
        status = refusal.status
        _abort(context, raised.verdict, refusal)
    except BaseException as error:
        status = _status_of(error, context)
        raise
    finally:
        _forget(token)
        if entered is not None:
            entered.leave(status)


@asynccontextmanager
async def _left_async(entered: AsyncPassage | None, context: Any) -> AsyncIterator[None]:
    """The same for asyncio."""
    token = _current.set(_with(entered))
    status = 500
    try:
        yield
        status = _status(context.code())
    except RateLimited as raised:
        refusal = raised_refusal(raised, visit().passages)
        status = refusal.status
        await context.abort(*_told(raised.verdict, refusal))
    except BaseException as error:
        status = _status_of(error, context)
        raise
    finally:
        _forget(token)
        if entered is not None:
            await entered.leave(status)


def _with(entered: Passage | AsyncPassage | None) -> Visit[Any]:
    """The visit, one passage further: an interceptor may stand within another."""
    further: Visit[Any] = Visit()
    further.passages = [*visit().passages, *(() if entered is None else (entered,))]
    return further


def _forget(token: Token[Any]) -> None:
    try:
        _current.reset(token)
    except (
        ValueError
    ):  # a stream that is given up may be closed by another thread or task, which has passages of its own
        pass


def _abort(context: Any, verdict: Verdict, refusal: Refusal) -> None:
    code, detail, metadata = _told(verdict, refusal)
    context.set_trailing_metadata(metadata)
    context.abort(code, detail)


def _told(verdict: Verdict, refusal: Refusal) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
    """The code, the words and the trailing metadata of a refusal."""
    status, headers, body = refusal
    metadata = [(name.lower(), value) for name, value in headers if name.lower() not in _NOT_FOR_GRPC]
    pushback = min(-(-verdict.retry_after_us // 1_000), _MAX_PUSHBACK)
    metadata.append(("grpc-retry-pushback-ms", str(max(pushback, 1))))
    return _CODES[status], json.loads(body)["detail"], tuple(metadata)


def _status(code: Any) -> int:
    """What a call that ended with this code counts as; with none, it is well."""
    if isinstance(code, int):  # as asyncio servers have it
        return next((status for known, status in STATUSES.items() if known.value[0] == code), 500)
    return STATUSES.get(code, 200 if code is None else 500)


def _status_of(error: BaseException, context: Any) -> int:
    if isinstance(error, asyncio.CancelledError | GeneratorExit) or not _is_active(context):
        return CLIENT_CLOSED
    return _status(context.code()) if context.code() else 500


def _is_active(context: Any) -> bool:
    """Whether somebody waits for the answer: a server of threads lets handlers run on after a client's deadline."""
    is_active = getattr(context, "is_active", None)
    return is_active is None or is_active()


def _behaviour(handler: Any) -> Any:
    return next(behaviour for kind in _KINDS if (behaviour := getattr(handler, kind)) is not None)


def _rewrapped(handler: Any, behaviour: Callable[..., Any]) -> Any:
    """A handler of the same kind with another behaviour."""
    asked = "stream" if handler.request_streaming else "unary"
    answered = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{asked}_{answered}_rpc_method_handler")
    return make(behaviour, handler.request_deserializer, handler.response_serializer)

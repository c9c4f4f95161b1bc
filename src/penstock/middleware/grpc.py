"""gRPC: server interceptors, for threads and for asyncio.

    server = grpc.server(pool, interceptors=[RateLimitInterceptor(limiter=Limiter(), quota="100/minute")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(limiter=AsyncLimiter(), quota="100/minute")])

The route, like the path, is the full name of the method, `/shop.Orders/Get`; a header is an entry of the metadata. A
stream is one request, and over when its last message is. In a handler, `visit().cost = 1432` settles.

| refused | code | trailing metadata |
|---|---|---|
| by a quota | RESOURCE_EXHAUSTED | `retry-after`, `grpc-retry-pushback-ms`, and the headers that HTTP has |
| by a rule that denies | PERMISSION_DENIED | the same |
| because the store cannot answer, or the system is too busy | UNAVAILABLE | the same |

`grpc-retry-pushback-ms` is what gRPC's own retries obey. For `charge`, a code counts as the status of HTTP that stands
for it: OK as 200, UNAUTHENTICATED as 401, UNAVAILABLE as 503.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, Unpack
from urllib.parse import unquote

import grpc

from penstock.engine.flows import Flow, drive, drive_async
from penstock.errors import InvalidOption, RateLimited
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions
from penstock.middleware.passage import AsyncGate, AsyncPassage, BlockingGate, Passage, Visit, raised_refusal
from penstock.middleware.request import Request
from penstock.model import Verdict
from penstock.rules.client_ip import node_address
from penstock.rules.refusal import RefusalResponse

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
"""The status of HTTP that stands for each code."""

_CODES = {429: Code.RESOURCE_EXHAUSTED, 403: Code.PERMISSION_DENIED, 503: Code.UNAVAILABLE}
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_NOT_FOR_GRPC = ("content-type", "content-length")
_MAX_PUSHBACK = 2**31 - 1

_current: ContextVar[Visit[Any]] = ContextVar("penstock_visit")


def visit() -> Visit[Any]:
    """Return the visit of the call that is being handled."""
    return _current.get(None) or Visit()


class GrpcCall(NamedTuple):
    """What an interceptor knows of a call."""

    method: str
    metadata: Sequence[tuple[str, str | bytes]]
    context: Any


class GrpcRequest(Request):
    """What gRPC knows of a request."""

    __slots__ = ()

    def method(self) -> str | None:
        return "POST"  # as every call over HTTP/2 is

    def path(self) -> str | None:
        return self.native.method  # type: ignore[no-any-return]

    def route(self) -> str | None:
        return self.native.method  # type: ignore[no-any-return]

    def user(self) -> Any:
        """Return the common name of the client's certificate."""
        names = self.native.context.auth_context().get("x509_common_name")
        return names[0].decode("utf-8", "replace") if names else None

    def peer(self) -> str | None:
        """Return the address of a peer written as `ipv4:192.0.2.7:4711` or `ipv6:%5B::1%5D:4711`; None for `unix:`."""
        kind, _, rest = (self.native.context.peer() or "").partition(":")
        return node_address(unquote(rest)) if kind in ("ipv4", "ipv6") else None

    def lines(self, name: str) -> Sequence[str]:
        """Return entries of the metadata that are text."""
        return [value for key, value in self.native.metadata if key == name and isinstance(value, str)]


class RateLimitInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]
    """Limits every call to a server of threads."""

    def __init__(self, **options: Unpack[GateOptions]) -> None:
        self._gate = BlockingGate(options)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        return None if handler is None else _rewrapped(handler, self._around(handler, details))

    def _around(self, handler: Any, details: Any) -> Callable[..., Any]:
        behaviour = _behaviour(handler)

        def respond(request: Any, context: Any) -> Any:
            with _LimitedCall(drive(_entering(self._gate, details, context)), context):
                return behaviour(request, context)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with _LimitedCall(drive(_entering(self._gate, details, context)), context):
                yield from behaviour(request, context)

        return stream if handler.response_streaming else respond


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Limits every call to a server for asyncio."""

    def __init__(self, **options: Unpack[GateOptions]) -> None:
        self._gate = AsyncGate(options)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        return None if handler is None else _rewrapped(handler, self._around(handler, details))

    def _around(self, handler: Any, details: Any) -> Callable[..., Any]:
        behaviour = _behaviour(handler)

        async def respond(request: Any, context: Any) -> Any:
            async with _LimitedCall(await drive_async(_entering(self._gate, details, context)), context):
                return await behaviour(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            entered = await drive_async(_entering(self._gate, details, context))
            async with _LimitedCall(entered, context), aclosing(behaviour(request, context)) as messages:
                async for message in messages:
                    yield message

        if inspect.isasyncgenfunction(behaviour):
            return stream
        if inspect.iscoroutinefunction(behaviour):
            return respond
        raise InvalidOption(f"{details.method}: would block the event loop (expected a coroutine)")


def _entering(gate: Any, details: Any, context: Any) -> Flow[Passage | AsyncPassage | None]:
    """Charge a call, and abort it if it is refused."""
    call = GrpcCall(details.method, details.invocation_metadata, context)
    entered: Passage | AsyncPassage | None = yield gate.enter(GrpcRequest(call, gate.entries))
    if entered is not None and not entered:
        yield _abort(context, entered.verdict, entered.refusal())
    return entered


class _LimitedCall:
    """The handling of a call: its passage ends with this block, whatever happens in it."""

    def __init__(self, entered: Passage | AsyncPassage | None, context: Any) -> None:
        self._entered, self._context = entered, context
        visit_here: Visit[Any] = Visit()  # one passage more than outside: an interceptor may stand within another
        visit_here.passages = [*visit().passages, *(() if entered is None else (entered,))]
        self._token = _current.set(visit_here)

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        drive(self._ending(error))

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await drive_async(self._ending(error))

    def _ending(self, error: BaseException | None) -> Flow[None]:
        status = 500
        try:
            if isinstance(error, RateLimited):
                refusal = raised_refusal(error, visit().passages)
                status = refusal.status
                yield _abort(self._context, error.verdict, refusal)
            else:
                status = _status(self._context.code()) if error is None else _status_of(error, self._context)
        finally:
            with suppress(ValueError):  # a stream that is given up may be closed by another thread or task
                _current.reset(self._token)
            if self._entered is not None:
                yield self._entered.leave(status)


def _abort(context: Any, verdict: Verdict, refusal: RefusalResponse) -> Any:
    """End a call with the code, the words and the trailing metadata of a refusal; to be awaited on asyncio."""
    status, headers, body = refusal
    metadata = [(name.lower(), value) for name, value in headers if name.lower() not in _NOT_FOR_GRPC]
    pushback = min(-(-verdict.retry_after_us // 1_000), _MAX_PUSHBACK)
    metadata.append(("grpc-retry-pushback-ms", str(max(pushback, 1))))
    context.set_trailing_metadata(tuple(metadata))
    return context.abort(_CODES[status], json.loads(body)["detail"])


def _status(code: Any) -> int:
    """Return the status of a call that ended with `code`; no code means success."""
    if isinstance(code, int):  # as asyncio servers have it
        return next((status for known, status in STATUSES.items() if known.value[0] == code), 500)
    return STATUSES.get(code, 200 if code is None else 500)


def _status_of(error: BaseException, context: Any) -> int:
    if isinstance(error, asyncio.CancelledError | GeneratorExit) or not _is_active(context):
        return CLIENT_CLOSED
    return _status(context.code()) if context.code() else 500


def _is_active(context: Any) -> bool:
    """Return whether the client still waits: a server of threads lets handlers run on after the deadline."""
    is_active = getattr(context, "is_active", None)
    return is_active is None or is_active()


def _behaviour(handler: Any) -> Any:
    return next(behaviour for kind in _KINDS if (behaviour := getattr(handler, kind)) is not None)


def _rewrapped(handler: Any, behaviour: Callable[..., Any]) -> Any:
    """Return a handler of the same kind with another behaviour."""
    requests = "stream" if handler.request_streaming else "unary"
    responses = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"{requests}_{responses}_rpc_method_handler")
    return make(behaviour, handler.request_deserializer, handler.response_serializer)

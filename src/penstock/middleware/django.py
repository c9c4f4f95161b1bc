"""Django: a middleware for all views, a decorator for one, and one for views without limits.

    MIDDLEWARE = [..., "penstock.middleware.django.RateLimitMiddleware"]      # behind AuthenticationMiddleware
    PENSTOCK = {"limiter": Limiter(), "quota": "100/minute", "key": "user | ip"}

It serves WSGI and ASGI alike, with either kind of limiter; best is the one that fits the server, because the other
takes a thread for each request. The route is the pattern that matched, `users/<int:pk>/`. In a view,
`request.penstock` is the `Visit`. Requests that match no view are charged like all others.

A response that is not streamed is over when the view has made it; one that is, when Django closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseBase
from django.urls import Resolver404, ResolverMatch, resolve

from penstock.enforcer import AsyncEnforcer
from penstock.errors import InvalidOption, RateLimited
from penstock.headers import Header
from penstock.holds import Hold
from penstock.limiter import AsyncLimiter
from penstock.middleware.gate import CLIENT_CLOSED, Options, Refusal
from penstock.middleware.passage import LISTS, AsyncGate, AsyncPassage, BlockingGate, Passage, Visit, raised_refusal
from penstock.middleware.view_names import Called, Names, name_of
from penstock.middleware.wsgi import WSGIRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

V = TypeVar("V", bound=Callable[..., Any])

_EXEMPT = "penstock_exempt"
_MATCH = "_penstock_match"
_GONE = "_penstock_gone"

_names = Names()


class DjangoRequest(WSGIRequest):
    """What Django tells of a request."""

    __slots__ = ()

    not_yet = (SynchronousOnlyOperation,)

    @property
    def environ(self) -> WSGIEnvironment:
        return self.native.META  # type: ignore[no-any-return]

    def method(self) -> str | None:
        return self.native.method  # type: ignore[no-any-return]

    def path(self) -> str | None:
        return self.native.path  # type: ignore[no-any-return]

    def route(self) -> str | None:
        return _route(self.native)

    def user(self) -> Any:
        """The primary key of who is logged in."""
        user = getattr(self.native, "_acached_user", None) or getattr(self.native, "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else None


class RateLimitMiddleware:
    """Guards every view, by the options in the setting `PENSTOCK`."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        options = getattr(settings, "PENSTOCK", None)
        if not isinstance(options, Mapping):
            raise InvalidOption(f"PENSTOCK {options!r}: expected a setting that is a dictionary of options")
        self._guard = _Guard(cast("Options", options))
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer what a view raises that calls a limited function; remember if its client is gone."""
        if isinstance(exception, UnreadablePostError):
            setattr(request, _GONE, True)
        return _raised(request, exception) if isinstance(exception, RateLimited) else None

    def __call__(self, request: HttpRequest) -> Any:
        match = _match(request)
        if match is not None and getattr(match.func, _EXEMPT, False):
            return self._get_response(request)
        if self._is_async:
            return self._guard.respond_async(request, self._get_response)
        return self._guard.respond(request, self._get_response)


def rate_limit(**options: Unpack[Options]) -> Callable[[V], V]:
    """Decorate a view with a limit of its own, counted apart by the view's name unless `name` says otherwise.

    Views of the same name are told apart by their routes.
    """
    guard = _Guard(options)
    unnamed = "name" not in options and "enforcer" not in options

    def decorate(view: V) -> V:
        called = _joined(view) if unnamed else None

        def name(request: HttpRequest) -> str | None:
            return called and called(partial(_route, request))

        if iscoroutinefunction(view):

            @wraps(view)
            async def limited_async(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                return await guard.respond_async(request, lambda request: view(request, *args, **kwargs), name(request))

            limited: Any = limited_async
        else:

            @wraps(view)
            def limited_blocking(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
                return guard.respond(request, lambda request: view(request, *args, **kwargs), name(request))

            limited = limited_blocking
        if unnamed:
            _names.mark(limited)
        return cast("V", limited)

    return decorate


def _joined(view: Any) -> Called:
    """What a limit of this view is called. A view that a class makes is the class's, and so is one of its methods,
    which `method_decorator` has decorated anew for each request.
    """
    if hasattr(view, "view_class"):
        return _names.join(view, view.view_class, name_of(view.view_class))
    owner = _owner(view)
    return _names.join(view) if owner is None else _names.join(view, owner, f"{name_of(owner)}.{view.__name__}")


def _owner(method: Any) -> type | None:
    """The class of whose instance this is a method, as `method_decorator` hands it out, decorated or not."""
    while method is not None:
        instance = getattr(getattr(method, "func", None), "__self__", None)
        if instance is not None:
            return type(instance)
        method = getattr(method, "__wrapped__", None)
    return None


def exempt(view: V) -> V:
    """Decorate a view, or what `as_view()` returns, that the middleware shall leave alone."""
    setattr(view, _EXEMPT, True)
    return view


class _Guard:
    """One gate, whichever its kind, before blocking views and before coroutines."""

    def __init__(self, options: Options) -> None:
        waits = isinstance(options.get("limiter"), AsyncLimiter) or isinstance(options.get("enforcer"), AsyncEnforcer)
        self._gate: AsyncGate | BlockingGate = AsyncGate(options) if waits else BlockingGate(options)

    def respond(self, request: HttpRequest, view: Callable[[HttpRequest], Any], name: str | None = None) -> Any:
        passage = self._enter(request, name)
        if passage is None:
            return view(request)
        if not passage:
            return _answered(passage.refusal())
        try:
            _visit(request).passages.append(passage)
            response = view(request)
        except RateLimited as raised:
            response = _raised(request, raised)
        except BaseException as error:
            _leave(passage, CLIENT_CLOSED if isinstance(error, UnreadablePostError) else 500)
            raise
        if not isinstance(response, HttpResponseBase):  # an error of the view, as Django will say
            _leave(passage, 500)
            return response
        _tell(response, passage.headers())
        if response.streaming:
            _follow(response, passage)
        else:
            _leave(passage, _status(request, response))
        return response

    async def respond_async(
        self, request: HttpRequest, view: Callable[[HttpRequest], Awaitable[Any]], name: str | None = None
    ) -> Any:
        passage = await self._enter_async(request, name)
        if passage is None:
            return await view(request)
        if not passage:
            return _answered(passage.refusal())
        try:
            _visit(request).passages.append(passage)
            response = await view(request)
        except RateLimited as raised:
            response = _raised(request, raised)
        except BaseException as error:
            await _leave_async(passage, 500 if isinstance(error, Exception) else CLIENT_CLOSED)
            raise
        if not isinstance(response, HttpResponseBase):
            await _leave_async(passage, 500)
            return response
        _tell(response, passage.headers())
        if response.streaming:
            _follow(response, passage)
        else:
            await _leave_async(passage, _status(request, response))
        return response

    def _enter(self, request: HttpRequest, name: str | None) -> AsyncPassage | Passage | None:
        gate = self._gate
        if isinstance(gate, BlockingGate):
            return gate.enter(DjangoRequest(request, gate.entries), name=name)
        passage: AsyncPassage | None = async_to_sync(self._ask)(gate, request, name, keep=False)
        if passage and gate.renews:
            passage.keep(Hold(cast("Any", _Blocking(gate.enforcer or gate.limiter)), passage.verdict))
        return passage

    async def _enter_async(self, request: HttpRequest, name: str | None) -> AsyncPassage | Passage | None:
        gate = self._gate
        if isinstance(gate, BlockingGate):
            enter = sync_to_async(gate.enter, thread_sensitive=False)
            return await enter(DjangoRequest(request, gate.entries), name=name)
        return await self._ask(gate, request, name)

    async def _ask(
        self, gate: AsyncGate, request: HttpRequest, name: str | None, *, keep: bool = True
    ) -> AsyncPassage | None:
        described = DjangoRequest(request, gate.entries)
        try:
            return await gate.enter(described, name=name, keep=keep)
        except SynchronousOnlyOperation:  # the user is asked for, and must be fetched; nothing is charged yet
            if not hasattr(request, "auser"):
                raise
            await request.auser()
            return await gate.enter(described, name=name, keep=keep)


class _Blocking:
    """Who renews places from a thread of its own: the event loop in which they were granted ran for that long only."""

    def __init__(self, asked: AsyncLimiter | AsyncEnforcer) -> None:
        self._asked = asked

    def renew(self, verdict: Any) -> bool:
        return asyncio.run(self._asked.renew(verdict))


class _Stream:
    """The content of a streamed response, and its passage, which is left when Django closes the response."""

    def __init__(self, content: Iterator[bytes], passage: AsyncPassage | Passage, status: int) -> None:
        self._content = content
        self._passage = passage
        self._status = status

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._content)
        except StopIteration:
            raise
        except BaseException:
            self._status = 500
            raise

    def close(self) -> None:
        _leave(self._passage, self._status)


class _AsyncStream:
    """The same for content that comes asynchronously. It is over with its last part, or when it is closed."""

    def __init__(self, content: AsyncIterator[bytes], passage: AsyncPassage | Passage, status: int) -> None:
        self._content = content
        self._passage = passage
        self._status = status

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._content)
        except StopAsyncIteration:
            await _leave_async(self._passage, self._status)
            raise
        except BaseException as error:
            await _leave_async(self._passage, 500 if isinstance(error, Exception) else CLIENT_CLOSED)
            raise

    def close(self) -> None:
        _leave(self._passage, self._status)


def _follow(response: Any, passage: AsyncPassage | Passage) -> None:
    """Leave the passage when a streamed response is over; Django closes what has a `close`, as both streams do."""
    stream = _AsyncStream if response.is_async else _Stream
    response.streaming_content = stream(response.streaming_content, passage, response.status_code)


def _leave(passage: AsyncPassage | Passage, status: int) -> None:
    if isinstance(passage, Passage):
        passage.leave(status)
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        async_to_sync(passage.leave)(status)
    else:
        passage.gate.start(passage.leave(status))


async def _leave_async(passage: AsyncPassage | Passage, status: int) -> None:
    if isinstance(passage, Passage):
        await sync_to_async(passage.leave, thread_sensitive=False)(status)
    else:
        await passage.leave(status)


def _visit(request: HttpRequest) -> Visit[Any]:
    if not hasattr(request, "penstock"):
        request.penstock = Visit()
    return request.penstock  # type: ignore[no-any-return]


def _match(request: HttpRequest) -> ResolverMatch | None:
    """What the path leads to. Django finds out only behind the middlewares."""
    known = request.resolver_match
    if known is not None:
        return known
    try:
        return request.__dict__[_MATCH]
    except KeyError:
        pass
    try:
        match = resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        match = None
    setattr(request, _MATCH, match)
    return match


def _route(request: HttpRequest) -> str | None:
    match = _match(request)
    return None if match is None else match.route


def _status(request: HttpRequest, response: Any) -> int:
    return CLIENT_CLOSED if getattr(request, _GONE, False) else response.status_code


def _raised(request: HttpRequest, raised: RateLimited) -> HttpResponse:
    visit: Visit[Any] | None = getattr(request, "penstock", None)
    return _answered(raised_refusal(raised, visit.passages if visit else ()))


def _answered(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))


def _tell(response: Any, headers: list[Header]) -> None:
    """Add headers; those that are lists may have been begun by a decorator, and others are its own."""
    for name, value in headers:
        if name not in response.headers:
            response.headers[name] = value
        elif name in LISTS:
            response.headers[name] = f"{response.headers[name]}, {value}"

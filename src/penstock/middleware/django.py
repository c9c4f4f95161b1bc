"""Django: a middleware for all views, a decorator for one, and one for views without limits.

    MIDDLEWARE = [..., "penstock.middleware.django.RateLimitMiddleware"]      # behind AuthenticationMiddleware
    PENSTOCK = {"limiter": Limiter(), "quota": "100/minute", "key": "user | ip"}

It serves WSGI and ASGI alike, with either kind of limiter. The kind that fits the server is best, because the other
one takes a thread for each request. The route is the pattern that matched, `users/<int:pk>/`. In a view,
`request.penstock` is the `Visit`. Requests that match no view are charged like all others.

A request is over when its view has returned a response; if that is streamed, when Django closes it.
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
from penstock.engine.flows import Flow, drive, drive_async
from penstock.errors import InvalidOption, RateLimited
from penstock.headers import Header
from penstock.holds import Hold
from penstock.limiter import AsyncLimiter
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions
from penstock.middleware.passage import LISTS, AsyncGate, AsyncPassage, BlockingGate, Passage, Visit, raised_refusal
from penstock.middleware.view_names import Called, Names, name_of
from penstock.middleware.wsgi import WSGIRequest
from penstock.rules.refusal import RefusalResponse

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

V = TypeVar("V", bound=Callable[..., Any])

_EXEMPT = "penstock_exempt"
_MATCH = "_penstock_match"
_GONE = "_penstock_gone"

_names = Names()


class DjangoRequest(WSGIRequest):
    """What Django knows of a request."""

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
        """Return the primary key of the user who is logged in."""
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
        self._guard = _Guard(cast("GateOptions", options))
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a refusal that a view raised; remember whether the client is gone."""
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


def rate_limit(**options: Unpack[GateOptions]) -> Callable[[V], V]:
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
    """Return the name of a limit of this view. A view made by a class is named after the class, and so is a method of
    the class, which `method_decorator` decorates anew for each request.
    """
    if hasattr(view, "view_class"):
        return _names.join(view, view.view_class, name_of(view.view_class))
    owner = _owner(view)
    return _names.join(view) if owner is None else _names.join(view, owner, f"{name_of(owner)}.{view.__name__}")


def _owner(method: Any) -> type | None:
    """Return the class whose instance `method` belongs to, as `method_decorator` passes it, decorated or not."""
    while method is not None:
        instance = getattr(getattr(method, "func", None), "__self__", None)
        if instance is not None:
            return type(instance)
        method = getattr(method, "__wrapped__", None)
    return None


def exempt(view: V) -> V:
    """Decorate a view, or what `as_view()` returns, so that the middleware does not limit it."""
    setattr(view, _EXEMPT, True)
    return view


class _Guard:
    """One gate of either kind, before blocking views and before coroutines."""

    def __init__(self, options: GateOptions) -> None:
        waits = isinstance(options.get("limiter"), AsyncLimiter) or isinstance(options.get("enforcer"), AsyncEnforcer)
        self._gate: AsyncGate | BlockingGate = AsyncGate(options) if waits else BlockingGate(options)

    def respond(self, request: HttpRequest, view: Callable[[HttpRequest], Any], name: str | None = None) -> Any:
        return drive(self._responding(request, view, self._enter(request, name), _leave))

    async def respond_async(
        self, request: HttpRequest, view: Callable[[HttpRequest], Awaitable[Any]], name: str | None = None
    ) -> Any:
        return await drive_async(self._responding(request, view, self._enter_async(request, name), _leave_async))

    def _responding(
        self, request: HttpRequest, view: Callable[[HttpRequest], Any], entered: Any, leave: Callable[..., Any]
    ) -> Flow[Any]:
        passage: AsyncPassage | Passage | None = yield entered
        if passage is None:
            return (yield view(request))
        if not passage:
            return _answered(passage.refusal())
        try:
            _visit(request).passages.append(passage)
            response = yield view(request)
        except RateLimited as raised:
            response = _raised(request, raised)
        except BaseException as error:
            yield leave(passage, _status_of(error))
            raise
        if not isinstance(response, HttpResponseBase):  # an error of the view, which Django reports
            yield leave(passage, 500)
            return response
        _tell(response, passage.headers())
        if response.streaming:
            stream = _AsyncStream if response.is_async else _Stream
            response.streaming_content = stream(response.streaming_content, passage, response.status_code)
        else:
            yield leave(passage, CLIENT_CLOSED if getattr(request, _GONE, False) else response.status_code)
        return response

    def _enter(self, request: HttpRequest, name: str | None) -> AsyncPassage | Passage | None:
        gate = self._gate
        if isinstance(gate, BlockingGate):
            return gate.enter(DjangoRequest(request, gate.entries), name=name)
        passage: AsyncPassage | None = async_to_sync(self._ask)(gate, request, name, keep=False)
        if passage and gate.renews:
            passage.keep(Hold(cast("Any", _BlockingRenewal(gate.enforcer or gate.limiter)), passage.verdict))
        return passage

    async def _enter_async(self, request: HttpRequest, name: str | None) -> AsyncPassage | Passage | None:
        gate = self._gate
        if isinstance(gate, BlockingGate):
            enter = sync_to_async(gate.enter, thread_sensitive=False)
            entering = asyncio.ensure_future(enter(DjangoRequest(request, gate.entries), name=name))
            try:
                return await asyncio.shield(entering)
            except asyncio.CancelledError:  # the thread goes on, and may be granted a place
                entering.add_done_callback(_leave_unseen)
                raise
        return await self._ask(gate, request, name)

    async def _ask(
        self, gate: AsyncGate, request: HttpRequest, name: str | None, *, keep: bool = True
    ) -> AsyncPassage | None:
        described = DjangoRequest(request, gate.entries)
        try:
            return await gate.enter(described, name=name, keep=keep)
        except SynchronousOnlyOperation:  # the key needs the user, who must be fetched first; nothing is charged yet
            if not hasattr(request, "auser"):
                raise
            await request.auser()
            return await gate.enter(described, name=name, keep=keep)


class _BlockingRenewal:
    """Renews places from a thread: the event loop in which they were granted has ended by then."""

    def __init__(self, decider: AsyncLimiter | AsyncEnforcer) -> None:
        self._decider = decider

    def renew(self, verdict: Any) -> bool:
        return asyncio.run(self._decider.renew(verdict))


class _Streamed:
    """The content of a streamed response, and its passage, which ends when Django closes the content."""

    def __init__(self, content: Any, passage: AsyncPassage | Passage, status: int) -> None:
        self._content = content
        self._passage = passage
        self._status = status

    def close(self) -> None:
        _leave(self._passage, self._status)


class _Stream(_Streamed):
    """Blocking content."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._content)  # type: ignore[no-any-return]
        except StopIteration:
            raise
        except BaseException:
            self._status = 500
            raise


class _AsyncStream(_Streamed):
    """Content that comes asynchronously. Its passage ends with the last part, or when it is closed."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._content)
        except StopAsyncIteration:
            await _leave_async(self._passage, self._status)
            raise
        except BaseException as error:
            await _leave_async(self._passage, _status_of(error))
            raise


def _status_of(error: BaseException) -> int:
    """Return the outcome of a request that ended with `error`: its client may be gone."""
    gone = isinstance(error, UnreadablePostError | asyncio.CancelledError | GeneratorExit)
    return CLIENT_CLOSED if gone else 500


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


def _leave_unseen(entering: asyncio.Future[Passage | None]) -> None:
    """End a request that was cancelled while a thread charged it."""
    if entering.cancelled() or entering.exception() is not None:
        return
    passage = entering.result()
    if passage is not None:
        asyncio.get_running_loop().run_in_executor(None, passage.leave, CLIENT_CLOSED)


async def _leave_async(passage: AsyncPassage | Passage, status: int) -> None:
    if isinstance(passage, Passage):
        await asyncio.shield(sync_to_async(passage.leave, thread_sensitive=False)(status))
    else:
        await passage.leave(status)


def _visit(request: HttpRequest) -> Visit[Any]:
    if not hasattr(request, "penstock"):
        request.penstock = Visit()
    return request.penstock  # type: ignore[no-any-return]


def _match(request: HttpRequest) -> ResolverMatch | None:
    """Return the match of the request's path. Django itself resolves it only after the middlewares."""
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


def _raised(request: HttpRequest, raised: RateLimited) -> HttpResponse:
    visit: Visit[Any] | None = getattr(request, "penstock", None)
    return _answered(raised_refusal(raised, visit.passages if visit else ()))


def _answered(refusal: RefusalResponse) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))


def _tell(response: Any, headers: list[Header]) -> None:
    """Add headers. A decorator may have added some: lists are extended, other headers stay as they are."""
    for name, value in headers:
        if name not in response.headers:
            response.headers[name] = value
        elif name in LISTS:
            response.headers[name] = f"{response.headers[name]}, {value}"

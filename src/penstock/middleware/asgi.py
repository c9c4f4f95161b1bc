"""The middleware for ASGI: HTTP and WebSockets, whatever the framework; it imports none.

    app = RateLimitMiddleware(app, limiter=AsyncLimiter(), quota="100/minute")

A request is charged before the application sees it. It is over when the last of its response is ready to be sent, when
the application raises, or when it is cancelled: then places are released, and outcomes that do not stay charged are
refunded. A client that reads the end of a response finds its place free. Scopes that are neither `http` nor
`websocket`, such as `lifespan`, pass untouched.

| event | outcome |
|---|---|
| the application raises | 500, though a response may have begun |
| the client leaves first, or the task is cancelled | the status that was begun, or else 499 |
| the application raises `RateLimited` before it responds | the client gets the refusal, as if the middleware refused |

**WebSockets.** A connection is a request with the method `WEBSOCKET`; its places are held, and renewed, until it ends.
A refused connection is answered with the refusal where the server supports that, and else closed (the client sees 403).
With `messages=`, each message that comes in is charged too, with the method `MESSAGE`; the first that is refused closes
the connection: code 1008, or 1013 where the store could not answer. Shaped messages are delayed, which slows a fast
client down.

Inside the application, `scope["penstock"]` is the `Visit`: `visit.cost = 1432` settles, `visit.verdict` is the verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from functools import cache
from typing import Any, TypeAlias, Unpack, cast

from penstock.engine.operations import QuotaLike
from penstock.errors import InvalidOption, RateLimited
from penstock.headers import Header
from penstock.middleware.gate import CLIENT_CLOSED, GateOptions
from penstock.middleware.passage import LISTS, AsyncGate, AsyncPassage, Visit, headers_of, raised_refusal
from penstock.middleware.request import Entries, Request
from penstock.model import Verdict
from penstock.rules.refusal import RefusalResponse

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""Any, because frameworks have types of their own for scopes and messages."""
Route: TypeAlias = Callable[[Scope], str | None]
"""A function that finds the template of the route that a scope leads to."""

VISIT = "penstock"
"""The key of the visit in a scope."""

SWITCHING, FORBIDDEN, FAILED = 101, 403, 500
POLICY_VIOLATION, TRY_AGAIN_LATER = 1008, 1013
DENIAL = "websocket.http.response"
"""The extension of servers that can answer a refused connection."""

RawHeader: TypeAlias = tuple[bytes, bytes]


class AsgiRequest(Request):
    """A request as its ASGI scope."""

    __slots__ = ("_method", "_route")

    native: Scope

    def __init__(self, scope: Scope, entries: Entries, route: Route, method: str | None = None) -> None:
        self.native = scope
        self._entries = entries
        self._route = route
        self._method = method

    def method(self) -> str | None:
        return self._method or self.native.get("method")

    def path(self) -> str | None:
        return self.native.get("path")

    def route(self) -> str | None:
        return self._route(self.native)

    def user(self) -> Any:
        return name_of(self.native.get("user"))

    def peer(self) -> str | None:
        client = self.native.get("client")  # None, or (host, port); behind a Unix socket also ("", 0)
        try:
            host = client[0]  # type: ignore[index]
        except (TypeError, IndexError):
            return None
        return host if host.__class__ is str else None

    def lines(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.native.get("headers", ()) if key == wanted]


def name_of(user: Any) -> Any:
    """Return the id of a user of an authentication middleware; None without a login."""
    if user is None or isinstance(user, str | int):
        return user or None
    if not getattr(user, "is_authenticated", True):
        return None
    for attribute in ("id", "identity", "username", "display_name"):
        try:
            name = getattr(user, attribute, None)
        except NotImplementedError:  # as Starlette's BaseUser has it
            continue
        if name:
            return str(name)
    return None


def route_of(scope: Scope) -> str | None:
    """Return the route, where the framework has found it before the middleware runs, as Litestar does."""
    template = scope.get("path_template")
    if template is None:
        template = getattr(scope.get("route"), "path", None)
    return template if isinstance(template, str) else None


class AsgiVisit(Visit[AsyncPassage]):
    """One request, or one WebSocket, in an application: its passages, and its status.

    A scope has one visit, however many middlewares and dependencies it passes.
    """

    status = 0
    """The status of the response, once it has begun."""
    unnamed = 0
    """How many limits without a name of their own the request has passed."""

    # On the class, not in slots: most visits never change them, so most are made without.
    _follows_up = False
    _connected = False
    _gone = False

    def __init__(self, receive: Receive, send: Send) -> None:
        self.passages = []
        self._receive = receive
        self._send = send

    def grant(self, passage: AsyncPassage) -> None:
        """Add a passage: the visit adds its headers, and ends it."""
        self.passages.append(passage)
        if passage.gate.follows_up:
            self._follows_up = True

    async def receive(self) -> Message:
        """Pass a message to the application."""
        message = await self._receive()
        kind = message["type"]
        if kind == "http.disconnect" or kind == "websocket.disconnect":
            self._gone = True
        elif kind == "websocket.connect":
            self._connected = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the application, with the headers of the passages."""
        kind = message["type"]
        if kind == "http.response.body":
            if self._follows_up and not message.get("more_body", False):
                await self._leave()  # before it is sent: a client that has read the end may send the next request
        elif kind == "http.response.start" or kind == "websocket.http.response.start":
            self.status = message["status"]
            message = self._with_headers(message)
        elif kind == "websocket.accept":
            self.status = SWITCHING
            message = self._with_headers(message)
        elif kind == "websocket.close" and not self.status:
            self.status = FORBIDDEN  # which is what the client of a connection sees that was not accepted
        try:
            await self._send(message)
        except OSError:  # raised by servers when the client is gone
            self._gone = True
            raise

    def _with_headers(self, message: Message) -> Message:
        """Return a new message: an application may send the same object to several clients."""
        headers = [*message.get("headers", ())]
        passages = self.passages
        if len(passages) == 1 and passages[0].gate.sends_lists:  # the common case
            headers += encoded(passages[0].gate.headers(passages[0].verdict))
            return {**message, "headers": headers}
        for header in encoded(headers_of(passages)):
            if header[0] in _LISTS or all(header[0] != name for name, _ in headers):
                headers.append(header)
        return {**message, "headers": headers}

    async def _leave(self) -> None:
        status = self.status or CLIENT_CLOSED
        passages = iter(self.passages)
        try:
            for passage in passages:  # the second call of `leave` does nothing
                await passage.leave(status)
        finally:
            for passage in passages:  # the rest, after a cancellation
                passage.gate.start(passage.leave(status))

    async def run(self, app: App, scope: Scope) -> None:
        """Run the application, and end the passages whatever happens."""
        try:
            await app(scope, self.receive, self.send)
        except RateLimited as refused:
            if self.status:
                self.status = FAILED
                raise
            await self.refuse(self._refusal(refused), scope, self._receive, self._send)
        except asyncio.CancelledError:
            raise
        except BaseException:
            if not self._gone:
                self.status = FAILED
            raise
        finally:
            if self._follows_up:
                await self._leave()

    async def run_within(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application within another. The outer one ends the passages, but a refusal is answered here, before a
        framework in between takes it for a failure.
        """
        try:
            await app(scope, receive, send)
        except RateLimited as refused:
            if self.status:
                raise
            await self.refuse(self._refusal(refused), scope, receive, send)

    def _refusal(self, refused: RateLimited) -> RefusalResponse:
        return refused.refusal if isinstance(refused, Refused) else raised_refusal(refused, self.passages)

    async def refuse(self, refusal: RefusalResponse, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal of a request."""
        self.status = refusal.status
        begin = "http.response"
        if scope["type"] == "websocket":
            begin = DENIAL
            if not self._connected:  # an answer is allowed only after the connect message was received
                await receive()
            if DENIAL not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": code_of(refusal.status)})
                return
        headers = encoded(refusal.headers)
        await send({"type": f"{begin}.start", "status": refusal.status, "headers": headers})
        body = b"" if scope.get("method") == "HEAD" else refusal.body
        await send({"type": f"{begin}.body", "body": body})


class Refused(RateLimited):
    """A refusal that a dependency or decorator raises; the middleware sends `refusal`."""

    def __init__(self, passage: AsyncPassage) -> None:
        super().__init__(passage.verdict)
        self.refusal = passage.refusal()


class RateLimitMiddleware:
    """Limits for any ASGI application.

    - `options`: see `penstock.middleware.gate.GateOptions`. Without any, nothing is charged here, but `RateLimited` is
      answered, and charges of dependencies and decorators are shown in headers and ended.
    - `route`: a function that finds the route's template, where the framework is unknown.
    """

    def __init__(self, app: App, *, route: Route = route_of, **options: Unpack[GateOptions]) -> None:
        messages = options.pop("messages", False)
        self.app = app
        self._route = route
        self._gate = AsyncGate(options) if options else None
        self._messages = None if messages is False else _message_gate(messages, options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = scope["type"]
        if kind == "http":
            method = None
        elif kind == "websocket":
            method = "WEBSOCKET"
        else:
            await self.app(scope, receive, send)
            return
        visit = scope.get(VISIT)
        outer = visit is not None
        if visit is None:
            visit = scope[VISIT] = AsgiVisit(receive, send)
        gate = self._gate
        if gate is not None:
            request = AsgiRequest(scope, gate.entries, self._route, method)
            passage = await gate.enter(request, lasting=method is not None)
            if passage is not None:
                if not passage:
                    await visit.refuse(passage.refusal(), scope, receive, send)
                    return
                visit.grant(passage)
        app = self.app
        if method is not None and self._messages is not None:
            app = _Metered(app, self._messages, self._route)
        if outer:  # it will be ended where it began
            await visit.run_within(app, scope, receive, send)
        else:
            await visit.run(app, scope)


def _message_gate(messages: QuotaLike | bool, options: GateOptions) -> AsyncGate:
    """Return the gate for messages of a WebSocket."""
    no_outcome = {name: option for name, option in options.items() if name not in ("charge", "settle", "renew")}
    own = cast("GateOptions", no_outcome)
    if "enforcer" in options:
        if messages is not True:
            raise InvalidOption("messages: the rules of an enforcer say that (expected True)")
        return AsyncGate(own)
    if isinstance(messages, bool) or "limiter" not in options:
        raise InvalidOption("messages: expected a quota, and a limiter to ask")
    own["quota"] = messages
    own["name"] = f"{options.get('name', '')} messages".strip()
    gate = AsyncGate(own)
    if gate.limiter.operations.has_places(messages):
        raise InvalidOption("messages: a message holds no place (expected a rate)")
    return gate


class _Metered:
    """An application whose WebSocket messages are charged."""

    __slots__ = ("_app", "_gate", "_route")

    def __init__(self, app: App, gate: AsyncGate, route: Route) -> None:
        self._app = app
        self._gate = gate
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = AsgiRequest(scope, self._gate.entries, self._route, "MESSAGE")
        closed: Message | None = None

        async def receive_charged() -> Message:
            nonlocal closed
            if closed is not None:
                await asyncio.sleep(0)  # an application that ignores the end must not block the loop
                return closed
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            passage = await self._gate.enter(request)
            if passage is None:
                return message
            await passage.leave(SWITCHING)
            if passage:
                return message
            code = code_of(passage.refusal().status)
            closed = {"type": "websocket.disconnect", "code": code, "reason": ""}
            await send({"type": "websocket.close", "code": code, "reason": reason_for(passage.verdict)})
            return closed

        async def send_if_open(message: Message) -> None:
            if closed is None:
                await send(message)
            elif message["type"] != "websocket.close":
                raise OSError("the connection was closed: too many messages")  # as servers do

        await self._app(scope, receive_charged, send_if_open)


def code_of(status: int) -> int:
    """Return the close code of a WebSocket for the status that a request would get."""
    return TRY_AGAIN_LATER if status >= FAILED else POLICY_VIOLATION


def reason_for(refused: Verdict) -> str:
    return f"too many messages: try again in {max(-(-refused.retry_after_us // 1_000_000), 1)} s"


def encoded(headers: Iterable[Header]) -> list[RawHeader]:
    """Return headers as ASGI has them."""
    return [(_name(name), value.encode("latin-1")) for name, value in headers]


@cache  # of a handful of header names
def _name(name: str) -> bytes:
    return name.lower().encode("latin-1")


_LISTS = frozenset(map(_name, LISTS))

"""A client that drives an ASGI application in this process, and stores and applications to drive it with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.clock import Clock, Micros
from penstock.errors import StoreError
from penstock.middleware.asgi import App, Message, Receive, Scope, Send
from penstock.model import Failed, Op, Outcome
from penstock.stores import AsyncMemoryStore, MemoryStore

CLIENT = ("192.0.2.7", 50_000)


class Response:
    """The messages that an application has sent."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        (start,) = [message for message in self.messages if message["type"].endswith("response.start")]
        return int(start["status"])

    @property
    def headers(self) -> dict[str, str]:
        (start,) = [message for message in self.messages if message["type"].endswith("response.start")]
        return {name.decode(): value.decode() for name, value in start["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages if message["type"].endswith("body"))

    @property
    def problem(self) -> dict[str, Any]:
        problem: dict[str, Any] = json.loads(self.body)
        return problem


def http_scope(
    path: str = "/", method: str = "GET", headers: Mapping[str, str] | None = None, **others: Any
) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": CLIENT, "root_path": ""}
    return {"asgi": {"version": "3.0"}, "query_string": b"", "scheme": "http", **scope, **others}


async def nothing_more() -> Message:
    return {"type": "http.disconnect"}


async def get(app: App, path: str = "/", **scope: Any) -> Response:
    """Return the response to a request without a body."""
    response = Response()
    await app(http_scope(path, **scope), nothing_more, response.send)
    return response


async def statuses(app: App, count: int, **scope: Any) -> list[int]:
    return [(await get(app, **scope)).status for _ in range(count)]


def answering(status: int = 200, body: bytes = b"hello") -> App:
    """Return an application that always sends the same response."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": body})

    return app


class DistantStore:
    """A store that is not in this process, as far as a limiter can tell: each call takes a turn of the event loop.

    Operations run a turn later; while it is paused, outcomes wait. While it `fails`, all outcomes are failures.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._memory = AsyncMemoryStore(MemoryStore(clock=clock))
        self._go = asyncio.Event()
        self._go.set()
        self.fails = False

    def pause(self) -> None:
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        await asyncio.sleep(0)
        outcomes = await self._memory.run(ops, deadline)
        await self._go.wait()
        if self.fails:
            return [Failed(StoreError("the store is away", transient=True), "unknown")] * len(ops)
        return outcomes

    async def close(self) -> None:
        await self._memory.close()


class Socket:
    """The client's end of a WebSocket."""

    def __init__(self, app: App, *, denial: bool = False, **scope: Any) -> None:
        extensions: dict[str, Any] = {"websocket.http.response": {}} if denial else {}
        self.scope = http_scope(**scope) | {
            "type": "websocket",
            "scheme": "ws",
            "subprotocols": [],
            "extensions": extensions,
        }
        del self.scope["method"]
        self._app = app
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        self.response = Response()
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> Message:
        """Connect. Return the first message of the application."""
        self._inbox.put_nowait({"type": "websocket.connect"})

        async def send(message: Message) -> None:
            await self.response.send(message)
            self._outbox.put_nowait(message)

        self._task = asyncio.create_task(self._run(send))
        return await self._answer()

    async def _answer(self) -> Message:
        """Return the next message; if the application ends without one, raise its error."""
        assert self._task is not None
        answer = asyncio.create_task(self._outbox.get())
        await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            await self._task
            raise AssertionError("the application has ended without a message")
        return answer.result()

    async def _run(self, send: Send) -> None:
        await self._app(self.scope, self._inbox.get, send)

    def hear(self, text: str) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    async def say(self, text: str) -> Message:
        """Send a text. Return the next message of the application."""
        self.hear(text)
        return await self._answer()

    async def leave(self) -> None:
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.end()

    async def end(self) -> None:
        assert self._task is not None
        await asyncio.wait_for(self._task, 60)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that echoes texts over a WebSocket."""
    await receive()
    await send({"type": "websocket.accept", "headers": []})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})

"""Connections for asyncio: requests of one turn of the loop are written in one go, and reach the service as one batch.

A connection is shared: replies come in the order of the requests. The reply to a request that was given up is dropped;
if it is a second overdue, the connection is closed, because the replies behind it do not come either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from weakref import WeakKeyDictionary

from penstock.client.address import Address
from penstock.client.http import ApiReply, BadReply, Lost, Replies, ReplyOrLost
from penstock.clock import monotonic

BUSY = 64
"""How many requests wait on every connection before another one is opened."""

CONNECTIONS = 4
"""How many there are at most, per event loop."""

WAITING = 4_096
"""How many requests may wait on one connection; more are refused at once."""

OVERDUE = 1.0
"""Seconds after its deadline at which a missing reply ends the connection."""


class _Pending:
    """Requests that were sent together, and the replies so far."""

    __slots__ = ("done", "number", "replies")

    def __init__(self, number: int, done: asyncio.Future[list[ReplyOrLost]]) -> None:
        self.number, self.done = number, done
        self.replies: list[ReplyOrLost] = []


class _Pipeline(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._replies = Replies()
        self._pending: deque[_Pending] = deque()
        self._unwritten: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self.waiting = 0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self.open = True

    def send(self, requests: Sequence[bytes]) -> _Pending:
        """Write `requests` at the end of this turn of the loop, together with those of other callers."""
        pending = _Pending(len(requests), self._loop.create_future())
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten += requests
        self._pending.append(pending)
        self.waiting += len(requests)
        return pending

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        if self.open and self._transport is not None:
            self._transport.write(b"".join(unwritten))

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._replies.feed(data):
                self._reply(reply)
        except BadReply as error:
            self._end(str(error))
        if self._replies.last:
            self._end("the service has closed the connection")

    def _reply(self, reply: ApiReply) -> None:
        if not self._pending:
            raise BadReply("a reply without a request")
        pending = self._pending[0]
        pending.replies.append(reply)
        self.waiting -= 1
        if len(pending.replies) == pending.number:
            self._pending.popleft()
            if not pending.done.done():
                pending.done.set_result(pending.replies)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(getattr(error, "strerror", None) or "the service has closed the connection")

    def end_if_overdue(self, pending: _Pending) -> None:
        """End the connection if replies that were given up on a while ago have still not come."""
        if pending in self._pending:
            self._end("replies are overdue")

    def _end(self, why: str) -> None:
        """End the connection, and with it all that is pending."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
        # A peer takes no request after its last reply.
        lost = Lost(why, "no" if self._replies.last else "unknown", ended=True)
        while self._pending:
            pending = self._pending.popleft()
            pending.replies += [lost] * (pending.number - len(pending.replies))
            if not pending.done.done():
                pending.done.set_result(pending.replies)
        self.waiting = 0

    def close(self) -> None:
        self._end("the client was closed")


class _LoopConnections:
    """The connections of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pipelines: list[_Pipeline] = []
        self._connecting: asyncio.Task[_Pipeline] | None = None

    async def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool) -> list[ReplyOrLost]:
        pipeline = None if fresh else self._best()
        pending = None
        try:
            async with asyncio.timeout(max(until - monotonic(), 0)):
                if pipeline is None:
                    pipeline = await asyncio.shield(self._connected())
                if pipeline.waiting + len(requests) > max(WAITING, len(requests)):
                    return [Lost(f"{pipeline.waiting} requests are waiting already", "no")] * len(requests)
                pending = pipeline.send(requests)
                return await pending.done
        except TimeoutError:
            if pending is None or pipeline is None:
                return [Lost("cannot be reached in time", "no")] * len(requests)
        except OSError as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            return [Lost(f"cannot be reached: {why}", "no")] * len(requests)
        asyncio.get_running_loop().call_later(OVERDUE, pipeline.end_if_overdue, pending)
        missing = pending.number - len(pending.replies)
        return [*pending.replies, *[Lost("no answer in time", "unknown")] * missing]

    @property
    def open(self) -> int:
        return sum(pipeline.open for pipeline in self._pipelines)

    def _best(self) -> _Pipeline | None:
        """Return the least busy one; if even that is busy, start to open another one."""
        self._pipelines = [pipeline for pipeline in self._pipelines if pipeline.open]
        if not self._pipelines:
            return None
        best = min(self._pipelines, key=_waiting)
        if best.waiting >= BUSY and len(self._pipelines) < CONNECTIONS:
            self._connected()
        return best

    def _connected(self) -> asyncio.Task[_Pipeline]:
        """Return the task that opens a connection; start it, if there is none."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._did_connect)
        return self._connecting

    async def _connect(self) -> _Pipeline:
        loop, address = asyncio.get_running_loop(), self._address
        if address.path:
            _, pipeline = await loop.create_unix_connection(_Pipeline, address.path)
        else:
            name = address.host if address.context else None
            _, pipeline = await loop.create_connection(
                _Pipeline, address.host, address.port, ssl=address.context, server_hostname=name
            )
        return pipeline

    def _did_connect(self, task: asyncio.Task[_Pipeline]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._pipelines.append(task.result())

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for pipeline in self._pipelines:
            pipeline.close()
        self._pipelines = []


class AsyncConnectionPool:
    """The connections of one client, for all its event loops."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()

    async def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool = False) -> list[ReplyOrLost]:
        """Return a reply to each request, at `until` of `monotonic` at the latest; with `fresh` by a new connection."""
        loop = asyncio.get_running_loop()
        connections = self._by_loop.get(loop)
        if connections is None:
            connections = self._by_loop.setdefault(loop, _LoopConnections(self._address))
        return await connections.exchange(requests, until, fresh=fresh)

    @property
    def open(self) -> int:
        """How many connections the running loop has."""
        connections = self._by_loop.get(asyncio.get_running_loop())
        return 0 if connections is None else connections.open

    def close(self) -> None:
        """Close the connections of this event loop now, those of others in their next turn."""
        here = asyncio.get_running_loop()
        for loop, connections in list(self._by_loop.items()):
            if loop is here:
                connections.close()
            else:
                with suppress(RuntimeError):  # it has ended, and its connections with it
                    loop.call_soon_threadsafe(connections.close)
        self._by_loop.clear()


def _waiting(pipeline: _Pipeline) -> int:
    return pipeline.waiting

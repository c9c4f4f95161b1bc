"""Connections for asyncio: what callers ask in one turn of the loop is written in one go, and reaches the service as
one batch.

A connection is shared: replies come in the order of the questions. Who gives up leaves his reply to be dropped; if it
is overdue by a second, the connection is closed, because those behind it wait in vain.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from weakref import WeakKeyDictionary

from penstock.client.address import Address
from penstock.client.http import BadReply, Heard, Lost, Replies, Reply
from penstock.clock import monotonic

BUSY = 64
"""From how many waiting questions on another connection is opened."""

CONNECTIONS = 4
"""How many at most, per event loop."""

WAITING = 4_096
"""How many questions of one connection may wait; whoever comes beyond that does not."""

OVERDUE = 1.0
"""For how many seconds a reply may be late before the connection counts as dead."""


class _Errand:
    """Questions that were asked together, and the replies that are there already."""

    __slots__ = ("done", "number", "replies")

    def __init__(self, number: int, done: asyncio.Future[list[Heard]]) -> None:
        self.number, self.done = number, done
        self.replies: list[Heard] = []


class _Lane(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._replies = Replies()
        self._errands: deque[_Errand] = deque()
        self._unwritten: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self.waiting = 0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self.open = True

    def ask(self, requests: Sequence[bytes]) -> _Errand:
        """Write `requests` when the loop has run all that is ready: others may come along."""
        errand = _Errand(len(requests), self._loop.create_future())
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten += requests
        self._errands.append(errand)
        self.waiting += len(requests)
        return errand

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

    def _reply(self, reply: Reply) -> None:
        if not self._errands:
            raise BadReply("a reply that nobody asked for")
        errand = self._errands[0]
        errand.replies.append(reply)
        self.waiting -= 1
        if len(errand.replies) == errand.number:
            self._errands.popleft()
            if not errand.done.done():
                errand.done.set_result(errand.replies)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(getattr(error, "strerror", None) or "the service has closed the connection")

    def end_if_overdue(self, errand: _Errand) -> None:
        """Somebody has given up waiting for this a while ago."""
        if errand in self._errands:
            self._end("replies are overdue")

    def _end(self, why: str) -> None:
        """Nothing more comes."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()
        # A peer that said which reply is the last took no question after it.
        lost = Lost(why, "no" if self._replies.last else "unknown", ended=True)
        while self._errands:
            errand = self._errands.popleft()
            errand.replies += [lost] * (errand.number - len(errand.replies))
            if not errand.done.done():
                errand.done.set_result(errand.replies)
        self.waiting = 0

    def close(self) -> None:
        self._end("the client was closed")


class _Lanes:
    """The connections of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lanes: list[_Lane] = []
        self._connecting: asyncio.Task[_Lane] | None = None

    async def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool) -> list[Heard]:
        lane = None if fresh else self._best()
        errand = None
        try:
            async with asyncio.timeout(max(until - monotonic(), 0)):
                if lane is None:
                    lane = await asyncio.shield(self._connected())
                if lane.waiting + len(requests) > max(WAITING, len(requests)):
                    return [Lost(f"{lane.waiting} questions are waiting already", "no")] * len(requests)
                errand = lane.ask(requests)
                return await errand.done
        except TimeoutError:
            if errand is None or lane is None:
                return [Lost("cannot be reached in time", "no")] * len(requests)
        except OSError as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            return [Lost(f"cannot be reached: {why}", "no")] * len(requests)
        asyncio.get_running_loop().call_later(OVERDUE, lane.end_if_overdue, errand)
        missing = errand.number - len(errand.replies)
        return [*errand.replies, *[Lost("no answer in time", "unknown")] * missing]

    @property
    def open(self) -> int:
        return sum(lane.open for lane in self._lanes)

    def _best(self) -> _Lane | None:
        """The least busy one; if even that is busy, another one is on its way."""
        self._lanes = [lane for lane in self._lanes if lane.open]
        if not self._lanes:
            return None
        best = min(self._lanes, key=_waiting)
        if best.waiting >= BUSY and len(self._lanes) < CONNECTIONS:
            self._connected()
        return best

    def _connected(self) -> asyncio.Task[_Lane]:
        """A connection that is being made, by whoever needed it first."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._did_connect)
        return self._connecting

    async def _connect(self) -> _Lane:
        loop, address = asyncio.get_running_loop(), self._address
        if address.path:
            _, lane = await loop.create_unix_connection(_Lane, address.path)
        else:
            name = address.host if address.context else None
            _, lane = await loop.create_connection(
                _Lane, address.host, address.port, ssl=address.context, server_hostname=name
            )
        return lane

    def _did_connect(self, task: asyncio.Task[_Lane]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._lanes.append(task.result())

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for lane in self._lanes:
            lane.close()
        self._lanes = []


class AsyncLinks:
    """The connections of one client, for all its event loops."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()

    async def exchange(self, requests: Sequence[bytes], until: float, *, fresh: bool = False) -> list[Heard]:
        """What becomes of `requests`, one for each, until that instant of `monotonic`."""
        loop = asyncio.get_running_loop()
        lanes = self._by_loop.get(loop)
        if lanes is None:
            lanes = self._by_loop.setdefault(loop, _Lanes(self._address))
        return await lanes.exchange(requests, until, fresh=fresh)

    @property
    def open(self) -> int:
        """How many connections the running loop has."""
        lanes = self._by_loop.get(asyncio.get_running_loop())
        return 0 if lanes is None else lanes.open

    def close(self) -> None:
        """Close those of all event loops: of this one now, of others as soon as they turn."""
        here = asyncio.get_running_loop()
        for loop, lanes in list(self._by_loop.items()):
            if loop is here:
                lanes.close()
            else:
                with suppress(RuntimeError):  # it has ended, and its connections with it
                    loop.call_soon_threadsafe(lanes.close)
        self._by_loop.clear()


def _waiting(lane: _Lane) -> int:
    return lane.waiting

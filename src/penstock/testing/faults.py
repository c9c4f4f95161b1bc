"""A TCP proxy that does to a connection what networks do: delay, throttle, hold, lose, cut, reset, refuse.

    with FaultProxy(server.address) as proxy:
        client = connect(proxy.address)
        proxy.replies = Flow(latency=0.1)      # from now on
        proxy.replies = Flow(lost=True)        # requests are carried out, and nobody hears of it
        proxy.replies = Flow()                 # all is well again

It runs on a thread of its own, so blocking code and event loops can use it alike. Nothing is random but jitter, and
that is seeded. A test waits for what it needs to have happened (`when`), never for a while.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from penstock.testing.certificates import Certificate
from penstock.testing.processes import DEADLINE
from penstock.testing.servers import HOST, free_port

T = TypeVar("T")

_CHUNK = 65_536
_IN_FLIGHT = 64  # chunks that a connection may hold before its sender is made to wait
_PACKET = 1_460  # bytes that a throttled connection sends at once


@dataclass(frozen=True, slots=True)
class Flow:
    """How bytes travel in one direction, on connections new and old. Without arguments: as they come.

    - `latency`: seconds that each byte is late; `jitter`: up to as many more, at random. Order is kept.
    - `bandwidth`: bytes per second, for each connection.
    - `held`: nothing arrives, not even the end of the connection, until this changes; then all of it does.
    - `lost`: what comes is swallowed. The end of a connection is not lost, but held.
    - `cut_after`: each connection is closed instead of forwarding more than this many bytes from now on.
    """

    latency: float = 0.0
    jitter: float = 0.0
    bandwidth: float | None = None
    held: bool = False
    lost: bool = False
    cut_after: int | None = None


class Traffic(NamedTuple):
    """Bytes of one direction, on all connections together."""

    seen: int
    forwarded: int
    lost: int


class Counts(NamedTuple):
    """What a proxy has seen so far: connections made, those still open, and bytes each way."""

    connections: int
    open: int
    requests: Traffic
    replies: Traffic


class FaultProxy:
    """Stands between clients and the server at `target`; what it does to them is changed at run time.

    `requests` and `replies` say how bytes travel to the server and back. Once an assignment returns, it is in force.
    With a `certificate` it speaks TLS to clients, and plainly to the server: the way to test TLS, and wrong host names,
    with servers that were built without it.
    """

    def __init__(self, target: tuple[str, int], *, certificate: Certificate | None = None, seed: int = 0) -> None:
        self.target = target
        self.port = free_port()
        self._tls = certificate.server_context() if certificate else None
        self._random = random.Random(seed)
        self._directions = {"requests": _Direction(), "replies": _Direction()}
        self._connections: set[_Connection] = set()
        self._accepted = 0
        self._happened = threading.Condition()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to."""
        return HOST, self.port

    # ---------------------------------------------------------------- what it does to connections

    @property
    def requests(self) -> Flow:
        """How bytes travel from clients to the server."""
        return self._directions["requests"].flow

    @requests.setter
    def requests(self, flow: Flow) -> None:
        self._run(self._directions["requests"].change(flow))

    @property
    def replies(self) -> Flow:
        """How bytes travel from the server to clients."""
        return self._directions["replies"].flow

    @replies.setter
    def replies(self, flow: Flow) -> None:
        self._run(self._directions["replies"].change(flow))

    def reset(self) -> None:
        """Break all open connections, on both sides, without a goodbye (TCP RST)."""
        self._run(self._reset())

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay so."""
        self._run(self._deafen())

    def accept(self) -> None:
        """Accept connections again."""
        self._run(self._listen())

    # ---------------------------------------------------------------- what it has seen

    def counts(self) -> Counts:
        requests, replies = (direction.traffic() for direction in self._directions.values())
        return Counts(self._accepted, len(self._connections), requests, replies)

    def when(self, holds: Callable[[Counts], bool], timeout: float = DEADLINE) -> Counts:
        """Wait until something has happened, e.g. `proxy.when(lambda counts: counts.replies.lost > 0)`."""
        with self._happened:
            if not self._happened.wait_for(lambda: holds(self.counts()), timeout):
                raise TimeoutError(f"waited {timeout:g} s in vain; seen so far: {self.counts()}")
            return self.counts()

    def _notify(self) -> None:
        with self._happened:
            self._happened.notify_all()

    # ---------------------------------------------------------------- running

    def start(self) -> None:
        self._thread.start()
        self._run(self._listen())

    def close(self) -> None:
        """Break all connections and end the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the proxy's own thread, where nothing else happens meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port, ssl=self._tls)

    async def _deafen(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _end(self) -> None:
        await self._deafen()
        await self._reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:  # the server is not there: the client learns it by being hung up on
            writer.close()
            return
        requests, replies = self._directions.values()
        connection = _Connection(
            _Pipe(requests, reader, server_writer, self._random, self._notify),
            _Pipe(replies, server_reader, writer, self._random, self._notify),
        )
        self._connections.add(connection)
        self._accepted += 1
        self._notify()
        try:
            await connection.carry()
        finally:
            self._connections.discard(connection)
            self._notify()


class _Direction:
    """All connections' bytes in one direction: how they travel, and how many there were."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.changed = asyncio.Event()
        self.seen = self.forwarded = self.lost = 0

    async def change(self, flow: Flow) -> None:
        self.flow = flow
        self.changed.set()
        self.changed = asyncio.Event()

    def traffic(self) -> Traffic:
        return Traffic(self.seen, self.forwarded, self.lost)


class _Connection:
    """A client's connection and the one to the server that goes with it."""

    def __init__(self, requests: _Pipe, replies: _Pipe) -> None:
        self._pipes = (requests, replies)

    async def carry(self) -> None:
        """Carry bytes both ways until either side is done, then close both."""
        work = [asyncio.ensure_future(step) for pipe in self._pipes for step in (pipe.receive(), pipe.deliver())]
        deliveries = work[1::2]
        try:
            await asyncio.wait(deliveries, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            for pipe in self._pipes:
                pipe.writer.close()

    def reset(self) -> None:
        for pipe in self._pipes:
            carrier: socket.socket | None = pipe.writer.get_extra_info("socket")
            if carrier is not None and carrier.fileno() >= 0:  # not closed already
                carrier.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            pipe.writer.transport.abort()


class _Pipe:
    """One direction of one connection: received here, kept in flight for a while, delivered there."""

    def __init__(
        self,
        direction: _Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        jitter: random.Random,
        notify: Callable[[], None],
    ) -> None:
        self.writer = writer
        self._direction, self._reader, self._jitter, self._notify = direction, reader, jitter, notify
        self._in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)
        self._flow = direction.flow  # the one in force when bytes were last forwarded
        self._forwarded = 0  # under that one

    async def receive(self) -> None:
        data = b"."
        while data:
            try:
                data = await self._reader.read(_CHUNK)
            except OSError:  # broken off: to the other side it looks like an end
                data = b""
            flow = self._direction.flow
            late = flow.latency + (self._jitter.uniform(0, flow.jitter) if flow.jitter else 0.0)
            due = asyncio.get_running_loop().time() + late
            self._direction.seen += len(data)
            self._notify()
            await self._in_flight.put((due, data))

    async def deliver(self) -> None:
        while True:
            due, data = await self._in_flight.get()
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            flow = await self._passable(end=not data)
            if flow.lost:
                self._direction.lost += len(data)
                self._notify()
            elif not data or not await self._forward(data, flow):
                return

    async def _passable(self, *, end: bool) -> Flow:
        """The flow in force, once it lets anything go on."""
        while self._direction.flow.held or (end and self._direction.flow.lost):
            await self._direction.changed.wait()
        return self._direction.flow

    async def _forward(self, data: bytes, flow: Flow) -> bool:
        """Send what may be sent; False if the connection is to be closed after it."""
        if flow is not self._flow:
            self._flow, self._forwarded = flow, 0
        whole = data
        if flow.cut_after is not None:
            data = data[: max(0, flow.cut_after - self._forwarded)]
        size = _PACKET if flow.bandwidth else _CHUNK
        for start in range(0, len(data), size):
            await self._send(data[start : start + size], flow)
        return len(data) == len(whole)

    async def _send(self, data: bytes, flow: Flow) -> None:
        if flow.bandwidth:
            await asyncio.sleep(len(data) / flow.bandwidth)
        self._forwarded += len(data)
        self._direction.forwarded += len(data)  # first, so that nobody holds bytes that are not counted yet
        self.writer.write(data)
        self._notify()
        with suppress(OSError):  # whoever is gone is noticed by reading from it
            await self.writer.drain()

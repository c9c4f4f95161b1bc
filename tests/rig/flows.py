"""The data paths of a `FaultProxy`: how bytes travel in each direction, and the pipes that carry them."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

_CHUNK = 65_536
_IN_FLIGHT = 64  # chunks that a connection may hold before its sender is made to wait
_PACKET = 1_460  # bytes that a throttled connection sends at once


@dataclass(frozen=True, slots=True)
class Flow:
    """How bytes travel in one direction, on all connections. The default forwards them unchanged.

    - `latency`: the delay of each byte in seconds; `jitter`: a random addition of up to as many. Order is kept.
    - `bandwidth`: bytes per second, for each connection.
    - `held`: nothing is forwarded, not even the end of the connection, until this changes; then everything is.
    - `lost`: bytes are dropped. The end of a connection is held.
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


class Direction:
    """One direction of all connections: its flow and its counts."""

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


class Connection:
    """A client's connection and its connection to the server."""

    def __init__(self, requests: Pipe, replies: Pipe) -> None:
        self._pipes = (requests, replies)

    async def carry(self) -> None:
        """Forward bytes both ways until either side closes, then close both."""
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


class Pipe:
    """One direction of one connection: bytes are received, delayed, delivered."""

    def __init__(
        self,
        direction: Direction,
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
            except OSError:  # broken off: the other side sees an end
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
        """Return the current flow, once it forwards anything."""
        while self._direction.flow.held or (end and self._direction.flow.lost):
            await self._direction.changed.wait()
        return self._direction.flow

    async def _forward(self, data: bytes, flow: Flow) -> bool:
        """Send the bytes that may be sent; return False if the connection is to be closed."""
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
        self._direction.forwarded += len(data)  # counted first, so that no peer has uncounted bytes
        self.writer.write(data)
        self._notify()
        with suppress(OSError):  # a closed peer is noticed on reading
            await self.writer.drain()

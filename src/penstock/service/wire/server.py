"""A server: accepts connections, enforces their time limits, and drains them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial

from penstock.service.wire.calls import Connection, Handler, Openers
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.loop_batch import LoopBatch
from penstock.service.wire.protocols import ALPN, ProtocolDetector
from penstock.service.wire.tls import ServerTls
from penstock.service.wire.traffic import Traffic

log = logging.getLogger("penstock.service")

_BACKLOG = 2048
_PARTS = 8  # how many turns of the loop share a sweep
_ABORTING = 1.0  # seconds within which aborted connections close


class Server:
    """Hands the calls of all its connections to one handler. Belongs to the event loop that first calls `listen`.

    - `openers`: the openers of streaming calls, by path.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        limits: ServerLimits | None = None,
        tls: ServerTls | None = None,
        openers: Openers | None = None,
    ) -> None:
        self._handler, self._limits, self._tls, self._openers = handler, limits or ServerLimits(), tls, openers
        # So often that even the shortest time limit is kept to about a quarter.
        times = (self._limits.reading, self._limits.idle, self._limits.stalled)
        self._period = max(0.01, min(1.0, min(times) / 4))
        self._listeners: list[asyncio.Server] = []
        self._traffic: Traffic | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: list[Connection] = []  # the connections of the current sweep

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._traffic.connections) if self._traffic is not None else 0

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on these bound sockets. `drain` closes them."""
        loop = asyncio.get_running_loop()
        traffic = self._traffic
        if traffic is None:
            traffic = self._traffic = Traffic(LoopBatch(self._handler, loop), self._limits, self._openers)
            self._sweep(traffic, loop)
        context = self._tls.context(ALPN) if self._tls is not None else None
        timeout = self._limits.reading if context is not None else None
        for one in sockets:
            unix = one.family == socket.AF_UNIX
            listener = await (loop.create_unix_server if unix else loop.create_server)(
                partial(ProtocolDetector, traffic),
                sock=one,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=timeout,
            )
            self._listeners.append(listener)

    async def drain(self, seconds: float, linger: float = 0.0) -> None:
        """Take no more calls, answer those taken, close; abort what is left after `seconds`.

        A client may be about to send a request on an open connection. For `linger` seconds such requests are answered,
        and the answer announces that the connection closes. Connections without a request are closed afterwards.
        """
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        traffic, self._traffic = self._traffic, None
        if traffic is None:
            return
        for _ in range(2):
            await asyncio.sleep(0)  # read what has already arrived
        if linger:
            traffic.retiring = True
            for connection in tuple(traffic.connections):
                connection.retire()
            await _emptied(traffic, linger)
        traffic.draining = True
        for connection in tuple(traffic.connections):
            connection.drain()
        if not await _emptied(traffic, seconds):
            for connection in tuple(traffic.connections):
                connection.abort()
            await _emptied(traffic, _ABORTING)
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()

    def _sweep(self, traffic: Traffic, loop: asyncio.AbstractEventLoop, part: int = 0) -> None:
        """Sweep each connection once per period: a part of them per turn, so that calls are not held up."""
        self._timer = loop.call_later(self._period / _PARTS, self._sweep, traffic, loop, (part + 1) % _PARTS)
        if part == 0:
            traffic.renew_date()
            if self._tls is not None:
                self._tls.renew()
            _abort_largest(traffic)
            self._due = list(traffic.connections)
        now = loop.time()
        for connection in self._due[part::_PARTS]:
            if connection in traffic.connections:
                connection.sweep(now)


def _abort_largest(traffic: Traffic) -> None:
    """Abort the connections that hold most, if incomplete requests together exceed `held`."""
    held = sum([connection.held for connection in traffic.connections])
    if held <= traffic.limits.held:
        return
    aborted = 0
    for connection in sorted(traffic.connections, key=lambda one: one.held, reverse=True):
        held -= connection.held
        connection.abort()
        aborted += 1
        if held <= traffic.limits.held:
            break
    log.warning("%s connections were aborted: incomplete requests held too many bytes", aborted)


async def _emptied(traffic: Traffic, seconds: float) -> bool:
    """Return whether the last connection closes within this time."""
    empty = asyncio.Event()
    traffic.when_empty(empty.set)
    try:
        async with asyncio.timeout(seconds):
            await empty.wait()
    except TimeoutError:
        return False
    return True

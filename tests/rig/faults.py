"""A TCP proxy that injects network faults: delay, throttle, hold, lose, cut, reset, refuse.

    with FaultProxy(server.address) as proxy:
        client = connect(proxy.address)
        proxy.replies = Flow(latency=0.1)      # from now on
        proxy.replies = Flow(lost=True)        # requests take effect, and replies are lost
        proxy.replies = Flow()                 # no faults

It runs on a thread of its own, for blocking code and event loops alike. Jitter alone is random, and it is seeded. A
test waits for a condition (`when`), never for a time.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from tests.rig.certificates import Certificate
from tests.rig.flows import Connection, Direction, Flow, Pipe, Traffic
from tests.rig.processes import DEADLINE
from tests.rig.servers import HOST, free_port

__all__ = ["Counts", "FaultProxy", "Flow", "Traffic"]

T = TypeVar("T")


class Counts(NamedTuple):
    """The counts of a proxy: connections made, connections open, and bytes in each direction."""

    connections: int
    open: int
    requests: Traffic
    replies: Traffic


class FaultProxy:
    """A proxy before the server at `target`, whose faults can be changed at run time.

    `requests` and `replies` set how bytes travel to the server and back. An assignment takes effect before it returns.
    With a `certificate` it speaks TLS to clients, and plainly to the server: the way to test TLS, and wrong host names,
    with servers that were built without it.
    """

    def __init__(self, target: tuple[str, int], *, certificate: Certificate | None = None, seed: int = 0) -> None:
        self.target = target
        self.port = free_port()
        self._tls = certificate.server_context() if certificate else None
        self._random = random.Random(seed)
        self._directions = {"requests": Direction(), "replies": Direction()}
        self._connections: set[Connection] = set()
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
        """Reset all open connections on both sides (TCP RST)."""
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
        """Wait until a condition on the counts holds, such as `proxy.when(lambda counts: counts.replies.lost > 0)`."""
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
        try:
            self._run(self._listen())
        except OSError:  # another process took the port meanwhile
            self.port = free_port()
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
        """Run an action on the proxy's thread, so that nothing else runs at the same time."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, HOST, self.port, ssl=self._tls)

    async def _deafen(self) -> None:
        if self._listener is not None:
            # A connection that was just accepted needs an open listener; else asyncio leaks its socket.
            for listening in self._listener.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None

    async def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _end(self) -> None:
        await self._deafen()
        await self._reset()
        await asyncio.sleep(0)  # the task of the last connection must start, so that it can be closed
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A connection in its TLS handshake has no task yet, and would leak with the loop.
        for transport in list(getattr(self._loop, "_transports", {}).values()):
            transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:  # the server is down: the client's connection is closed
            writer.close()
            return
        except asyncio.CancelledError:  # the proxy is being closed
            writer.transport.abort()
            return
        requests, replies = self._directions.values()
        connection = Connection(
            Pipe(requests, reader, server_writer, self._random, self._notify),
            Pipe(replies, server_reader, writer, self._random, self._notify),
        )
        self._connections.add(connection)
        self._accepted += 1
        self._notify()
        try:
            await connection.carry()
        except asyncio.CancelledError:  # the proxy is being closed; Python 3.11 would complain of it in the log
            pass
        finally:
            self._connections.discard(connection)
            self._notify()

"""One batch per turn of the event loop, and one write per connection and batch."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import fault
from penstock.service.wire.calls import Call, Connection, Handler, Head

log = logging.getLogger("penstock.service")

FAULT = Head(500, [(b"content-type", b"application/problem+json")])
FAULT_BODY = b'{"title":"Internal Server Error","status":500,"code":"internal","detail":"a fault of this server"}'


class LoopBatch:
    """Gathers calls while the loop reads from its sockets, and hands them over before it waits for more."""

    __slots__ = ("_calls", "_handler", "_loop", "_running", "_written")

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        self._handler, self._loop = handler, loop
        self._calls: list[Call] = []
        self._written: dict[Connection, None] = {}  # those with answers to write, in order
        self._running = False

    def add(self, call: Call) -> None:
        """A call was read."""
        if not self._calls:
            self._loop.call_soon(self._run)
        self._calls.append(call)

    def wrote(self, connection: Connection) -> None:
        """A connection has answers ready: it is flushed when the batch at hand is handled, or else soon."""
        if not self._written and not self._running:
            self._loop.call_soon(self._flush)
        self._written[connection] = None

    def _run(self) -> None:
        calls, self._calls = self._calls, []
        self._running = True
        try:
            self._handler.handle(calls)
        except Exception as error:
            log.error("a batch of %s calls: %s", len(calls), fault(error))
            for call in calls:
                call.answer(FAULT, FAULT_BODY)  # those that have been answered take no second one
        finally:
            self._running = False
            self._flush()

    def _flush(self) -> None:
        written, self._written = self._written, {}
        for connection in written:
            try:
                connection.flush()
            except Exception as error:  # of one connection: the others are flushed all the same
                log.error("a connection that cannot be written to: %s", fault(error))
                connection.abort()

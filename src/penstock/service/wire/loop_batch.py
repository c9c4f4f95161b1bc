"""One batch of calls per turn of the event loop, and one write per connection and batch."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import fault
from penstock.service.wire.calls import Call, Connection, Handler
from penstock.service.wire.problems import internal_error

log = logging.getLogger("penstock.service")


class LoopBatch:
    """Collects calls while the loop reads from its sockets, and hands them over before it waits for more."""

    __slots__ = ("_calls", "_handler", "_loop", "_running", "_written")

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        self._handler, self._loop = handler, loop
        self._calls: list[Call] = []
        self._written: dict[Connection, None] = {}  # connections with pending output, in order
        self._running = False

    def add(self, call: Call) -> None:
        """Add a call to the batch of this turn."""
        if not self._calls:
            self._loop.call_soon(self._run)
        self._calls.append(call)

    def wrote(self, connection: Connection) -> None:
        """Flush a connection after the current batch, or in the next turn if no batch is being handled."""
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
            problem = internal_error()
            for call in calls:
                call.answer(problem.head, problem.body)  # ignored by calls that are already answered
        finally:
            self._running = False
            if self._written:
                self._flush()

    def _flush(self) -> None:
        written, self._written = self._written, {}
        for connection in written:
            try:
                connection.flush()
            except Exception as error:  # one broken connection must not stop the others
                log.error("a connection that cannot be written to: %s", fault(error))
                connection.abort()

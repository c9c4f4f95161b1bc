"""The state that all connections of a server share."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate

from penstock.clock import SystemClock
from penstock.service.wire.calls import Connection, Openers
from penstock.service.wire.http1.head import Requests
from penstock.service.wire.http2.hpack import encode
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.loop_batch import LoopBatch


class Traffic:
    """The open connections, the batch that takes their calls, their limits, and the encoded `date` header.

    `date` is a line of HTTP/1.1 and `date2` a field of HTTP/2. Both are renewed about once a second, because encoding
    the date costs more than the rest of an answer.
    """

    __slots__ = (
        "_emptied",
        "batch",
        "connections",
        "date",
        "date2",
        "draining",
        "limits",
        "openers",
        "requests",
        "retiring",
    )

    def __init__(self, batch: LoopBatch, limits: ServerLimits, openers: Openers | None = None) -> None:
        self.batch, self.limits, self.openers = batch, limits, openers or {}
        self.connections: set[Connection] = set()
        self.requests = Requests(limits)
        self.retiring = False  # the next answer of each connection is its last
        self.draining = False
        self._emptied: Callable[[], object] | None = None
        self.renew_date()

    def renew_date(self) -> None:
        date = formatdate(SystemClock.time_ns() // 1_000_000_000, usegmt=True).encode()
        self.date = b"date: %b\r\n" % date
        self.date2 = encode([(b"date", date)])

    @property
    def closed(self) -> bool:
        """Whether new connections are closed at once: too many are open, or the server drains."""
        return self.draining or len(self.connections) >= self.limits.connections

    def enter(self, connection: Connection) -> None:
        """Add an open connection."""
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if not self.connections and self._emptied is not None:
            self._emptied()

    def when_empty(self, emptied: Callable[[], object]) -> None:
        """Call `emptied` when the last connection has closed, or now if none is open."""
        self._emptied = emptied
        if not self.connections:
            emptied()

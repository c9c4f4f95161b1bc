"""What all connections of a server share."""

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
    """The connections that are open, where their calls go, and what they put up with.

    `date` is a line of HTTP/1.1 and `date2` a field of HTTP/2, good for about a second: making them for every answer
    would cost more than the answer.
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
        self.retiring = False  # whoever is let in now is to be told that the next answer is the last
        self.draining = False
        self._emptied: Callable[[], object] | None = None
        self.renew_date()

    def renew_date(self) -> None:
        date = formatdate(SystemClock.time_ns() // 1_000_000_000, usegmt=True).encode()
        self.date = b"date: %b\r\n" % date
        self.date2 = encode([(b"date", date)])

    @property
    def closed(self) -> bool:
        """Whether nobody is let in: there are too many already, or all are about to leave."""
        return self.draining or len(self.connections) >= self.limits.connections

    def enter(self, connection: Connection) -> None:
        """A connection is open."""
        self.connections.add(connection)

    def leave(self, connection: Connection) -> None:
        """It is open no more."""
        self.connections.discard(connection)
        if not self.connections and self._emptied is not None:
            self._emptied()

    def when_empty(self, emptied: Callable[[], object]) -> None:
        """Call `emptied` when the last connection has left, or now if there is none."""
        self._emptied = emptied
        if not self.connections:
            emptied()

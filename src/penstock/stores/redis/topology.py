"""The servers that decide: one server; the primary that Sentinels name; the owners of the slots of a cluster.

    topology.node(partition)      from memory, so that calls never wait for a look
    topology.doubt(node)          a server is not what it was taken for

What is remembered is renewed by a thread: every few seconds; as soon as a Sentinel announces a new primary; and in
doubt, though at most once a second, a little spread so that the processes of a fleet do not all look at the same
instant. One thread serves blocking callers and all event loops.

A server that was replaced does not come back by an outdated reply. Replies of Sentinels and nodes carry an epoch that
grows with every failover. An epoch older than the known one is not believed, unless no reply has confirmed that one for
half a minute: then the fleet may have been rebuilt from nothing.
"""

from __future__ import annotations

import _thread
import os
import random
import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import ref

from penstock.clock import SECOND, monotonic
from penstock.engine.lifetime import Token, no_token, renew_in_children
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import BlockingConnection, named
from penstock.stores.redis.errors import MAX_TEXT, failed_by, not_sent

Told = TypeVar("Told")

CALM = 5.0
"""Seconds between looks while there is no doubt."""

DOUBT = 1.0
"""Seconds between looks at least."""

SPREAD = 0.1
"""Seconds by which the first look in doubt is put off at most."""

PATIENCE = 0.5
MOST_PATIENCE = 2.0
"""Seconds that a look waits for a reply: the more, the longer the deadline of calls."""

MOMENT = 0.1
"""Seconds that the other servers have left once one has replied."""

CONFIRMED = 30.0
"""Seconds for which an epoch is believed that no reply confirms."""

REPLACED = "another server decides now"


class Topology(Protocol):
    """The servers that decide.

    - `partitioned`: whether partitions may be on different servers, so that a script call must keep to one of them.
    - `nodes`: all servers that decide. The same object as long as they are the same.
    """

    partitioned: bool
    nodes: frozenset[Node]

    def node(self, partition: int) -> Node | None:
        """Return the server that decides for a partition; None while none is known."""

    def trouble(self) -> Failed | None:
        """Return why no server is known, if a look has failed."""

    def doubt(self, node: Node | None = None) -> None:
        """Look again soon."""

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """Note that the server `teller` has redirected a call to `node`."""

    def known_as(self, node: Node) -> Node:
        """Return a server by the name that it is connected to by, whatever other servers call it."""

    def when_looked(self, then: Callable[[], None]) -> None:
        """Call `then`, in any thread, after the next look."""

    def close(self) -> None:
        """Stop looking."""


def no_server(topology: Topology, settings: RedisSettings) -> Failed:
    """Return the failure of a call while no server is known."""
    return topology.trouble() or not_sent("the server that decides was not found in time", settings.place)


class SingleServer:
    """One server, for ever."""

    partitioned = False

    def __init__(self, settings: RedisSettings) -> None:
        self._node = settings.nodes[0]
        self.nodes = frozenset(settings.nodes)

    def node(self, partition: int) -> Node:
        return self._node

    def trouble(self) -> None:
        return None

    def doubt(self, node: Node | None = None) -> None:
        """There is no other server."""

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """Redirects are not followed."""

    def known_as(self, node: Node) -> Node:
        return node

    def when_looked(self, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        """There is no thread to end."""


class WakeUpPipe:
    """Wakes a thread that waits for file descriptors."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)

    def fileno(self) -> int:
        return self._reading

    def wake(self) -> None:
        with suppress(BlockingIOError):  # full: the thread cannot miss it
            os.write(self._writing, b"!")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reading, 4_096)

    def __del__(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class View(Protocol):
    """What a watch looks at, and what the looks have shown."""

    def clear(self) -> None:
        """Forget everything, in a forked child: what no thread watches must not be relied on."""

    def look(self) -> Failed | None:
        """Look at the servers; return why that failed, if no server could tell."""

    def listened(self) -> Iterable[int]:
        """Return file descriptors that are worth a look when something is received there."""

    def received(self) -> None:
        """Read what was received there."""

    def hang_up(self) -> None:
        """Close the connections that were kept open."""


class Watch:
    """Has a thread look at a view, now and then and in doubt.

    - `in_doubt`: whether a look is due soon; `suspected`: the servers that this look is about.
    - `closed`: the failure of all calls once the store is closed.
    """

    def __init__(self, settings: RedisSettings, view: View) -> None:
        self._settings = settings
        self._view = ref(view)  # which owns the watch
        self.patience = max(PATIENCE, min(settings.deadline_us / SECOND, MOST_PATIENCE))
        self.closed: Failed | None = None
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        """Make everything that a forked child must make anew."""
        self._lock = Lock()
        self._thread: Callable[[], Token | None] = no_token
        self._failed: Failed | None = None
        self._suspects: set[Node] = set()
        self.suspected: set[Node] = set()
        self.in_doubt = False
        self._looked: list[Callable[[], None]] = []
        self._pipe = WakeUpPipe()

    def trouble(self) -> Failed | None:
        return self.closed or self._failed

    def doubt(self, node: Node | None = None) -> None:
        if node is not None:
            self._suspects.add(node)
        if not self.in_doubt:
            self.in_doubt = True
            self._wake()

    def when_looked(self, then: Callable[[], None]) -> None:
        with self._lock:
            closed = self.closed
            if closed is None:
                self._looked.append(then)
        if closed is not None:
            then()
            return
        self.in_doubt = True
        self._wake()

    def close(self) -> None:
        """End the thread, and with it its connections; callbacks that wait for a look are called."""
        with self._lock:
            self.closed = not_sent("the store is closed", self._settings.place, transient=False)
        self._call_looked()
        self._wake()

    def dial(self, node: Node, connect: Mapping[str, Any]) -> BlockingConnection:
        """Connect to a server."""
        return BlockingConnection(self._settings.kind, connect, node, self.patience)

    def _wake(self) -> None:
        """Start the thread, or wake it."""
        token = Token()
        with self._lock:
            start = self.closed is None and self._thread() is None
            if start:
                self._thread = ref(token)
        if not start:
            self._pipe.wake()
            return
        try:
            _thread.start_new_thread(_watch, (ref(self, _waking(self._pipe)), self._pipe, token))
        except RuntimeError:  # no thread is left, or the interpreter is about to end
            self.in_doubt = False  # the next doubt tries again

    def look(self) -> None:
        """Look once."""
        view = self._view()
        if view is None:  # forgotten meanwhile
            return
        self.in_doubt, self.suspected, self._suspects = False, self._suspects, set()
        try:
            failed = view.look()
        except Exception as error:
            failed = not_sent(f"unparsable reply about the server that decides ({named(error)})", self._settings.place)
        self._failed = failed
        self.in_doubt = self.in_doubt or failed is not None
        self._call_looked()

    def _call_looked(self) -> None:
        with self._lock:
            looked, self._looked = self._looked, []
        for then in looked:
            then()

    def open_view(self) -> View | None:
        """Return the view, unless it was forgotten or closed."""
        view = self._view()
        if view is not None and self.closed is not None:
            view.hang_up()
            return None
        return view

    def _renew(self) -> None:
        """Begin anew in a forked child: it has none of its parent's threads, and leaves its sockets alone."""
        self._begin()
        if (view := self._view()) is not None:
            view.clear()


def query_all(
    query: Callable[[Node], Told | Failed], nodes: Sequence[Node], patience: float
) -> dict[Node, Told | Failed]:
    """Query several servers at the same time, by a thread each. Once one has replied, the others have a moment left, so
    a server that hangs does not hold up the others.
    """
    replies: SimpleQueue[tuple[Node, Told | Failed]] = SimpleQueue()

    def one(node: Node) -> None:
        replies.put((node, query(node)))

    for node in nodes:
        _thread.start_new_thread(one, (node,))
    told: dict[Node, Told | Failed] = {}
    until = monotonic() + 2 * patience  # to connect, and to reply
    with suppress(Empty):
        while len(told) < len(nodes):
            node, reply = replies.get(timeout=max(until - monotonic(), 0))
            told[node] = reply
            if not isinstance(reply, Failed):
                until = min(until, monotonic() + MOMENT)
    return {node: told.get(node) or not_sent("no answer in time", node.place) for node in nodes}


def all_failed(reasons: Sequence[Failed], settings: RedisSettings) -> Failed:
    """Return the failure of a look in which no server could tell: with one reason, a lasting one if there is."""
    reason = next((why for why in reasons if not why.error.transient), reasons[0])
    why = f"no server could tell which one decides ({str(reason.error).removeprefix('redis at ')})"
    return not_sent(why, settings.place, transient=any(why.error.transient for why in reasons))


def unexpected_reply(reply: object, expected: str, node: Node) -> Failed:
    """Return the failure that an unexpected reply to a query means."""
    if isinstance(reply, Exception) and not str(reply).startswith("ERR"):
        return failed_by(reply, node.place)
    said = f" ({str(reply)[:MAX_TEXT]})" if isinstance(reply, Exception) else ""
    return not_sent(f"expected {expected}{said}", node.place, transient=False)


def _waking(pipe: WakeUpPipe) -> Callable[[object], None]:
    """Return a callback for when a watch is forgotten: its thread ends at once."""
    return lambda _: pipe.wake()


def _watch(weak: ref[Watch], pipe: WakeUpPipe, token: Token) -> None:
    """Look again and again, as long as the topology exists. Being watched does not keep it alive; `token` says that the
    thread does.
    """
    while (watch := weak()) is not None and watch.open_view() is not None:
        began = monotonic()
        watch.look()
        due = began + CALM * random.uniform(0.8, 1.2)  # noqa: S311  spreads the looks of a fleet
        soonest, calm = began + DOUBT, not watch.in_doubt
        while watch is not None:
            if calm and watch.in_doubt:
                calm, soonest = False, max(soonest, monotonic() + random.uniform(0, SPREAD))  # noqa: S311
            left = (soonest if watch.in_doubt else due) - monotonic()
            if left <= 0 or (view := watch.open_view()) is None:
                break
            poll = select.poll()
            for descriptor in (pipe.fileno(), *view.listened()):
                poll.register(descriptor, select.POLLIN)
            del watch, view  # may be forgotten while nothing happens
            ready = poll.poll(left * 1_000)
            pipe.drain()
            watch = weak()
            view = watch.open_view() if watch is not None else None
            if view is None:
                return
            if any(descriptor != pipe.fileno() for descriptor, _ in ready):
                view.received()
            del view

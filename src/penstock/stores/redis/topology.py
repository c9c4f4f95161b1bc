"""Who is to be asked: the one server; the primary that Sentinels name; whoever owns a slot of a cluster.

    topology.node(partition)      from memory, so that callers never wait for a look
    topology.doubt(node)          somebody found that a server is not what it was taken for

What is remembered is renewed by a thread of the topology's own: every few seconds; as soon as a Sentinel announces a
new primary; and when there is doubt, though at most twice a second, a little spread so that the processes of a fleet do
not all look at the same instant. One thread serves blocking callers and all event loops alike.

Whoever was replaced never comes back by hearsay. What Sentinels and nodes say carries an epoch that grows with every
failover, and an older epoch than the one known is not believed, unless nobody has confirmed that one for half a minute:
then the old world may have been rebuilt from nothing.
"""

from __future__ import annotations

import _thread
import os
import random
import select
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet, ref

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.replies import not_sent
from penstock.stores.redis.settings import Node, Settings
from penstock.stores.redis.wire import Wire

CALM = 5.0
"""Seconds between looks while nobody doubts."""

DOUBT = 0.5
"""Seconds between looks at least: a second after servers are back, all must have found out."""

SPREAD = 0.1
"""Seconds by which looks in doubt are spread."""

PATIENCE = 0.5
"""Seconds that a look waits for anybody."""

CONFIRMED = 30.0
"""Seconds for which an epoch is believed that nobody confirms."""


class Topology(Protocol):
    """Who is to be asked."""

    partitioned: bool
    """Whether partitions may be on different servers, so that a script call must keep to one of them."""

    def node(self, partition: int) -> Node | None:
        """The server that decides for a partition; None while nobody is known to."""

    def nodes(self) -> frozenset[Node]:
        """All servers that decide. The same object as long as they are the same."""

    def trouble(self) -> Failed | None:
        """Why nobody is known, if that was found out in vain."""

    def doubt(self, node: Node | None = None) -> None:
        """Look again soon."""

    def moved(self, partition: int, node: Node) -> None:
        """A server said that another one decides now."""

    def when_looked(self, then: Callable[[], None]) -> None:
        """Call `then`, from whatever thread, after the next look."""

    def close(self) -> None:
        """Look no more."""


REPLACED = "another server decides now"


def nobody(topology: Topology, settings: Settings) -> Failed:
    """What to say to those who ask while it is not known whom."""
    return topology.trouble() or not_sent("it was not found out in time who decides", settings.place)


class Fixed:
    """One server, for ever."""

    partitioned = False

    def __init__(self, settings: Settings) -> None:
        self._node = settings.nodes[0]
        self._nodes = frozenset(settings.nodes)

    def node(self, partition: int) -> Node:
        return self._node

    def nodes(self) -> frozenset[Node]:
        return self._nodes

    def trouble(self) -> None:
        return None

    def doubt(self, node: Node | None = None) -> None:
        """Nobody knows better."""

    def moved(self, partition: int, node: Node) -> None:
        """It is not to be followed."""

    def when_looked(self, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        """There is nothing to end."""


class Bell:
    """What a thread that waits for file descriptors can be woken by."""

    def __init__(self) -> None:
        self._heard, self._rope = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rope, False)

    def fileno(self) -> int:
        return self._heard

    def ring(self) -> None:
        with suppress(BlockingIOError):  # it has been rung so often that it cannot be missed
            os.write(self._rope, b"!")

    def hush(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._heard, 4_096)

    def __del__(self) -> None:
        os.close(self._heard)
        os.close(self._rope)


class Watched:
    """What changes, and is therefore watched. Subclasses say how to look, and what the looks have shown."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._closed = False
        self._nodes: frozenset[Node] = frozenset()
        self._trouble: Failed | None = None
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        """Everything that must be made anew in a forked child."""
        self._lock = Lock()
        self._watching = False
        self._suspects: set[Node] = set()
        self._in_doubt = False
        self._looked: list[Callable[[], None]] = []
        self._bell = Bell()

    def nodes(self) -> frozenset[Node]:
        return self._nodes

    def trouble(self) -> Failed | None:
        return self._trouble

    def doubt(self, node: Node | None = None) -> None:
        if node is not None:
            self._suspects.add(node)
        if not self._in_doubt:
            self._in_doubt = True
            self._wake()

    def when_looked(self, then: Callable[[], None]) -> None:
        with self._lock:
            self._looked.append(then)
        self._in_doubt = True
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        """See to it that somebody watches, and looks up."""
        with self._lock:
            begin = not (self._watching or self._closed)
            self._watching = self._watching or begin
        if begin:
            with suppress(RuntimeError):  # no thread is left, or the interpreter is about to end
                _thread.start_new_thread(_watch, (ref(self), self._bell))
        else:
            self._bell.ring()

    def _dial(self, node: Node, connect: Mapping[str, Any]) -> Wire:
        return Wire(self._settings.kind, connect, node, PATIENCE)

    def _watched_too(self) -> Iterable[int]:
        """What else is worth looking up for: file descriptors."""
        return ()

    def _heard(self) -> None:
        """Something was said there."""

    def _look(self) -> bool:
        """Find out how things are; whether anybody could tell. Raises nothing that is foreseen."""
        raise NotImplementedError

    def _look_once(self) -> None:
        self._in_doubt, suspects, self._suspects = False, self._suspects, set()
        self._suspected = suspects
        try:
            told = self._look()
        except Exception as error:  # whatever was said made no sense
            told, why = False, type(error).__name__
        else:
            why = "nobody could tell who decides"
        self._trouble = None if told else not_sent(why, self._settings.place)
        self._in_doubt = self._in_doubt or not told
        with self._lock:
            looked, self._looked = self._looked, []
        for then in looked:
            then()


def _watch(weak: ref[Watched], bell: Bell) -> None:
    """Look, and look again, as long as the topology is there. It is not kept alive by being watched."""
    while True:
        watched = weak()
        if watched is None or watched._closed:
            return
        began = monotonic()
        watched._look_once()
        due = began + CALM * random.uniform(0.8, 1.2)  # noqa: S311  spreads the crowd
        soonest = began + DOUBT + random.uniform(0, SPREAD)  # noqa: S311
        while monotonic() < (soonest if watched is not None and watched._in_doubt else due):
            poll = select.poll()
            for descriptor in (bell.fileno(), *watched._watched_too()):
                poll.register(descriptor, select.POLLIN)
            left = (soonest if watched._in_doubt else due) - monotonic()
            watched = None  # may be forgotten while nothing happens
            rung = poll.poll(max(left, 0) * 1_000)
            bell.hush()
            watched = weak()
            if watched is None or watched._closed:
                return
            if any(descriptor != bell.fileno() for descriptor, _ in rung):
                watched._heard()


_alive: WeakSet[Watched] = WeakSet()


def _after_fork_in_child() -> None:
    """The child has none of its parent's threads, and leaves its sockets alone."""
    for watched in list(_alive):
        watched._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

"""Who is to be asked: the one server; the primary that Sentinels name; whoever owns a slot of a cluster.

    topology.node(partition)      from memory, so that callers never wait for a look
    topology.doubt(node)          somebody found that a server is not what it was taken for

What is remembered is renewed by a thread of the topology's own: every few seconds; as soon as a Sentinel announces a
new primary; and when there is doubt, though at most once a second, a little spread so that the processes of a fleet do
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
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet, ref

import hiredis

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.keys import Keys
from penstock.stores.redis.replies import not_sent
from penstock.stores.redis.settings import Node, Settings
from penstock.stores.redis.wire import Wire, packed

CALM = 5.0
"""Seconds between looks while nobody doubts."""

DOUBT = 1.0
"""Seconds between looks at least."""

SPREAD = 0.1
"""Seconds by which looks in doubt are spread."""

PATIENCE = 0.5
"""Seconds that a look waits for anybody."""

CONFIRMED = 30.0
"""Seconds for which an epoch is believed that nobody confirms."""

WITNESSES = 3
"""How many nodes of a cluster are asked in one look."""


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


def topology_of(settings: Settings) -> Topology:
    if settings.topology == "sentinel":
        return OfSentinels(settings)
    return OfCluster(settings) if settings.topology == "cluster" else Fixed(settings)


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
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)

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
            with suppress(OSError):  # it is full: nobody has missed it yet
                self._ring.send(b"!")

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


def _watch(weak: ref[Watched], bell: socket.socket) -> None:
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
            with suppress(BlockingIOError):
                bell.recv(4_096)
            watched = weak()
            if watched is None or watched._closed:
                return
            if any(descriptor != bell.fileno() for descriptor, _ in rung):
                watched._heard()


class OfSentinels(Watched):
    """The primary that Sentinels name."""

    partitioned = False

    def __init__(self, settings: Settings) -> None:
        self._primary: Node | None = None
        self._epoch, self._confirmed = -1, 0.0
        self._questions = packed(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.service.encode()) + packed(
            b"SENTINEL", b"MASTER", settings.service.encode()
        )
        super().__init__(settings)

    def _begin(self) -> None:
        super()._begin()
        self._sentinels: dict[Node, Wire] = {}
        self._announcer: Wire | None = None

    def node(self, partition: int) -> Node | None:
        return self._primary

    def moved(self, partition: int, node: Node) -> None:
        """It is not to be followed: a service of Sentinels is no cluster."""

    def _look(self) -> bool:
        """Ask all Sentinels; the newest epoch wins."""
        self._listen()
        told = [heard for heard in self._ask_all() if heard is not None]
        if not told:
            return False
        epoch, primary = max(told)
        now = monotonic()
        if epoch >= self._epoch or now > self._confirmed + CONFIRMED:
            self._epoch, self._confirmed = epoch, now
            self._follow(primary)
        return True

    def _follow(self, primary: Node) -> None:
        if primary != self._primary:
            self._primary, self._nodes = primary, frozenset((primary,))

    def _ask_all(self) -> list[tuple[int, Node] | None]:
        asked = []
        for node in self._settings.nodes:
            with suppress(
                Exception
            ):  # whoever cannot be reached says nothing; a credential provider may raise anything
                wire = self._sentinels.pop(node, None) or _wire(self._settings, node, self._settings.sentinel)
                wire.send(self._questions, monotonic() + PATIENCE)
                asked.append((node, wire))
        until = monotonic() + PATIENCE
        return [self._hear(node, wire, until) for node, wire in asked]

    def _hear(self, node: Node, wire: Wire, until: float) -> tuple[int, Node] | None:
        try:
            where, facts = wire.receive(until), wire.receive(until)
        except (OSError, hiredis.ProtocolError):
            wire.close()
            return None
        self._sentinels[node] = wire
        if not isinstance(where, list) or not isinstance(facts, list):
            return None  # it knows nobody of that name
        pairs = dict(zip(facts[::2], facts[1::2], strict=False))
        return int(pairs.get(b"config-epoch", b"0")), Node(where[0].decode(), int(where[1]))

    # Announcements

    def _listen(self) -> None:
        """Have one Sentinel tell of new primaries at once."""
        if self._announcer is not None:
            return
        for node in random.sample(self._settings.nodes, len(self._settings.nodes)):
            with suppress(Exception):
                wire = _wire(self._settings, node, self._settings.sentinel)
                wire.send(packed(b"SUBSCRIBE", b"+switch-master"), monotonic() + PATIENCE)
                if isinstance(wire.receive(monotonic() + PATIENCE), list):
                    self._announcer = wire
                    return

    def _watched_too(self) -> Iterable[int]:
        return () if self._announcer is None else (self._announcer.fileno(),)

    def _heard(self) -> None:
        """A new primary in place of the one known is followed at once; anything else is worth a look."""
        announcer, self._in_doubt = self._announcer, True
        try:
            while announcer is not None and not announcer.is_quiet():
                self._announced(announcer.receive(monotonic() + PATIENCE))
        except (OSError, hiredis.ProtocolError):
            self._announcer = None

    def _announced(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:
            return
        service, old_host, old_port, host, port = message[2].decode().split(" ")
        if service == self._settings.service and Node(old_host, int(old_port)) == self._primary:
            self._follow(Node(host, int(port)))


class Claim(NamedTuple):
    """What somebody says of a primary of a cluster: since which epoch it owns which ranges of slots."""

    epoch: int
    node: Node
    ranges: list[tuple[int, int]]


class OfCluster(Watched):
    """Whoever owns the slots of a cluster."""

    partitioned = True

    def __init__(self, settings: Settings) -> None:
        keys: Keys = settings.keys
        self._slots = keys.slots
        self._owners: list[Node | None] = [None] * len(self._slots)
        self._epochs: list[tuple[int, float]] = [(-1, 0.0)] * len(self._slots)
        self._members: set[Node] = set()
        super().__init__(settings)

    def node(self, partition: int) -> Node | None:
        return self._owners[partition]

    def moved(self, partition: int, node: Node) -> None:
        """Whoever said so owned the slot until then, so it is believed; the next look tells the epoch."""
        with self._lock:
            owners, epochs = list(self._owners), list(self._epochs)
            owners[partition], epochs[partition] = node, (-1, 0.0)
            self._take_over(owners, epochs)
        self.doubt()

    def _take_over(self, owners: list[Node | None], epochs: list[tuple[int, float]]) -> None:
        self._owners, self._epochs = owners, epochs
        nodes = frozenset(owner for owner in owners if owner is not None)
        if nodes != self._nodes:
            self._nodes = nodes

    def _look(self) -> bool:
        """Ask a few nodes; for each slot the newest epoch wins."""
        told = [text for text in self._ask_some() if text is not None]
        if not told:
            return False
        now = monotonic()
        with self._lock:
            owners, epochs = list(self._owners), list(self._epochs)
            for claim in (claim for text, host in told for claim in read_nodes(text, host)):
                self._believe(claim, owners, epochs, now)
            self._take_over(owners, epochs)
        self._members = {node for text, host in told for node in members(text, host)}
        return True

    def _believe(self, claim: Claim, owners: list[Node | None], epochs: list[tuple[int, float]], now: float) -> None:
        for partition, slot in enumerate(self._slots):
            if any(first <= slot <= last for first, last in claim.ranges):
                epoch, confirmed = epochs[partition]
                if claim.epoch >= epoch or now > confirmed + CONFIRMED:
                    owners[partition], epochs[partition] = claim.node, (claim.epoch, now)

    def _ask_some(self) -> list[tuple[str, str] | None]:
        """What some nodes say; those that are under suspicion come last."""
        known = list(self._members | set(self._settings.nodes))
        random.shuffle(known)
        known.sort(key=self._suspected.__contains__)
        question = packed(b"CLUSTER", b"NODES")
        told: list[tuple[str, str] | None] = []
        for node in known:
            with suppress(
                Exception
            ):  # whoever cannot be reached says nothing; a credential provider may raise anything
                wire = _wire(self._settings, node, self._settings.connect)
                wire.send(question, monotonic() + PATIENCE)
                answer = wire.receive(monotonic() + PATIENCE)
                wire.close()
                if isinstance(answer, bytes):
                    told.append((answer.decode(), node.host))
            if len(told) == WITNESSES:
                break
        return told


def read_nodes(text: str, host: str) -> list[Claim]:
    """The primaries, and their slots, that `CLUSTER NODES` lists; `host` is whoever was asked."""
    claims = []
    for line in text.splitlines():
        words = line.split(" ")
        node = _address(words, host)
        if node is None or "master" not in words[2].split(","):
            continue
        ranges = [slots.partition("-") for slots in words[8:] if not slots.startswith("[")]
        if ranges:
            spans = [(int(first), int(last or first)) for first, _, last in ranges]
            claims.append(Claim(int(words[6]), node, spans))
    return claims


def members(text: str, host: str) -> set[Node]:
    """All nodes that `CLUSTER NODES` lists, and that have not failed."""
    lines = [line.split(" ") for line in text.splitlines()]
    nodes = [_address(words, host) for words in lines if "fail" not in words[2].split(",")]
    return {node for node in nodes if node is not None}


def _address(words: Sequence[str], host: str) -> Node | None:
    """host:port@bus[,name]: by name if there is one, because a certificate is checked against it."""
    if len(words) < 8:
        return None
    where, _, rest = words[1].partition("@")
    known_as = rest.partition(",")[2].partition(",")[0]
    ip, _, port = where.rpartition(":")
    name = known_as if known_as and "=" not in known_as else ip.strip("[]") or host
    return Node(name, int(port)) if port.isdecimal() and int(port) else None


def _wire(settings: Settings, node: Node, connect: Mapping[str, Any]) -> Wire:
    return Wire(settings.kind, connect, node, PATIENCE)


_alive: WeakSet[Watched] = WeakSet()


def _after_fork_in_child() -> None:
    """The child has none of its parent's threads, and leaves its sockets alone."""
    for watched in list(_alive):
        watched._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

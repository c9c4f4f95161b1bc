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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Protocol, TypeVar
from weakref import WeakSet, ref

from penstock.clock import SECOND, monotonic
from penstock.engine.lifetime import Token
from penstock.engine.lifetime import nobody as nobody_at_work
from penstock.model import Failed
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.connection import Wire, named
from penstock.stores.redis.errors import MAX_TEXT, failed_by, not_sent

Answer = TypeVar("Answer")

CALM = 5.0
"""Seconds between looks while nobody doubts."""

DOUBT = 1.0
"""Seconds between looks at least."""

SPREAD = 0.1
"""Seconds by which the first look in doubt is put off at most."""

PATIENCE = 0.5
MOST_PATIENCE = 2.0
"""Seconds that a look waits for anybody: the more, the more time callers have."""

MOMENT = 0.1
"""Seconds that are left to others once one has answered."""

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

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """A server, `teller`, said that another one, `node`, decides now."""

    def known_as(self, node: Node) -> Node:
        """A server by the name that it is connected to by, whatever others call it."""

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

    def moved(self, partition: int, node: Node, teller: Node) -> None:
        """It is not to be followed."""

    def known_as(self, node: Node) -> Node:
        return node

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
        self._patience = max(PATIENCE, min(settings.deadline_us / SECOND, MOST_PATIENCE))
        self._closed: Failed | None = None
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        """Everything that must be made anew in a forked child. It knows nothing at first, so that whoever asks has it
        look: what nobody watches must not be relied on.
        """
        self._lock = Lock()
        self._watcher: Callable[[], Token | None] = nobody_at_work
        self._nodes: frozenset[Node] = frozenset()
        self._trouble: Failed | None = None
        self._suspects: set[Node] = set()
        self._suspected: set[Node] = set()
        self._in_doubt = False
        self._looked: list[Callable[[], None]] = []
        self._bell = Bell()

    def nodes(self) -> frozenset[Node]:
        return self._nodes

    def trouble(self) -> Failed | None:
        return self._closed or self._trouble

    def known_as(self, node: Node) -> Node:
        return node

    def doubt(self, node: Node | None = None) -> None:
        if node is not None:
            self._suspects.add(node)
        if not self._in_doubt:
            self._in_doubt = True
            self._wake()

    def when_looked(self, then: Callable[[], None]) -> None:
        with self._lock:
            closed = self._closed
            if closed is None:
                self._looked.append(then)
        if closed is not None:
            then()
            return
        self._in_doubt = True
        self._wake()

    def close(self) -> None:
        """The watcher ends, and with it its connections; whoever waits for a look is called."""
        with self._lock:
            self._closed = not_sent("the store is closed", self._settings.place, transient=False)
        self._tell_looked()
        self._wake()

    def _wake(self) -> None:
        """See to it that somebody watches, and looks up."""
        token = Token()
        with self._lock:
            begin = self._closed is None and self._watcher() is None
            if begin:
                self._watcher = ref(token)
        if not begin:
            self._bell.ring()
            return
        try:
            _thread.start_new_thread(_watch, (ref(self, _ringing(self._bell)), self._bell, token))
        except RuntimeError:  # no thread is left, or the interpreter is about to end
            self._in_doubt = False  # whoever doubts next tries again

    def _dial(self, node: Node, connect: Mapping[str, Any]) -> Wire:
        return Wire(self._settings.kind, connect, node, self._patience)

    def _watched_too(self) -> Iterable[int]:
        """What else is worth looking up for: file descriptors."""
        return ()

    def _heard(self) -> None:
        """Something was said there."""

    def _hang_up(self) -> None:
        """Close what was kept open."""

    def _look(self) -> Failed | None:
        """Find out how things are; if nobody could tell, why not. Raises nothing that is foreseen."""
        raise NotImplementedError

    def _look_once(self) -> None:
        self._in_doubt, self._suspected, self._suspects = False, self._suspects, set()
        try:
            trouble = self._look()
        except Exception as error:  # whatever was said made no sense
            trouble = not_sent(f"what was said of who decides made no sense ({named(error)})", self._settings.place)
        self._trouble = trouble
        self._in_doubt = self._in_doubt or trouble is not None
        self._tell_looked()

    def _tell_looked(self) -> None:
        with self._lock:
            looked, self._looked = self._looked, []
        for then in looked:
            then()


def together(
    ask: Callable[[Node], Answer | Failed], nodes: Sequence[Node], patience: float
) -> dict[Node, Answer | Failed]:
    """What several servers answer, asked at the same time by a thread each. Once one has answered, the others have a
    moment left: whoever hangs keeps nobody from hearing them.
    """
    heard: SimpleQueue[tuple[Node, Answer | Failed]] = SimpleQueue()

    def one(node: Node) -> None:
        heard.put((node, ask(node)))

    for node in nodes:
        _thread.start_new_thread(one, (node,))
    answers: dict[Node, Answer | Failed] = {}
    until = monotonic() + 2 * patience  # to connect, and to answer
    with suppress(Empty):
        while len(answers) < len(nodes):
            node, answer = heard.get(timeout=max(until - monotonic(), 0))
            answers[node] = answer
            if not isinstance(answer, Failed):
                until = min(until, monotonic() + MOMENT)
    return {node: answers.get(node) or not_sent("no answer in time", node.place) for node in nodes}


def in_vain(reasons: Sequence[Failed], settings: Settings) -> Failed:
    """What to say if nobody could tell who decides: a reason, one that somebody must do something about if there is."""
    reason = next((why for why in reasons if not why.error.transient), reasons[0])
    why = f"nobody could tell who decides ({str(reason.error).removeprefix('redis at ')})"
    return not_sent(why, settings.place, transient=any(why.error.transient for why in reasons))


def wrong_answer(reply: object, expected: str, node: Node) -> Failed:
    """What it means if somebody who was asked who decides answered so."""
    if isinstance(reply, Exception) and not str(reply).startswith("ERR"):
        return failed_by(reply, node.place)
    said = f" ({str(reply)[:MAX_TEXT]})" if isinstance(reply, Exception) else ""
    return not_sent(f"expected {expected}{said}", node.place, transient=False)


def _ringing(bell: Bell) -> Callable[[object], None]:
    """For when a topology is forgotten: whoever watched it need not wait until it would have looked again."""
    return lambda _: bell.ring()


def _watch(weak: ref[Watched], bell: Bell, token: Token) -> None:
    """Look, and look again, as long as the topology is there. It is not kept alive by being watched; `token` says that
    it is.
    """
    while (watched := _open(weak)) is not None:
        began = monotonic()
        watched._look_once()
        due = began + CALM * random.uniform(0.8, 1.2)  # noqa: S311  spreads the crowd
        soonest, calm = began + DOUBT, not watched._in_doubt
        while watched is not None:
            if calm and watched._in_doubt:
                calm, soonest = False, max(soonest, monotonic() + random.uniform(0, SPREAD))  # noqa: S311
            left = (soonest if watched._in_doubt else due) - monotonic()
            if left <= 0:
                break
            poll = select.poll()
            for descriptor in (bell.fileno(), *watched._watched_too()):
                poll.register(descriptor, select.POLLIN)
            watched = None  # may be forgotten while nothing happens
            rung = poll.poll(left * 1_000)
            bell.hush()
            watched = _open(weak)
            if watched is not None and any(descriptor != bell.fileno() for descriptor, _ in rung):
                watched._heard()


def _open(weak: ref[Watched]) -> Watched | None:
    """The topology, unless it was forgotten or closed."""
    watched = weak()
    if watched is not None and watched._closed is not None:
        watched._hang_up()
        return None
    return watched


_alive: WeakSet[Watched] = WeakSet()


def _after_fork_in_child() -> None:
    """The child has none of its parent's threads, and leaves its sockets alone."""
    for watched in list(_alive):
        watched._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

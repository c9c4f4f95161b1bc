"""What an asyncio store has in one event loop: links, and what is asked together in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from penstock.clock import Micros
from penstock.model import Op, Outcome
from penstock.stores.redis.codec import Part
from penstock.stores.redis.commands import PORTION, Talk
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.guard import Guards
from penstock.stores.redis.pipeline import AsyncLink, Heard
from penstock.stores.redis.redirects import ASKING, Errand
from penstock.stores.redis.scatter import spread
from penstock.stores.redis.topology import REPLACED, Topology, nobody

AHEAD = 4 * PORTION
"""How many operations for several partitions are planned before they go out, which takes a system call per node."""


class Asked:
    """What was asked in one turn of an event loop, of one partition and with one deadline: one script call."""

    __slots__ = ("askers", "left", "ops", "outcomes")

    def __init__(self) -> None:
        self.ops: list[Part | Op] = []
        self.askers: list[tuple[asyncio.Future[list[Outcome]], int, int]] = []  # whose are the ops from, to
        self.outcomes: list[Outcome | None] = []
        self.left = 1  # errands that are under way

    def add(self, ops: Sequence[Part | Op], asker: asyncio.Future[list[Outcome]]) -> None:
        first = len(self.ops)
        self.ops += ops
        self.askers.append((asker, first, len(self.ops)))

    def tell(self) -> None:
        outcomes = cast("list[Outcome]", self.outcomes)
        for asker, first, last in self.askers:
            if not asker.done():
                asker.set_result(outcomes[first:last])

    def without_those_who_left(self) -> Asked:
        """The same without callers that were cancelled before anything was sent."""
        if not any([asker.done() for asker, _, _ in self.askers]):  # noqa: C419  a generator costs more
            return self
        left = Asked()
        for asker, first, last in self.askers:
            if not asker.done():
                left.add(self.ops[first:last], asker)
        return left


class LoopStore:
    """What belongs to one event loop: its links, and what has been asked in this turn of the loop."""

    def __init__(self, settings: Settings, talk: Talk, topology: Topology, guards: Guards) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings, self._talk, self._topology, self._guards = settings, talk, topology, guards
        self._links: dict[Node, AsyncLink] = {}
        self._nodes: frozenset[Node] = frozenset()  # for which the links were last looked through
        self._asked: dict[tuple[float, int], Asked] = {}  # by seconds of deadline, and partition
        self._parked: dict[Errand, tuple[Heard, float, asyncio.TimerHandle]] = {}  # until it is known who decides
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def ask(self, ops: Sequence[Part | Op], partition: int, within: float) -> asyncio.Future[list[Outcome]]:
        """Ask one partition, together with all who ask it in this turn of the loop."""
        asker: asyncio.Future[list[Outcome]] = self._loop.create_future()
        asked = self._asked.get((within, partition))
        if asked is None or len(asked.ops) + len(ops) > PORTION:
            if not self._asked:
                self._loop.call_soon(self._send_all)
            elif asked is not None:
                self._send(asked, partition, within)
                self._flush()
            asked = self._asked[within, partition] = Asked()
        asked.add(ops, asker)
        return asker

    def ask_several(self, ops: Sequence[Op], within: float) -> asyncio.Future[list[Outcome]]:
        """Ask all partitions that are concerned. What has to be given back is, even if the caller leaves meanwhile."""
        asker: asyncio.Future[list[Outcome]] = self._loop.create_future()
        task = self._loop.create_task(self._spread(ops, within, asker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asker

    async def _spread(self, ops: Sequence[Op], within: float, asker: asyncio.Future[list[Outcome]]) -> None:
        spreading = spread(ops, self._talk.partitions)
        try:
            groups, undoes = next(spreading)
            while undoes or not asker.done():
                answers = await asyncio.gather(*[self.ask(group, partition, within) for partition, group in groups])
                groups, undoes = spreading.send(answers)
        except StopIteration as end:
            if not asker.done():
                asker.set_result(end.value)
        except Exception as error:  # what could not be asked at all
            if not asker.done():
                asker.set_exception(error)

    # Sending

    def _send_all(self) -> None:
        asked, self._asked = self._asked, {}
        at = self._talk.now() if self._topology.partitioned else None
        planned = 0
        for (within, partition), together in asked.items():
            self._send(together, partition, within, at)
            planned += len(together.ops)
            if planned >= AHEAD:
                self._flush()
                planned = 0
        self._flush()

    def _flush(self) -> None:
        for link in self._links.values():
            link.flush()

    def _send(self, asked: Asked, partition: int, within: float, at: Micros | None = None) -> None:
        asked = asked.without_those_who_left()
        if not asked.ops:
            return
        try:
            errand = Errand(self._talk, self._topology, partition, asked.ops, asked.outcomes, at=at)
        except Exception as error:  # one caller's nonsense must not leave the others without an answer
            self._send_each(asked, partition, within, error)
        else:
            self._go(errand, asked, self._loop.time() + within)

    def _send_each(self, asked: Asked, partition: int, within: float, error: Exception) -> None:
        """One by one what could not be asked together; who is to blame is told."""
        if len(asked.askers) == 1:
            asked.askers[0][0].set_exception(error)
            return
        for asker, first, last in asked.askers:
            alone = Asked()
            alone.add(asked.ops[first:last], asker)
            self._send(alone, partition, within)

    def _go(self, errand: Errand, asked: Asked, due: float) -> None:
        heard = partial(self._heard, errand, asked, due)
        if errand.node is None:
            self._park(errand, heard, due)
        else:
            self._to(errand.node).ask(errand.question.packed, due, heard, ASKING if errand.asking else b"")

    def _heard(self, errand: Errand, asked: Asked, due: float, reply: Any) -> None:
        more = errand.hear(reply)
        asked.left += len(more) - 1
        for another in more:
            if another.pause:
                self._loop.call_later(another.pause, self._go_on, another, asked, due)
            else:
                self._go_on(another, asked, due)
        if not asked.left:
            asked.tell()

    def _go_on(self, errand: Errand, asked: Asked, due: float) -> None:
        if self._loop.time() + errand.pause >= due:
            self._heard(errand, asked, due, errand.late())
        else:
            self._go(errand, asked, due)
            self._flush()

    # Who decides

    def _to(self, node: Node) -> AsyncLink:
        """The link to a server. Those to servers that no longer decide are closed."""
        if self._nodes is not self._topology.nodes():
            self._nodes = self._topology.nodes()
            for gone in set(self._links) - self._nodes:
                self._links.pop(gone).retire(REPLACED)
            self._guards.keep(self._nodes)
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = AsyncLink(self._settings, self._talk, node, self._guards.of(node))
            if self._closed:
                link.shut()
        return link

    def _park(self, errand: Errand, heard: Heard, due: float) -> None:
        """Wait until it is known who decides, unless that was tried in vain."""
        trouble = self._topology.trouble()
        if trouble is not None or self._closed:
            heard(trouble or not_sent("the store is closed", self._settings.place, transient=False))
            return
        if not self._parked:
            self._topology.when_looked(self._looked)
        self._parked[errand] = heard, due, self._loop.call_at(due, self._unpark, errand)

    def _looked(self) -> None:
        """Called by another thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._unpark_all)

    def _unpark_all(self) -> None:
        for errand in list(self._parked):
            self._unpark(errand)

    def _unpark(self, errand: Errand) -> None:
        heard, due, timer = self._parked.pop(errand)
        timer.cancel()
        errand.look_up()
        if errand.node is None:
            heard(nobody(self._topology, self._settings))
        else:
            link = self._to(errand.node)
            link.ask(errand.question.packed, due, heard)
            link.flush()

    # Ending

    def shut(self) -> None:
        """Tell all who wait, and give up the connections."""
        self._closed = True
        self._unpark_all()
        for link in list(self._links.values()):  # whoever is told may ask elsewhere, by a new link
            link.shut()

    async def close(self) -> None:
        """The same, and wait until nothing is left of it."""
        self._closed = True
        self._unpark_all()
        for link in list(self._links.values()):  # whoever asks meanwhile is told by a new link
            await link.close()
        if self._tasks:  # all have been told
            await asyncio.wait(self._tasks)

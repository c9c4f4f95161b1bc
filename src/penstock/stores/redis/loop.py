"""The part of an asyncio store that belongs to one event loop: its pipelines, and what goes out in one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

from penstock.clock import Micros
from penstock.engine.protocols import Done, Gone
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
"""How many operations for several partitions are planned before they are sent, which takes a system call per node."""

Caller: TypeAlias = asyncio.Future[list[Outcome]]


class Callers(list[tuple[Done, Gone, int, int]]):
    """The callers whose operations go out together: each with its range of the operations."""

    __slots__ = ()

    def __call__(self, outcomes: list[Outcome] | Exception) -> None:
        for done, _, first, last in self:
            done(outcomes if isinstance(outcomes, Exception) else outcomes[first:last])


def resolve(caller: Caller, outcomes: list[Outcome] | Exception) -> None:
    """Resolve the future of a caller, unless it was cancelled."""
    if caller.done():
        return
    if isinstance(outcomes, Exception):
        caller.set_exception(outcomes)
    else:
        caller.set_result(outcomes)


class PartitionCall:
    """Operations of one partition that are sent as one script call; `done` is called once, with their outcomes."""

    __slots__ = ("done", "due", "left", "outcomes")

    def __init__(self, due: float, done: Done) -> None:
        self.due, self.done = due, done
        self.outcomes: list[Outcome | None] = []
        self.left = 1  # errands that are under way


class LoopStore:
    """The pipelines of one event loop, and the operations that callers of `run` added in this turn of it."""

    def __init__(self, settings: Settings, talk: Talk, topology: Topology, guards: Guards) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings, self._talk, self._topology, self._guards = settings, talk, topology, guards
        self._links: dict[Node, AsyncLink] = {}
        self._nodes: frozenset[Node] = frozenset()  # for which the links were last looked through
        self._turn: dict[tuple[float, int], tuple[list[Part | Op], Callers]] = {}  # by deadline and partition
        self._parked: dict[Errand, tuple[Heard, float, asyncio.TimerHandle]] = {}  # until it is known who decides
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, ops: Sequence[Part | Op], partition: int, within: float, done: Done) -> None:
        """Send operations of one partition at once."""
        if (error := self._send(ops, partition, within, done)) is not None:
            done(error)
        else:
            self._flush()

    def add(self, ops: Sequence[Part | Op], partition: int, within: float, done: Done, gone: Gone) -> None:
        """Send operations of one partition together with all others that are added in this turn of the loop."""
        turn = self._turn.get((within, partition))
        if turn is None or len(turn[0]) + len(ops) > PORTION:
            if not self._turn:
                self._loop.call_soon(self._send_turn)
            elif turn is not None:
                self._send_added(*turn, partition, within)
                self._flush()
            turn = self._turn[within, partition] = [], Callers()
        added, callers = turn
        callers.append((done, gone, len(added), len(added) + len(ops)))
        added += ops

    def scatter(self, ops: Sequence[Op], within: float, done: Done, gone: Gone | None = None) -> None:
        """Send operations to all partitions concerned. What must be undone is, even if the caller was cancelled."""
        task = self._loop.create_task(self._scatter(ops, within, done, gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _scatter(self, ops: Sequence[Op], within: float, done: Done, gone: Gone | None) -> None:
        rounds = spread(ops, self._talk.partitions)
        try:
            groups, undoes = next(rounds)
            while undoes or gone is None or not gone():
                answers = await asyncio.gather(*[self._added(group, part, within) for part, group in groups])
                groups, undoes = rounds.send(answers)
        except StopIteration as end:
            done(end.value)
        except Exception as error:  # an operation that cannot be encoded
            done(error)

    def _added(self, ops: Sequence[Part | Op], partition: int, within: float) -> Caller:
        caller: Caller = self._loop.create_future()
        self.add(ops, partition, within, partial(resolve, caller), caller.done)
        return caller

    # Sending

    def _send_turn(self) -> None:
        turn, self._turn = self._turn, {}
        at = self._talk.now() if self._topology.partitioned else None
        planned = 0
        for (within, partition), (ops, callers) in turn.items():
            self._send_added(ops, callers, partition, within, at)
            planned += len(ops)
            if planned >= AHEAD:
                self._flush()
                planned = 0
        self._flush()

    def _flush(self) -> None:
        for link in self._links.values():
            link.flush()

    def _send_added(
        self, ops: list[Part | Op], callers: Callers, partition: int, within: float, at: Micros | None = None
    ) -> None:
        """Send what callers of `run` added, without those that were cancelled meanwhile."""
        for _, gone, _, _ in callers:
            if gone():
                ops, callers = _without_cancelled(ops, callers)
                break
        if ops and (error := self._send(ops, partition, within, callers, at)) is not None:
            self._send_each(ops, callers, partition, within, error)

    def _send_each(
        self, ops: list[Part | Op], callers: Callers, partition: int, within: float, error: Exception
    ) -> None:
        """Send the operations of each caller alone, so that only the invalid ones fail."""
        if len(callers) == 1:
            callers(error)
            return
        for done, gone, first, last in callers:
            self._send_added(ops[first:last], Callers([(done, gone, 0, last - first)]), partition, within)

    def _send(
        self, ops: Sequence[Part | Op], partition: int, within: float, done: Done, at: Micros | None = None
    ) -> Exception | None:
        """Send operations with the next flush; return the error if they cannot be encoded, and then send nothing."""
        call = PartitionCall(self._loop.time() + within, done)
        try:
            errand = Errand(self._talk, self._topology, partition, ops, call.outcomes, at=at)
        except Exception as error:
            return error
        self._go(errand, call)
        return None

    def _go(self, errand: Errand, call: PartitionCall) -> None:
        heard = partial(self._heard, errand, call)
        if errand.node is None:
            self._park(errand, heard, call.due)
        else:
            self._to(errand.node).ask(errand.question.packed, call.due, heard, ASKING if errand.asking else b"")

    def _heard(self, errand: Errand, call: PartitionCall, reply: Any) -> None:
        more = errand.hear(reply)
        call.left += len(more) - 1
        for another in more:
            if another.pause:
                self._loop.call_later(another.pause, self._go_on, another, call)
            else:
                self._go_on(another, call)
        if not call.left:
            call.done(cast("list[Outcome]", call.outcomes))

    def _go_on(self, errand: Errand, call: PartitionCall) -> None:
        if self._loop.time() + errand.pause >= call.due:
            self._heard(errand, call, errand.late())
        else:
            self._go(errand, call)
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


def _without_cancelled(ops: list[Part | Op], callers: Callers) -> tuple[list[Part | Op], Callers]:
    left: list[Part | Op] = []
    waiting = Callers()
    for done, gone, first, last in callers:
        if not gone():
            waiting.append((done, gone, len(left), len(left) + last - first))
            left += ops[first:last]
    return left, waiting

"""The part of an asyncio store that belongs to one event loop: its pipelines, and what is sent in one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.clock import Micros
from penstock.engine.engine import Caller, resolve
from penstock.engine.protocols import Done, Gone
from penstock.model import Op, Outcome
from penstock.stores.redis.codec import Part
from penstock.stores.redis.commands import PORTION, Commands
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.guard import Guards
from penstock.stores.redis.lateness import Lateness
from penstock.stores.redis.pipeline import Callback, Pipeline
from penstock.stores.redis.redirects import ASKING, Attempt
from penstock.stores.redis.scatter import spread
from penstock.stores.redis.topology import REPLACED, Topology, no_server

AHEAD = 4 * PORTION
"""How many operations for several partitions are encoded before they are sent, which takes a system call per node."""


class Callers(list[tuple[Done, Gone, int, int]]):
    """The callers whose operations are sent together: each with its range of the operations."""

    __slots__ = ()

    def __call__(self, outcomes: list[Outcome] | Exception) -> None:
        failed = isinstance(outcomes, Exception)
        for done, _, first, last in self:
            done(outcomes if failed else outcomes[first:last])  # type: ignore[index]


class PartitionCall:
    """Operations of one partition that are sent as one script call; `done` is called once, with their outcomes."""

    __slots__ = ("done", "due", "left", "outcomes")

    def __init__(self, due: float, done: Done) -> None:
        self.due, self.done = due, done
        self.outcomes: list[Outcome | None] = []
        self.left = 1  # attempts under way


class LoopStore:
    """The pipelines of one event loop, and the operations that were added in this turn of it."""

    def __init__(self, settings: RedisSettings, commands: Commands, topology: Topology, guards: Guards) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings, self._commands, self._topology, self._guards = settings, commands, topology, guards
        self._lateness = Lateness()
        self._pipelines: dict[Node, Pipeline] = {}
        self._nodes: frozenset[Node] = frozenset()  # of the topology when pipelines were last dropped
        self._turn: dict[tuple[float, int], tuple[list[Part | Op], Callers]] = {}  # by deadline and partition
        self._parked: dict[Attempt, tuple[Callback, float, asyncio.TimerHandle]] = {}  # until a server is known
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
        """Send operations to all partitions concerned; what was begun is done in full, even if the caller is gone."""
        task = self._loop.create_task(self._scatter(ops, within, done, gone))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _scatter(self, ops: Sequence[Op], within: float, done: Done, gone: Gone | None) -> None:
        rounds = spread(ops, self._commands.partitions)
        try:
            groups = next(rounds)
            if gone is not None and gone():
                return
            while True:
                answers = await asyncio.gather(*[self._added(group, part, within) for part, group in groups])
                groups = rounds.send(answers)
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
        at = self._commands.now() if self._topology.partitioned else None
        encoded = 0
        for (within, partition), (ops, callers) in turn.items():
            if len(callers) > 1 or callers[0][1]():
                self._send_added(ops, callers, partition, within, at)
            elif (error := self._send(ops, partition, within, callers, at)) is not None:
                callers(error)
            encoded += len(ops)
            if encoded >= AHEAD:
                self._flush()
                encoded = 0
        self._flush()

    def _flush(self) -> None:
        for pipeline in self._pipelines.values():
            connection = pipeline.connection
            if connection is not None and connection.unsent:
                connection.flush()

    def _send_added(
        self, ops: list[Part | Op], callers: Callers, partition: int, within: float, at: Micros | None = None
    ) -> None:
        """Send what was added, without callers that are gone by now."""
        for _, gone, _, _ in callers:
            if gone():
                ops, callers = _without_cancelled(ops, callers)
                break
        if not ops or (error := self._send(ops, partition, within, callers, at)) is None:
            return
        if len(callers) == 1:
            callers(error)
            return
        for done, gone, first, last in callers:  # each alone, so that only the invalid ones fail
            self._send_added(ops[first:last], Callers([(done, gone, 0, last - first)]), partition, within)

    def _send(
        self, ops: Sequence[Part | Op], partition: int, within: float, done: Done, at: Micros | None = None
    ) -> Exception | None:
        """Send operations with the next flush; return the error if they cannot be encoded, and then send nothing."""
        call = PartitionCall(self._loop.time() + within, done)
        try:
            attempt = Attempt(self._commands, self._topology, partition, ops, call.outcomes, at=at)
        except Exception as error:
            return error
        self._go(attempt, call)
        return None

    def _go(self, attempt: Attempt, call: PartitionCall) -> None:
        callback = partial(self._received, attempt, call)
        if attempt.node is None:
            self._park(attempt, callback, call.due)
        else:
            pipeline = self._pipelines.get(attempt.node) if self._nodes is self._topology.nodes else None
            if pipeline is None:
                pipeline = self._pipeline(attempt.node)
            pipeline.send(attempt.command.packed, call.due, callback, ASKING if attempt.asking else b"")

    def _received(self, attempt: Attempt, call: PartitionCall, reply: Any) -> None:
        retries = attempt.receive(reply)
        call.left += len(retries) - 1
        for retry in retries:
            if retry.pause:
                self._loop.call_later(retry.pause, self._retry, retry, call)
            else:
                self._retry(retry, call)
        if not call.left:
            call.done(call.outcomes)  # type: ignore[arg-type]  # all of them are there

    def _retry(self, attempt: Attempt, call: PartitionCall) -> None:
        if self._loop.time() + attempt.pause >= call.due:
            self._received(attempt, call, attempt.late())
        else:
            self._go(attempt, call)
            self._flush()

    # Servers

    def _pipeline(self, node: Node) -> Pipeline:
        """Return the pipeline to a server. Those to servers that no longer decide are closed."""
        if self._nodes is not self._topology.nodes:
            self._nodes = self._topology.nodes
            for gone in set(self._pipelines) - self._nodes:
                self._pipelines.pop(gone).retire(REPLACED)
            self._guards.keep(self._nodes)
        pipeline = self._pipelines.get(node)
        if pipeline is None:
            guard = self._guards.of(node)
            pipeline = Pipeline(self._settings, self._commands, node, guard, self._lateness)
            self._pipelines[node] = pipeline
            if self._closed:
                pipeline.shut()
        return pipeline

    def _park(self, attempt: Attempt, callback: Callback, due: float) -> None:
        """Keep an attempt until its server is known; fail it at once if the last search found none."""
        failed = self._topology.trouble()
        if failed is not None or self._closed:
            callback(failed or not_sent("the store is closed", self._settings.place, transient=False))
            return
        if not self._parked:
            self._topology.when_looked(self._looked)
        self._parked[attempt] = callback, due, self._loop.call_at(due, self._unpark, attempt)

    def _looked(self) -> None:
        """Called by the thread of the topology."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._unpark_all)

    def _unpark_all(self) -> None:
        for attempt in list(self._parked):
            self._unpark(attempt)

    def _unpark(self, attempt: Attempt) -> None:
        callback, due, timer = self._parked.pop(attempt)
        timer.cancel()
        attempt.look_up()
        if attempt.node is None:
            callback(no_server(self._topology, self._settings))
        else:
            self._pipeline(attempt.node).send(attempt.command.packed, due, callback)
            self._flush()

    # Ending

    def shut(self) -> None:
        """Fail all calls that wait, and give up the connections."""
        self._closed = True
        self._unpark_all()
        for pipeline in list(self._pipelines.values()):  # a callback may call another server, by a new pipeline
            pipeline.shut()

    async def close(self) -> None:
        """Shut, and wait until all connections and tasks are gone."""
        self._closed = True
        self._unpark_all()
        for pipeline in list(self._pipelines.values()):  # new ones are shut from the start
            await pipeline.close()
        if self._tasks:  # all calls have failed
            await asyncio.wait(self._tasks)


def _without_cancelled(ops: list[Part | Op], callers: Callers) -> tuple[list[Part | Op], Callers]:
    left: list[Part | Op] = []
    waiting = Callers()
    for done, gone, first, last in callers:
        if not gone():
            waiting.append((done, gone, len(left), len(left) + last - first))
            left += ops[first:last]
    return left, waiting

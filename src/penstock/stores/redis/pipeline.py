"""The connection of an asyncio store to a server, shared by all tasks of one event loop.

Commands are sent without waiting for the replies to earlier ones; replies come in the same order. A command that timed
out is remembered until its reply has come, which is dropped, so no reply reaches the wrong caller. A reply that is a
second late, beyond its deadline, ends the connection.

The time that the event loop was late is not the server's: a call has that time longer, once, and a reply is read before
its call is declared late.

Callers never connect. A task, the connector, does so in the background; calls wait for it as long as their deadlines
allow. While the server cannot be reached, calls fail at once, and the connector retries, less and less often, as long
as calls keep coming.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

import hiredis

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.commands import LOADS, Commands, is_demoted, is_unknown_script
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import dial_async, named, refusal
from penstock.stores.redis.errors import not_sent, unanswered
from penstock.stores.redis.guard import RedisGuard
from penstock.stores.redis.lateness import Lateness
from penstock.stores.redis.pool import FIRST_PAUSE, LONGEST_PAUSE, NoReply

OVERDUE = 1.0
"""Seconds after its deadline at which a reply is given up, and the connection with it."""

CANCELLING = 0.05
"""Seconds after which a connector that was cancelled, and goes on, is cancelled again."""

Callback: TypeAlias = Callable[[Any], None]
"""Called once with the reply to a command, or with `Failed`."""


class PendingCommand:
    """A command under way: its callback, its deadline, and the timer that enforces it."""

    __slots__ = ("before", "began", "callback", "due", "loads", "packed", "timer")

    def __init__(
        self, packed: bytes, callback: Callback | None, due: float = 0.0, before: bytes = b"", began: float = 0.0
    ) -> None:
        self.packed, self.callback, self.due, self.before, self.began = packed, callback, due, before, began
        self.timer: asyncio.TimerHandle | None = None
        self.loads = 0  # how often the script was loaded for it

    def finish(self, reply: Any) -> None:
        """Call the callback, unless that was done before."""
        callback, self.callback = self.callback, None
        if self.timer is not None:
            self.timer.cancel()
        if callback is not None:
            callback(reply)


class PipelinedConnection(asyncio.Protocol):
    """One connection, on which commands do not wait for earlier replies."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        commands: Commands,
        guard: RedisGuard,
        lateness: Lateness,
        lost: Callable[[PipelinedConnection], None],
    ) -> None:
        self._writer = writer  # kept: a writer that is forgotten closes its transport
        self._commands, self._guard, self._lateness, self._lost = commands, guard, lateness, lost
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader()
        self.outstanding: deque[PendingCommand] = deque()
        self.unsent: list[bytes] = []
        self._retired = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, command: PendingCommand) -> None:
        """Send a command with the next `flush`."""
        if command.before:
            self.send(PendingCommand(command.before, None))
        self.outstanding.append(command)
        self.unsent.append(command.packed)

    def flush(self) -> None:
        if self.unsent:
            self._transport.write(self.unsent[0] if len(self.unsent) == 1 else b"".join(self.unsent))
            self.unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        guard = self._guard
        try:
            while (reply := self._reader.gets()) is not False:
                command = self.outstanding.popleft()
                if reply.__class__ is not bytes:
                    self._receive(command, reply)
                    continue
                if command.began:  # as nearly always; what follows is `_receive` without its calls
                    now = monotonic()
                    if now - command.began >= guard.slow:
                        now -= self._lateness.since(command.began)
                    guard.breaker.succeeded(command.began, now)
                    if guard.unreported:
                        guard.report()
                callback = command.callback
                command.callback = None
                if command.timer is not None:
                    command.timer.cancel()
                if callback is not None:
                    callback(reply)
        except (hiredis.ProtocolError, IndexError):  # unparsable, or a reply too many: the rest belongs to no command
            self.abort()
        if self.unsent:
            self.flush()
        if self._retired and not self.outstanding:
            self._transport.close()

    def _receive(self, command: PendingCommand, reply: Any) -> None:
        if is_unknown_script(reply) and command.callback is not None and command.loads < LOADS:
            command.loads += 1
            self.send(PendingCommand(self._commands.load, None))
            self.send(command)
            return
        if command.began:
            self._guard.replied(command.began, reply, self._lateness.since(command.began))
        command.finish(reply)
        if is_demoted(reply):
            self.retire()

    def retire(self) -> None:
        """Send this server no more commands; replies to earlier ones are still received."""
        self._lost(self)
        self._retired = True
        self.flush()
        if self.outstanding:
            asyncio.get_running_loop().call_later(OVERDUE, self._transport.abort)
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)
        if not self.gone.done():
            self.gone.set_result(None)
        why = "closed by the server" if error is None else named(error)
        outstanding, self.outstanding = self.outstanding, deque()
        failed = unanswered(f"the connection broke ({why})", self._guard.place)
        for command in outstanding:
            if command.began:
                self._guard.unanswered(command.began, failed)
            command.finish(failed)

    def abort(self) -> None:
        """Give the connection up; later commands go elsewhere."""
        self._lost(self)
        self._transport.abort()


class Pipeline:
    """The commands of one event loop to one server."""

    def __init__(
        self, settings: RedisSettings, commands: Commands, node: Node, guard: RedisGuard, lateness: Lateness
    ) -> None:
        self._settings, self._commands, self._node, self.place = settings, commands, node, node.place
        self._guard, self._lateness = guard, lateness
        self._loop = asyncio.get_running_loop()
        self.connection: PipelinedConnection | None = None
        self._connector: asyncio.Task[None] | None = None
        self._waiting: dict[PendingCommand, None] = {}  # commands for which there is no connection yet, in order
        self._unreachable: Failed | None = None  # as long as the connector retries
        self._wanted = False  # whether there was a call since the last attempt to connect
        self._closed: Failed | None = None  # why no more commands are sent here
        self._end: AsyncIterator[None] | None = None

    def send(self, packed: bytes, due: float, callback: Callback, before: bytes = b"") -> None:
        """Send a command with the next `flush`, and `before` it another one, whose reply is dropped."""
        guard, began, connection = self._guard, monotonic(), self.connection
        if guard.shut:
            if (failed := guard.admit(began)) is not None:
                callback(failed)
                return
            due = min(due, self._loop.time() + guard.probing)
        if due > self._lateness.until:
            self._lateness.watch(due)
        command = PendingCommand(packed, callback, due, before, began)
        if connection is not None and len(connection.outstanding) < guard.waiting:
            command.timer = self._loop.call_at(due, self._time_out, connection, command)
            if before:
                connection.send(command)
            else:
                connection.outstanding.append(command)
                connection.unsent.append(packed)
        elif self._closed is not None:
            command.finish(self._closed)
        elif connection is not None or len(self._waiting) >= guard.waiting:
            command.finish(guard.full())
        elif self._unreachable is not None:
            self._wanted = True
            guard.unanswered(began, self._unreachable)
            command.finish(self._unreachable)
        else:
            self._wanted = True
            self._waiting[command] = None
            command.timer = self._loop.call_at(due, self._not_ready, command)
            if self._connector is None:
                self._connector = self._loop.create_task(self._keep_connecting())

    def shut(self) -> None:
        """Fail all calls that wait, and give up the connection."""
        if self.connection is not None:
            self.connection.abort()
        self._end_with(not_sent("the store is closed", self.place, transient=False))

    def retire(self, why: str) -> None:
        """Fail all calls that wait for a connection; replies to commands that were sent are still received."""
        if self.connection is not None:
            self.connection.retire()
        self._end_with(not_sent(why, self.place))

    def _end_with(self, why: Failed) -> None:
        self._closed = why
        if self._connector is not None:
            self._connector.cancel()
        self._fail_waiting(why)

    async def close(self) -> None:
        """Shut, and wait until connector and connection are gone."""
        connector, connection = self._connector, self.connection
        self.shut()
        while connector is not None and not connector.done():
            # Again and again: redis-py sends by way of `wait_for`, which in Python 3.11 can swallow a cancellation.
            connector.cancel()
            await asyncio.wait([connector], timeout=CANCELLING)
        if connection is not None:
            await connection.gone

    def _late(self, command: PendingCommand) -> float:
        """Return how much longer a call waits, because of the loop: at most as long again."""
        return min(self._lateness.since(command.began), command.due - command.began)

    def _time_out(self, connection: PipelinedConnection, command: PendingCommand) -> None:
        if (late := self._late(command)) > 0:
            command.timer = self._loop.call_later(late, self._read_first, connection, command)
        else:
            self._read_first(connection, command)

    def _read_first(self, connection: PipelinedConnection, command: PendingCommand) -> None:
        """Fail the call, unless its reply is there already. uvloop calls timers before it reads, and other callbacks
        again before that.
        """
        self._loop.call_soon(self._loop.call_soon, self._give_up, connection, command)

    def _give_up(self, connection: PipelinedConnection, command: PendingCommand) -> None:
        """Fail the call. Its reply may still come, and is then dropped; if it does not, the connection is dead."""
        if command.callback is None:
            return
        callback, command.callback = command.callback, None
        began, command.began = command.began, 0.0  # the guard records it now, and not again
        command.timer = self._loop.call_later(OVERDUE, connection.abort)
        failed = unanswered("no answer within the deadline", self.place)
        self._guard.unanswered(began, failed)
        callback(failed)

    def _not_ready(self, command: PendingCommand) -> None:
        if (late := self._late(command)) > 0:
            command.timer = self._loop.call_later(late, self._fail_unready, command, False)
        else:
            self._fail_unready(command, True)

    def _fail_unready(self, command: PendingCommand, by_server: bool) -> None:
        """Fail a call for which there is still no connection, which may be the server's doing or the loop's own."""
        del self._waiting[command]
        failed = not_sent("no connection was ready in time", self.place)
        if by_server:
            self._guard.unanswered(command.began, failed)
        command.finish(failed)

    def _fail_waiting(self, why: Failed) -> None:
        waiting, self._waiting = self._waiting, {}
        for command in waiting:
            command.finish(why)

    # The connector

    async def _keep_connecting(self) -> None:
        """Connect, and retry as long as there are calls meanwhile."""
        pause = FIRST_PAUSE
        try:
            while self._wanted and self.connection is None and self._closed is None:
                self._wanted = False
                try:
                    await self._dial()
                except Exception as error:  # a caller's own credential provider may raise anything
                    self._unreachable = error.failed if isinstance(error, NoReply) else refusal(error, self.place)
                    for command in self._waiting:
                        self._guard.unanswered(command.began, self._unreachable)
                    self._fail_waiting(self._unreachable)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  spreads the retries of a fleet
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._connector = self._unreachable = None  # the next call waits for a new attempt

    async def _dial(self) -> None:
        writer = await dial_async(self._settings.kind, self._settings.connect, self._node, self._settings.connecting)
        connection = PipelinedConnection(writer, self._commands, self._guard, self._lateness, self._lost)
        if self._closed is not None:  # meanwhile, and the cancellation was swallowed
            connection.abort()
            return
        try:
            replies = await self._call_all(connection, self._commands.greetings(self._node))
            failed = self._commands.welcomed(self._node, replies)
            if failed is not None:
                raise NoReply(failed)
        except BaseException:
            connection.abort()
            raise
        self.connection, self._unreachable = connection, None
        self._end = self._at_the_end_of_the_loop(connection)
        await anext(self._end)
        waiting, self._waiting = self._waiting, {}
        for command in waiting:
            if command.timer is not None:
                command.timer.cancel()
            command.timer = self._loop.call_at(command.due, self._time_out, connection, command)
            connection.send(command)
        connection.flush()

    async def _at_the_end_of_the_loop(self, connection: PipelinedConnection) -> AsyncIterator[None]:
        """`asyncio.run` ends generators before it closes a loop, and with them the connection of a forgotten store."""
        try:
            yield
        finally:
            connection.abort()

    async def _call_all(self, connection: PipelinedConnection, commands: Sequence[bytes]) -> list[Any]:
        replies: asyncio.Queue[Any] = asyncio.Queue()
        for packed in commands:
            connection.send(PendingCommand(packed, replies.put_nowait))
        connection.flush()
        async with asyncio.timeout(self._settings.connecting):
            return [await replies.get() for _ in commands]

    def _lost(self, connection: PipelinedConnection) -> None:
        if self.connection is connection:
            self.connection = None

"""The asyncio link: moves bytes to a server and back, for all tasks of one event loop, over one connection.

Questions are sent without waiting for the answers to earlier ones; answers come in the same order. A question whose
caller has given up is remembered until its answer has come, which is dropped: nobody receives another's answer. Answers
that are overdue by a second, beyond their deadline, end the connection.

Callers never connect. A task, the connector, does so in the background; a caller waits for it as long as its deadline
allows. While the server cannot be reached callers are told so at once, and the connector tries again, less and less
often, as long as anybody asks.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import hiredis

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.commands import LOADS, Talk, is_stranded, is_unknown
from penstock.stores.redis.config import Node, Settings
from penstock.stores.redis.connection import dial_async, named, refusal
from penstock.stores.redis.errors import not_sent, unanswered
from penstock.stores.redis.guard import RedisGuard
from penstock.stores.redis.pool import FIRST_PAUSE, LONGEST_PAUSE, NoAnswer

OVERDUE = 1.0
"""Seconds after its deadline at which an answer is no longer waited for, and the connection given up."""

CANCELLING = 0.05
"""Seconds after which a connector that was cancelled, and goes on, is cancelled again."""

Heard = Callable[[Any], None]


class Sent:
    """A question on its way: whom to tell its answer, until when, and the timer that tells otherwise."""

    __slots__ = ("before", "began", "due", "heard", "loads", "packed", "timer")

    def __init__(
        self, packed: bytes, heard: Heard | None, due: float = 0.0, before: bytes = b"", began: float = 0.0
    ) -> None:
        self.packed, self.heard, self.due, self.before, self.began = packed, heard, due, before, began
        self.timer: asyncio.TimerHandle | None = None
        self.loads = 0  # how often the script was loaded for it

    def tell(self, answer: Any) -> None:
        """Tell whoever asked, unless that was done before."""
        heard, self.heard = self.heard, None
        if self.timer is not None:
            self.timer.cancel()
        if heard is not None:
            heard(answer)


class Wire(asyncio.Protocol):
    """One connection, pipelined."""

    def __init__(
        self, writer: asyncio.StreamWriter, talk: Talk, guard: RedisGuard, lost: Callable[[Wire], None]
    ) -> None:
        self._writer, self._talk, self._lost = writer, talk, lost  # a writer that is forgotten closes its transport
        self._guard = guard
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader()
        self.outstanding: deque[Sent] = deque()
        self._unsent: list[bytes] = []
        self._retired = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, sent: Sent) -> None:
        """With all others up to the next `flush`."""
        if sent.before:
            self.send(Sent(sent.before, None))
        self.outstanding.append(sent)
        self._unsent.append(sent.packed)

    def flush(self) -> None:
        if self._unsent:
            self._transport.write(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
            self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._answered(self.outstanding.popleft(), reply)
        except (hiredis.ProtocolError, IndexError):  # nonsense, or an answer that nobody asked for: whose are the rest?
            self.abort()
        self.flush()
        if self._retired and not self.outstanding:
            self._transport.close()

    def _answered(self, sent: Sent, reply: Any) -> None:
        if is_unknown(reply) and sent.heard is not None and sent.loads < LOADS:
            sent.loads += 1
            self.send(Sent(self._talk.load, None))
            self.send(sent)
        else:
            if sent.began:
                self._guard.heard(sent.began, reply)
            sent.tell(reply)
            if is_stranded(reply):
                self.retire()

    def retire(self) -> None:
        """Ask this server nothing more; what is outstanding may still be answered."""
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
        for sent in outstanding:
            if sent.began:
                self._guard.unanswered(sent.began, failed)
            sent.tell(failed)

    def abort(self) -> None:
        """Give it up; what is asked from now on goes elsewhere."""
        self._lost(self)
        self._transport.abort()


class AsyncLink:
    """The way of one event loop to one server."""

    def __init__(self, settings: Settings, talk: Talk, node: Node, guard: RedisGuard) -> None:
        self._settings, self._talk, self._node, self.place = settings, talk, node, node.place
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._connector: asyncio.Task[None] | None = None
        self._waiting: dict[Sent, None] = {}  # questions for which there is no connection yet, in order
        self._unreachable: Failed | None = None  # as long as somebody goes on trying
        self._asked = False  # whether anybody asked since the last attempt to connect
        self._closed: Failed | None = None  # why nobody is to be asked here any more
        self._end: AsyncIterator[None] | None = None

    def ask(self, question: bytes, due: float, heard: Heard, before: bytes = b"") -> None:
        """Send a question, together with all others up to the next `flush`; `heard` is called with its answer: a reply,
        or `Failed`. What has to be said `before` is answered to nobody.
        """
        guard, began = self._guard, monotonic()
        wire = self._wire
        if guard.shut and (why_not := guard.admit(began)) is not None:
            heard(why_not)
            return
        due = min(due, self._loop.time() + guard.probing) if guard.shut else due
        sent = Sent(question, heard, due, before, began)
        if wire is not None and len(wire.outstanding) < guard.waiting:
            self._send(wire, sent)
        elif self._closed is not None:
            sent.tell(self._closed)
        elif wire is not None or len(self._waiting) >= guard.waiting:
            sent.tell(guard.full())
        else:
            self._asked = True
            if self._unreachable is not None:
                guard.unanswered(began, self._unreachable)
                sent.tell(self._unreachable)
                return
            self._waiting[sent] = None
            sent.timer = self._loop.call_at(sent.due, self._not_ready, sent)
            if self._connector is None:
                self._connector = self._loop.create_task(self._keep_connecting())

    def flush(self) -> None:
        if self._wire is not None:
            self._wire.flush()

    def shut(self) -> None:
        """Tell all who wait, and give up the connection."""
        if self._wire is not None:
            self._wire.abort()
        self._end_with(not_sent("the store is closed", self.place, transient=False))

    def retire(self, why: str) -> None:
        """The same, but what is outstanding may still be answered."""
        if self._wire is not None:
            self._wire.retire()
        self._end_with(not_sent(why, self.place))

    def _end_with(self, why: Failed) -> None:
        self._closed = why
        if self._connector is not None:
            self._connector.cancel()
        self._tell_all(why)

    async def close(self) -> None:
        """The same, and wait until nothing is left of it."""
        connector, wire = self._connector, self._wire
        self.shut()
        while connector is not None and not connector.done():
            # Again and again: redis-py sends by way of `wait_for`, which in Python 3.11 can swallow a cancellation.
            connector.cancel()
            await asyncio.wait([connector], timeout=CANCELLING)
        if wire is not None:
            await wire.gone

    def _send(self, wire: Wire, sent: Sent) -> None:
        if sent.timer is not None:
            sent.timer.cancel()
        sent.timer = self._loop.call_at(sent.due, self._overdue, wire, sent)
        wire.send(sent)

    def _overdue(self, wire: Wire, sent: Sent) -> None:
        """Tell the caller; the answer may still come, and is then dropped. If it does not, the connection is dead."""
        heard, sent.heard = sent.heard, None
        began, sent.began = sent.began, 0.0  # the guard is told now, and not again
        sent.timer = self._loop.call_later(OVERDUE, wire.abort)
        failed = unanswered("no answer within the deadline", self.place)
        self._guard.unanswered(began, failed)
        if heard is not None:
            heard(failed)

    def _not_ready(self, sent: Sent) -> None:
        del self._waiting[sent]
        failed = not_sent("no connection was ready in time", self.place)
        self._guard.unanswered(sent.began, failed)
        sent.tell(failed)

    def _tell_all(self, why: Failed) -> None:
        waiting, self._waiting = self._waiting, {}
        for sent in waiting:
            sent.tell(why)

    # The connector

    async def _keep_connecting(self) -> None:
        """Connect, and try again as long as somebody asks meanwhile."""
        pause = FIRST_PAUSE
        try:
            while self._asked and self._wire is None and self._closed is None:
                self._asked = False
                try:
                    await self._dial()
                except Exception as error:  # a caller's own credential provider may raise anything
                    self._unreachable = error.failed if isinstance(error, NoAnswer) else refusal(error, self.place)
                    for sent in self._waiting:
                        self._guard.unanswered(sent.began, self._unreachable)
                    self._tell_all(self._unreachable)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  spreads the crowd
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._connector = self._unreachable = None  # whoever asks next waits for what a new attempt brings

    async def _dial(self) -> None:
        writer = await dial_async(self._settings.kind, self._settings.connect, self._node, self._settings.connecting)
        wire = Wire(writer, self._talk, self._guard, self._lost)
        if self._closed is not None:  # meanwhile, and the cancellation was swallowed
            wire.abort()
            return
        try:
            why = self._talk.welcomed(self._node, await self._ask_all(wire, self._talk.greetings(self._node)))
            if why is not None:
                raise NoAnswer(why)
        except BaseException:
            wire.abort()
            raise
        self._wire, self._unreachable = wire, None
        self._end = self._at_the_end_of_the_loop(wire)
        await anext(self._end)
        waiting, self._waiting = self._waiting, {}
        for sent in waiting:
            self._send(wire, sent)
        wire.flush()

    async def _at_the_end_of_the_loop(self, wire: Wire) -> AsyncIterator[None]:
        """`asyncio.run` ends generators before it closes a loop: then the connection of a forgotten store goes."""
        try:
            yield
        finally:
            wire.abort()

    async def _ask_all(self, wire: Wire, questions: Sequence[bytes]) -> list[Any]:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        for question in questions:
            wire.send(Sent(question, answers.put_nowait))
        wire.flush()
        async with asyncio.timeout(self._settings.connecting):
            return [await answers.get() for _ in questions]

    def _lost(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire = None

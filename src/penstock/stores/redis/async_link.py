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
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from penstock.clock import Micros
from penstock.model import Failed
from penstock.stores.redis.dialing import DialError, dial_async
from penstock.stores.redis.link import FIRST_PAUSE, LONGEST_PAUSE, NoAnswer, named
from penstock.stores.redis.replies import NOSCRIPT, not_sent, unanswered
from penstock.stores.redis.settings import Settings
from penstock.stores.redis.talk import Talk

OVERDUE = 1.0
"""Seconds after its deadline at which an answer is no longer waited for, and the connection given up."""

Heard = Callable[[Any], None]


class Sent:
    """A question on its way: whom to tell its answer, and the timer that tells otherwise."""

    __slots__ = ("again", "heard", "packed", "timer")

    def __init__(self, packed: bytes, heard: Heard | None) -> None:
        self.packed, self.heard = packed, heard
        self.timer: asyncio.TimerHandle | None = None
        self.again = False

    def tell(self, answer: Any) -> None:
        """Tell whoever asked, unless that was done before."""
        heard, self.heard = self.heard, None
        if self.timer is not None:
            self.timer.cancel()
        if heard is not None:
            heard(answer)


class Wire(asyncio.Protocol):
    """One connection, pipelined."""

    def __init__(self, writer: asyncio.StreamWriter, load: bytes, lost: Callable[[Wire], None]) -> None:
        self._writer, self._load, self._lost = writer, load, lost  # a writer that is forgotten closes its transport
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader()
        self._outstanding: deque[Sent] = deque()

    def send(self, sent: Sent) -> None:
        self._outstanding.append(sent)
        self._transport.write(sent.packed)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if not self._outstanding:  # an answer that nobody asked for: whose are the others?
                self.abort()
                return
            self._answered(self._outstanding.popleft(), reply)

    def _answered(self, sent: Sent, reply: Any) -> None:
        unknown = isinstance(reply, hiredis.ReplyError) and str(reply).startswith(NOSCRIPT)
        if unknown and not sent.again and sent.heard is not None:
            sent.again = True
            self.send(Sent(self._load, None))
            self.send(sent)
        else:
            sent.tell(reply)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(self)
        outstanding, self._outstanding = self._outstanding, deque()
        for sent in outstanding:
            sent.tell(error or ConnectionResetError("closed by the server"))

    def abort(self) -> None:
        self._transport.abort()


class AsyncLink:
    """The way of one event loop to one server."""

    def __init__(self, settings: Settings, talk: Talk) -> None:
        self._settings, self._talk, self.place = settings, talk, settings.place
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._connector: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[Sent, Micros]] = deque()  # questions for which there is no connection yet
        self._unreachable: Failed | None = None
        self._asked = False  # whether anybody asked since the last attempt to connect
        self._closed = False

    def ask(self, packed: bytes, deadline: Micros, heard: Heard) -> None:
        """Send a question; `heard` is called with its answer: a reply, or `Failed`."""
        sent = Sent(packed, heard)
        if self._closed:
            sent.tell(not_sent("the store is closed", self.place, transient=False))
        elif self._wire is not None:
            self._send(sent, deadline)
        else:
            self._asked = True
            self._connect()
            if self._unreachable is not None:
                sent.tell(self._unreachable)
            else:
                self._waiting.append((sent, deadline))
                sent.timer = self._loop.call_later(deadline / 1_000_000, self._not_ready, sent)

    def close(self) -> None:
        self._closed = True
        if self._connector is not None:
            self._connector.cancel()
        if self._wire is not None:
            self._wire.abort()
        for sent, _ in self._waiting:
            sent.tell(not_sent("the store is closed", self.place, transient=False))
        self._waiting.clear()

    def _send(self, sent: Sent, deadline: Micros) -> None:
        wire = self._wire
        assert wire is not None  # noqa: S101  whoever calls has seen it
        tell = sent.heard

        def heard(answer: Any) -> None:
            if tell is not None:
                tell(self._lost_on_the_way(answer) if isinstance(answer, OSError) else answer)

        sent.heard = heard
        if sent.timer is not None:
            sent.timer.cancel()
        sent.timer = self._loop.call_later(deadline / 1_000_000, self._overdue, wire, sent, deadline)
        wire.send(sent)

    def _lost_on_the_way(self, error: OSError) -> Failed:
        return unanswered(f"the connection broke ({named(error)})", self.place)

    def _overdue(self, wire: Wire, sent: Sent, deadline: Micros) -> None:
        """Tell the caller; the answer may still come, and is then dropped. If it does not, the connection is dead."""
        heard, sent.heard = sent.heard, None
        sent.timer = self._loop.call_later(OVERDUE, wire.abort)
        if heard is not None:
            heard(unanswered(f"no answer within {deadline / 1000:g} ms", self.place))

    def _not_ready(self, sent: Sent) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not sent)
        sent.tell(not_sent("no connection was ready in time", self.place))

    # The connector

    def _connect(self) -> None:
        if self._connector is None:
            self._connector = self._loop.create_task(self._keep_connecting())

    async def _keep_connecting(self) -> None:
        """Connect, and try again as long as somebody asks meanwhile."""
        pause = FIRST_PAUSE
        try:
            while self._asked and self._wire is None:
                self._asked = False
                try:
                    await self._dial()
                except (*DialError, NoAnswer) as error:
                    self._fail(error)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    pause = min(pause * 2, LONGEST_PAUSE)
                    self._asked = self._asked or pause < LONGEST_PAUSE
        finally:
            self._connector = None

    async def _dial(self) -> None:
        wire = Wire(await dial_async(self._settings), self._talk.load, self._lost)
        (loaded,) = await self._ask_all(wire, [self._talk.load])
        if isinstance(loaded, Exception):
            wire.abort()
            raise NoAnswer(not_sent(f"the script cannot be loaded ({loaded})", self.place))
        if self._talk.checks:
            self._talk.checked(await self._ask_all(wire, self._talk.checks))
        self._wire, self._unreachable = wire, None
        while self._waiting:
            self._send(*self._waiting.popleft())

    async def _ask_all(self, wire: Wire, questions: Sequence[bytes]) -> list[Any]:
        answers: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in questions]
        for question, answer in zip(questions, answers, strict=True):
            wire.send(Sent(question, answer.set_result))
        return await asyncio.wait_for(asyncio.gather(*answers), 5)

    def _lost(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire = None

    def _fail(self, error: Exception) -> None:
        why = error.failed if isinstance(error, NoAnswer) else not_sent(f"cannot connect ({named(error)})", self.place)
        self._unreachable = why
        while self._waiting:
            self._waiting.popleft()[0].tell(why)

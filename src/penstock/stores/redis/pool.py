"""The connections of a blocking store to a server, shared by any number of threads.

Callers never connect. A short-lived thread, the connector, does so in the background when there are more callers than
connections; a caller takes a connection that is ready, or waits for one as long as its deadline allows. While the
server cannot be reached, calls fail at once, and the connector retries, less and less often, as long as calls keep
coming.

A command is sent at most once, unless the server replies that it does not know the script. A connection on which
replies are outstanding is never used again: it is closed, so no reply reaches the wrong caller.
"""

from __future__ import annotations

import _thread
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Lock
from typing import Any
from weakref import WeakSet, ref

import hiredis

from penstock.clock import monotonic
from penstock.engine.lifetime import Token, no_token, renew_in_children
from penstock.errors import is_from_signal_handler
from penstock.model import Failed
from penstock.stores.redis.commands import LOADS, Commands, is_demoted, is_unknown_script
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import BlockingConnection, named, refusal
from penstock.stores.redis.errors import not_sent, unanswered
from penstock.stores.redis.guard import RedisGuard

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

LOOK_AGAIN = 0.5
"""Seconds after which a waiting caller starts the connector again: its thread may have been ended."""


class NoReply(Exception):
    """Why there is no reply; `failed` is what that means for the operations."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        super().__init__(str(failed.error))


class PendingReplies:
    """Commands that were sent over one connection, and whose replies are outstanding."""

    __slots__ = ("_began", "_connection", "_packed", "_pool", "_until")

    def __init__(
        self, pool: RedisPool, connection: BlockingConnection, packed: Sequence[bytes], began: float, until: float
    ) -> None:
        self._pool, self._connection, self._packed, self._began, self._until = pool, connection, packed, began, until

    def finish(self) -> list[Any]:
        """Return the replies. Raises `NoReply`."""
        pool, connection, until = self._pool, self._connection, self._until
        try:
            replies = [connection.receive(until) for _ in self._packed]
            for number, reply in enumerate(replies):
                if isinstance(reply, hiredis.ReplyError) and is_unknown_script(reply):
                    replies[number] = pool._load_and_call(connection, self._packed[number], until)
        except BaseException as error:
            raise pool._broken(connection, error, self._began) from None
        if any(map(is_demoted, replies)):
            pool._drop(connection)
        else:
            pool._give_back(connection)
        pool.guard.replied(self._began, replies[-1])
        return replies


class RedisPool:
    """Connections to one server, `node`, shared by threads.

    An interrupt (Ctrl-C) may end a caller between any two steps. So connections in use, turns and the connector's token
    are known here by weak references only: they are gone with the frame that held them.
    """

    def __init__(self, settings: RedisSettings, commands: Commands, node: Node, guard: RedisGuard) -> None:
        self._settings, self._commands, self._node, self.place = settings, commands, node, node.place
        self.guard = guard
        self._busy = not_sent("no connection was ready in time", self.place)
        self._closed: Failed | None = None  # why no more commands are sent here
        self._begin()
        renew_in_children(self)

    def _begin(self) -> None:
        """Make everything that a forked child must make anew."""
        self._lock = Lock()
        self._ended = Event()
        self._connections: WeakSet[BlockingConnection] = WeakSet()  # ready or in use, not lost by an interrupt
        self._ready: list[BlockingConnection] = []
        self._turns: list[ref[Lock]] = []  # of waiting callers: released when a connection may be ready
        self._connector: Callable[[], Token | None] = no_token
        self._asked = False  # whether there was a call since the last attempt to connect
        self._unreachable: Failed | None = None  # why that failed, as long as the connector retries

    def _renew(self) -> None:
        """Leave the parent's sockets alone in a forked child, and connect anew."""
        for connection in list(self._connections):
            connection.close()
        self._begin()

    def call(self, command: bytes, until: float) -> Any:
        """Return the reply to one command. Raises `NoReply`."""
        guard, began = self.guard, monotonic()
        if guard.shut or began >= until:
            until = self._admitted(began, until)
        connection = self._take(began, until)
        try:
            reply = connection.ask(command, until)
            if isinstance(reply, hiredis.ReplyError) and is_unknown_script(reply):
                reply = self._load_and_call(connection, command, until)
        except BaseException as error:
            raise self._broken(connection, error, began) from None
        if isinstance(reply, hiredis.ReplyError) and is_demoted(reply):
            self._drop(connection)
        else:
            self._give_back(connection)
        guard.replied(began, reply)
        return reply

    def start(self, packed: Sequence[bytes], until: float) -> PendingReplies:
        """Send commands; `finish` waits for the replies. Raises `NoReply`."""
        began = monotonic()
        until = self._admitted(began, until)
        return self._send(self._take(began, until), packed, began, until)

    def start_at_once(self, packed: Sequence[bytes], until: float) -> PendingReplies | None:
        """Send commands if a connection is ready; else return None and have one made. Raises `NoReply`."""
        began = monotonic()
        with self._lock:
            connection = self._take_ready()
        if connection is None:
            self._connect()
            return None
        try:
            until = self._admitted(began, until)
        except NoReply:
            self._give_back(connection)
            raise
        return self._send(connection, packed, began, until)

    def _admitted(self, began: float, until: float) -> float:
        """Return until when to wait for a reply, if the server may be called. Raises `NoReply` otherwise."""
        if began >= until:
            raise NoReply(not_sent("no time was left to ask", self.place))
        if not self.guard.shut:
            return until
        why_not = self.guard.admit(began)
        if why_not is not None:
            raise NoReply(why_not)
        return min(until, began + self.guard.probing)

    def is_connected(self) -> bool:
        """Return whether there are connections, in use or not."""
        return bool(self._connections)

    def _send(
        self, connection: BlockingConnection, packed: Sequence[bytes], began: float, until: float
    ) -> PendingReplies:
        try:
            connection.send(packed[0] if len(packed) == 1 else b"".join(packed), until)
        except BaseException as error:
            raise self._broken(connection, error, began) from None
        return PendingReplies(self, connection, packed, began, until)

    def _broken(self, connection: BlockingConnection, error: BaseException, began: float) -> BaseException:
        """Return what to raise after an error on a connection, and close that: replies may be outstanding."""
        self._drop(connection)
        if is_from_signal_handler(error):
            return error
        if isinstance(error, TimeoutError):
            return self._unanswered(began, unanswered("no answer within the deadline", self.place))
        if isinstance(error, OSError | hiredis.ProtocolError):
            return self._unanswered(began, unanswered(f"the connection broke ({named(error)})", self.place))
        return error

    def _unanswered(self, began: float, failed: Failed) -> NoReply:
        self.guard.unanswered(began, failed)
        return NoReply(failed)

    def _load_and_call(self, connection: BlockingConnection, command: bytes, until: float) -> Any:
        """The reply to a question after the script has been loaded; again, if it was forgotten in between."""
        reply, loads = None, 0
        while loads < LOADS and (reply is None or is_unknown_script(reply)):
            loaded = connection.ask(self._commands.load, until)
            reply = loaded if isinstance(loaded, hiredis.ReplyError) else connection.ask(command, until)
            loads += 1
        return reply

    def close(self, why: str = "the store is closed", *, transient: bool = False) -> None:
        with self._lock:
            self._closed = not_sent(why, self.place, transient=transient)
            self._ended.set()
            ready, self._ready = self._ready, []
            self._wake_all()
        for connection in ready:
            connection.close()

    def _take(self, began: float, until: float) -> BlockingConnection:
        """Return a connection that is ready; the last one given back, so that surplus ones stay idle.

        Callers wait on a lock of their own and not on a condition: an interrupt may come between giving up its lock and
        having it again, and would then release the lock of another thread.
        """
        try:
            while True:
                with self._lock:
                    connection = self._take_ready()
                    if connection is not None:
                        return connection
                    if len(self._turns) >= self.guard.waiting:
                        break
                    turn = Lock()
                    turn.acquire()
                    self._turns.append(ref(turn))
                self._await(turn, until)
        except NoReply as no_answer:
            # All connections in use is the callers' own queue, and no failure of the server. A probe has to end.
            queued = no_answer.failed is self._busy and self.is_connected() and not self.guard.shut
            if not queued and no_answer.failed is not self._closed:
                self.guard.unanswered(began, no_answer.failed)
            raise
        raise NoReply(self.guard.full())

    def _take_ready(self) -> BlockingConnection | None:
        """Return a connection if one is ready. Raises `NoReply` if none will be. The lock is held."""
        if self._closed is not None:
            raise NoReply(self._closed)
        while self._ready:
            connection = self._ready.pop()
            if connection.is_quiet():
                return connection
            self._forget(connection)
        if self._unreachable is not None and not self._connections:
            self._asked = True
            raise NoReply(self._unreachable)
        return None

    def _await(self, turn: Lock, until: float) -> None:
        """Wait until a connection may be ready."""
        try:
            self._connect()
            left = until - monotonic()
            if turn.acquire(timeout=max(0.0, min(left, LOOK_AGAIN))) or left > LOOK_AGAIN:
                return
            with self._lock:
                if ref(turn) in self._turns and not self._ready:
                    raise NoReply(self._unreachable or self._busy)
        finally:
            with self._lock:
                if ref(turn) in self._turns:
                    self._turns.remove(ref(turn))
                elif self._ready:  # this caller was woken, and perhaps cannot take it any more
                    self._wake_one()

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            if self._closed is None:
                self._ready.append(connection)
                self._wake_one()
                return
        connection.close()

    def _drop(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._forget(connection)
            awaited = bool(self._turns)
        if awaited:
            self._connect()

    def _forget(self, connection: BlockingConnection) -> None:
        self._connections.discard(connection)
        connection.close()

    # The connector

    def _connect(self) -> None:
        """Start the connector, unless it runs or there are enough connections."""
        with self._lock:
            self._asked = True
            if self._connector() is not None or len(self._connections) >= self._settings.connections:
                return
            token = Token()
            self._connector = ref(token)
        # Not threading.Thread: its `start` waits for the thread, in which an interrupt leaves the caller stuck.
        with suppress(RuntimeError):  # no thread is left, or the interpreter is about to end
            _thread.start_new_thread(self._keep_connecting, (token,))

    def _keep_connecting(self, token: Token) -> None:
        """Connect as long as callers wait for it."""
        pause = FIRST_PAUSE
        while self._is_wanted():
            try:
                connection = self._dial()
            except Exception as error:  # a caller's own credential provider may raise anything
                self._fail(error)
                self._ended.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  spreads the retries of a fleet
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            with self._lock:
                self._unreachable = None
                self._connections.add(connection)
            self._give_back(connection)

    def _is_wanted(self) -> bool:
        with self._lock:
            few = len(self._connections) < self._settings.connections
            awaited = len(self._turns) > len(self._ready)
            wanted = awaited or (self._asked and (self._unreachable is not None or not self._connections))
            self._asked = False
            if few and wanted and self._closed is None:
                return True
            self._connector = no_token
            self._unreachable = None  # the next call waits for a new attempt
            return False

    def _dial(self) -> BlockingConnection:
        connection = BlockingConnection(
            self._settings.kind, self._settings.connect, self._node, self._settings.connecting
        )
        try:
            answers: list[Any] = []
            for command in self._commands.greetings(self._node):
                answers.append(connection.ask(command, monotonic() + self._settings.connecting))
                if isinstance(answers[0], hiredis.ReplyError):
                    break  # perhaps its last reply
            why = self._commands.welcomed(self._node, answers)
            if why is not None:
                raise NoReply(why)
        except BaseException:
            connection.close()
            raise
        return connection

    def _fail(self, error: Exception) -> None:
        why = error.failed if isinstance(error, NoReply) else refusal(error, self.place)
        with self._lock:
            self._unreachable = why
            self._wake_all()

    def _wake_one(self) -> None:
        while self._turns:
            turn = self._turns.pop(0)()
            if turn is not None:
                turn.release()
                return

    def _wake_all(self) -> None:
        while self._turns:
            self._wake_one()

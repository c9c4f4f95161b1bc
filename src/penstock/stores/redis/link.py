"""The blocking link: moves bytes to a server and back, for any number of threads.

Callers never connect. A passing thread, the connector, does so in the background when there are more callers than
connections; a caller takes a connection that is ready, or waits for one as long as its deadline allows. While the
server cannot be reached callers are told so at once, and the connector tries again, less and less often, as long as
anybody asks.

A question is sent at most once, unless the server says that it did not know the script. A connection on which an answer
is outstanding is never used again: it is closed, so that nobody can receive the answer to another's question.
"""

from __future__ import annotations

import _thread
import errno
import math
import os
import random
import select
import ssl
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock
from typing import Any
from weakref import WeakSet, ref

import hiredis

from penstock.clock import Micros, monotonic
from penstock.model import Failed
from penstock.stores.redis.dialing import dial, named, refusal
from penstock.stores.redis.replies import failed_by, not_sent, unanswered
from penstock.stores.redis.settings import Settings
from penstock.stores.redis.talk import LOADS, Talk, is_stranded, is_unknown

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
LOADING = 2.0
"""Seconds within which a server must have loaded the script before it counts as unreachable."""

LOOK_AGAIN = 0.5
"""Seconds after which a caller who waits makes sure that somebody is connecting: whoever was may have been ended."""

CHUNK = 65_536


class NoAnswer(Exception):
    """Why there is no reply; `failed` is what that means for the operations."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        super().__init__(str(failed.error))


class Wire:
    """One connection: a question at a time. Its socket never blocks; what waits is `poll`, whose time signals do not
    prolong.
    """

    def __init__(self, settings: Settings) -> None:
        self._socket = dial(settings)
        self._socket.setblocking(False)
        self._pending = getattr(self._socket, "pending", lambda: 0)  # what TLS has read already
        self._reader = hiredis.Reader()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)

    def ask(self, packed: bytes, until: float) -> Any:
        """The reply to a question. Raises `TimeoutError` or another `OSError` if there is none."""
        self._send(packed, until)
        reply = self._reader.gets()
        while reply is False:
            self._reader.feed(self._receive(until))
            reply = self._reader.gets()
        return reply

    def is_open(self) -> bool:
        """Whether the server has not hung up since its last answer: nothing is outstanding, so nothing may be there."""
        return not (self._reader.has_data() or self._readable.poll(0))

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        """An interrupt may lose one."""
        if hasattr(self, "_socket"):
            self.close()

    def _send(self, packed: bytes, until: float) -> None:
        left = memoryview(packed)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                _wait(self._writable, until)
            except ssl.SSLWantReadError:
                _wait(self._readable, until)

    def _receive(self, until: float) -> bytes:
        while True:
            if not self._pending():
                _wait(self._readable, until)
            try:
                chunk = self._socket.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # TLS had something to say that was no data
            except ssl.SSLWantWriteError:
                _wait(self._writable, until)
                continue
            if not chunk:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
            return chunk


def _wait(event: select.poll, until: float) -> None:
    left = until - monotonic()
    if left <= 0 or not event.poll(math.ceil(left * 1_000)):
        raise TimeoutError


class Token:
    """Whoever holds it is at work; when he is gone, for whatever reason, so is it."""

    __slots__ = ("__weakref__",)


def _nobody() -> None:
    """What a reference to somebody who is gone says."""


class Link:
    """Connections to one server, shared by threads.

    An interrupt (Ctrl-C) may end a caller between any two steps. What callers hold is therefore known here only by weak
    references: a connection, a turn, the connector's token are gone with whoever held them.
    """

    def __init__(self, settings: Settings, talk: Talk) -> None:
        self._settings, self._talk, self.place = settings, talk, settings.place
        self._closed = False
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        """Everything that must be made anew in a forked child."""
        self._lock = Lock()
        self._ended = Event()
        self._wires: WeakSet[Wire] = WeakSet()  # those that are ready or in use; one lost by an interrupt is not
        self._ready: list[Wire] = []
        self._turns: list[ref[Lock]] = []  # of callers who wait: released when it is worth looking again
        self._connector: Callable[[], Token | None] = _nobody
        self._asked = False  # whether anybody asked since the last attempt to connect
        self._unreachable: Failed | None = None  # why that failed, as long as somebody goes on trying

    def call(self, packed: bytes, deadline: Micros) -> Any:
        """The server's reply, within `deadline` microseconds. Raises `NoAnswer`."""
        until = monotonic() + deadline / 1_000_000
        wire = self._take(until)
        try:
            reply = wire.ask(packed, until)
            if is_unknown(reply):
                reply = self._load_and_ask(wire, packed, until)
        except BaseException as error:  # whatever happened, an answer may be outstanding
            self._drop(wire)
            if isinstance(error, TimeoutError):
                raise NoAnswer(unanswered(f"no answer within {deadline / 1000:g} ms", self.place)) from None
            if isinstance(error, OSError | hiredis.ProtocolError):
                raise NoAnswer(unanswered(f"the connection broke ({named(error)})", self.place)) from None
            raise
        if is_stranded(reply):
            self._drop(wire)
        else:
            self._give_back(wire)
        return reply

    def _load_and_ask(self, wire: Wire, packed: bytes, until: float) -> Any:
        """The reply to a question after the script has been loaded; again, if it was forgotten in between."""
        reply, loads = None, 0
        while loads < LOADS and (reply is None or is_unknown(reply)):
            loaded = wire.ask(self._talk.load, until)
            reply = loaded if isinstance(loaded, hiredis.ReplyError) else wire.ask(packed, until)
            loads += 1
        return reply

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._ended.set()
            ready, self._ready = self._ready, []
            self._wake_all()
        for wire in ready:
            wire.close()

    def _take(self, until: float) -> Wire:
        """A connection that is ready; the last one given back, so that surplus ones stay idle.

        Waiting is done by a lock per caller and not by a condition, in which an interrupt may come between giving up
        the lock and having it again: then it would be released for somebody else.
        """
        while True:
            with self._lock:
                if self._closed:
                    raise NoAnswer(not_sent("the store is closed", self.place, transient=False))
                while self._ready:
                    wire = self._ready.pop()
                    if wire.is_open():
                        return wire
                    self._forget(wire)
                if self._unreachable is not None and not self._wires:
                    self._asked = True
                    raise NoAnswer(self._unreachable)
                turn = Lock()
                turn.acquire()
                self._turns.append(ref(turn))
            self._await(turn, until)

    def _await(self, turn: Lock, until: float) -> None:
        """Wait until it is worth looking again."""
        try:
            self._connect()
            left = until - monotonic()
            if turn.acquire(timeout=max(0.0, min(left, LOOK_AGAIN))) or left > LOOK_AGAIN:
                return
            with self._lock:
                if ref(turn) in self._turns and not self._ready:
                    raise NoAnswer(self._unreachable or not_sent("no connection was ready in time", self.place))
        finally:
            with self._lock:
                if ref(turn) in self._turns:
                    self._turns.remove(ref(turn))
                elif self._ready:  # whoever was woken may not be able to take it any more
                    self._wake_one()

    def _give_back(self, wire: Wire) -> None:
        with self._lock:
            if not self._closed:
                self._ready.append(wire)
                self._wake_one()
                return
        wire.close()

    def _drop(self, wire: Wire) -> None:
        with self._lock:
            self._forget(wire)
            awaited = bool(self._turns)
        if awaited:
            self._connect()

    def _forget(self, wire: Wire) -> None:
        self._wires.discard(wire)
        wire.close()

    # The connector

    def _connect(self) -> None:
        """See to it that somebody connects, unless somebody does or there are enough connections."""
        with self._lock:
            self._asked = True
            if self._connector() is not None or len(self._wires) >= self._settings.connections:
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
                wire = self._dial()
            except Exception as error:  # a caller's own credential provider may raise anything
                self._fail(error)
                self._ended.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  spreads the crowd
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            with self._lock:
                self._unreachable = None
                self._wires.add(wire)
            self._give_back(wire)

    def _is_wanted(self) -> bool:
        with self._lock:
            few = len(self._wires) < self._settings.connections
            wanted = len(self._turns) > len(self._ready) if self._unreachable is None else self._asked
            self._asked = False
            if few and wanted and not self._closed:
                return True
            self._connector = _nobody
            self._unreachable = None  # whoever asks next waits for what a new attempt brings
            return False

    def _dial(self) -> Wire:
        wire = Wire(self._settings)
        try:
            loaded = wire.ask(self._talk.load, monotonic() + LOADING)
            if isinstance(loaded, hiredis.ReplyError):
                raise NoAnswer(failed_by(loaded, self.place)._replace(charged="no"))
            if self._talk.checks:
                self._talk.checked([wire.ask(question, monotonic() + LOADING) for question in self._talk.checks])
        except BaseException:
            wire.close()
            raise
        return wire

    def _fail(self, error: Exception) -> None:
        why = error.failed if isinstance(error, NoAnswer) else refusal(error, self.place)
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


_alive: WeakSet[Link] = WeakSet()


def _after_fork_in_child() -> None:
    """The child shares its parent's sockets: it leaves them alone, and connects for itself."""
    for link in list(_alive):
        for wire in list(link._wires):
            wire.close()
        link._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

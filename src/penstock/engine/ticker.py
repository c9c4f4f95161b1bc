"""The ticker: starts the background work of an engine in time, even when there are no calls.

An engine requests a call of its `tick`, which starts due work and returns when to call again. Blocking engines share
one thread per process, which ends a few seconds after the last engine needed it. An engine for asyncio is called by a
timer of its event loop. Neither keeps an engine alive.

Callers start due work too, so a lost tick (the loop was closed, the process forked, no thread could be started) only
delays it. Engines with a `ManualClock` have no ticker: their callers start the work.
"""

from __future__ import annotations

import _thread
import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias
from weakref import ref

from penstock.clock import SECOND, Clock, ManualClock, Micros, monotonic
from penstock.engine.lifetime import Token, no_token, renew_in_children

SOONEST: Micros = SECOND // 20
"""The least time between two ticks, because work under way still counts as due."""

LATEST: Micros = 60 * SECOND
"""The most time between two ticks, because an engine may have a clock that is set back."""

LINGER = 5.0
"""Seconds for which the thread waits for engines before it ends."""


class Ticked(Protocol):
    """An engine, as a ticker sees it."""

    def tick(self) -> Micros | None:
        """Start due work. Return after how long to call again; None if that is not needed."""


def ticks_by(clock: Clock) -> bool:
    """Return whether this clock's time passes by itself."""
    return not isinstance(clock, ManualClock)


def spaced(after: Micros) -> float:
    """Return `after` in seconds, within `SOONEST` and `LATEST`."""
    return max(SOONEST, min(after, LATEST)) / SECOND


# ---------------------------------------------------------------- the thread of blocking engines

_Calls: TypeAlias = dict[ref[Ticked], float]
"""When to call each engine, by the monotonic clock."""

_asked: SimpleQueue[tuple[ref[Ticked], float]] = SimpleQueue()
_ticking: Callable[[], Token | None] = no_token


def call_after(engine: Ticked, after: Micros) -> None:
    """Have the thread call `engine` after so many microseconds, or sooner if that was requested before.

    No lock is taken, so an interrupt between two steps leaves nothing locked; two threads do no harm.
    """
    global _ticking
    weak = ref(engine)
    hash(weak)  # a weak reference keeps its hash, but only if it was computed while its object was alive
    _asked.put((weak, monotonic() + spaced(after)))
    if _ticking() is None:  # requested before looking: the thread, before it ends, looks at the requests last
        token = Token()
        _ticking = ref(token)
        with suppress(RuntimeError):  # no thread is left, or the interpreter is about to end
            _thread.start_new_thread(_tick_on, (_asked, [token]))


def _tick_on(asked: SimpleQueue[tuple[ref[Ticked], float]], token: list[Token]) -> None:
    calls: _Calls = {}
    while calls or token:
        pause = min(calls.values()) - monotonic() if calls else LINGER if token else 0.0
        try:
            engine, at = asked.get(timeout=max(pause, 0.0))
            calls[engine] = min(at, calls.get(engine, at))
        except Empty:
            if not calls:
                token.clear()
                while not asked.empty():  # requested while the thread still seemed alive
                    engine, at = asked.get()
                    calls[engine] = at
        _call(calls)


def _call(calls: _Calls) -> None:
    """Call the engines whose time has come; forget those that are gone or need no more calls."""
    now = monotonic()
    for engine in [engine for engine, at in calls.items() if at <= now]:
        del calls[engine]
        alive = engine()
        after = alive.tick() if alive is not None else None
        if after is not None:
            calls[engine] = now + spaced(after)


def _after_fork_in_child() -> None:
    """Forget the thread of the parent: the callers of the child start their own."""
    global _asked, _ticking
    _asked, _ticking = SimpleQueue(), no_token


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ---------------------------------------------------------------- the timer of an event loop


class LoopTimer:
    """Calls an engine from the event loop that was running when the call was requested."""

    def __init__(self) -> None:
        self._set: Callable[[], Token | None] = no_token  # of the timer; None once it fired or its loop was closed
        renew_in_children(self)

    def _renew(self) -> None:
        """Forget the timer in a forked child: its loop is the parent's, and may never be closed there."""
        self._set = no_token

    def call_after(self, engine: Ticked, after: Micros) -> None:
        """Have the running loop call `engine` after so many microseconds, unless a timer is set."""
        if self._set() is None:
            self._start(ref(engine), after)

    def _start(self, engine: ref[Ticked], after: Micros) -> None:
        token = Token()
        self._set = ref(token)
        asyncio.get_running_loop().call_later(spaced(after), self._call, engine, token)

    def _call(self, engine: ref[Ticked], token: Token) -> None:
        alive = engine()
        after = alive.tick() if alive is not None else None
        if after is not None:
            self._start(engine, after)

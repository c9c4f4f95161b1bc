"""Where the memory store keeps its counters: how many, under which locks, and which to forget when there is no room.

**Stripes.** Entries are spread over 256 stripes by hash, each with a lock of its own; whoever needs several takes their
locks in order.

**Generations.** A stripe has two: new and touched entries are in the young one; once that fills half the stripe's
share, or a minute has passed, it becomes the old one. Every newcomer drains a few entries from the old generation:
expired ones are dropped, the others move to the young. So memory is reclaimed a little at a time by those who need it,
and no call ever scans.

**When full**, of the latest newcomer and the few entries drained from the old generation the one is forgotten that has
used the smallest share of its quota, and among equals the youngest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from threading import RLock
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from penstock.clock import Micros

R = TypeVar("R")

STRIPES = 256
DRAINED_PER_NEWCOMER = 4
GENERATION: Micros = 60_000_000

MASK = STRIPES - 1


class Kind(Protocol):
    """What a group of entries has in common: how long they matter, and how much."""

    def expiry(self, state: Any) -> Micros:
        """When `state` stops saying anything."""

    def weight(self, state: Any, now: Micros) -> tuple[float, float]:
        """How much would be lost with `state`; what weighs least is forgotten first."""


class Stripe:
    """A share of the entries, and the lock without which nobody looks at them."""

    __slots__ = ("lock", "number", "old", "turned_at", "young")

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = RLock()
        self.young: dict[str, Any] = {}
        self.old: dict[str, Any] = {}
        self.turned_at: Micros = 0

    def find(self, slot: str) -> Any:
        """The state in `slot`, brought to the young generation; None if there is none."""
        state = self.young.get(slot)
        if state is None and (state := self.old.pop(slot, None)) is not None:
            self.young[slot] = state
        return state

    def write(self, slot: str, state: Any) -> None:
        """Change what was found. Making room for another may have moved it to the old generation since."""
        self.old.pop(slot, None)
        self.young[slot] = state

    def forget(self, slot: str) -> None:
        self.young.pop(slot, None)
        self.old.pop(slot, None)

    def turn(self, now: Micros) -> None:
        """Let the young generation become the old one, which must have been drained."""
        self.old, self.young, self.turned_at = self.young, {}, now


class Stripes:
    """All stripes of a store. A slot's name begins with the name of its kind and a colon."""

    def __init__(self, max_entries: int) -> None:
        self.share = max_entries // STRIPES
        self.all = tuple(Stripe(number) for number in range(STRIPES))
        self.kinds: dict[str, Kind] = {}
        self.lock = RLock()  # for whoever adds a kind; a fork waits for it as for the stripes
        with _fork_lock:  # during a fork nobody makes stripes that it would not know of
            _alive.add(self)

    def count(self) -> int:
        return sum(len(stripe.young) + len(stripe.old) for stripe in self.all)

    def of(self, slot: str) -> Stripe:
        return self.all[hash(slot) & MASK]

    def add(self, stripe: Stripe, slot: str, state: Any, now: Micros, spared: Container[str] = ()) -> None:
        """Keep `state` in a slot that was empty. The stripe must be locked."""
        self.make_room(stripe, now, spared)
        stripe.young[slot] = state

    def make_room(self, stripe: Stripe, now: Micros, spared: Container[str] = ()) -> None:
        """Drain a few old entries; afterwards there is room for one more, and none of `spared` is gone."""
        if not stripe.old and (len(stripe.young) * 2 >= self.share or abs(now - stripe.turned_at) >= GENERATION):
            stripe.turn(now)
        excess = len(stripe.young) + len(stripe.old) + 1 - self.share
        drained = [stripe.young.popitem()] if excess > 0 and stripe.young else []
        while stripe.old and len(drained) < DRAINED_PER_NEWCOMER:
            drained.append(stripe.old.popitem())
        kept = [(slot, state) for slot, state in drained if self._kind(slot).expiry(state) > now]
        excess -= len(drained) - len(kept)
        if excess > 0:
            kept = self._forget(stripe, kept, excess, now, spared)
        stripe.young.update(kept)

    def _forget(
        self, stripe: Stripe, entries: list[tuple[str, Any]], excess: int, now: Micros, spared: Container[str]
    ) -> list[tuple[str, Any]]:
        """`entries` without the `excess` ones that weigh least, looking further if too few of them may go."""
        forgettable = [entry for entry in entries if entry[0] not in spared]
        while len(forgettable) < max(excess, 2) and (stripe.old or stripe.young):
            entry = (stripe.old or stripe.young).popitem()
            entries.append(entry)
            if entry[0] not in spared:
                forgettable.append(entry)
        forgettable.sort(key=lambda entry: self._kind(entry[0]).weight(entry[1], now))
        gone = {slot for slot, _ in forgettable[:excess]}
        return [entry for entry in entries if entry[0] not in gone]

    def _kind(self, slot: str) -> Kind:
        return self.kinds[slot.partition(":")[0]]


_number = attrgetter("number")


def holding(stripes: Sequence[Stripe], work: Callable[[], R]) -> R:
    """What `work` returns, done under the locks of `stripes`, taken in order so that nobody waits for one another.

    Only a with statement on a lock itself is safe from exceptions that come from outside (Ctrl-C) between any two
    steps: a context manager written in Python can be interrupted as it begins to let go.
    """
    return _within(stripes if len(stripes) == 1 else sorted(set(stripes), key=_number), 0, work)


def _within(stripes: Sequence[Stripe], first: int, work: Callable[[], R]) -> R:
    with stripes[first].lock:
        return work() if first + 1 == len(stripes) else _within(stripes, first + 1, work)


# A fork copies locks as they are. The forking thread therefore takes all of them first: nobody else is then half-way
# through a change, and the child, in which only that thread lives on, can let go of them.

_alive: WeakSet[Stripes] = WeakSet()
_fork_lock = RLock()
_held: list[Any] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for stripes in list(_alive):
        for lock in (stripes.lock, *(stripe.lock for stripe in stripes.all)):
            lock.acquire()
            _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

"""Where the memory store keeps its counters: how many, under which locks, and which to forget when there is no room.

**Stripes.** Entries are spread over 256 stripes by hash, each with a lock of its own; whoever needs several takes their
locks in order.

**Generations.** A stripe has two: new and touched entries are in the young one; once that fills half the stripe's
share, or a minute has passed, it becomes the old one. Every newcomer drains a few entries from the old generation:
expired ones are dropped, the others move to the young. So memory is reclaimed a little at a time by those who need it,
and no call ever scans.

**When full**, of the few entries drained for a newcomer the one is forgotten that has used the smallest share of its
quota, and among equals the youngest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from operator import attrgetter
from threading import Lock, RLock
from typing import Any, Protocol
from weakref import WeakSet

from penstock.clock import Micros

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
        _alive.add(self)

    def count(self) -> int:
        return sum(len(stripe.young) + len(stripe.old) for stripe in self.all)

    def of(self, slot: str) -> Stripe:
        return self.all[hash(slot) & MASK]

    def add(self, stripe: Stripe, slot: str, state: Any, now: Micros) -> None:
        """Keep `state` in a slot that was empty. The stripe must be locked."""
        self.make_room(stripe, now)
        stripe.young[slot] = state

    def make_room(self, stripe: Stripe, now: Micros) -> None:
        """Drain a few entries of the old generation; afterwards there is room for one more."""
        if not stripe.old and (len(stripe.young) * 2 >= self.share or abs(now - stripe.turned_at) >= GENERATION):
            stripe.turn(now)
        full = len(stripe.young) + len(stripe.old) >= self.share
        survivors = []
        for _ in range(DRAINED_PER_NEWCOMER):
            if not stripe.old and full:  # choose among more than the last one left
                stripe.turn(now)
            if not stripe.old:
                break
            slot, state = stripe.old.popitem()
            kind = self.kinds[slot.partition(":")[0]]
            if kind.expiry(state) > now:
                survivors.append((slot, state, kind))
            else:
                full = False
        if full:
            survivors.remove(min(survivors, key=lambda survivor: survivor[2].weight(survivor[1], now)))
        for slot, state, _ in survivors:
            stripe.young[slot] = state


_number = attrgetter("number")


class Locked:
    """Holds the locks of several stripes, taken in order so that nobody waits for one another."""

    __slots__ = ("_stripes",)

    def __init__(self, stripes: Sequence[Stripe]) -> None:
        self._stripes = stripes if len(stripes) == 1 else sorted(set(stripes), key=_number)

    def __enter__(self) -> None:
        for stripe in self._stripes:
            stripe.lock.acquire()

    def __exit__(self, *_: object) -> None:
        for stripe in self._stripes:
            stripe.lock.release()


# A fork copies locks as they are. The forking thread therefore takes all of them first: nobody else is then half-way
# through a change, and the child, in which only that thread lives on, can let go of them.

_alive: WeakSet[Stripes] = WeakSet()
_fork_lock = Lock()
_held: list[Stripe] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for stripes in list(_alive):
        for stripe in stripes.all:
            stripe.lock.acquire()
            _held.append(stripe)


def _after_fork() -> None:
    while _held:
        _held.pop().lock.release()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

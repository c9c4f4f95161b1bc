"""Where the memory store keeps its counters: how many, under which locks, and which to forget when there is no room.

**Stripes.** Keys are spread over 256 stripes by hash, each with a lock of its own. A request of several stripes takes
their locks in order. All counters of one key are in one stripe, so most requests take a single lock.

**Shelves.** Within a stripe, entries of one kind stand on a shelf of their own, under the key as the caller wrote it:
finding a counter costs no more than the hash that a text remembers. A kind knows its shelves by the stripe's number.

**Generations.** A shelf has two: new and touched entries are in the young one; once that fills half of what a shelf may
expect of its stripe, or a minute has passed, it becomes the old one. Every newcomer drains a few entries from an old
generation, shelf after shelf: expired ones are dropped, the others move to the young. So memory is reclaimed a little
at a time by the calls that need it, and no call ever scans.

**When full**, of the latest newcomer and the few entries drained from an old generation the one is forgotten that has
used the smallest share of its quota, and among equals the youngest.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from threading import RLock
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

from penstock.clock import Micros

R = TypeVar("R")

STRIPES = 256
DRAINED_PER_NEWCOMER = 4
MOST_LOOKED_AT = 64  # entries to choose from when those drained may not go: the rest waits for the next newcomer
GENERATION: Micros = 60_000_000

MASK = STRIPES - 1

Slot: TypeAlias = Hashable
"""The name of an entry on its shelf: the key of a counter, or the slot of a record."""


class Kind(ABC):
    """A group of entries: how long they matter, how much, and where they are.

    `shelves` has one for every stripe. Where the kind has no entries it is a bare one that all kinds share, which
    serves to look and to lock, and is never written to.
    """

    __slots__ = ("shelves",)

    def __init__(self, stripes: Stripes) -> None:
        self.shelves = [stripe.bare for stripe in stripes.all]

    @abstractmethod
    def expiry(self, state: Any) -> Micros:
        """Return the instant from which `state` means no more than no state."""

    @abstractmethod
    def weight(self, state: Any, now: Micros) -> tuple[float, float]:
        """Return how much would be lost with `state`; what weighs least is forgotten first."""


class Shelf:
    """The entries of one kind in one stripe, and the two sides of the stripe's lock."""

    __slots__ = ("acquire", "is_owned", "old", "release", "turned_at", "young")

    def __init__(self, stripe: Stripe, turned_at: Micros) -> None:
        self.acquire = stripe.lock.acquire
        self.release = stripe.lock.release
        self.is_owned: Callable[[], bool] = stripe.lock._is_owned  # type: ignore[attr-defined]
        self.young: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.turned_at = turned_at

    def find(self, slot: Slot) -> Any:
        """Return the state in `slot`, brought to the young generation; None if there is none."""
        state = self.young.get(slot)
        if state is None and (state := self.old.pop(slot, None)) is not None:
            self.young[slot] = state
        return state

    def latest(self) -> dict[Any, Any]:
        """Return the generation whose last entry is the latest newcomer."""
        return self.young or self.old


class Spared(NamedTuple):
    """What making room should leave alone: the `own` entries of a request always, others in its `slots` if possible."""

    slots: Container[Slot] = ()
    own: Container[tuple[Kind, Slot]] = ()


NOTHING_SPARED = Spared()


class TakenEntry(NamedTuple):
    """An entry that was taken off its shelf, to be put back or forgotten."""

    kind: Kind
    slot: Slot
    state: Any


class Stripe:
    """A share of all entries, and the lock under which alone they are read and written."""

    __slots__ = ("bare", "count", "counted_at", "lock", "newest", "number", "rota", "shelves")

    newest: Kind  # that of the latest newcomer

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = RLock()
        self.shelves: dict[Kind, Shelf] = {}
        self.rota: deque[Kind] = deque()  # whose shelf to drain next comes first
        self.count = 0
        self.counted_at: Micros = 0
        self.bare = Shelf(self, 0)

    def find(self, kind: Kind, slot: Slot) -> Any:
        return kind.shelves[self.number].find(slot)

    def write(self, kind: Kind, slot: Slot, state: Any) -> None:
        """Change what was found. Making room for another may have moved it since, or dropped it as expired."""
        shelf = self.shelf(kind)
        if shelf.old.pop(slot, None) is None and slot not in shelf.young:
            self.count += 1
        shelf.young[slot] = state

    def forget(self, kind: Kind, slot: Slot) -> None:
        shelf = kind.shelves[self.number]
        for generation in (shelf.young, shelf.old):
            if generation.pop(slot, None) is not None:
                self.count -= 1

    def shelf(self, kind: Kind, now: Micros = 0) -> Shelf:
        """Return the shelf for entries of `kind`, put up if there is none."""
        shelf = self.shelves.get(kind)
        if shelf is None:
            shelf = self.shelves[kind] = kind.shelves[self.number] = Shelf(self, now)
            self.rota.append(kind)
        return shelf

    def due(self, now: Micros, enough: int) -> Kind | None:
        """Return a kind with old entries to drain: the first of the rota, or the next; None if neither has any yet."""
        for _ in range(min(len(self.rota), 2)):
            kind = self.rota[0]
            shelf = self.shelves[kind]
            if (
                shelf.young
                and not shelf.old
                and (len(shelf.young) >= enough or abs(now - shelf.turned_at) >= GENERATION)
            ):
                self._turn(shelf, now)
            if shelf.old:
                return kind
            self.rota.rotate(-1)
            if not shelf.young:
                self._take_down(kind)
        return None

    def entries(self) -> list[TakenEntry]:
        """Return everything in this stripe."""
        return [
            TakenEntry(kind, slot, state)
            for kind, shelf in self.shelves.items()
            for generation in (shelf.young, shelf.old)
            for slot, state in generation.items()
        ]

    def taken(self) -> Iterator[TakenEntry]:
        """Take entry after entry, the latest of each shelf first. Shelves that this empties are the next taken down."""
        for kind in self.rota:
            shelf = self.shelves[kind]
            while latest := shelf.latest():
                yield TakenEntry(kind, *latest.popitem())

    def _turn(self, shelf: Shelf, now: Micros) -> None:
        """Let the young generation become the old one, which must have been drained."""
        shelf.old, shelf.young, shelf.turned_at = shelf.young, {}, now
        if abs(now - self.counted_at) >= GENERATION:
            # An exception from outside (Ctrl-C) may have come between an entry and its being counted: count afresh.
            self.counted_at = now
            self.count = sum([len(shelf.young) + len(shelf.old) for shelf in self.shelves.values()])

    def _take_down(self, kind: Kind) -> None:
        """Remove the empty shelf of `kind`, which has just become the last of the rota."""
        kind.shelves[self.number] = self.bare
        del self.shelves[kind]
        self.rota.pop()


class Stripes:
    """All stripes of a store."""

    def __init__(self, max_entries: int) -> None:
        self.share = max_entries // STRIPES
        self.all = tuple(Stripe(number) for number in range(STRIPES))
        self.acquires = [stripe.bare.acquire for stripe in self.all]
        self.releases = [stripe.bare.release for stripe in self.all]
        self.lock = RLock()  # for adding a kind: taken after stripes, never before one
        with _fork_lock:  # no stripes may be made during a fork that does not know of them
            _alive.add(self)

    def count(self) -> int:
        return sum([stripe.count for stripe in self.all])

    def of(self, slot: Slot) -> Stripe:
        return self.all[hash(slot) & MASK]

    def holding(self, slots: Iterable[Slot], work: Callable[[], R]) -> R:
        """Return what `work` returns, done under the locks of the stripes of `slots`, taken in order."""
        order = sorted([hash(slot) & MASK for slot in slots])
        try:
            for number in order:
                self.acquires[number]()
            result = work()
            for number in order:
                self.releases[number]()
        except BaseException:
            self.let_go(order)
            raise
        return result

    def let_go(self, order: Sequence[int]) -> None:
        """Release what is still locked of the stripes of a call that an exception ended."""
        for number in order:
            if self.all[number].bare.is_owned():
                self.releases[number]()

    def add(
        self, stripe: Stripe, kind: Kind, slot: Slot, state: Any, now: Micros, spared: Spared = NOTHING_SPARED
    ) -> None:
        """Keep `state` in a slot that was empty. The stripe must be locked."""
        self.make_room(stripe, kind, now, spared)
        stripe.shelf(kind, now).young[slot] = state
        stripe.count += 1

    def make_room(self, stripe: Stripe, kind: Kind, now: Micros, spared: Spared = NOTHING_SPARED) -> None:
        """Drain a few old entries, and forget one if there is no room for one more of `kind`."""
        due = stripe.due(now, max(self.share // (2 * len(stripe.shelves) or 1), 2 * DRAINED_PER_NEWCOMER))
        if due is None and stripe.count < self.share:  # the usual case
            stripe.newest = kind
            return
        drained: list[TakenEntry] = []
        if stripe.count >= self.share and (latest := stripe.newest.shelves[stripe.number].latest()):
            drained.append(TakenEntry(stripe.newest, *latest.popitem()))
        if due is not None:
            shelf = stripe.shelves[due]
            while shelf.old and len(drained) < DRAINED_PER_NEWCOMER:
                drained.append(TakenEntry(due, *shelf.old.popitem()))
            if not shelf.old:  # done with for this round: now the others' turn
                stripe.rota.rotate(-1)
        kept = [entry for entry in drained if entry.kind.expiry(entry.state) > now]
        stripe.count -= len(drained) - len(kept)
        excess = stripe.count + 1 - self.share
        if excess > 0:
            kept = self._forget(stripe, kept, excess, now, spared)
        for owner, slot, state in kept:
            stripe.shelf(owner, now).young[slot] = state
        stripe.newest = kind

    def _forget(
        self, stripe: Stripe, entries: list[TakenEntry], excess: int, now: Micros, spared: Spared
    ) -> list[TakenEntry]:
        """Return `entries` without the `excess` ones that weigh least, looking a little further if too few may go."""
        slots, own = spared
        forgettable = [entry for entry in entries if (entry.kind, entry.slot) not in own]
        others = sum([entry.slot not in slots for entry in forgettable])
        further = stripe.taken()
        while others < max(excess, 2) and len(entries) < MOST_LOOKED_AT and (entry := next(further, None)):
            entries.append(entry)
            if (entry.kind, entry.slot) not in own:
                forgettable.append(entry)
                others += entry.slot not in slots
        forgettable.sort(key=lambda entry: (entry.slot in slots, entry.kind.weight(entry.state, now)))
        gone = {id(entry) for entry in forgettable[:excess]}
        stripe.count -= len(gone)
        return [entry for entry in entries if id(entry) not in gone]


# A fork copies locks as they are. The forking thread therefore takes all of them first: no other thread is then in the
# middle of a change, and the child, in which only that thread lives on, can let go of them.

_alive: WeakSet[Stripes] = WeakSet()
_fork_lock = RLock()
_held: list[Any] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for stripes in list(_alive):
        for lock in (*(stripe.lock for stripe in stripes.all), stripes.lock):  # in the order that requests follow
            lock.acquire()
            _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

"""A request of several keys, decided without the making of operations and batches: a short way of the memory store.

It is taken where every counter is already known and young, which is what busy counters are. Whatever else comes is left
to the store's ordinary way, under the same locks. Locks are taken in the order of their stripes, as everybody does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from penstock.algorithms.base import Decide, State
from penstock.clock import Micros
from penstock.engine.protocols import V
from penstock.model import Decision, Key, Posed
from penstock.quota import MIN_INTERVAL, Quota
from penstock.stores.memory.counters import MAX_BOUND, Family
from penstock.stores.memory.stripes import MASK, Shelf, Stripes

_Prepared: TypeAlias = tuple[list[Shelf], Decide, Decide, int]
"""The shelves of a quota's counters; its `decide` and its `peek`; its capacity, 0 for an interval."""

_Kept: TypeAlias = tuple[dict[Key, State], Key, State, State]
"""Where a counter is, its key, its state before and after."""


class DecideAll(Protocol):
    """Decides a request of any keys at an instant, all asks or none; the verdict is made as one of `kind`."""

    def __call__(self, asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V: ...


def bind_together(stripes: Stripes, family_of: Callable[[Quota], Family], ordinary: DecideAll) -> DecideAll:
    """The function that decides requests; `ordinary` is the way for those that are not short."""
    acquires = [stripe.lock.acquire for stripe in stripes.all]
    releases = [stripe.lock.release for stripe in stripes.all]
    owned = [stripe.bare.is_owned for stripe in stripes.all]
    prepared: dict[Quota, _Prepared] = {}

    def prepare(quota: Quota) -> _Prepared:
        if len(prepared) >= MAX_BOUND:
            prepared.clear()
        family = family_of(quota)
        bound = family.bind(quota)
        capacity = 0 if quota.algorithm == MIN_INTERVAL else quota.capacity
        ready = prepared[quota] = family.shelves, bound.decide, bound.peek, capacity
        return ready

    def ask_all(asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V:
        if len(asks) == 1 and not asks[0][3]:
            return ask_lone(asks, now, kind)
        numbers = [hash(ask[0]) & MASK for ask in asks]
        order = sorted(numbers)
        # As in the way of a lone ask: an RLock knows its owner, so whatever exception comes from outside (Ctrl-C)
        # between any two steps, nothing stays locked. Two counters of one stripe lock it twice.
        try:
            for number in order:
                acquires[number]()
            verdict = decide_all(asks, numbers, now, kind)
            for number in order:
                releases[number]()
        except BaseException:
            for number in order:
                if owned[number]():
                    releases[number]()
            raise
        return ordinary(asks, now, kind) if verdict is None else verdict

    def ask_lone(asks: tuple[Posed, ...], now: Micros, kind: type[V]) -> V:
        """The same for most requests there are: one ask, and not advisory. It has nothing to choose or to take back."""
        ((key, quota, cost, _),) = asks
        try:
            shelves, decide, _, _ = prepared[quota]
        except KeyError:
            shelves, decide, _, _ = prepare(quota)
        number = hash(key) & MASK
        verdict = None
        try:
            acquires[number]()
            young = shelves[number].young
            if key in young:
                state = young[key]
                answer, after = decide(state, cost, now)
                if after is state:
                    verdict = kind((answer, now, key, quota, cost, ()))
                elif answer[0]:  # else something would be pulled back, which wants a closer look
                    verdict = kind((answer, now, key, quota, cost, ()))
                    young[key] = after
            releases[number]()
        except BaseException:
            if owned[number]():
                releases[number]()
            raise
        return ordinary(asks, now, kind) if verdict is None else verdict

    def decide_all(asks: tuple[Posed, ...], numbers: list[int], now: Micros, kind: type[V]) -> V | None:
        """The verdict, written down; None, and nothing written, if a counter is not there, or would be pulled back."""
        decisions = []
        kept = []
        tightest, least, plain = None, 2.0, True
        for (key, quota, cost, advisory), number in zip(asks, numbers):  # noqa: B905  # twice as fast without a keyword
            try:
                shelves, decide, _, capacity = prepared[quota]
            except KeyError:
                shelves, decide, _, capacity = prepare(quota)
            young = shelves[number].young
            try:
                state = young[key]
            except KeyError:
                return None
            answer, after = decide(state, cost, now)
            allowed, remaining, _, _, _, delay, _ = answer
            if not allowed and after is not state:
                return None
            decision = Decision((answer, now, key, quota, cost, advisory))
            decisions.append(decision)
            kept.append((young, key, state, after))
            if advisory or not allowed or delay:
                plain = False
            elif (share := remaining / capacity if capacity else 1.5) < least:  # which is the tightest: see Verdict.of
                tightest, least = decision, share
        if not plain or tightest is None:
            return kind.of(settled(decisions, kept, now))
        for young, key, _, after in kept:
            young[key] = after
        answer, _, key, quota, cost, _ = tightest
        return kind((answer, now, key, quota, cost, tuple(decisions) if len(decisions) > 1 else ()))

    def settled(decisions: list[Decision], kept: list[_Kept], now: Micros) -> tuple[Decision, ...]:
        """The decisions on a request some of whose asks may refuse, written down as far as they stand."""
        passes = all([decision[0][0] or decision[5] for decision in decisions])  # noqa: C419
        for position, (young, key, state, after) in enumerate(kept):
            if passes or not decisions[position][0][0]:
                if after is not state:
                    young[key] = after
            else:  # it would have passed, but the request does not: nothing is charged
                _, _, _, quota, cost, advisory = decisions[position]
                _, _, peek, _ = prepared.get(quota) or prepare(quota)
                answer, _ = peek(state, cost, now)
                decisions[position] = Decision((answer, now, key, quota, cost, advisory))
        return tuple(decisions)

    return ask_all

"""The two bodies that decide in memory: one for a single counter, one for several.

Callers read the clock before they have the lock, and may be held up in between. A counter that others have used since
then looks as if the clock had been stepped back, so before anything is pulled back the clock is read once more.

**Locks.** An RLock knows its owner, so an exception from outside (Ctrl-C) between any two steps leaves nothing locked,
and is not masked by a release of what was never taken. That costs half of a with statement; see `python -m bench
locks`. Several locks are taken in the order of their stripes. Two counters of one stripe lock it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, Protocol, TypeAlias

from penstock.algorithms.base import State
from penstock.clock import Clock, Micros
from penstock.engine.protocols import Local, V
from penstock.model import Decision, Grant, Key, Posed, Verdict, check_cost, check_key, check_units
from penstock.quota import Quota
from penstock.stores.memory.counters import MAX_BOUND, CounterKind, Counters
from penstock.stores.memory.stripes import MASK, Spared, Stripes

ONE = 1

_Found: TypeAlias = tuple[dict[Key, State], Key, State, State]
"""A counter of a request: its generation, its key, its state before and after."""


class One(Protocol):
    """Decides on the counter of a key. Unless it was `checked`, the cost is as users write it."""

    def __call__(
        self, key: Key, cost: int, now: Micros, kind: type[Any] = Verdict, checked: bool = False, /
    ) -> Any: ...


class Ledger:
    """Decides requests and writes down what they are charged."""

    def __init__(self, stripes: Stripes, counters: Counters, clock: Clock) -> None:
        self._stripes, self._counters, self._time_ns = stripes, counters, clock.time_ns
        self._ones: dict[Quota, One] = {}

    def decide(self, asks: Sequence[Posed], now: Micros, kind: type[V]) -> V:
        """Decide a request at an instant, all asks or none."""
        if len(asks) == 1:
            ((key, quota, cost, advisory),) = asks
            if not advisory:
                one = self._ones.get(quota) or self.one(quota)
                return one(key, cost, now, kind, True)  # type: ignore[no-any-return]
        return self._several(asks, sorted([hash(ask[0]) & MASK for ask in asks]), now, kind)

    def one(self, quota: Quota) -> One:
        """Return the body for one counter of `quota`: all that does not depend on key, cost and now is done once."""
        shelves, decide, _, _, counter_kind = self._counters.of(quota)
        newcomer, time_ns = self._newcomer, self._time_ns

        def one(key: Key, cost: int, now: Micros, kind: type[Any] = Verdict, checked: bool = False) -> Any:
            if cost is not ONE and not checked:  # 1 always fits; anything else is looked at, True and 1.0 included
                cost = charged(quota, cost)
            try:
                shelf = shelves[hash(key) & MASK]
            except TypeError:  # no key at all, or something unhashable within one
                shelf = shelves[hash(check_key(key)) & MASK]
            acquire, release = shelf.acquire, shelf.release  # not called as methods, the slow way to find a slot
            try:
                acquire()
                young = shelf.young
                try:
                    state = young[key]
                except KeyError:
                    if check_key(key) is not key:  # ("a",) is the same as "a"
                        release()
                        return one(key[0], cost, now, kind, checked)
                    state, young = newcomer(counter_kind, key, now)
                answer, after = decide(state, cost, now)
                if after is not state:
                    if not answer[0]:  # the clock was stepped back; or it was read too long ago
                        now = time_ns() // 1_000
                        answer, after = decide(state, cost, now)
                    young[key] = after
                elif state is None:  # it is not kept
                    self._stripes.of(key).count -= 1
                release()
            except BaseException:
                if shelf.is_owned():
                    release()
                raise
            return kind((answer, now, key, quota, cost, ()))

        if len(self._ones) >= MAX_BOUND:
            self._ones.clear()
        self._ones[quota] = one
        return one

    def _newcomer(self, kind: CounterKind, key: Key, now: Micros) -> tuple[State, dict[Key, State]]:
        """Return the state of a counter that is not in the young generation, and the generation to keep it in.

        Without a state, room is made, and the counter counts as kept.
        """
        stripe = self._stripes.of(key)
        state = stripe.find(kind, key)
        if state is None:
            self._stripes.make_room(stripe, kind, now, Spared((key,)))
            stripe.count += 1
        return state, stripe.shelf(kind, now).young

    def together(self, quotas: tuple[Quota, ...]) -> Local:
        """Return what decides on several counters of one key, which are all in one stripe."""
        several, ones, enforced = self._several, (1,) * len(quotas), (False,) * len(quotas)

        def local(key: Key, cost: int, now: Micros) -> Verdict:
            key = check_key(key)
            costs = ones if cost is ONE else [charged(quota, cost) for quota in quotas]
            asks = list(zip(repeat(key), quotas, costs, enforced))  # twice as fast without a keyword
            return several(asks, (hash(key) & MASK,), now, Verdict)

        return local

    def _several(self, asks: Sequence[Posed], order: Sequence[int], now: Micros, kind: type[V]) -> V:
        """Decide on several counters, whose stripes are `order`."""
        acquires, releases, prepared = self._stripes.acquires, self._stripes.releases, self._counters.prepared
        decisions: list[Decision] = []
        found: list[_Found] = []
        tightest, least = None, 2.0
        plain = passes = known = True
        stale = False
        try:
            for number in order:
                acquires[number]()
            for key, quota, cost, advisory in asks:
                try:
                    shelves, decide, share_of, _, _ = prepared[quota]
                except KeyError:
                    shelves, decide, share_of, _, _ = self._counters.of(quota)
                shelf = shelves[hash(key) & MASK]
                young = shelf.young
                try:
                    state = young[key]
                except KeyError:
                    state = shelf.find(key)
                    known = known and state is not None
                answer, after = decide(state, cost, now)
                allowed, remaining, _, _, _, delay, _ = answer
                decision = Decision((answer, now, key, quota, cost, advisory))
                decisions.append(decision)
                found.append((young, key, state, after))
                if advisory or not allowed or delay:
                    plain = False
                    if not allowed:
                        passes = passes and advisory
                        stale = stale or after is not state  # the clock was stepped back; or it was read too long ago
                elif (share := remaining / share_of if share_of else 1.5) < least:  # the tightest: see Verdict.of
                    tightest, least = decision, share
            if plain and tightest is not None:
                answer, _, key, quota, cost, _ = tightest
                verdict = kind((answer, now, key, quota, cost, tuple(decisions)))
            else:
                if stale:
                    now = self._time_ns() // 1_000
                    passes = self._decide_again(decisions, found, now)
                if not passes:
                    self._take_back(decisions, found, now)
                verdict = kind.of(tuple(decisions))
            if known:
                for young, key, _, after in found:
                    young[key] = after
            else:
                self._keep(decisions, found, now)
            for number in order:
                releases[number]()
        except BaseException:
            self._stripes.let_go(order)
            raise
        return verdict

    def _decide_again(self, decisions: list[Decision], found: list[_Found], now: Micros) -> bool:
        """Decide on all asks of a request at another instant; return whether it passes."""
        passes = True
        for position, (young, key, state, _) in enumerate(found):
            _, _, _, quota, cost, advisory = decisions[position]
            answer, after = self._counters.of(quota).decide(state, cost, now)
            decisions[position] = Decision((answer, now, key, quota, cost, advisory))
            found[position] = young, key, state, after
            passes = passes and (answer[0] or advisory)
        return passes

    def _take_back(self, decisions: list[Decision], found: list[_Found], now: Micros) -> None:
        """Charge nothing for the asks that would have passed, because the request does not."""
        for position, (young, key, state, _) in enumerate(found):
            answer, _, _, quota, cost, advisory = decisions[position]
            if answer[0]:
                answer, _ = self._counters.of(quota).bound.peek(state, cost, now)
                decisions[position] = Decision((answer, now, key, quota, cost, advisory))
                found[position] = young, key, state, state

    def _keep(self, decisions: list[Decision], found: list[_Found], now: Micros) -> None:
        """Write down what became of counters, some of which are new. Making room for those may move all others."""
        for young, key, state, after in found:
            if state is not None:
                young[key] = after
        kinds = [self._counters.of(decision[3]).kind for decision in decisions]
        keys = [key for _, key, _, _ in found]
        spared = Spared(keys, set(zip(kinds, keys, strict=True)))  # making room for one must not cost another
        for kind, (_, key, state, after) in zip(kinds, found, strict=True):
            if state is None and after is not None:
                self._stripes.add(self._stripes.of(key), kind, key, after, now, spared)

    def peek(self, asks: Sequence[Posed], now: Micros) -> Verdict:
        """Return what `decide` would answer, charging nothing."""

        def peek() -> Verdict:
            decisions = []
            for key, quota, cost, advisory in asks:
                shelves, _, _, bound, _ = self._counters.of(quota)
                answer, _ = bound.peek(shelves[hash(key) & MASK].find(key), cost, now)
                decisions.append(Decision((answer, now, key, quota, cost, advisory)))
            return Verdict.of(tuple(decisions))

        return self._stripes.holding([ask[0] for ask in asks], peek)

    def grant(self, op: Grant, now: Micros) -> Verdict:
        """Decide on the largest cost that fits: the lock is held from the look to the charge."""
        key, quota, *_ = op

        def grant() -> Verdict:
            shelves, _, _, bound, _ = self._counters.of(quota)
            (_, remaining, *_), _ = bound.peek(shelves[hash(key) & MASK].find(key), 0, now)
            return self.decide(((key, quota, op.cost(remaining), False),), now, Verdict)

        return self._stripes.holding((key,), grant)


def charged(quota: Quota, cost: int) -> int:
    """Return what a request that costs `cost` charges to a counter of `quota`."""
    return check_units("cost", cost, least=1) and 1 if quota.flat else check_cost(cost, quota)

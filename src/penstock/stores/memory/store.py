"""The memory store: counters of one process, exact across threads, bounded in number.

A lock is held for about a microsecond, so asyncio callers share the store without harm. `max_keys` bounds the number
of counters. When there is no room a newcomer still gets in, and the counter that has used the smallest share of its
quota makes way: a flood of new keys displaces itself, while who sits at the limit stays remembered, unless it drives
most of a stripe's other keys to their limits as well. A forgotten counter regains at most one budget. See `stripes`
for how.

Callers read the clock before they have the lock, and may be held up in between. A counter that others have used since
then looks as if the clock had been stepped back, so before anything is pulled back the clock is read once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from penstock.algorithms.base import State
from penstock.clock import Clock, Micros, SystemClock
from penstock.engine.fail_modes import left_alone
from penstock.engine.options import at_least
from penstock.engine.protocols import BoundQuota, DirectOnce, Done, Gone, Local, V
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Answer,
    Ask,
    Decision,
    Grant,
    Key,
    Op,
    Outcome,
    Posed,
    Reset,
    Verdict,
    check_cost,
    check_key,
    check_units,
    new,
    own_mark,
)
from penstock.quota import Identity, Quota
from penstock.stores.memory.amends import Amends
from penstock.stores.memory.counters import MAX_BOUND, Counter, Family
from penstock.stores.memory.decide import DecideAll, bind_together
from penstock.stores.memory.stripes import MASK, STRIPES, Stripes, holding

DEFAULT_MAX_KEYS = 1_000_000
LEAST_MAX_KEYS = 16 * STRIPES

_ONE = 1


class MemoryStore:
    """Counters in this process.

    - `max_keys`: how many counters to remember at most; at least 4,096.
    - `clock`: where the time comes from.
    """

    def __init__(self, *, max_keys: int = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._stripes = Stripes(check_max_keys(max_keys))
        self._amends = Amends(self._stripes)
        self._families: dict[Identity, Family] = {}
        self._bound: dict[tuple[Quota, ...], BoundQuota] = {}
        self._lock = self._stripes.lock  # protects the making of families
        self.decide: DecideAll = bind_together(self._stripes, self._family, self._ask_all)

    @property
    def counters(self) -> int:
        """How many counters are remembered, and records of requests with an id."""
        return self._stripes.count()

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        now = self.clock.time_ns() // 1_000
        return [self._run(op, now) for op in ops]

    def close(self) -> None:
        """Nothing to give back."""

    def bind(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        bound = self._bound.get(quotas)
        if bound is None:
            if len(self._bound) >= MAX_BOUND:
                self._bound.clear()
            bound = self._bound[quotas] = self._prepared(quotas)
        return bound

    def _prepared(self, quotas: tuple[Quota, ...]) -> BoundQuota:
        if len(quotas) > 1:
            return BoundQuota(quotas, self._bind_all(quotas))
        (quota,) = quotas
        amends = self._amends.bind(self._family(quota), quota)
        return BoundQuota(quotas, self._bind_one(quota), self._bind_once(quota), amends)

    def _bind_one(self, quota: Quota) -> Local:
        """The hot path: everything that does not depend on key, cost and now is done here, once."""
        family = self._family(quota)
        shelves, decide = family.shelves, family.bind(quota).decide
        newcomer, time_ns = partial(self._newcomer, family), self.clock.time_ns

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            if cost is not _ONE:  # 1 always fits; anything else is looked at, True and 1.0 included
                cost = _charged(quota, cost)
            try:
                shelf = shelves[hash(key) & MASK]
            except TypeError:  # no key at all, or something unhashable within one
                shelf = shelves[hash(check_key(key)) & MASK]
            acquire, release = shelf.acquire, shelf.release  # not called as methods, the slow way to find a slot
            # An RLock knows its owner, so an exception from outside (Ctrl-C) between any two steps leaves nothing
            # locked, and is not masked by a release of what was never taken. That costs half of a with statement; see
            # `python -m bench locks`.
            try:
                acquire()
                young = shelf.young
                try:
                    state = young[key]
                except KeyError:
                    if check_key(key) is not key:  # ("a",) is the same as "a"
                        release()
                        return ask(key[0], cost, now)
                    state, young = newcomer(key, now)
                answer, after = decide(state, cost, now)
                if after is not state:
                    if not answer[0]:  # the clock was stepped back; or it was read too long ago
                        now = time_ns() // 1_000
                        answer, after = decide(state, cost, now)
                    young[key] = after
                release()
            except BaseException:
                if shelf.is_owned():
                    release()
                raise
            return Verdict((answer, now, key, quota, cost, ()))

        return ask

    def _bind_once(self, quota: Quota) -> DirectOnce:
        """As above for a request with an id, which leaves a record, or finds one."""
        family = self._family(quota)
        bound, shelves, stripes, amends = family.bind(quota), family.shelves, self._stripes.all, self._amends
        decide, holds_places, time_ns = bound.decide, bound.renew is not None, self.clock.time_ns

        def once(key: Key, cost: int, request_id: bytes, now: Micros) -> Verdict:
            key = check_key(key)
            cost = _charged(quota, cost)
            stripe = stripes[hash(key) & MASK]
            counter = new(Counter, (bound, family, stripe, key))
            slot = f"{request_id.hex()}:{counter}"
            home = amends.home(slot)
            first, second = (stripe, home) if stripe.number < home.number else (home, stripe)
            with first.lock, second.lock:
                verdict = amends.recall(home, slot, now)
                if verdict is not None and (not holds_places or _still_held(verdict, (counter,), now)):
                    return verdict
                young = shelves[stripe.number].young
                state = young.get(key)
                if state is None:
                    state, young = self._newcomer(family, key, now)
                answer, after = decide(state, cost, now)
                if after is not state:
                    if not answer[0]:
                        now = time_ns() // 1_000
                        answer, after = decide(state, cost, now)
                    young[key] = after
                name = amends.next_name(slot)
                verdict = Verdict((answer, now, key, quota, cost, (), name))
                if answer[0]:
                    amends.remember(home, name, verdict, now)
            return verdict

        return once

    def _newcomer(self, family: Family, key: Key, now: Micros) -> tuple[State, dict[Key, State]]:
        """The state of a counter that is not in the young generation, and the one where it is now to be kept.

        If nobody has it, room is made, and it counts as kept; the caller will do so, as the first ask is never refused.
        """
        stripe = self._stripes.of(key)
        state = stripe.find(family, key)
        if state is None:
            self._stripes.make_room(stripe, family, now, (key,))
            stripe.count += 1
        return state, stripe.shelf(family, now).young

    def _bind_all(self, quotas: tuple[Quota, ...]) -> Local:
        """As above for several quotas: all counters of one key are in one stripe."""
        families = [(quota, self._family(quota), self._family(quota).bind(quota)) for quota in quotas]
        stripes, decide = self._stripes.all, self._decide

        def ask(key: Key, cost: int, now: Micros) -> Verdict:
            key = check_key(key)
            stripe = stripes[hash(key) & MASK]
            posed = [
                (
                    new(Ask, (key, quota, 1 if cost is _ONE else _charged(quota, cost), False)),
                    new(Counter, (bound, family, stripe, key)),
                )
                for quota, family, bound in families
            ]
            with stripe.lock:
                return Verdict.of(decide(posed, now))

        return ask

    def _run(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            return self._acquire(op, now)
        if isinstance(op, Grant):
            return self._grant(op, now)
        if isinstance(op, Amend):
            if op.receipt.source == "open":  # admitted without a store, so nothing was charged
                return left_alone(op)
            return self._amends.run(op, [self._counter(charge.key, charge.quota) for charge in op.receipt.charges], now)
        return self._reset(op)

    def _acquire(self, op: Acquire, now: Micros) -> Verdict:
        asks, dry, request_id, _ = op
        if request_id is None and not dry:
            return self._ask_all(asks, now)
        posed = [(ask, self._counter(ask.key, ask.quota)) for ask in asks]
        if request_id is not None:
            return self._acquire_once([counter for _, counter in posed], lambda: posed, request_id, now)
        stripes = [counter.stripe for _, counter in posed]
        return holding(stripes, lambda: Verdict.of(tuple([_peek(ask, counter, now) for ask, counter in posed])))

    def _ask_all(self, asks: tuple[Posed, ...], now: Micros, kind: type[V] = Verdict) -> V:  # type: ignore[assignment]
        posed = [(new(Ask, ask), self._counter(ask[0], ask[1])) for ask in asks]
        return holding([counter.stripe for _, counter in posed], lambda: kind.of(self._decide(posed, now)))

    def _acquire_once(
        self,
        counters: Sequence[Counter],
        posed: Callable[[], Sequence[tuple[Ask, Counter]]],
        request_id: bytes,
        now: Micros,
    ) -> Verdict:
        """Decide on a request with an id, unless it was admitted before: then answer as then."""
        amends = self._amends
        slot = f"{request_id.hex()}:{''.join(map(str, counters))}"
        home = amends.home(slot)

        def once() -> Verdict:
            verdict = amends.recall(home, slot, now)
            if verdict is not None and _still_held(verdict, counters, now):
                return verdict
            name = amends.next_name(slot)
            verdict = Verdict.of(self._decide(posed(), now), name)
            if verdict.allowed:
                amends.remember(home, name, verdict, now)
            return verdict

        return holding([home, *(counter.stripe for counter in counters)], once)

    def _grant(self, op: Grant, now: Micros) -> Verdict:
        """Decide on the largest cost that fits, under the locks of the request."""
        counter = self._counter(op.key, op.quota)

        def posed() -> list[tuple[Ask, Counter]]:
            answer, _ = counter.bound.peek(counter.find(), 0, now)
            return [(Ask(op.key, op.quota, op.cost(answer[1])), counter)]

        if op.id is not None:
            return self._acquire_once([counter], posed, op.id, now)
        return holding([counter.stripe], lambda: Verdict.of(self._decide(posed(), now)))

    def _decide(self, posed: Sequence[tuple[Ask, Counter]], now: Micros) -> tuple[Decision, ...]:
        """Decide on all asks, then write all. The stripes of all counters must be locked."""
        steps, passes, pulled_back = _steps(posed, now)
        if pulled_back:
            now = self.clock.time_ns() // 1_000
            steps, passes, _ = _steps(posed, now)
        decisions = []
        for ask, counter, answer, state, after in steps:
            if answer[0] and not passes:  # it would have passed, but the request does not: nothing is charged
                decisions.append(_peek(ask, counter, now))
                continue
            key, quota, cost, advisory = ask
            decisions.append(Decision((answer, now, key, quota, cost, advisory)))
            if after is not state:
                if state is None:
                    spared = [counter.key for _, counter in posed]  # making room for one must not cost another
                    self._stripes.add(counter.stripe, counter.family, key, after, now, spared)
                else:
                    counter.write(after)
        return tuple(decisions)

    def _reset(self, op: Reset) -> Amended:
        _, family, stripe, key = self._counter(op.key, op.quota)
        with stripe.lock:
            stripe.forget(family, key)
        return Amended()

    def _counter(self, key: Key, quota: Quota) -> Counter:
        family = self._family(quota)
        return Counter(family.bind(quota), family, self._stripes.of(key), key)

    def _family(self, quota: Quota) -> Family:
        family = self._families.get(quota.identity)
        if family is None:
            with self._lock:
                family = self._families.get(quota.identity)
                if family is None:
                    family = self._families[quota.identity] = Family(self._stripes, len(self._families), quota)
        return family


def check_max_keys(max_keys: int) -> int:
    return at_least(LEAST_MAX_KEYS, "max_keys", max_keys)


_Step: TypeAlias = tuple[Ask, Counter, Answer, State, State]


def _steps(posed: Sequence[tuple[Ask, Counter]], now: Micros) -> tuple[list[_Step], bool, bool]:
    """What becomes of each ask and its state, by itself; whether the request passes; whether a refusal changes one."""
    steps: list[_Step] = []
    passes, changes = True, False
    for ask, counter in posed:
        bound, family, stripe, key = counter
        state = stripe.find(family, key)
        answer, after = bound.decide(state, ask[2], now)
        steps.append((ask, counter, answer, state, after))
        if not answer[0]:
            passes = passes and ask[3]
            changes = changes or after is not state
    return steps, passes, changes


def _charged(quota: Quota, cost: int) -> int:
    """What a request that costs `cost` charges to a counter of `quota`."""
    return check_units("cost", cost, least=1) and 1 if quota.flat else check_cost(cost, quota)


def _peek(ask: Ask, counter: Counter, now: Micros) -> Decision:
    answer, _ = counter.bound.peek(counter.find(), ask.cost, now)
    return Decision((answer, now, *ask))


def _still_held(verdict: Verdict, counters: Sequence[Counter], now: Micros) -> bool:
    """Whether the places that came with a verdict are, so that it may be given again."""
    for decision, counter in zip(verdict.decisions, counters, strict=True):
        renew = counter.bound.renew
        if renew is not None and decision.mark != NOT_CHARGED:
            state = counter.find()
            if state is None or renew(state, own_mark(decision.mark), now) is None:
                return False
    return True


class AsyncMemoryStore:
    """A memory store for asyncio: the same counters, which never make anyone wait."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.clock = store.clock
        self.bind = store.bind
        self.decide = store.decide

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self._store.run(ops, deadline)

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        done(self._store.run(ops, deadline))

    async def close(self) -> None:
        self._store.close()

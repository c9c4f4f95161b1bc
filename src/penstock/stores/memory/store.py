"""The memory store: counters of one process, exact across threads, bounded in number.

A lock is held for about a microsecond, so asyncio callers share the store without harm. `max_keys` bounds the number
of counters. When there is no room a newcomer still gets in, and the counter that has used the smallest share of its
quota makes way: a flood of new keys displaces itself, while a key at its limit stays remembered, unless the flood
drives most of a stripe's other keys to their limits as well. A forgotten counter regains at most one budget. See
`stripes` for how.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock, Micros, SystemClock
from penstock.engine.fail_modes import left_alone
from penstock.engine.options import at_least
from penstock.engine.protocols import BoundQuota
from penstock.model import Acquire, Amend, Amended, Grant, Key, Op, Outcome, Verdict, check_key
from penstock.quota import Quota
from penstock.stores.memory.amends import Amends
from penstock.stores.memory.counters import MAX_BOUND, Counters
from penstock.stores.memory.decide import ONE, Ledger, charged
from penstock.stores.memory.records import Records
from penstock.stores.memory.stripes import STRIPES, Stripes

DEFAULT_MAX_KEYS = 1_000_000
LEAST_MAX_KEYS = 16 * STRIPES


class MemoryStore:
    """Counters in this process.

    - `max_keys`: how many counters to remember at most; at least 4,096.
    - `clock`: where the time comes from.
    """

    def __init__(self, *, max_keys: int = DEFAULT_MAX_KEYS, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._stripes = Stripes(check_max_keys(max_keys))
        self._counters = Counters(self._stripes)
        self._ledger = Ledger(self._stripes, self._counters, self.clock)
        self._records = Records(self._stripes, self._counters)
        self._amends = Amends(self._stripes, self._records)
        self._bound: dict[tuple[Quota, ...], BoundQuota] = {}
        self.decide = self._ledger.decide

    @property
    def counters(self) -> int:
        """Return how many counters and records of requests with an id are kept."""
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
        recorded, decide = self._records.once, self.decide

        def once(key: Key, cost: int, request_id: bytes, now: Micros) -> Verdict:
            key = check_key(key)
            asks = [(key, quota, 1 if cost is ONE else charged(quota, cost), False) for quota in quotas]
            return recorded(asks, request_id, now, decide)

        if len(quotas) > 1:
            return BoundQuota(quotas, self._ledger.together(quotas), once)
        (quota,) = quotas
        amends = self._amends.bind(self._counters.of(quota), quota)
        return BoundQuota(quotas, self._ledger.one(quota), once, amends)

    def _run(self, op: Op, now: Micros) -> Outcome:
        if isinstance(op, Acquire):
            if op.id is not None:
                return self._records.once(op.asks, op.id, now, self.decide)
            return self._ledger.peek(op.asks, now) if op.dry else self.decide(op.asks, now, Verdict)
        if isinstance(op, Grant):
            return self._grant(op, now)
        if isinstance(op, Amend):
            if op.receipt.source == "open":  # admitted without a store, so nothing was charged
                return left_alone(op)
            counters = [self._counters.at(charge.key, charge.quota) for charge in op.receipt.charges]
            return self._amends.run(op, counters, now)
        counter = self._counters.at(op.key, op.quota)
        with counter.stripe.lock:
            counter.write(None)
        return Amended()

    def _grant(self, op: Grant, now: Micros) -> Verdict:
        if op.id is None:
            return self._ledger.grant(op, now)
        asks = ((op.key, op.quota, op.least, False),)
        return self._records.once(asks, op.id, now, lambda *_: self._ledger.grant(op, now))


def check_max_keys(max_keys: int) -> int:
    return at_least(LEAST_MAX_KEYS, "max_keys", max_keys)


class AsyncMemoryStore:
    """A memory store for asyncio: the same counters, which never wait."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.clock = store.clock
        self.bind = store.bind
        self.decide = store.decide

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self._store.run(ops, deadline)

    async def close(self) -> None:
        self._store.close()

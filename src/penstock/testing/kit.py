"""What the conformance tests stand on: a store and a clock made anew for each test, and short words to use them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.clock import SECOND, ManualClock
from penstock.engine.protocols import Store
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    AmendVerb,
    Ask,
    Charge,
    Grant,
    Key,
    Op,
    Outcome,
    Receipt,
    Reset,
    Verdict,
)
from penstock.quota import RATES, Quota
from penstock.testing.agreement import SideBySide

for_every_algorithm = pytest.mark.parametrize("algorithm", RATES)
for_every_bucket = pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
for_every_window = pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "rolling_window"])
for_everything_countable = pytest.mark.parametrize(
    "quota", [*(f"10/10 seconds {algorithm}" for algorithm in RATES), "10/10 seconds queue 9", "10/day calendar UTC"]
)


class Kit:
    """`store` is the store under test. What goes through `both` is compared with the oracle, field by field."""

    clock: ManualClock
    store: Store
    both: SideBySide

    def make_store(self, clock: ManualClock) -> Store:
        """Return a new store without counters, whose only source of time is `clock`."""
        raise NotImplementedError(f"{type(self).__name__} must say how to make the store that it tests")

    def setup_method(self) -> None:
        self.clock = ManualClock()
        self.store = self.make_store(self.clock)
        self.both = SideBySide(self.store, self.clock)

    def teardown_method(self) -> None:
        self.both.check_promises()
        self.store.close()

    def acquire(self, key: Key, *quotas: str, cost: int = 1, id: bytes | None = None) -> Verdict:
        """One request, compared with the oracle."""
        return self.both.acquire(*asks(key, *quotas, cost=cost), id=id)

    def peek(self, key: Key, *quotas: str, cost: int = 1) -> Verdict:
        """One dry request, compared with the oracle."""
        return self.both.acquire(*asks(key, *quotas, cost=cost), dry=True)

    def grant(self, key: Key, quota: str, least: int, most: int, *, id: bytes | None = None) -> Verdict:
        """One request for a partial grant, compared with the oracle."""
        (part,) = Quota.parse(quota).parts
        (verdict,) = self.both.run(Grant(key, part, least, most, id))
        assert isinstance(verdict, Verdict)
        return verdict

    def left(self, key: Key, quota: str) -> int:
        """How many units of a quota are left."""
        return self.peek(key, quota, cost=0).remaining

    def refund(self, verdict: Verdict, units: int | None = None) -> Amended:
        """Give back what an earlier `acquire` charged, compared with the oracle."""
        return self._amend(verdict, "refund", units)

    def settle(self, verdict: Verdict, units: int) -> Amended:
        """Make the cost of an earlier `acquire` with an id `units` after all, compared with the oracle."""
        return self._amend(verdict, "settle", units)

    def release(self, verdict: Verdict) -> Amended:
        """Give back the places of an earlier `acquire`, compared with the oracle."""
        return self._amend(verdict, "release")

    def renew(self, verdict: Verdict) -> Amended:
        """Hold on to the places of an earlier `acquire`, compared with the oracle."""
        return self._amend(verdict, "renew")

    def report(self, key: Key, *quotas: str, cost: int = 1, ago: float = 0) -> Amended:
        """What was admitted elsewhere, so many seconds ago, compared with the oracle."""
        at = self.clock.micros - round(ago * SECOND)
        charges = tuple(Charge(ask.key, ask.quota, ask.cost, at) for ask in asks(key, *quotas, cost=cost))
        (amended,) = self.both.run(Amend(Receipt(charges), "report"))
        assert isinstance(amended, Amended)
        return amended

    def _amend(self, verdict: Verdict, verb: AmendVerb, units: int | None = None) -> Amended:
        receipt = next(held.receipt for held in self.both.held if held.receipt == verdict.receipt)
        (amended,) = self.both.run(Amend(receipt, verb, units))
        assert isinstance(amended, Amended)
        return amended

    def reset(self, key: Key, quota: str) -> None:
        self.both.run(*(Reset(key, part) for part in Quota.parse(quota).parts))

    def alone(self, key: Key, *quotas: str, cost: int = 1, dry: bool = False) -> Verdict:
        """One request that the oracle does not see, for what is not its business: clocks that are stepped back."""
        (verdict,) = self.store.run([Acquire(asks(key, *quotas, cost=cost), dry)])
        assert isinstance(verdict, Verdict), verdict
        return verdict

    def race(self, batches: Sequence[Sequence[Op]]) -> list[list[Outcome]]:
        """Run all batches at once, each from a caller of its own."""
        with ThreadPoolExecutor(len(batches)) as callers:
            return list(callers.map(self.store.run, batches))


def asks(key: Key, *quotas: str, cost: int = 1, advisory: bool = False) -> tuple[Ask, ...]:
    """Return the asks of a request as a limiter makes them."""
    parts = [part for quota in quotas for part in Quota.parse(quota).parts]
    return tuple(Ask(key, part, min(cost, 1) if part.flat else cost, advisory) for part in parts)

"""Which counters there are in memory, and how much each of them matters."""

from __future__ import annotations

from typing import NamedTuple

from penstock import algorithms
from penstock.algorithms import Bound
from penstock.algorithms.base import State
from penstock.clock import Micros
from penstock.model import Key
from penstock.quota import Quota
from penstock.stores.memory.stripes import Kind, Stripe, Stripes

MAX_BOUND = 4_096


class Family(Kind):
    """All counters of one identity: same algorithm, period and name, whatever the key and the amount."""

    __slots__ = ("bounds", "latest", "number", "quota")

    def __init__(self, stripes: Stripes, number: int, quota: Quota) -> None:
        super().__init__(stripes)
        self.number = number
        self.bounds: dict[Quota, Bound] = {}
        self.quota = quota
        self.latest = self.bind(quota)

    def bind(self, quota: Quota) -> Bound:
        bound = self.bounds.get(quota)
        if bound is None:
            if len(self.bounds) >= MAX_BOUND:  # amounts that vary without end: start over
                self.bounds.clear()
            bound = self.bounds[quota] = algorithms.bind(quota)
            self.latest, self.quota = bound, quota
        return bound

    def expiry(self, state: State) -> Micros:
        return self.latest.expiry(state)

    def weight(self, state: State, now: Micros) -> tuple[float, float]:
        """The share of the quota that is used, then how long ago that began."""
        (_, remaining, *_), _ = self.latest.peek(state, 0, now)
        return 1 - remaining / self.quota.capacity, -(self.latest.expiry(state) - now) / self.quota.period_us


class Counter(NamedTuple):
    """What decides on a counter, and where it is. Its stripe must be locked by whoever looks or writes."""

    bound: Bound
    family: Family
    stripe: Stripe
    key: Key

    def find(self) -> State:
        return self.stripe.find(self.family, self.key)

    def write(self, state: State) -> None:
        """Change what was found; None forgets it."""
        if state is None:
            self.stripe.forget(self.family, self.key)
        else:
            self.stripe.write(self.family, self.key, state)

    def __str__(self) -> str:
        """A name such that several, one after the other, still tell which counters they are."""
        parts = (self.key,) if isinstance(self.key, str) else self.key
        return f"{self.family.number}+{len(parts)}+{''.join([f'{len(part)}:{part}' for part in parts])}"

"""The counters in memory: which kinds there are, what decides on them, and how much each of them matters."""

from __future__ import annotations

from typing import NamedTuple

from penstock import algorithms
from penstock.algorithms import Bound
from penstock.algorithms.base import Decide, State
from penstock.clock import Micros
from penstock.model import Key
from penstock.quota import MIN_INTERVAL, Identity, Quota
from penstock.stores.memory.stripes import Kind, Shelf, Stripe, Stripes

MAX_BOUND = 4_096
"""How many quotas are kept prepared: amounts may vary without end."""


class CounterKind(Kind):
    """All counters of one identity: same algorithm, period and name, whatever the key and the amount."""

    __slots__ = ("latest", "number", "quota")

    latest: Bound
    quota: Quota

    def __init__(self, stripes: Stripes, number: int) -> None:
        super().__init__(stripes)
        self.number = number

    def bind(self, quota: Quota) -> Bound:
        self.quota, self.latest = quota, algorithms.bind(quota)
        return self.latest

    def name(self, key: Key) -> str:
        """Return a name for a counter such that several, one after the other, still tell which counters they are."""
        if isinstance(key, str):
            return f"{self.number}+1+{len(key)}:{key}"
        return f"{self.number}+{len(key)}+{''.join([f'{len(part)}:{part}' for part in key])}"

    def expiry(self, state: State) -> Micros:
        return self.latest.expiry(state)

    def weight(self, state: State, now: Micros) -> tuple[float, float]:
        """Return the share of the quota that is used, then how long ago that began."""
        (_, remaining, *_), _ = self.latest.peek(state, 0, now)
        return 1 - remaining / self.quota.capacity, -(self.latest.expiry(state) - now) / self.quota.period_us


class QuotaCounters(NamedTuple):
    """The counters of a quota, prepared once: where they are, and what decides on them.

    - `share_of`: the capacity of which the remaining units are a share; 0 for an interval, which has no share.
    """

    shelves: list[Shelf]
    decide: Decide
    share_of: int
    bound: Bound
    kind: CounterKind


class KeyCounter(NamedTuple):
    """The counter of one key: its functions, and its place. The stripe must be locked to read or write it."""

    bound: Bound
    kind: CounterKind
    stripe: Stripe
    key: Key

    def find(self) -> State:
        return self.stripe.find(self.kind, self.key)

    def write(self, state: State) -> None:
        """Change what was found; None forgets it."""
        if state is None:
            self.stripe.forget(self.kind, self.key)
        else:
            self.stripe.write(self.kind, self.key, state)


class Counters:
    """The counters of all quotas."""

    def __init__(self, stripes: Stripes) -> None:
        self.prepared: dict[Quota, QuotaCounters] = {}
        self._stripes = stripes
        self._kinds: dict[Identity, CounterKind] = {}

    def of(self, quota: Quota) -> QuotaCounters:
        """Return the counters of `quota`, prepared if they are not yet."""
        counters = self.prepared.get(quota)
        if counters is None:
            if len(self.prepared) >= MAX_BOUND:
                self.prepared.clear()
            kind = self._kind(quota.identity)
            bound = kind.bind(quota)
            share_of = 0 if quota.algorithm == MIN_INTERVAL else quota.capacity
            counters = self.prepared[quota] = QuotaCounters(kind.shelves, bound.decide, share_of, bound, kind)
        return counters

    def at(self, key: Key, quota: Quota) -> KeyCounter:
        """Return the counter of `key` for `quota`."""
        _, _, _, bound, kind = self.of(quota)
        return KeyCounter(bound, kind, self._stripes.of(key), key)

    def _kind(self, identity: Identity) -> CounterKind:
        with self._stripes.lock:
            kind = self._kinds.get(identity)
            if kind is None:
                kind = self._kinds[identity] = CounterKind(self._stripes, len(self._kinds))
        return kind

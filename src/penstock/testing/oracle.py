"""What the right answer is: a brute-force model of the semantics, for stores to be compared with.

The oracle keeps a naive log of everything that was charged, and answers every question by scanning it, in exact
fractions. It knows no formula for waiting: it asks "would it pass then?" and searches for the first instant at which
it does. It is slow, and simple enough to be checked by reading it next to the design's section on semantics.

It shares no code with `penstock.algorithms`, so the two agree only where both are right. It speaks of time that moves
forward; what may happen when a clock is stepped back is stated as inequalities elsewhere (see `machine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.clock import Micros
from penstock.model import Ask, Key, Reset
from penstock.quota import Identity, Quota
from penstock.testing.oracle_counters import COUNTERS, Counter, Entry


class Expected(NamedTuple):
    """What the decision on one ask must say."""

    allowed: bool
    remaining: int
    retry_after_us: Micros
    reset_after_us: Micros
    more_after_us: Micros
    charged: Entry | None


class Oracle:
    """Counters that are always right. Every method takes the instant `now`, in microseconds."""

    def __init__(self) -> None:
        self._counters: dict[tuple[Key, Identity], Counter] = {}

    def acquire(self, asks: Sequence[Ask], now: Micros, *, dry: bool = False) -> tuple[Expected, ...]:
        """Decide on all asks; charge all or none, except what refusing itself leaves behind."""
        fitting = [self._fits(ask, now) for ask in asks]
        passes = all(fits or ask.advisory for ask, fits in zip(asks, fitting, strict=True))
        return tuple(
            self._charge(ask, now)
            if fits and passes and not dry
            else self._describe(ask, now)
            if fits or dry
            else self._refuse(ask, now)
            for ask, fits in zip(asks, fitting, strict=True)
        )

    def refund(self, charges: Sequence[tuple[Ask, Entry, int]], now: Micros) -> tuple[int, ...]:
        """Give back so many units of each charge, as far as they are still charged; how many those were."""
        return tuple(self.counter(ask).refund(ask.quota, entry, units, now) for ask, entry, units in charges)

    def reset(self, key: Key, quota: Quota) -> None:
        """Forget what `key` used of `quota`."""
        self._counters.pop((key, quota.identity), None)

    def counter(self, ask: Ask | Reset) -> Counter:
        """The log of one counter."""
        place = ask.key, ask.quota.identity
        if place not in self._counters:
            self._counters[place] = COUNTERS[ask.quota.algorithm]()
        return self._counters[place]

    def _fits(self, ask: Ask, now: Micros) -> bool:
        counter = self.counter(ask)
        return now >= counter.shut_until and (ask.cost == 0 or counter.fits(ask.quota, ask.cost, now))

    def _charge(self, ask: Ask, now: Micros) -> Expected:
        entry = self.counter(ask).charge(ask.quota, ask.cost, now)
        return self._describe(ask, now)._replace(allowed=True, retry_after_us=0, charged=entry)

    def _refuse(self, ask: Ask, now: Micros) -> Expected:
        """A refusal changes nothing, unless the quota counts what it denies or shuts out whom it refused.

        Whoever is shut out does not get as far as the counter, so that asking again prolongs nothing.
        """
        counter, quota = self.counter(ask), ask.quota
        if now >= counter.shut_until:
            counter.settle(quota, now)
            if quota.count_denied:
                counter.charge_denied(quota, ask.cost, now)
            if quota.penalty_us is not None:
                counter.shut_until = now + quota.penalty_us
        return self._describe(ask, now)

    def _describe(self, ask: Ask, now: Micros) -> Expected:
        """How things stand. Whoever is shut out has nothing left, and nothing comes back before that ends."""
        counter, quota = self.counter(ask), ask.quota
        allowed = self._fits(ask, now)
        shut_for = max(0, counter.shut_until - now)
        return Expected(
            allowed,
            0 if shut_for else counter.remaining(quota, now),
            0 if allowed else max(shut_for, counter.retry_after(quota, ask.cost, now) if ask.cost else 0),
            max(shut_for, counter.reset_after(quota, now)),
            max(shut_for, counter.more_after(quota, now)),
            None,
        )

"""What the right answer is: a brute-force model of the semantics, for stores to be compared with.

The oracle keeps a naive log of everything that was charged, and answers every question by scanning it, in exact
fractions. It knows no formula for waiting: it asks "would it pass then?" and searches for the first instant at which
it does. It is slow, and simple enough to be checked by reading it next to the design's section on semantics.

It shares no code with `penstock.algorithms`, so the two agree only where both are right. It speaks of time that moves
forward; what may happen when a clock is stepped back is stated as inequalities elsewhere (see `machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.model import Ask, Charge, Grant, Key, Reset, own_mark
from penstock.quota import CALENDAR, CONCURRENCY, MIN_INTERVAL, Identity, Quota
from penstock.testing.oracle.buckets import BucketCounter, Queue
from penstock.testing.oracle.calendar import Calendar
from penstock.testing.oracle.places import Places
from penstock.testing.oracle.windows import ChargedUnits, Counter, FixedWindow, RollingWindow, SlidingWindow

COUNTERS: Mapping[str, Callable[[], Counter]] = {
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "rolling_window": RollingWindow,
    "token_bucket": BucketCounter,
    "gcra": BucketCounter,
    "leaky_bucket": Queue,
    CALENDAR: Calendar,
    CONCURRENCY: Places,
    MIN_INTERVAL: BucketCounter,
}

LEAST_MEMORY_OF_IDS: Micros = 60 * SECOND
"""How long an admitted request with an id is remembered at least, however soon its charge has lost its meaning."""

_CounterName: TypeAlias = tuple[Key, Identity]


class Expected(NamedTuple):
    """What the decision on one ask must say."""

    allowed: bool
    remaining: int
    retry_after_us: Micros
    reset_after_us: Micros
    more_after_us: Micros
    delay_us: Micros
    charged: ChargedUnits | None = None


@dataclass(eq=False, slots=True)
class Charged:
    """What one request was charged; the oracle's receipt. What had an id is remembered, others are given back once."""

    asks: tuple[Ask, ...]
    entries: tuple[ChargedUnits, ...]
    cost: int  # what of it can be given back: less after a refund, something else once settled
    has_id: bool
    remembered_until: Micros
    settled: bool = False
    amended: bool = False


class Answered(NamedTuple):
    """The expected verdict: one answer per ask, as of an instant that is long ago if the request is a repeat."""

    expected: tuple[Expected, ...]
    at: Micros
    charged: Charged
    again: bool = False


class Oracle:
    """Counters that are always right. Every method takes the instant `now`, in microseconds."""

    def __init__(self) -> None:
        self._counters: dict[_CounterName, Counter] = {}
        self._records: dict[tuple[bytes, tuple[_CounterName, ...]], Answered] = {}

    def acquire(self, asks: Sequence[Ask], now: Micros, *, dry: bool = False, id: bytes | None = None) -> Answered:
        """Answer as before, if an admitted request had the same id and counters; else decide."""
        if id is None:
            return self._decide(asks, now, dry=dry, has_id=False)
        name = id, tuple((ask.key, ask.quota.identity) for ask in asks)
        record = self._records.get(name)
        if record is not None and self._stands(record.charged, now):
            return record._replace(again=True)
        answered = self._decide(asks, now, dry=dry, has_id=True)
        if all(e.allowed or ask.advisory for e, ask in zip(answered.expected, asks, strict=True)):
            if record is not None:
                record.charged.remembered_until = now  # the old receipt does not reach the new request
            self._records[name] = answered
        return answered

    def grant(self, grant: Grant, now: Micros) -> Answered:
        """Decide as on a request for the largest cost that fits, or for the least if that does not fit."""
        low, high = grant.least, grant.most + 1  # the least is tried in any case, more than the most never
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(Ask(grant.key, grant.quota, middle), now) else (low, middle)
        return self.acquire((Ask(grant.key, grant.quota, low),), now, id=grant.id)

    def _stands(self, charged: Charged, now: Micros) -> bool:
        """Return whether a request is remembered. A place that came with it must still be held."""
        return now < charged.remembered_until and all(
            counter.holds(entry, now)
            for ask, entry in zip(charged.asks, charged.entries, strict=True)
            if isinstance(counter := self.counter(ask), Places)
        )

    def _decide(self, asks: Sequence[Ask], now: Micros, *, dry: bool, has_id: bool) -> Answered:
        """Decide on all asks; charge all or none, except what refusing itself leaves behind."""
        fitting = [self._fits(ask, now) for ask in asks]
        passes = all(fits or ask.advisory for ask, fits in zip(asks, fitting, strict=True))
        expected = tuple(
            self._charge(ask, now)
            if fits and passes and not dry
            else self._describe(ask, now)
            if fits or dry
            else self._refuse(ask, now)
            for ask, fits in zip(asks, fitting, strict=True)
        )
        charges = [(ask, e.charged) for ask, e in zip(asks, expected, strict=True) if e.charged is not None]
        charged = Charged(
            tuple(ask for ask, _ in charges),
            tuple(entry for _, entry in charges),
            max((ask.cost for ask in (asks if has_id else [ask for ask, _ in charges])), default=0),
            has_id,
            now + max(LEAST_MEMORY_OF_IDS, *(ask.quota.horizon_us for ask in asks)),
        )
        return Answered(expected, now, charged)

    def refund(self, charged: Charged, units: int | None, now: Micros) -> tuple[int, ...]:
        """Give back so many units of the request's cost, as far as they are still charged; how many, per counter.

        A counter that charges 1 whatever the cost stays charged until the whole request is given back.
        """
        if self._forgotten(charged, now):
            return (0,) * len(charged.asks)
        units = charged.cost if units is None else min(units, charged.cost)
        charged.cost -= units
        if not charged.cost:
            charged.remembered_until = now
        portions = [int(not charged.cost) if ask.quota.flat else min(ask.cost, units) for ask in charged.asks]
        return self._give_back(charged, portions, now)

    def _give_back(self, charged: Charged, portions: Sequence[int], now: Micros) -> tuple[int, ...]:
        """A place in a queue is given back by the first amendment or not at all.

        Once a part of it was, a later place may end where it ended, and the two cannot be told apart.
        """
        back = []
        for ask, entry, portion in zip(charged.asks, charged.entries, portions, strict=True):
            counter = self.counter(ask)
            in_vain = not portion or (charged.amended and isinstance(counter, Queue))
            back.append(0 if in_vain else counter.refund(ask.quota, entry, portion, now))
        charged.amended = True
        return tuple(back)

    def settle(self, charged: Charged, units: int, now: Micros) -> tuple[int, ...]:
        """Make the cost `units` after all, the first time; what came back, or below zero what was charged on top."""
        if self._forgotten(charged, now) or charged.settled:
            return (0,) * len(charged.asks)
        back = charged.cost - units
        overflows = any(isinstance(self.counter(ask), BucketCounter) for ask in charged.asks if not ask.quota.flat)
        # What is charged on top of a bucket stays charged: there may be no room for all of it.
        charged.cost, charged.settled = min(units, charged.cost) if overflows else units, True
        corrected = [ask for ask in charged.asks if not ask.quota.flat]
        if back < 0:
            for ask in corrected:
                self.counter(ask).force(ask.quota, -back, now)
            charged.amended = True
            return tuple(back if ask in corrected else 0 for ask in charged.asks)
        return self._give_back(charged, [min(back, ask.cost) if ask in corrected else 0 for ask in charged.asks], now)

    def release(self, charged: Charged, now: Micros) -> tuple[int, ...]:
        """Give back the places that are still held, and nothing else."""
        return self._with_places(charged, now, lambda places, ask, entry: places.refund(ask.quota, entry, 1, now))

    def renew(self, charged: Charged, now: Micros) -> tuple[int, ...]:
        """Hold on to places for another ttl; the request is remembered as long as they may be held."""
        if charged.asks and not self._forgotten(charged, now):
            horizon = max(ask.quota.horizon_us for ask in charged.asks)
            charged.remembered_until = max(charged.remembered_until, now + horizon)
        return self._with_places(charged, now, lambda places, ask, entry: places.renew(ask.quota, entry, now))

    def _with_places(
        self, charged: Charged, now: Micros, change: Callable[[Places, Ask, ChargedUnits], int]
    ) -> tuple[int, ...]:
        forgotten = self._forgotten(charged, now)
        return tuple(
            change(counter, ask, entry) if isinstance(counter := self.counter(ask), Places) and not forgotten else 0
            for ask, entry in zip(charged.asks, charged.entries, strict=True)
        )

    def report(self, charges: Sequence[Charge], now: Micros) -> tuple[int, ...]:
        """Charge what was admitted elsewhere, each at the instant that is its mark; below zero what still counts."""
        return tuple(-self.counter(c).report(c.quota, c.cost, min(own_mark(c.mark), now), now) for c in charges)

    def _forgotten(self, charged: Charged, now: Micros) -> bool:
        """Return whether it is too late to amend: a receipt of a request with an id is worth what its record is."""
        return charged.has_id and now >= charged.remembered_until

    def reset(self, key: Key, quota: Quota) -> None:
        """Forget what `key` used of `quota`."""
        self._counters.pop((key, quota.identity), None)

    def counter(self, ask: Ask | Charge | Reset) -> Counter:
        """The log of one counter."""
        place = ask.key, ask.quota.identity
        if place not in self._counters:
            self._counters[place] = COUNTERS[ask.quota.algorithm]()
        return self._counters[place]

    def _fits(self, ask: Ask, now: Micros) -> bool:
        counter = self.counter(ask)
        return now >= counter.shut_until and (ask.cost == 0 or counter.fits(ask.quota, ask.cost, now))

    def _charge(self, ask: Ask, now: Micros) -> Expected:
        delay = self.counter(ask).delay(ask.quota, now)
        entry = self.counter(ask).charge(ask.quota, ask.cost, now)
        described = self._describe(ask, now)
        return described._replace(allowed=True, retry_after_us=0, delay_us=delay, charged=entry)

    def _refuse(self, ask: Ask, now: Micros) -> Expected:
        """A refusal changes nothing, unless the quota counts refusals or shuts the key out.

        While a key is shut out nothing is counted, and repeating the request prolongs nothing. But where the counter
        refuses as well, the quota's present amounts hold from now on, or waiting times in the answer would be wrong.
        """
        counter, quota = self.counter(ask), ask.quota
        shut_out = now < counter.shut_until
        if not shut_out or (ask.cost and not counter.fits(quota, ask.cost, now)):
            counter.settle(quota, now)
        if not shut_out:
            if quota.count_denied:
                counter.force(quota, ask.cost, now)
            if quota.penalty_us is not None:
                counter.shut_until = now + quota.penalty_us
        return self._describe(ask, now)

    def _describe(self, ask: Ask, now: Micros) -> Expected:
        """Return the answer as things stand. A key that is shut out has nothing left until that ends."""
        counter, quota = self.counter(ask), ask.quota
        allowed = self._fits(ask, now)
        shut_for = max(0, counter.shut_until - now)
        return Expected(
            allowed,
            0 if shut_for else counter.remaining(quota, now),
            0 if allowed else max(shut_for, counter.retry_after(quota, ask.cost, now) if ask.cost else 0),
            max(shut_for, counter.reset_after(quota, now)),
            max(shut_for, counter.more_after(quota, now)),
            counter.delay(quota, now) if allowed else 0,
        )

"""Penstock and its peers behind one face, so that all are asked the same in the same way.

Quotas are per day and prepared beforehand. Every contender has a loop of its own, `visit`, that calls its public method
as its documentation shows, with no adapter in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from limits import RateLimitItemPerDay
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from pyrate_limiter import (
    GCRA,
    BucketFactory,
    Duration,
    FixedWindow,
    InMemoryBucket,
    MonotonicClock,
    Rate,
    RateItem,
    SlidingWindowLog,
    StateBucket,
    TokenBucket,
)
from pyrate_limiter import Limiter as PyrateLimiter
from throttled import MemoryStore as ThrottledStore
from throttled import Throttled
from throttled.rate_limiter import per_day

from bench.measure import Visit
from penstock import Limiter, Quota
from penstock.engine.operations import QuotaLike
from penstock.quota import RATES
from penstock.stores.memory.store import MemoryStore

DAY = 86_400
ROOM = 2_000_000
"""How many keys a store may hold: more than any benchmark uses, so that nothing is evicted."""


def _nothing() -> None:
    """Most contenders do no work behind their callers' backs."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A limiter with a prepared quota."""

    name: str
    visit: Visit
    """What is timed."""
    allows: Callable[[str], bool]
    """Ask for one unit: to see whether the path taken is the one that is claimed."""
    settle: Callable[[], None] = _nothing
    """Wait for threads that it left running, so that they do not run on another one's time."""


Maker = Callable[[int], Contender]
"""Makes a contender with a quota of so many units a day."""


def asking(limiter: Limiter, quota: QuotaLike) -> Visit:
    acquire = limiter.acquire

    def visit(keys: Iterable[str]) -> None:
        for key in keys:
            acquire(key, quota)

    return visit


def penstock(algorithm: str) -> Maker:
    def make(limit: int) -> Contender:
        limiter = Limiter(MemoryStore(max_keys=ROOM))
        quota = Quota(limit, DAY, algorithm)
        return Contender(f"Penstock {algorithm}", asking(limiter, quota), lambda key: bool(limiter.acquire(key, quota)))

    return make


def of_limits(strategy: Any) -> Maker:
    def make(limit: int) -> Contender:
        storage = MemoryStorage()
        hit = strategy(storage).hit
        item = RateLimitItemPerDay(limit)

        def visit(keys: Iterable[str]) -> None:
            for key in keys:
                hit(item, key)

        name = strategy.__name__.removesuffix("RateLimiter")
        return Contender(f"limits {name}", visit, lambda key: bool(hit(item, key)), lambda: storage.timer.join())

    return make


def of_throttled(algorithm: str) -> Maker:
    def make(limit: int) -> Contender:
        store = ThrottledStore(options={"MAX_SIZE": ROOM})
        ask = Throttled(using=algorithm, quota=per_day(limit), store=store).limit

        def visit(keys: Iterable[str]) -> None:
            for key in keys:
                ask(key)

        return Contender(f"throttled {algorithm}", visit, lambda key: not ask(key).limited)

    return make


class _BucketPerKey(BucketFactory):  # type: ignore[misc]
    """pyrate-limiter leaves it to its users to find the bucket of a key; this is the least that does.

    The background thread that trims logs is not started, which favours pyrate-limiter.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._buckets: dict[str, Any] = {}
        self._now = MonotonicClock().now

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return RateItem(name, self._now(), weight=weight)

    def get(self, item: Any) -> Any:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._make()
        return bucket


def of_pyrate(bucket: Any, algorithm: Any) -> Maker:
    def make(limit: int) -> Contender:
        rates = [Rate(limit, Duration.DAY)]
        policy = algorithm()
        ask = PyrateLimiter(_BucketPerKey(lambda: bucket(rates, policy))).try_acquire

        def visit(keys: Iterable[str]) -> None:
            for key in keys:
                ask(key, blocking=False)

        return Contender(f"pyrate {algorithm.__name__}", visit, lambda key: bool(ask(key, blocking=False)))

    return make


PEERS: Mapping[str, Sequence[Maker]] = {
    "fixed_window": (
        of_limits(FixedWindowRateLimiter),
        of_throttled("fixed_window"),
        of_pyrate(InMemoryBucket, FixedWindow),
    ),
    "sliding_window": (of_limits(SlidingWindowCounterRateLimiter), of_throttled("sliding_window")),
    "rolling_window": (of_limits(MovingWindowRateLimiter), of_pyrate(InMemoryBucket, SlidingWindowLog)),
    "token_bucket": (of_throttled("token_bucket"), of_pyrate(StateBucket, TokenBucket)),
    "gcra": (of_throttled("gcra"), of_pyrate(StateBucket, GCRA)),
}
"""Who offers the same algorithm."""

FIELDS: Mapping[str, Sequence[Maker]] = {name: (penstock(name), *PEERS[name]) for name in RATES}
"""All contenders with the same algorithm, Penstock first."""

WHAT_PEERS_RETURN = (
    "Penstock returns a full verdict (allowed, remaining, waiting times, receipt), throttled-py a result of five,"
    " limits and pyrate-limiter a bare bool, which favours them."
)

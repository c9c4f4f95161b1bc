"""The same operations through two stores at the same instants: every field of every outcome must agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.clock import SECOND, ManualClock, Micros
from penstock.model import (
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    AmendVerb,
    Ask,
    Charge,
    Decision,
    Key,
    Op,
    Outcome,
    Receipt,
    Reset,
    Verdict,
    own_mark,
)
from penstock.quota import BUCKETS, CALENDAR, CONCURRENCY, MAX_LIMIT, MAX_LOG, MAX_PERIOD, MIN_INTERVAL, Quota
from penstock.quota.periods import CalendarPeriod
from penstock.stores import MemoryStore
from penstock.stores.redis.codec import MARK_BITS
from tests.conformance.redis_server import PlannedStore

KEYS: tuple[Key, ...] = ("a", ("a", "b"))
LIMITS = (3, 1, 2, 5, 7, 10, 100, 9_973, MAX_LIMIT - 5, MAX_LIMIT)
PERIODS: tuple[Micros, ...] = (10, 1, 2, 7, 1_000, SECOND, 1_500_001, 60 * SECOND, MAX_PERIOD - 1, MAX_PERIOD)
EARLIEST: Micros = 500 * 86_400 * SECOND  # so that no calendar period begins before the epoch
LATEST: Micros = 7_000_000_000 * SECOND  # in the year 2191; doubles are exact to the microsecond until 2255
CALENDARS = (
    CalendarPeriod("day", "Europe/Berlin"),
    CalendarPeriod("week", "UTC", 3),
    CalendarPeriod("month", "America/New_York", 31),
    CalendarPeriod("year", "Asia/Kathmandu"),
)


class Move(NamedTuple):
    """Something that happens: small numbers, so that a failure shrinks to a short story."""

    kind: int
    what: int
    much: int


moves = st.builds(Move, st.integers(0, 20), st.integers(0, 11), st.integers(0, 20))


def quotas(algorithm: str, limit: int, period: Micros) -> list[Quota]:
    """A plain quota, and one for each thing that a quota of this algorithm can say beside its rate."""
    seconds: Any = period / SECOND
    penalty = min(period * 3 // 2 + 1, MAX_PERIOD) / SECOND
    if algorithm == MIN_INTERVAL:
        spacing = max(1, period // limit) / SECOND
        return [Quota(limit, seconds, "fixed_window", min_interval=spacing, name=name) for name in ("a", "b")]
    if algorithm == CONCURRENCY:
        limit = min(limit, 7)
        return [
            Quota(limit, seconds, algorithm),
            Quota(limit, penalty, algorithm),  # the same places for another ttl
            Quota(limit, seconds, algorithm, name="shutting", penalty=penalty),
        ]
    if algorithm == CALENDAR:
        seconds, algorithm = CALENDARS[period % len(CALENDARS)], CALENDAR
    limit = min(limit, MAX_LOG) if algorithm == "rolling_window" else limit
    if algorithm == "leaky_bucket":
        return [
            Quota(limit, seconds, algorithm, queue=limit - 1),
            Quota(limit, seconds, algorithm, queue=0, name="counting", count_denied=True),
            Quota(limit, seconds, algorithm, queue=limit // 2, name="both", count_denied=True, penalty=penalty),
        ]
    made = [
        Quota(limit, seconds, algorithm),
        Quota(limit, seconds, algorithm, name="counting", count_denied=True),
        Quota(limit, seconds, algorithm, name="shutting", penalty=penalty),
        Quota(limit, seconds, algorithm, name="both", count_denied=True, penalty=penalty),
    ]
    if algorithm in BUCKETS:
        most = min(MAX_LIMIT, MAX_PERIOD * limit // period)
        made.append(Quota(limit, seconds, algorithm, name="bursting", burst=min(limit + 2, most)))
        made.append(Quota(limit, seconds, algorithm, name="bursting", burst=max(1, min(limit // 3, most))))
    return made


class UnforgettingStore(MemoryStore):
    """A memory store that keeps what has expired: a clock that steps forward and back again may want it once more."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._stripes.make_room = lambda *_: None  # type: ignore[method-assign]


@dataclass
class SideBySide:
    """One history on both stores. Receipts are kept in pairs."""

    algorithm: str
    limit: int
    period: Micros
    clock: ManualClock
    memory: MemoryStore
    redis: PlannedStore
    receipts: list[tuple[Receipt, Receipt]] = field(default_factory=list)
    ids: int = 0

    def __post_init__(self) -> None:
        self.quotas = quotas(self.algorithm, self.limit, self.period)

    def make(self, move: Move) -> None:
        """Let `move` happen."""
        kind, what, much = move
        if kind < 6:
            self.run(Acquire(self.asks(what, much)))
        elif kind == 6:
            self.run(Acquire(self.asks(what, much, cost=much % 2 and 0), dry=True))
        elif kind == 7:
            self.run(*(Acquire(self.asks(what + n, much)) for n in range(3)), Acquire(self.asks(what, much), dry=True))
        elif kind == 8:
            self.run(Acquire(self.several(what, much, advisory=much)))
        elif kind in (9, 10):
            self.run(Acquire(self.asks(what, much), id=f"{self.ids}.{what}.{much % 2}".encode()))
        elif kind == 11:
            asks = self.several(what % 3, much, advisory=much % 2 * 5)
            self.run(Acquire(asks, id=f"{self.ids}.{what % 3}.{much % 2}".encode()))
        elif kind in (12, 13):
            self.amend("refund", what, None if much % 2 else much // 2)
        elif kind == 14:
            self.amend(("settle", "release", "renew")[what % 3], what // 3, much // 2)
        elif kind == 15:
            self.run(*(Reset(ask.key, ask.quota) for ask in self.asks(what, 0)))
        elif kind == 16:
            earliest = EARLIEST if self.algorithm == CALENDAR else 0
            self.clock.micros = max(earliest, self.clock.micros - self.duration(what, much))
        elif kind == 17:
            self.report(what, much)
        elif kind == 18:
            self.change(LIMITS[(what + much) % len(LIMITS)])
        else:
            self.clock.micros = min(self.clock.micros + self.duration(what, much), LATEST)

    def report(self, what: int, much: int) -> None:
        """Twice in one receipt: what happened a while ago, and just now or just ahead of it; also more than all."""
        ago = self.duration(what, much) % (3 * self.period + 3)
        marks = max(0, self.clock.micros - ago), max(0, self.clock.micros + what - 6)
        times = (1, 1, 3, 9, 1_000, 1_000_000_000)[what % 6]
        charges = [Charge(*ask[:2], ask.cost * times, mark) for mark in marks for ask in self.asks(what, much)]
        self.run(Amend(Receipt(tuple(charges)), "report"), Acquire(self.asks(what, much), dry=True))

    def change(self, limit: int) -> None:
        """Other amounts for the same counters. Ids would repeat answers of another quota, so counters begin anew."""
        self.quotas = quotas(self.algorithm, limit, self.period)
        self.limit = limit
        self.ids += 1

    def asks(self, place: int, much: int, *, cost: int | None = None, advisory: bool = False) -> tuple[Ask, ...]:
        key, quota = KEYS[place % 2], self.quotas[place // 2 % len(self.quotas)]
        most = quota.capacity
        units = (
            (1, min(2, most), most, min(3, most), most // 2 + 1, max(1, most - 1))[much % 6] if cost is None else cost
        )
        return tuple(Ask(key, part, min(units, 1) if part.flat else units, advisory) for part in quota.parts)

    def several(self, place: int, much: int, advisory: int) -> tuple[Ask, ...]:
        """Several quotas of both keys in one request, some of them advisory."""
        asks = [ask for n in range(3) for ask in self.asks(place + n, much + n, advisory=bool(advisory >> n & 1))]
        return tuple({(ask.key, ask.quota.identity): ask for ask in asks}.values())

    def duration(self, kind: int, count: int) -> Micros:
        now, period = self.clock.micros, self.quotas[0].period_us
        return (
            count,
            period * count // 5,
            max(0, period - now % period + count - 2),
            -(-period * count // self.limit),
            period * count + count // 2,
            period * 1_000 * count,
        )[kind % 6]

    def amend(self, verb: AmendVerb, which: int, units: int | None) -> None:
        if not self.receipts:
            return
        ours, theirs = self.receipts[which % len(self.receipts)]
        if verb == "settle" and ours.record is None:
            return
        units = units if verb == "settle" or units is None else min(units, ours.cost)
        self.compare([Amend(ours, verb, units)], [Amend(theirs, verb, units)])

    def run(self, *ops: Op) -> None:
        self.compare(ops, ops)

    def compare(self, ops: Any, same_ops: Any) -> None:
        expected, got = self.memory.run(ops), self.redis.run(same_ops)
        for op, right, outcome in zip(ops, expected, got, strict=True):
            assert told(outcome, unify=True) == told(right), f"{op} at {self.clock.micros}"
            if isinstance(right, Verdict) and isinstance(outcome, Verdict) and right.receipt and outcome.receipt:
                self.receipts.append((right.receipt, outcome.receipt))
        assert self.redis.corrupt == 0


def told(outcome: Outcome, *, unify: bool = False) -> object:
    """All that an outcome says, but for names of records and marks of places, which are each store's own."""
    if isinstance(outcome, Amended):
        return outcome
    assert isinstance(outcome, Verdict), outcome
    decisions = [_told(decision, unify) for decision in outcome.decisions]
    charges = [(charge.key, charge.quota, charge.cost) for charge in outcome.receipt.charges] if outcome.receipt else []
    return _told(outcome, unify), decisions, charges


def _told(decision: Decision, unify: bool) -> object:
    answer, mark, quota = decision.answer[:6], decision.mark, decision.quota
    if mark != NOT_CHARGED and quota.algorithm == CONCURRENCY:
        mark = 0
    elif mark != NOT_CHARGED and quota.algorithm == "leaky_bucket" and unify:
        part, tail = divmod(own_mark(mark), 1 << MARK_BITS)
        mark = (tail * quota.limit + part) // gcd(quota.limit, quota.period_us)
    advisory = decision.advisory and not isinstance(decision, Verdict)
    return answer, mark, decision.at_us, decision.key, quota, decision.cost, advisory

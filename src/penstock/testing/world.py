"""Where generated histories take place: a few keys, a few quotas of one algorithm, and amounts that hit edges.

Everything is drawn as small whole numbers and turned into costs and durations here, so that Hypothesis shrinks a
failure to a short story with small numbers in it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.clock import SECOND, Micros
from penstock.model import Ask, Key
from penstock.quota import BUCKETS, CALENDAR, CONCURRENCY, LOGGED, MAX_LIMIT, MAX_LOG, MAX_PERIOD, Quota
from penstock.quota.periods import CalendarPeriod
from penstock.testing.oracle.calendar import period_of

KEYS: tuple[Key, ...] = ("a", ("a", "b"))
START: Micros = 1_700_000_000 * SECOND
DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
COSTS = 6
PLACES = 12
SPENDS = COSTS * PLACES
"""Where and how much: one of 12 places, and one of 6 costs."""

LIMITS = (3, 1, 2, 5, 7, 10, 100, MAX_LIMIT)
WAITS = 42
"""How long: one of 6 kinds of duration, and a count of them."""

limits = st.sampled_from(LIMITS)
scales = st.integers(0, 8)
"""Which period, or which scene of the calendar."""

themes = st.integers(0, 5)
"""What most of the story is about: one of the things that can be asked."""

PERIODS: tuple[Micros, ...] = (10, 1, 2, 7, 1_000, SECOND, 1_500_001, 60 * SECOND, MAX_PERIOD)

SCENES: tuple[tuple[CalendarPeriod, str], ...] = (
    (CalendarPeriod("day"), "2023-11-14T22:13:20Z"),
    (CalendarPeriod("day", "Europe/Berlin"), "2024-03-30T20:00:00Z"),  # a day of 23 hours
    (CalendarPeriod("day", "America/Havana"), "2024-03-10T02:00:00Z"),  # a day without midnight
    (CalendarPeriod("day", "America/Havana"), "2024-11-03T12:00:00Z"),  # a day of 25 hours
    (CalendarPeriod("day", "America/St_Johns"), "2010-11-06T20:00:00Z"),  # a minute after midnight, yesterday again
    (CalendarPeriod("week", "Europe/Berlin", 7), "2024-10-26T20:00:00Z"),  # a week that begins with 25 hours
    (CalendarPeriod("month", "Asia/Kolkata", 31), "2024-02-28T20:00:00Z"),  # the 31st of February, in a leap year
    (CalendarPeriod("month", "Pacific/Apia", 30), "2011-12-29T20:00:00Z"),  # the 30th of December that never was
    (CalendarPeriod("year", "Pacific/Auckland"), "2023-12-31T10:00:00Z"),
)


class World(NamedTuple):
    """The quotas at each place: plain, and with each option that a quota can have beside its rate."""

    algorithm: str
    limit: int
    scale: int
    theme: int
    period: Micros
    offers: tuple[tuple[Quota, ...], ...]  # quotas that are asked together, split into their counters

    @classmethod
    def of(cls, algorithm: str, limit: int, scale: int, theme: int) -> World:
        if algorithm in LOGGED:
            limit = min(limit, MAX_LOG)
        elif algorithm == "leaky_bucket":
            limit = min(limit, MAX_LIMIT - 1)
        period = DAYS[SCENES[scale][0].unit] * 86_400 * SECOND if algorithm == CALENDAR else PERIODS[scale]
        return cls(algorithm, limit, scale, theme, period, _offers(algorithm, limit, scale))

    def with_limit(self, limit: int) -> World:
        """The same counters under other amounts."""
        return World.of(self.algorithm, limit, self.scale, self.theme)

    @property
    def start(self) -> Micros:
        """When the story begins."""
        if self.algorithm != CALENDAR:
            return START
        return round(datetime.fromisoformat(SCENES[self.scale][1]).timestamp()) * SECOND

    def asks(self, spend: int, *, advisory: bool = False) -> tuple[Ask, ...]:
        """What a request asks: little, half of what can be asked, or all of it, at one of the places."""
        cost, place = divmod(spend, PLACES)
        aside, which_key = divmod(place, len(KEYS))
        return self._asks(cost, KEYS[which_key], self.theme + max(0, aside - 2), advisory=advisory)

    def _asks(self, cost: int, key: Key, number: int, *, advisory: bool = False) -> tuple[Ask, ...]:
        offer = self.offers[number % len(self.offers)]
        most = min((quota.capacity for quota in offer if not quota.flat), default=1)
        units = (1, min(2, most), most, min(3, most), most // 2 + 1, 1)[cost]
        return tuple(Ask(key, quota, 1 if quota.flat else units, advisory) for quota in offer)

    def everywhere(self) -> list[Ask]:
        """One unit at each counter there is."""
        return [ask for key in KEYS for number in range(len(self.offers)) for ask in self._asks(0, key, number)]

    def duration(self, wait: int, now: Micros) -> Micros:
        """How long to wait: microseconds, a share of the period, to an edge, for units, for long, for a minute."""
        kind, count = wait % 6, wait // 6
        period = self.period
        return (
            count,
            period * count // 5,
            max(0, self._edges(now)[1] - now + count - 2),
            -(-period * count // self.limit),
            period * count + count // 2,
            60 * SECOND + count - 2,
        )[kind]

    def age(self, wait: int, now: Micros) -> Micros:
        """How long ago something happened elsewhere: from just ahead of now to three periods before."""
        kind, count = wait % 6, wait // 6
        since_edge = now - self._edges(now)[0]
        return (
            count - 2,
            self.period * count // 2,
            since_edge + count - 3,
            self.period * count // self.limit,
            since_edge + self.period + count - 3,
            self.period + count - 3,
        )[kind]

    def _edges(self, now: Micros) -> tuple[Micros, Micros]:
        """Where the window around an instant begins and ends."""
        if self.algorithm == CALENDAR:
            return period_of(SCENES[self.scale][0], now)
        start = now - now % self.period
        return start, start + self.period


def _offers(algorithm: str, limit: int, scale: int) -> tuple[tuple[Quota, ...], ...]:
    if algorithm == CONCURRENCY:
        return _places(limit, PERIODS[scale])
    if algorithm == CALENDAR:
        period = DAYS[SCENES[scale][0].unit] * 86_400 * SECOND
        return _rates(limit, period, {"period": SCENES[scale][0]})
    period = PERIODS[scale]
    said: dict[str, Any] = {"period": period / SECOND, "algorithm": algorithm}
    if algorithm == "leaky_bucket":
        short = Quota(limit, **said, name="short", queue=limit // 3)
        return (*_rates(limit, period, said | {"queue": limit - 1}), (short,))
    if algorithm in BUCKETS:
        burst = limit + 2 if limit < 10 and period * 3 <= MAX_PERIOD else max(1, limit // 3)
        return (*_rates(limit, period, said), (Quota(limit, **said, name="bursting", burst=burst),))
    return _rates(limit, period, said)


def _rates(limit: int, period: Micros, said: dict[str, Any]) -> tuple[tuple[Quota, ...], ...]:
    spacing = max(1, period // limit) / SECOND
    return (
        Quota(limit, **said).parts,
        Quota(limit, **said, name="counting", count_denied=True).parts,
        Quota(limit, **said, name="shutting", penalty=_penalty(period)).parts,
        Quota(limit, **said, name="both", count_denied=True, penalty=_penalty(period)).parts,
        Quota(limit, **said, name="spaced", min_interval=spacing).parts,
    )


def _places(limit: int, ttl: Micros) -> tuple[tuple[Quota, ...], ...]:
    """Places alone, and beside rates, where a request spends units as well."""
    said: dict[str, Any] = {"period": ttl / SECOND, "algorithm": CONCURRENCY}
    spacing = max(1, ttl // limit) / SECOND
    return (
        Quota(limit, **said).parts,
        Quota(limit, **said, name="spaced", min_interval=spacing).parts,
        (Quota(limit, **said, name="beside"), Quota(limit + 1, ttl / SECOND, "gcra", name="beside")),
        (Quota(limit, **said, name="shutting", penalty=_penalty(ttl)), Quota(limit, ttl / SECOND, "fixed_window")),
        (Quota(limit, **said, name="few"), Quota(1, **said, name="one"), Quota(limit, ttl / SECOND, "gcra")),
    )


def _penalty(period: Micros) -> float:
    return min(period * 3 // 2 + 1, MAX_PERIOD) / SECOND

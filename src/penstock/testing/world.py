"""Where generated histories take place: a few keys, a few quotas of one algorithm, and amounts that hit edges.

Everything is drawn as small whole numbers and turned into costs and durations here, so that Hypothesis shrinks a
failure to a short story with small numbers in it.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

from penstock.clock import SECOND, Micros
from penstock.model import Ask, Key
from penstock.quota import BUCKETS, MAX_LIMIT, MAX_LOG, MAX_PERIOD, Quota

KEYS: tuple[Key, ...] = ("a", ("a", "b"))

limits = st.sampled_from([3, 1, 2, 5, 7, 10, 100, MAX_LIMIT])
periods = st.sampled_from([10, 1, 2, 7, 1_000, SECOND, 1_500_001, 60 * SECOND, MAX_PERIOD])
spends = st.integers(0, 71)
"""Where and how much: one of 12 places, and one of 6 costs. One number, because every draw of Hypothesis takes time."""

waits = st.integers(0, 34)
"""How long: one of 5 kinds of duration, and a count of them."""


class World(NamedTuple):
    """The quotas in force: one plain, and one for each thing a quota can say beside its rate."""

    algorithm: str
    limit: int
    period: Micros
    quotas: tuple[Quota, ...]

    @classmethod
    def of(cls, algorithm: str, limit: int, period: Micros) -> World:
        limit = min(limit, MAX_LOG) if algorithm == "rolling_window" else limit
        return cls(algorithm, limit, period, _quotas(algorithm, limit, period))

    def asks(self, spend: int, *, advisory: bool = False) -> tuple[Ask, ...]:
        """What a request asks: little, half of what can be asked, or all of it, at one of the places."""
        cost, place = divmod(spend, 12)
        key, quota = KEYS[place % len(KEYS)], self.quotas[place // len(KEYS) % len(self.quotas)]
        most = quota.capacity
        units = (1, min(2, most), most, min(3, most), most // 2 + 1, 1)[cost]
        return tuple(Ask(key, part, 1 if part.flat else units, advisory) for part in quota.parts)

    def everywhere(self) -> list[Ask]:
        """One unit at each counter there is."""
        return [ask for place in range(len(KEYS) * len(self.quotas)) for ask in self.asks(place)]

    def duration(self, wait: int, now: Micros) -> Micros:
        """How long to wait: a few microseconds, a share of the period, to the edge of a window, for units, for long."""
        kind, count = wait % 5, wait // 5
        period = self.period
        return (
            count,
            period * count // 5,
            max(0, period - now % period + count - 2),
            -(-period * count // self.limit),
            period * count + count // 2,
        )[kind]


def _quotas(algorithm: str, limit: int, period: Micros) -> tuple[Quota, ...]:
    seconds = period / SECOND
    spacing = max(1, period // limit) / SECOND
    penalty = min(period * 3 // 2 + 1, MAX_PERIOD) / SECOND
    quotas = [
        Quota(limit, seconds, algorithm),
        Quota(limit, seconds, algorithm, name="counting", count_denied=True),
        Quota(limit, seconds, algorithm, name="shutting", penalty=penalty),
        Quota(limit, seconds, algorithm, name="both", count_denied=True, penalty=penalty),
        Quota(limit, seconds, algorithm, name="spaced", min_interval=spacing),
    ]
    if algorithm in BUCKETS:
        burst = limit + 2 if limit < 10 and period * 3 <= MAX_PERIOD else max(1, limit // 3)
        quotas.append(Quota(limit, seconds, algorithm, name="bursting", burst=burst))
    return tuple(quotas)

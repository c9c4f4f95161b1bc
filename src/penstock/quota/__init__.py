"""Quota: how much is allowed, in which time, by which algorithm.

A quota is an immutable value that can be read from text and written as text. It is checked when it is made, so every
quota that exists can be enforced exactly. Inside, numbers are whole units and whole microseconds; the constructor and
the properties without `_us` use seconds.

Equal quotas are one object. So they compare and hash by identity, which is fast; every decision does so at least once
to find what was prepared for its quota.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from typing import Any, NoReturn, Self, TypeAlias, cast
from weakref import WeakValueDictionary

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidQuota, shown
from penstock.quota import text as quota_text
from penstock.quota.periods import CalendarPeriod

RATES = ("fixed_window", "sliding_window", "rolling_window", "token_bucket", "gcra")
"""Algorithms that admit or refuse at once."""

ALGORITHMS = (*RATES, "leaky_bucket")
"""Algorithms that a quota may name; the others are implied by the kind of quota."""

DEFAULT_ALGORITHM = "sliding_window"
CALENDAR = "calendar"
CONCURRENCY = "concurrency"
MIN_INTERVAL = "min_interval"
BUCKETS = ("token_bucket", "gcra")
DRAINING = (*BUCKETS, "leaky_bucket")
"""Buckets: algorithms whose charges drain with time."""
FLAT = (MIN_INTERVAL, CONCURRENCY)
DEFAULT_TTL = 60.0

MAX_LIMIT = 2**32
MAX_LOG = 10_000
LOGGED = ("rolling_window", CONCURRENCY)  # algorithms that keep an entry per admission
MAX_PERIOD: Micros = 3_650 * quota_text.UNITS["day"]

Identity: TypeAlias = tuple[str, Micros | CalendarPeriod, bool, str]


class Quota:
    """`Quota(100, 60)` is 100 units a minute; `Quota.parse("100/minute")` is the same.

    - `limit`: units per period, 1 to 2^32. At most 10,000 for `rolling_window` and `concurrency`, which keep an entry
      per admission.
    - `period`: seconds, from a microsecond to ten years; or a `CalendarPeriod`; for `concurrency` how long a place may
      be held without renewal.
    - `algorithm`: one of `ALGORITHMS`, or `concurrency`; by default `sliding_window`, or what `burst`, `queue` and
      calendar periods imply.
    - `burst`: what a token bucket or GCRA holds when full; by default `limit`.
    - `queue`: how many units may wait in a leaky bucket; by default `limit`.
    - `min_interval`: seconds that must lie between two admissions.
    - `penalty`: seconds for which a key is shut out after this quota refused it.
    - `count_denied`: charge refused requests as well.
    - `name`: keeps counters of equal quotas apart, and names the policy to clients. A name stands for a policy, not for
      a client: clients are told apart by keys.
    """

    __slots__ = (
        "__weakref__",
        "algorithm",
        "burst",
        "calendar",
        "capacity",
        "count_denied",
        "flat",
        "horizon_us",
        "identity",
        "limit",
        "min_interval_us",
        "name",
        "parts",
        "penalty_us",
        "period_us",
        "queue",
    )

    limit: int
    period_us: Micros
    calendar: CalendarPeriod | None
    algorithm: str
    burst: int | None
    queue: int | None
    min_interval_us: Micros | None
    penalty_us: Micros | None
    count_denied: bool
    name: str
    capacity: int  # the highest cost that can ever be admitted
    flat: bool  # whether each request charges 1, whatever its cost
    horizon_us: Micros  # how long a charge can matter
    identity: Identity  # tells the counters of a key apart; without amounts, so that changing them keeps the count
    parts: tuple[Quota, ...]  # the counters to ask: this quota, and its min_interval as a separate quota

    def __new__(
        cls,
        limit: int,
        period: float | CalendarPeriod,
        algorithm: str | None = None,
        *,
        burst: int | None = None,
        queue: int | None = None,
        min_interval: float | None = None,
        penalty: float | None = None,
        count_denied: bool = False,
        name: str = "",
    ) -> Self:
        return cls._of(
            limit,
            period if isinstance(period, CalendarPeriod) else _micros("period", period),
            algorithm,
            burst=burst,
            queue=queue,
            min_interval_us=None if min_interval is None else _micros("min_interval", min_interval),
            penalty_us=None if penalty is None else _micros("penalty", penalty),
            count_denied=count_denied,
            name=name,
        )

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Read one quota, such as `"10/second burst 20"`; see `penstock.quota.text` for the grammar."""
        quotas = cls.parse_all(text)
        if len(quotas) != 1:
            raise InvalidQuota(f'quota "{text}": {len(quotas)} quotas (expected one; Quota.parse_all reads several)')
        return quotas[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Quota, ...]:
        """Read all quotas in `text`, separated by `;` or `,`."""
        return tuple(cls._read(fields) for fields in quota_text.read(text, ALGORITHMS))

    @classmethod
    def _read(cls, fields: quota_text.QuotaFields) -> Quota:
        rest: dict[str, Any] = dict(fields)
        ttl, period = rest.pop("ttl_us", None), rest.pop("period_us", None)
        calendar = {one: rest.pop(f"calendar_{one}") for one in CalendarPeriod._fields if f"calendar_{one}" in rest}
        if calendar:
            period = CalendarPeriod(**calendar)
        elif rest.get("algorithm") == CONCURRENCY:
            period, ttl = _micros("ttl", DEFAULT_TTL) if ttl is None else ttl, None
        if ttl is not None:
            raise InvalidQuota('ttl: only concurrency limits have one (expected e.g. "5 concurrent ttl 30s")')
        return cls._of(period=period, **rest)

    @property
    def period(self) -> float:
        """The length of a period in seconds, at most; for `concurrency` how long a place may be held."""
        return self.period_us / SECOND

    @property
    def min_interval(self) -> float | None:
        return None if self.min_interval_us is None else self.min_interval_us / SECOND

    @property
    def penalty(self) -> float | None:
        return None if self.penalty_us is None else self.penalty_us / SECOND

    def __str__(self) -> str:
        words = [self._amount()]
        if self.algorithm in ALGORITHMS and self.algorithm != _implied(self.calendar, self.burst, self.queue):
            words.append(self.algorithm)
        if self.burst is not None:
            words.append(f"burst {self.burst}")
        if self.queue is not None:
            words.append(f"queue {self.queue}")
        if self.min_interval_us is not None:
            words.append(f"min_interval {quota_text.write_duration(self.min_interval_us)}")
        if self.penalty_us is not None:
            words.append(f"penalty {quota_text.write_duration(self.penalty_us)}")
        if self.count_denied:
            words.append("count denied")
        if self.name:
            words.append(f"name {self.name}")
        return " ".join(words)

    def __repr__(self) -> str:
        return f"Quota.parse({str(self)!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Quota is immutable; make another one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Quota is immutable; cannot delete {name!r}")

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Quota.parse, (str(self),))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _amount(self) -> str:
        if self.algorithm == MIN_INTERVAL:
            return f"min_interval {quota_text.write_duration(self.period_us)}"
        if self.algorithm == CONCURRENCY:
            return f"{self.limit} concurrent ttl {quota_text.write_duration(self.period_us)}"
        return f"{self.limit}/{self.calendar or quota_text.write_period(self.period_us)}"

    @classmethod
    def _of(
        cls,
        limit: int,
        period: Micros | CalendarPeriod,
        algorithm: str | None = None,
        *,
        burst: int | None = None,
        queue: int | None = None,
        min_interval_us: Micros | None = None,
        penalty_us: Micros | None = None,
        count_denied: bool = False,
        name: str = "",
    ) -> Self:
        """Return the quota with these fields, checked; all times in microseconds."""
        calendar = period.checked() if isinstance(period, CalendarPeriod) else None
        algorithm = _algorithm(algorithm or _implied(calendar, burst, queue), calendar)
        what = "ttl" if algorithm == CONCURRENCY else "period"
        period_us = calendar.longest_us if calendar else _duration(what, cast("Micros", period))
        if algorithm == "leaky_bucket" and queue is None:
            queue = limit
        fields = {
            "algorithm": algorithm,
            "limit": _units("limit", limit, _most(algorithm)),
            "period_us": period_us,
            "calendar": calendar,
            "burst": None if burst is None else _burst(burst, algorithm, limit, period_us),
            "queue": None if queue is None else _queue(queue, algorithm, limit, period_us),
            "min_interval_us": None if min_interval_us is None else _duration("min_interval", min_interval_us),
            "penalty_us": None if penalty_us is None else _duration("penalty", penalty_us),
            "count_denied": _count_denied(count_denied, algorithm),
            "name": _name(name),
        }
        values = tuple(fields.values())
        with _making:
            quota = _all_quotas.get(values)
        if quota is None:
            quota = super().__new__(cls)
            for field, value in fields.items():
                object.__setattr__(quota, field, value)
            span = 0 if algorithm == CONCURRENCY else calendar or period_us
            capacity = limit if burst is None and queue is None else burst or cast("int", queue) + 1
            derived = {
                "capacity": capacity,
                "flat": algorithm in FLAT,
                "horizon_us": _horizon(algorithm, period_us, capacity, limit),
                "identity": (algorithm, span, penalty_us is not None, name),
            }
            for field, value in derived.items():
                object.__setattr__(quota, field, value)
            object.__setattr__(quota, "parts", quota._split())
            with _making:
                quota = _all_quotas.setdefault(values, quota)
        return quota  # type: ignore[return-value]

    def resized(self, amount: Callable[[int], int]) -> Quota:
        """Return the same quota with `amount(units)` in place of limit, burst and queue.

        Amounts are no part of a counter's identity, so both quotas share their counters.
        """
        if self.algorithm == MIN_INTERVAL:  # its limit is always 1
            return self
        return self.with_amounts(
            amount(self.limit),
            None if self.burst is None else amount(self.burst),
            None if self.queue is None else amount(self.queue + 1) - 1,
        )

    def with_amounts(self, limit: int, burst: int | None, queue: int | None) -> Quota:
        """Return the same quota with this limit, burst and queue."""
        return self._changed(limit=limit, burst=burst, queue=queue)

    def _changed(self, **changes: Any) -> Quota:
        fields = {
            "limit": self.limit,
            "period": self.calendar or self.period_us,
            "algorithm": self.algorithm,
            "burst": self.burst,
            "queue": self.queue,
            "min_interval_us": self.min_interval_us,
            "penalty_us": self.penalty_us,
            "count_denied": self.count_denied,
            "name": self.name,
        }
        return Quota._of(**(fields | changes))

    def _split(self) -> tuple[Quota, ...]:
        if self.min_interval_us is None:
            return (self,)
        return self._changed(min_interval_us=None), Quota._of(1, self.min_interval_us, MIN_INTERVAL, name=self.name)


_all_quotas: WeakValueDictionary[tuple[object, ...], Quota] = WeakValueDictionary()
_making = Lock()
if hasattr(os, "register_at_fork"):  # a fork copies locks as they are, so no other thread may hold this one meanwhile
    os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def _micros(what: str, seconds: float) -> Micros:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidQuota(f"{what} {shown(seconds)}: expected seconds as a number, not {type(seconds).__name__}")
    if not 0 < seconds <= MAX_PERIOD // SECOND:  # also refuses NaN
        raise InvalidQuota(f"{what} {shown(seconds)}: expected more than 0 and at most {MAX_PERIOD // SECOND} seconds")
    return round(seconds * SECOND)


def _duration(what: str, micros: Micros) -> Micros:
    if not 0 < micros <= MAX_PERIOD:
        raise InvalidQuota(f"{what} of {shown(micros)} microseconds: expected 1 microsecond to 3650 days")
    return micros


def _units(what: str, units: int, most: int) -> int:
    if isinstance(units, bool) or not isinstance(units, int):
        raise InvalidQuota(f"{what} {shown(units)}: expected a whole number, not {type(units).__name__}")
    if not 1 <= units <= most:
        hint = "; sliding_window, token_bucket and gcra keep no log" if most == MAX_LOG and units > most else ""
        raise InvalidQuota(f"{what} {shown(units)}: expected 1 to {most}{hint}")
    return units


def _implied(calendar: CalendarPeriod | None, burst: int | None, queue: int | None) -> str:
    """Return the algorithm of a quota that does not name one."""
    if calendar is not None:
        return CALENDAR
    if queue is not None:
        return "leaky_bucket"
    return DEFAULT_ALGORITHM if burst is None else "token_bucket"


def _horizon(algorithm: str, period_us: Micros, capacity: int, limit: int) -> Micros:
    if algorithm == DEFAULT_ALGORITHM:
        return 2 * period_us
    return -(-capacity * period_us // limit) if algorithm in DRAINING else period_us


def _most(algorithm: str) -> int:
    """Return the largest limit: 1 for an interval, fewer for algorithms that keep an entry per admission."""
    if algorithm == MIN_INTERVAL:
        return 1
    return MAX_LOG if algorithm in LOGGED else MAX_LIMIT


def _algorithm(algorithm: str, calendar: CalendarPeriod | None) -> str:
    if algorithm not in (*ALGORITHMS, CALENDAR, *FLAT):
        raise InvalidQuota(f"algorithm {shown(algorithm)}: expected one of {', '.join((*ALGORITHMS, CONCURRENCY))}")
    if (algorithm == CALENDAR) != (calendar is not None):
        raise InvalidQuota(f"algorithm {shown(algorithm)}: calendar periods have their own algorithm (expected none)")
    return algorithm


def _burst(burst: int, algorithm: str, limit: int, period_us: Micros) -> int:
    if algorithm not in BUCKETS:
        raise InvalidQuota(f"burst {shown(burst)}: {algorithm} has no burst (expected {' or '.join(BUCKETS)})")
    _fits("burst", _units("burst", burst, MAX_LIMIT), limit, period_us, "refill")
    return burst


def _fits(what: str, units: int, limit: int, period_us: Micros, verb: str) -> None:
    if units * period_us > MAX_PERIOD * limit:
        raise InvalidQuota(
            f"{what} {units} at {limit}/{quota_text.write_period(period_us)}: would take more than 3650 days to {verb}"
        )


def _queue(queue: int, algorithm: str, limit: int, period_us: Micros) -> int:
    if algorithm != "leaky_bucket":
        raise InvalidQuota(f"queue {shown(queue)}: {algorithm} has no queue (expected leaky_bucket)")
    if isinstance(queue, bool) or not isinstance(queue, int) or not 0 <= queue < MAX_LIMIT:
        raise InvalidQuota(f"queue {shown(queue)}: expected a whole number, 0 to {MAX_LIMIT - 1}")
    _fits("queue", queue + 1, limit, period_us, "drain")
    return queue


def _count_denied(count_denied: bool, algorithm: str) -> bool:
    if not isinstance(count_denied, bool):
        raise InvalidQuota(f"count_denied {shown(count_denied)}: expected True or False")
    if count_denied and algorithm == CONCURRENCY:
        raise InvalidQuota("count denied: a refused place cannot be held (expected a rate)")
    return count_denied


def _name(name: str) -> str:
    if not isinstance(name, str) or (name and not quota_text.NAME.fullmatch(name)):
        raise InvalidQuota(f"name {shown(name)}: expected a letter, then at most 63 letters, digits, or any of _ . : -")
    return name

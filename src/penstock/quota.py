"""Quota: how much is allowed, in which time, by which algorithm.

A quota is a value: immutable, and readable as text both ways. It is checked when it is made, so nobody further down has
to: what exists can be enforced exactly. Numbers are whole units and whole microseconds inside; the constructor and the
properties without `_us` speak seconds.

Two quotas that say the same are the same object. So they compare and hash as fast as objects can, which every decision
does at least once to find what was prepared for its quota.
"""

from __future__ import annotations

from threading import Lock
from typing import NoReturn, Self, TypeAlias
from weakref import WeakValueDictionary

from penstock import quota_text
from penstock.clock import SECOND, Micros
from penstock.errors import InvalidQuota

ALGORITHMS = ("fixed_window", "sliding_window", "rolling_window", "token_bucket", "gcra")
DEFAULT_ALGORITHM = "sliding_window"
MIN_INTERVAL = "min_interval"  # the companion ask of a quota that says min_interval; its own kind of counter
BUCKETS = ("token_bucket", "gcra")

MAX_LIMIT = 2**32
MAX_LOG = 10_000
MAX_PERIOD: Micros = 3_650 * quota_text.UNITS["day"]

Identity: TypeAlias = tuple[str, Micros, bool, str]


class Quota:
    """`Quota(100, 60)` is 100 units a minute; `Quota.parse("100/minute")` is the same.

    - `limit`: units per period, 1 to 2^32. `rolling_window` keeps a log, so there at most 10,000.
    - `period`: seconds, from a microsecond to ten years.
    - `algorithm`: one of `ALGORITHMS`; by default `sliding_window`, or `token_bucket` if there is a burst.
    - `burst`: what a bucket holds when full; by default `limit`.
    - `min_interval`: seconds that must lie between two admissions.
    - `penalty`: seconds for which a key is shut out once this quota refused it.
    - `count_denied`: charge what this quota refuses as well.
    - `name`: keeps counters of equal quotas apart, and names the policy to clients.
    """

    __slots__ = (
        "__weakref__",
        "algorithm",
        "burst",
        "count_denied",
        "identity",
        "limit",
        "min_interval_us",
        "name",
        "parts",
        "penalty_us",
        "period_us",
    )

    limit: int
    period_us: Micros
    algorithm: str
    burst: int | None
    min_interval_us: Micros | None
    penalty_us: Micros | None
    count_denied: bool
    name: str
    identity: Identity  # what tells counters of one key apart; amounts are not in it, so changing them keeps the count
    parts: tuple[Quota, ...]  # the counters to ask: this quota, and its min_interval as a quota of its own

    def __new__(
        cls,
        limit: int,
        period: float,
        algorithm: str | None = None,
        *,
        burst: int | None = None,
        min_interval: float | None = None,
        penalty: float | None = None,
        count_denied: bool = False,
        name: str = "",
    ) -> Self:
        return cls._of(
            limit,
            _micros("period", period),
            algorithm,
            burst=burst,
            min_interval_us=None if min_interval is None else _micros("min_interval", min_interval),
            penalty_us=None if penalty is None else _micros("penalty", penalty),
            count_denied=count_denied,
            name=name,
        )

    @classmethod
    def parse(cls, text: str) -> Quota:
        """The one quota that `text` says, e.g. `"10/second burst 20"`; see `penstock.quota_text` for the grammar."""
        quotas = cls.parse_all(text)
        if len(quotas) != 1:
            raise InvalidQuota(f'quota "{text}": {len(quotas)} quotas (expected one; Quota.parse_all reads several)')
        return quotas[0]

    @classmethod
    def parse_all(cls, text: str) -> tuple[Quota, ...]:
        """All quotas in `text`, separated by `;` or `,`."""
        return tuple(cls._of(**fields) for fields in quota_text.read(text, ALGORITHMS))

    @property
    def period(self) -> float:
        """Seconds in one period."""
        return self.period_us / SECOND

    @property
    def min_interval(self) -> float | None:
        return None if self.min_interval_us is None else self.min_interval_us / SECOND

    @property
    def penalty(self) -> float | None:
        return None if self.penalty_us is None else self.penalty_us / SECOND

    @property
    def capacity(self) -> int:
        """The most that one request can ever cost."""
        return self.burst or self.limit

    @property
    def flat(self) -> bool:
        """Whether a request charges 1, whatever its cost."""
        return self.algorithm == MIN_INTERVAL

    def __str__(self) -> str:
        if self.algorithm == MIN_INTERVAL:
            words = [f"min_interval {quota_text.write_duration(self.period_us)}"]
        else:
            words = [f"{self.limit}/{quota_text.write_period(self.period_us)}"]
            if self.algorithm != (DEFAULT_ALGORITHM if self.burst is None else "token_bucket"):
                words.append(self.algorithm)
        if self.burst is not None:
            words.append(f"burst {self.burst}")
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
        raise AttributeError(f"a Quota does not change; make another one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Quota does not change; cannot delete {name!r}")

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Quota.parse, (str(self),))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @classmethod
    def _of(
        cls,
        limit: int,
        period_us: Micros,
        algorithm: str | None = None,
        *,
        burst: int | None = None,
        min_interval_us: Micros | None = None,
        penalty_us: Micros | None = None,
        count_denied: bool = False,
        name: str = "",
    ) -> Self:
        """The quota that says this, checked; all times in microseconds."""
        algorithm = _algorithm(algorithm or (DEFAULT_ALGORITHM if burst is None else "token_bucket"))
        fields = {
            "algorithm": algorithm,
            "limit": _units("limit", limit, MAX_LOG if algorithm == "rolling_window" else MAX_LIMIT),
            "period_us": _duration("period", period_us),
            "burst": None if burst is None else _burst(burst, algorithm, limit, period_us),
            "min_interval_us": None if min_interval_us is None else _duration("min_interval", min_interval_us),
            "penalty_us": None if penalty_us is None else _duration("penalty", penalty_us),
            "count_denied": _flag("count_denied", count_denied),
            "name": _name(name),
        }
        values = tuple(fields.values())
        with _making:
            quota = _all_quotas.get(values)
        if quota is None:
            quota = super().__new__(cls)
            for field, value in fields.items():
                object.__setattr__(quota, field, value)
            object.__setattr__(quota, "identity", (algorithm, period_us, penalty_us is not None, name))
            object.__setattr__(quota, "parts", quota._split())
            with _making:
                quota = _all_quotas.setdefault(values, quota)
        return quota  # type: ignore[return-value]

    def _split(self) -> tuple[Quota, ...]:
        if self.min_interval_us is None:
            return (self,)
        rate = Quota._of(
            self.limit,
            self.period_us,
            self.algorithm,
            burst=self.burst,
            penalty_us=self.penalty_us,
            count_denied=self.count_denied,
            name=self.name,
        )
        return rate, Quota._of(1, self.min_interval_us, MIN_INTERVAL, name=self.name)


_all_quotas: WeakValueDictionary[tuple[object, ...], Quota] = WeakValueDictionary()
_making = Lock()


def _micros(what: str, seconds: float) -> Micros:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidQuota(f"{what} {seconds!r}: expected seconds as a number, not {type(seconds).__name__}")
    if not 0 < seconds <= MAX_PERIOD // SECOND:  # also refuses NaN
        raise InvalidQuota(f"{what} {seconds!r}: expected more than 0 and at most {MAX_PERIOD // SECOND} seconds")
    return round(seconds * SECOND)


def _duration(what: str, micros: Micros) -> Micros:
    if not 0 < micros <= MAX_PERIOD:
        raise InvalidQuota(f"{what} of {micros} microseconds: expected 1 microsecond to 3650 days")
    return micros


def _units(what: str, units: int, most: int) -> int:
    if isinstance(units, bool) or not isinstance(units, int):
        raise InvalidQuota(f"{what} {units!r}: expected a whole number, not {type(units).__name__}")
    if not 1 <= units <= most:
        hint = "; sliding_window, token_bucket and gcra keep no log" if most == MAX_LOG and units > most else ""
        raise InvalidQuota(f"{what} {units}: expected 1 to {most}{hint}")
    return units


def _algorithm(algorithm: str) -> str:
    if algorithm not in ALGORITHMS and algorithm != MIN_INTERVAL:
        raise InvalidQuota(f"algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    return algorithm


def _burst(burst: int, algorithm: str, limit: int, period_us: Micros) -> int:
    if algorithm not in BUCKETS:
        raise InvalidQuota(f"burst {burst!r}: {algorithm} has no burst (expected {' or '.join(BUCKETS)})")
    _units("burst", burst, MAX_LIMIT)
    if burst * period_us > MAX_PERIOD * limit:
        raise InvalidQuota(
            f"burst {burst} at {limit}/{quota_text.write_period(period_us)}: would take more than 3650 days to refill"
        )
    return burst


def _flag(what: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidQuota(f"{what} {value!r}: expected True or False")
    return value


def _name(name: str) -> str:
    if not isinstance(name, str) or (name and not quota_text.NAME.fullmatch(name)):
        raise InvalidQuota(f"name {name!r}: expected a letter, then at most 63 letters, digits, or any of _ . : -")
    return name

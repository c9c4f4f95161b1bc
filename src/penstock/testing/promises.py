"""What each algorithm promises of its admissions, checked on a history, over every span.

This is the law that users buy, stated without any of the arithmetic by which a limiter keeps it: list what was admitted
and not given back, look at every span that begins and ends with an admission, and add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

from penstock.clock import Micros
from penstock.quota import CALENDAR, CONCURRENCY, MIN_INTERVAL, Quota
from penstock.quota.periods import CalendarPeriod
from penstock.testing.oracle.calendar import period_of


@dataclass(eq=False, slots=True)
class AdmittedUnits:
    """Units that were let through at an instant, less what was given back; a place also has an end."""

    at: Micros
    units: int
    until: Micros

    def give_back(self, units: int, now: Micros) -> None:
        self.units = max(0, self.units - units)
        if not self.units:
            self.until = min(self.until, now)


class History:
    """Everything one counter admitted, and the most generous quota by which it did."""

    def __init__(self, quota: Quota) -> None:
        self.algorithm, self.period, self.calendar = quota.algorithm, quota.period_us, quota.calendar
        self.limit, self.capacity = quota.limit, quota.capacity
        self.admissions: list[AdmittedUnits] = []

    def admit(self, quota: Quota, units: int, starts_at: Micros) -> AdmittedUnits:
        """Note an admission; the promise of a limit that changed is that of its largest value."""
        self.limit = max(self.limit, quota.limit)
        self.capacity = max(self.capacity, quota.capacity)
        admission = AdmittedUnits(starts_at, units, starts_at + quota.period_us)
        self.admissions.append(admission)
        return admission

    def check(self) -> None:
        """Raise AssertionError if the admissions break the algorithm's promise in any span."""
        admissions = sorted(self.admissions, key=lambda a: a.at)
        if self.algorithm != CONCURRENCY:
            admissions = [a for a in admissions if a.units]
        if admissions:
            _PROMISES[self.algorithm](self, admissions)


def _spans(admissions: Sequence[AdmittedUnits]) -> Iterator[tuple[Micros, int]]:
    """Length and admitted units of every span from one admission to another, ends included."""
    for first, start in enumerate(admissions):
        total = 0
        for end in admissions[first:]:
            total += end.units
            yield end.at - start.at, total


def _fixed_window(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    _at_most_limit_in_each(lambda at: at // history.period, history, admissions)
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most <= 2 * history.limit, history, "more than twice the limit in one period")


def _sliding_window(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most < 2 * history.limit, history, "twice the limit in one period")


def _rolling_window(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most <= history.limit, history, "more than the limit in one period")


def _calendar(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    calendar = cast("CalendarPeriod", history.calendar)
    _at_most_limit_in_each(lambda at: period_of(calendar, at)[0], history, admissions)


def _bucket(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    for length, total in _spans(admissions):
        refilled = Fraction(length * history.limit, history.period)
        _demand(total <= history.capacity + refilled, history, f"more than burst + rate·t in {length} µs")


def _queue(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    """Each admission starts after the time of all earlier ones has passed; instants are whole microseconds."""
    for first, earlier in enumerate(admissions):
        units = 0
        for before, later in zip(admissions[first:], admissions[first + 1 :], strict=False):
            units += before.units
            apart = (later.at - earlier.at + 1) * history.limit
            _demand(apart >= units * history.period, history, f"{units} units in {later.at - earlier.at} µs")


def _places(history: History, admissions: Sequence[AdmittedUnits]) -> None:
    for start in admissions:
        held = sum(a.at <= start.at < a.until for a in admissions)
        _demand(held <= history.limit, history, f"{held} at once")


def _at_most_limit_in_each(
    window: Callable[[Micros], Micros], history: History, admissions: Sequence[AdmittedUnits]
) -> None:
    windows: Counter[Micros] = Counter()
    for admission in admissions:
        windows[window(admission.at)] += admission.units
    _demand(max(windows.values()) <= history.limit, history, "more than the limit in one window")


def _demand(holds: bool, history: History, fault: str) -> None:
    assert holds, (
        f"{history.algorithm}, {history.limit} per {history.period} µs, admitted {fault}: {history.admissions}"
    )


_PROMISES: Mapping[str, Callable[[History, Sequence[AdmittedUnits]], None]] = {
    "fixed_window": _fixed_window,
    "sliding_window": _sliding_window,
    "rolling_window": _rolling_window,
    "token_bucket": _bucket,
    "gcra": _bucket,
    "leaky_bucket": _queue,
    CALENDAR: _calendar,
    CONCURRENCY: _places,
    MIN_INTERVAL: _bucket,
}

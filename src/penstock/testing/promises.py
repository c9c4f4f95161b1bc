"""What each algorithm promises of its admissions, checked on a history, over every span.

This is the law that users buy, stated without any of the arithmetic by which a limiter keeps it: list what was admitted
and not given back, look at every span that begins and ends with an admission, and add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from penstock.clock import Micros
from penstock.quota import Quota


@dataclass(eq=False, slots=True)
class Admission:
    """Units that were let through at an instant, less what was given back."""

    at: Micros
    units: int


class History:
    """Everything one counter admitted, and the most generous quota by which it did."""

    def __init__(self, quota: Quota) -> None:
        self.algorithm, self.period = quota.algorithm, quota.period_us
        self.limit, self.capacity = quota.limit, quota.capacity
        self.admissions: list[Admission] = []

    def admit(self, quota: Quota, units: int, now: Micros) -> Admission:
        """Note an admission; the promise of a limit that changed is that of its largest value."""
        self.limit = max(self.limit, quota.limit)
        self.capacity = max(self.capacity, quota.capacity)
        admission = Admission(now, units)
        self.admissions.append(admission)
        return admission

    def check(self) -> None:
        """Raise AssertionError if the admissions break the algorithm's promise in any span."""
        admissions = [a for a in self.admissions if a.units]
        if admissions:
            _PROMISES[self.algorithm](self, sorted(admissions, key=lambda a: a.at))


def _spans(admissions: Sequence[Admission]) -> Iterator[tuple[Micros, int]]:
    """Length and admitted units of every span from one admission to another, ends included."""
    for first, start in enumerate(admissions):
        total = 0
        for end in admissions[first:]:
            total += end.units
            yield end.at - start.at, total


def _fixed_window(history: History, admissions: Sequence[Admission]) -> None:
    windows: Counter[int] = Counter()
    for admission in admissions:
        windows[admission.at // history.period] += admission.units
    _demand(max(windows.values()) <= history.limit, history, "more than the limit in one window")
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most <= 2 * history.limit, history, "more than twice the limit in one period")


def _sliding_window(history: History, admissions: Sequence[Admission]) -> None:
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most < 2 * history.limit, history, "twice the limit in one period")


def _rolling_window(history: History, admissions: Sequence[Admission]) -> None:
    most = max(total for length, total in _spans(admissions) if length < history.period)
    _demand(most <= history.limit, history, "more than the limit in one period")


def _bucket(history: History, admissions: Sequence[Admission]) -> None:
    for length, total in _spans(admissions):
        refilled = Fraction(length * history.limit, history.period)
        _demand(total <= history.capacity + refilled, history, f"more than burst + rate·t in {length} µs")


def _demand(holds: bool, history: History, fault: str) -> None:
    assert holds, (
        f"{history.algorithm}, {history.limit} per {history.period} µs, admitted {fault}: {history.admissions}"
    )


_PROMISES: dict[str, Callable[[History, Sequence[Admission]], None]] = {
    "fixed_window": _fixed_window,
    "sliding_window": _sliding_window,
    "rolling_window": _rolling_window,
    "token_bucket": _bucket,
    "gcra": _bucket,
    "min_interval": _bucket,
}

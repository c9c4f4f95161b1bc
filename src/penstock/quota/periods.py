"""Calendar periods: days, weeks, months and years of a time zone.

A period begins at local midnight and ends where the next one begins. So the periods of a calendar leave no gap and
never overlap, although daylight saving time changes their length. If a clock change skips midnight, the day begins at
the change; if midnight comes twice, at the first.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from penstock.clock import Micros
from penstock.errors import InvalidQuota, shown

CALENDAR_UNITS = ("day", "week", "month", "year")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LONGEST_DAYS = {"day": 2, "week": 8, "month": 32, "year": 367}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class CalendarPeriod(NamedTuple):
    """A unit of the calendar in a time zone.

    `first` is where it begins: for a week the weekday (1 is Monday), for a month the day (31 is the last day of shorter
    months). For days and years it is 1.
    """

    unit: str
    zone: str = "UTC"
    first: int = 1

    def __str__(self) -> str:
        text = f"{self.unit} calendar {self.zone}"
        if self.first == 1:
            return text
        return f"{text} starts {WEEKDAYS[self.first - 1]}" if self.unit == "week" else f"{text} anchor {self.first}"

    @property
    def longest_us(self) -> Micros:
        """The longest that such a period can be, in microseconds."""
        return LONGEST_DAYS[self.unit] * timedelta(days=1) // _MICROSECOND

    def checked(self) -> CalendarPeriod:
        """Check the fields, and return the period with its zone spelled as in the time zone database."""
        if self.unit not in CALENDAR_UNITS:
            raise InvalidQuota(f"calendar unit {shown(self.unit)}: expected one of {', '.join(CALENDAR_UNITS)}")
        most = {"week": 7, "month": 31}.get(self.unit, 1)
        if isinstance(self.first, bool) or not isinstance(self.first, int) or not 1 <= self.first <= most:
            raise InvalidQuota(f"first day {shown(self.first)} of a {self.unit}: expected 1 to {most}")
        return self._replace(zone=_zone(self.zone).key)

    def bounds(self, now: Micros) -> tuple[Micros, Micros]:
        """Return the beginning and the end of the period that contains `now`."""
        zone = _zone(self.zone)
        today = (_EPOCH + timedelta(microseconds=now)).astimezone(zone).date()
        day = self._start(today)
        start, end = _midnight(day, zone), _midnight(self._next(day), zone)
        while end <= now:  # after midnight the clocks went back to the day before, which has ended all the same
            day = self._next(day)
            start, end = end, _midnight(self._next(day), zone)
        return start, end

    def _start(self, day: date) -> date:
        if self.unit == "week":
            return day - timedelta(days=(day.isoweekday() - self.first) % 7)
        if self.unit == "month":
            start = self._anchored(day.year, day.month)
            return start if start <= day else self._anchored(*_month_before(day.year, day.month))
        return day.replace(month=1, day=1) if self.unit == "year" else day

    def _next(self, start: date) -> date:
        if self.unit == "month":
            return self._anchored(start.year + start.month // 12, start.month % 12 + 1)
        if self.unit == "year":
            return start.replace(year=start.year + 1)
        return start + timedelta(days=7 if self.unit == "week" else 1)

    def _anchored(self, year: int, month: int) -> date:
        return date(year, month, min(self.first, monthrange(year, month)[1]))


def _month_before(year: int, month: int) -> tuple[int, int]:
    return (year, month - 1) if month > 1 else (year - 1, 12)


def _midnight(day: date, zone: ZoneInfo) -> Micros:
    return (datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC) - _EPOCH) // _MICROSECOND


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # what zoneinfo raises for unknown and malformed names
        pass
    for known in available_timezones():  # the case may differ; slow, but a quota is read once
        if known.casefold() == str(name).casefold():
            return ZoneInfo(known)
    raise InvalidQuota(
        f"time zone {shown(name)}: unknown (expected an IANA name such as Europe/Berlin; "
        "where the system has no time zones, install penstock[calendar])"
    )

"""The oracle's calendar: periods found by looking at the clocks of a zone, step by step, and a counter for each.

A day begins at the first instant at which a calendar on the wall shows its date, or a later one where that date is
skipped; it has begun even if the clocks are set back over midnight after that. A period begins with its first day, and
which day that is shows when one walks through the days.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import cast
from zoneinfo import ZoneInfo

from penstock.clock import SECOND, Micros
from penstock.quota import Quota
from penstock.quota.periods import CalendarPeriod
from penstock.testing.oracle.windows import FixedWindow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
EARLIEST: Micros = -16 * 3_600 * SECOND
"""No zone is further ahead of UTC than this, so no day begins earlier before its midnight in UTC."""
STEP: Micros = 900 * SECOND
"""No zone sets its clocks twice within this."""


@lru_cache(maxsize=4_096)
def period_of(calendar: CalendarPeriod, now: Micros) -> tuple[Micros, Micros]:
    """The beginning and the end of the calendar period that holds `now`."""
    today = _date(calendar.zone, now)
    while beginning_of_day(calendar.zone, today + DAY) <= now:
        today += DAY
    first, after = today, today + DAY
    while not _is_first(calendar, first):
        first -= DAY
    while not _is_first(calendar, after):
        after += DAY
    return beginning_of_day(calendar.zone, first), beginning_of_day(calendar.zone, after)


@lru_cache(maxsize=4_096)
def beginning_of_day(zone: str, day: date) -> Micros:
    """The first instant at which the calendars of a zone show `day` or later."""
    late = (datetime(day.year, day.month, day.day, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) + EARLIEST
    while _date(zone, late) < day:
        late += STEP
    early = late - STEP
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (early, middle) if _date(zone, middle) >= day else (middle, late)
    return late


def _date(zone: str, at: Micros) -> date:
    return (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone)).date()


def _is_first(calendar: CalendarPeriod, day: date) -> bool:
    if calendar.unit == "week":
        return day.isoweekday() == calendar.first
    if calendar.unit == "month":
        return day.day == min(calendar.first, monthrange(day.year, day.month)[1])
    return calendar.unit == "day" or (day.month, day.day) == (1, 1)


class Calendar(FixedWindow):
    """Used is what was charged in the same calendar period."""

    def window(self, quota: Quota, at: Micros) -> int:
        return period_of(cast("CalendarPeriod", quota.calendar), at)[0]

    def reset_after(self, quota: Quota, now: Micros) -> Micros:
        return period_of(cast("CalendarPeriod", quota.calendar), now)[1] - now

    def retry_after(self, quota: Quota, cost: int, now: Micros) -> Micros:
        """Nothing comes back before the period ends, and then everything does."""
        return 0 if self.fits(quota, cost, now) else self.reset_after(quota, now)

"""Where days, weeks, months and years begin and end, as people in a time zone live them."""

from datetime import datetime, timedelta

import pytest

from penstock.clock import Micros
from penstock.errors import InvalidQuota, shown
from penstock.quota.periods import CALENDAR_UNITS, WEEKDAYS, CalendarPeriod

HOUR: Micros = 3_600_000_000
EPOCH = datetime.fromisoformat("1970-01-01T00:00+00:00")


def micros(text: str) -> Micros:
    """The instant that `text`, a local time with its offset, names."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def bounds(period: CalendarPeriod, now: str) -> tuple[Micros, Micros]:
    return period.bounds(micros(now))


DAYS = [
    # zone, now, the day begins, the day ends, its hours
    ("UTC", "2024-02-29T12:00+00:00", "2024-02-29T00:00+00:00", "2024-03-01T00:00+00:00", 24),
    ("UTC", "1970-01-01T00:00+00:00", "1970-01-01T00:00+00:00", "1970-01-02T00:00+00:00", 24),
    ("UTC", "1969-12-31T23:59+00:00", "1969-12-31T00:00+00:00", "1970-01-01T00:00+00:00", 24),
    ("Europe/Berlin", "2024-01-15T00:00+01:00", "2024-01-15T00:00+01:00", "2024-01-16T00:00+01:00", 24),
    ("Europe/Berlin", "2024-07-15T00:30+02:00", "2024-07-15T00:00+02:00", "2024-07-16T00:00+02:00", 24),
    ("Europe/Berlin", "2024-03-31T12:00+02:00", "2024-03-31T00:00+01:00", "2024-04-01T00:00+02:00", 23),
    ("Europe/Berlin", "2024-10-27T02:30+02:00", "2024-10-27T00:00+02:00", "2024-10-28T00:00+01:00", 25),
    ("Europe/Berlin", "2024-10-27T02:30+01:00", "2024-10-27T00:00+02:00", "2024-10-28T00:00+01:00", 25),
    ("America/New_York", "2024-03-10T12:00-04:00", "2024-03-10T00:00-05:00", "2024-03-11T00:00-04:00", 23),
    ("America/New_York", "2024-11-03T01:30-04:00", "2024-11-03T00:00-04:00", "2024-11-04T00:00-05:00", 25),
    ("America/New_York", "2024-11-03T01:30-05:00", "2024-11-03T00:00-04:00", "2024-11-04T00:00-05:00", 25),
    ("Asia/Kolkata", "2024-05-05T00:10+05:30", "2024-05-05T00:00+05:30", "2024-05-06T00:00+05:30", 24),
    # 2011-12-30 never came to Samoa.
    ("Pacific/Apia", "2011-12-29T23:59-10:00", "2011-12-29T00:00-10:00", "2011-12-31T00:00+14:00", 24),
    ("Pacific/Apia", "2011-12-31T00:00+14:00", "2011-12-31T00:00+14:00", "2012-01-01T00:00+14:00", 24),
    # Midnight is swallowed: the day begins with the change, at one o'clock.
    ("America/Sao_Paulo", "2018-11-03T23:59-03:00", "2018-11-03T00:00-03:00", "2018-11-04T01:00-02:00", 24),
    ("America/Sao_Paulo", "2018-11-04T01:00-02:00", "2018-11-04T01:00-02:00", "2018-11-05T00:00-02:00", 23),
    ("Africa/Cairo", "2023-04-28T12:00+03:00", "2023-04-28T01:00+03:00", "2023-04-29T00:00+03:00", 23),
    # At midnight the clock goes back to eleven: the last hour comes twice.
    ("America/Sao_Paulo", "2018-02-17T23:30-02:00", "2018-02-17T00:00-02:00", "2018-02-18T00:00-03:00", 25),
    ("America/Sao_Paulo", "2018-02-17T23:30-03:00", "2018-02-17T00:00-02:00", "2018-02-18T00:00-03:00", 25),
    ("Africa/Cairo", "2023-10-26T23:30+02:00", "2023-10-26T00:00+03:00", "2023-10-27T00:00+02:00", 25),
    # Midnight comes twice: the day begins with the first.
    ("America/Havana", "2024-11-03T00:30-04:00", "2024-11-03T00:00-04:00", "2024-11-04T00:00-05:00", 25),
    ("America/Havana", "2024-11-03T00:30-05:00", "2024-11-03T00:00-04:00", "2024-11-04T00:00-05:00", 25),
    # A minute past midnight the clock goes back to yesterday: today, begun once, goes on.
    ("America/St_Johns", "2010-11-06T23:59-02:30", "2010-11-06T00:00-02:30", "2010-11-07T00:00-02:30", 24),
    ("America/St_Johns", "2010-11-07T00:00-02:30", "2010-11-07T00:00-02:30", "2010-11-08T00:00-03:30", 25),
    ("America/St_Johns", "2010-11-06T23:01-03:30", "2010-11-07T00:00-02:30", "2010-11-08T00:00-03:30", 25),
    ("America/St_Johns", "2010-11-06T23:59-03:30", "2010-11-07T00:00-02:30", "2010-11-08T00:00-03:30", 25),
    ("America/St_Johns", "2010-11-07T00:00-03:30", "2010-11-07T00:00-02:30", "2010-11-08T00:00-03:30", 25),
]


@pytest.mark.parametrize(("zone", "now", "start", "end", "hours"), DAYS)
def test_a_day_lasts_from_local_midnight_to_local_midnight(
    zone: str, now: str, start: str, end: str, hours: int
) -> None:
    found = bounds(CalendarPeriod("day", zone), now)
    assert found == (micros(start), micros(end))
    assert found[1] - found[0] == hours * HOUR


WEEKS = [
    # zone, first, now, the week begins, the week ends
    ("UTC", 1, "2024-03-31T12:00+00:00", "2024-03-25T00:00+00:00", "2024-04-01T00:00+00:00"),
    ("UTC", 1, "2024-12-31T12:00+00:00", "2024-12-30T00:00+00:00", "2025-01-06T00:00+00:00"),
    ("Europe/Berlin", 1, "2024-03-31T12:00+02:00", "2024-03-25T00:00+01:00", "2024-04-01T00:00+02:00"),
    ("Europe/Berlin", 7, "2024-03-31T12:00+02:00", "2024-03-31T00:00+01:00", "2024-04-07T00:00+02:00"),
    ("America/New_York", 7, "2024-11-02T23:59-04:00", "2024-10-27T00:00-04:00", "2024-11-03T00:00-04:00"),
    ("America/New_York", 7, "2024-11-03T00:00-04:00", "2024-11-03T00:00-04:00", "2024-11-10T00:00-05:00"),
    ("America/New_York", 6, "2024-11-03T00:00-04:00", "2024-11-02T00:00-04:00", "2024-11-09T00:00-05:00"),
    ("Pacific/Apia", 1, "2011-12-31T12:00+14:00", "2011-12-26T00:00-10:00", "2012-01-02T00:00+14:00"),
    ("Pacific/Apia", 5, "2011-12-31T12:00+14:00", "2011-12-31T00:00+14:00", "2012-01-06T00:00+14:00"),
    ("America/Sao_Paulo", 7, "2018-11-07T12:00-02:00", "2018-11-04T01:00-02:00", "2018-11-11T00:00-02:00"),
]


@pytest.mark.parametrize(("zone", "first", "now", "start", "end"), WEEKS)
def test_a_week_begins_on_its_weekday(zone: str, first: int, now: str, start: str, end: str) -> None:
    assert bounds(CalendarPeriod("week", zone, first), now) == (micros(start), micros(end))


@pytest.mark.parametrize("first", range(1, 8))
def test_a_week_begins_on_the_latest_such_weekday(first: int) -> None:
    start, end = bounds(CalendarPeriod("week", "UTC", first), "2024-05-15T18:00+00:00")  # a Wednesday
    assert (EPOCH + timedelta(microseconds=start)).isoweekday() == first
    assert start <= micros("2024-05-15T18:00+00:00") < end == start + 7 * 24 * HOUR


MONTHS = [
    # zone, first, now, the month begins, the month ends
    ("UTC", 1, "2024-02-29T12:00+00:00", "2024-02-01T00:00+00:00", "2024-03-01T00:00+00:00"),
    ("UTC", 1, "2023-02-28T12:00+00:00", "2023-02-01T00:00+00:00", "2023-03-01T00:00+00:00"),
    ("UTC", 1, "2023-12-31T23:59+00:00", "2023-12-01T00:00+00:00", "2024-01-01T00:00+00:00"),
    ("UTC", 15, "2024-01-14T23:59+00:00", "2023-12-15T00:00+00:00", "2024-01-15T00:00+00:00"),
    ("UTC", 15, "2024-01-15T00:00+00:00", "2024-01-15T00:00+00:00", "2024-02-15T00:00+00:00"),
    # 29, 30 and 31 in a February, and back.
    ("UTC", 29, "2023-02-27T12:00+00:00", "2023-01-29T00:00+00:00", "2023-02-28T00:00+00:00"),
    ("UTC", 29, "2023-02-28T12:00+00:00", "2023-02-28T00:00+00:00", "2023-03-29T00:00+00:00"),
    ("UTC", 29, "2024-02-28T12:00+00:00", "2024-01-29T00:00+00:00", "2024-02-29T00:00+00:00"),
    ("UTC", 29, "2024-02-29T12:00+00:00", "2024-02-29T00:00+00:00", "2024-03-29T00:00+00:00"),
    ("UTC", 30, "2023-02-28T00:00+00:00", "2023-02-28T00:00+00:00", "2023-03-30T00:00+00:00"),
    ("UTC", 30, "2024-02-29T00:00+00:00", "2024-02-29T00:00+00:00", "2024-03-30T00:00+00:00"),
    ("UTC", 31, "2024-02-10T12:00+00:00", "2024-01-31T00:00+00:00", "2024-02-29T00:00+00:00"),
    ("UTC", 31, "2024-02-29T00:00+00:00", "2024-02-29T00:00+00:00", "2024-03-31T00:00+00:00"),
    ("UTC", 31, "2024-03-31T00:00+00:00", "2024-03-31T00:00+00:00", "2024-04-30T00:00+00:00"),
    ("UTC", 31, "2024-04-30T00:00+00:00", "2024-04-30T00:00+00:00", "2024-05-31T00:00+00:00"),
    ("UTC", 31, "2024-01-01T00:00+00:00", "2023-12-31T00:00+00:00", "2024-01-31T00:00+00:00"),
    ("UTC", 31, "2100-02-01T00:00+00:00", "2100-01-31T00:00+00:00", "2100-02-28T00:00+00:00"),
    ("Europe/Berlin", 1, "2024-03-31T23:59+02:00", "2024-03-01T00:00+01:00", "2024-04-01T00:00+02:00"),
    ("Europe/Berlin", 1, "2024-10-01T00:00+02:00", "2024-10-01T00:00+02:00", "2024-11-01T00:00+01:00"),
    ("Europe/Berlin", 31, "2024-03-31T12:00+02:00", "2024-03-31T00:00+01:00", "2024-04-30T00:00+02:00"),
    ("America/New_York", 1, "2024-03-01T00:00-05:00", "2024-03-01T00:00-05:00", "2024-04-01T00:00-04:00"),
    ("Asia/Kolkata", 1, "2024-02-29T23:59+05:30", "2024-02-01T00:00+05:30", "2024-03-01T00:00+05:30"),
    ("Pacific/Apia", 1, "2011-12-31T12:00+14:00", "2011-12-01T00:00-10:00", "2012-01-01T00:00+14:00"),
    # The billing day is the one that never came: the period begins when it would have.
    ("Pacific/Apia", 30, "2011-12-29T12:00-10:00", "2011-11-30T00:00-10:00", "2011-12-31T00:00+14:00"),
    ("Pacific/Apia", 30, "2011-12-31T12:00+14:00", "2011-12-31T00:00+14:00", "2012-01-30T00:00+14:00"),
    ("America/Sao_Paulo", 4, "2018-11-05T12:00-02:00", "2018-11-04T01:00-02:00", "2018-12-04T00:00-02:00"),
]


@pytest.mark.parametrize(("zone", "first", "now", "start", "end"), MONTHS)
def test_a_month_begins_on_its_anchor_or_on_its_last_day(zone: str, first: int, now: str, start: str, end: str) -> None:
    assert bounds(CalendarPeriod("month", zone, first), now) == (micros(start), micros(end))


YEARS = [
    ("UTC", "2024-02-29T12:00+00:00", "2024-01-01T00:00+00:00", "2025-01-01T00:00+00:00"),
    ("Europe/Berlin", "2023-12-31T23:59+01:00", "2023-01-01T00:00+01:00", "2024-01-01T00:00+01:00"),
    ("Europe/Berlin", "2024-01-01T00:00+01:00", "2024-01-01T00:00+01:00", "2025-01-01T00:00+01:00"),
    ("America/New_York", "2024-07-01T00:00-04:00", "2024-01-01T00:00-05:00", "2025-01-01T00:00-05:00"),
    ("Pacific/Apia", "2011-06-01T00:00-11:00", "2011-01-01T00:00-10:00", "2012-01-01T00:00+14:00"),
    # 1994-12-31 never came to the Line Islands.
    ("Pacific/Kiritimati", "1994-12-30T12:00-10:00", "1994-01-01T00:00-10:00", "1995-01-01T00:00+14:00"),
]


@pytest.mark.parametrize(("zone", "now", "start", "end"), YEARS)
def test_a_year_begins_with_january(zone: str, now: str, start: str, end: str) -> None:
    assert bounds(CalendarPeriod("year", zone), now) == (micros(start), micros(end))


@pytest.mark.parametrize(("year", "days"), [(2023, 365), (2024, 366), (2000, 366), (2100, 365)])
def test_leap_years_are_a_day_longer(year: int, days: int) -> None:
    start, end = bounds(CalendarPeriod("year"), f"{year}-06-01T00:00+00:00")
    assert end - start == days * 24 * HOUR


@pytest.mark.parametrize("unit", CALENDAR_UNITS)
def test_the_first_microsecond_is_inside_and_the_last_is_outside(unit: str) -> None:
    period = CalendarPeriod(unit, "Europe/Berlin")
    start, end = bounds(period, "2024-10-27T02:30+01:00")
    assert period.bounds(start) == period.bounds(end - 1) == (start, end)
    assert period.bounds(start - 1)[1] == start
    assert period.bounds(end)[0] == end


@pytest.mark.parametrize(
    ("period", "text"),
    [
        (CalendarPeriod("day"), "day calendar UTC"),
        (CalendarPeriod("week", "Europe/Berlin"), "week calendar Europe/Berlin"),
        (CalendarPeriod("week", "UTC", 7), "week calendar UTC starts sunday"),
        (CalendarPeriod("month", "America/New_York", 1), "month calendar America/New_York"),
        (CalendarPeriod("month", "Asia/Kolkata", 31), "month calendar Asia/Kolkata anchor 31"),
        (CalendarPeriod("year", "Pacific/Apia"), "year calendar Pacific/Apia"),
    ],
)
def test_a_period_is_written_as_quotas_are(period: CalendarPeriod, text: str) -> None:
    assert str(period) == text


def test_weekdays_are_named_from_monday() -> None:
    texts = [str(CalendarPeriod("week", "UTC", first)) for first in range(2, 8)]
    assert texts == [f"week calendar UTC starts {day}" for day in WEEKDAYS[1:]]


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("AMERICA/NEW_YORK", "America/New_York"),
        ("utc", "UTC"),
        ("America/Port-au-Prince", "America/Port-au-Prince"),
        ("etc/gmt+5", "Etc/GMT+5"),
    ],
)
def test_a_checked_period_spells_its_zone_as_the_database_does(written: str, known: str) -> None:
    assert CalendarPeriod("day", written).checked() == CalendarPeriod("day", known)


UNKNOWN = (
    "time zone {zone}: unknown (expected an IANA name such as Europe/Berlin; "
    "where the system has no time zones, install penstock[calendar])"
)


NO_ZONES = ["Mars/Olympus", "", "Europe", "../etc/passwd", "/etc/passwd", "UTC\0", "\ud800", "a" * 300]


@pytest.mark.parametrize("zone", NO_ZONES)
def test_an_unknown_zone_is_an_error(zone: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        CalendarPeriod("day", zone).checked()
    assert str(caught.value) == UNKNOWN.format(zone=shown(zone))


@pytest.mark.parametrize("zone", [None, 5, b"UTC", ["UTC"]])
def test_a_zone_that_is_no_text_is_an_error(zone: object) -> None:
    with pytest.raises(InvalidQuota) as caught:
        CalendarPeriod("day", zone).checked()  # type: ignore[arg-type]
    assert str(caught.value) == UNKNOWN.format(zone=shown(zone))


@pytest.mark.parametrize(
    ("unit", "first", "text"),
    [
        ("hour", 1, "calendar unit 'hour': expected one of day, week, month, year"),
        ("Month", 1, "calendar unit 'Month': expected one of day, week, month, year"),
        ("month", 0, "first day 0 of a month: expected 1 to 31"),
        ("month", 32, "first day 32 of a month: expected 1 to 31"),
        ("month", -1, "first day -1 of a month: expected 1 to 31"),
        ("month", True, "first day True of a month: expected 1 to 31"),
        ("month", 1.0, "first day 1.0 of a month: expected 1 to 31"),
        ("month", "15", "first day '15' of a month: expected 1 to 31"),
        ("week", 0, "first day 0 of a week: expected 1 to 7"),
        ("week", 8, "first day 8 of a week: expected 1 to 7"),
        ("day", 2, "first day 2 of a day: expected 1 to 1"),
        ("year", 2, "first day 2 of a year: expected 1 to 1"),
    ],
)
def test_periods_that_do_not_exist_are_errors(unit: str, first: int, text: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        CalendarPeriod(unit, "UTC", first).checked()
    assert str(caught.value) == text

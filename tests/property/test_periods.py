"""Calendar periods partition time: no gap, no overlap, in any zone, whatever its clocks do."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock import Quota
from penstock.clock import SECOND, Micros
from penstock.quota.periods import CalendarPeriod

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY: Micros = 86_400 * SECOND
EARLIEST = int(datetime(1971, 1, 1, tzinfo=UTC).timestamp())
LATEST = int(datetime(2099, 12, 31, tzinfo=UTC).timestamp())
RULES_REPEAT_FROM = int(datetime(2040, 1, 1, tzinfo=UTC).timestamp())

# Not zones that people live in: a placeholder, and whatever this machine happens to be set to.
ZONES = sorted(available_timezones() - {"Factory", "localtime"})

# Where clocks are changed at or near midnight, or by a whole day.
ODD_ZONES = [
    "Africa/Cairo",
    "America/Havana",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Casey",
    "Asia/Gaza",
    "Pacific/Apia",
    "Pacific/Kwajalein",
]

zones = st.sampled_from(ODD_ZONES) | st.sampled_from(ZONES)


def offset(zone: ZoneInfo, second: int) -> timedelta | None:
    return datetime.fromtimestamp(second, zone).utcoffset()


@cache
def clock_changes(name: str) -> tuple[int, ...]:
    """The seconds since the epoch at which the clocks of a zone are changed, up to 2040."""
    zone = ZoneInfo(name)
    changes = []
    week = 7 * 86_400
    for start in range(EARLIEST, RULES_REPEAT_FROM, week):
        if offset(zone, start) != offset(zone, start + week):
            before, after = start, start + week
            while after - before > 1:
                middle = (before + after) // 2
                if offset(zone, middle) == offset(zone, start):
                    before = middle
                else:
                    after = middle
            changes.append(after)
    return tuple(changes)


@st.composite
def periods(draw: st.DrawFn) -> CalendarPeriod:
    unit = draw(st.sampled_from(["day", "week", "month", "year"]))
    first = draw(st.integers(1, {"week": 7, "month": 31}.get(unit, 1)))
    return CalendarPeriod(unit, draw(zones), first)


@st.composite
def instants(draw: st.DrawFn, period: CalendarPeriod) -> Micros:
    """Any instant from 1971 to 2099; often one near a change of the zone's clocks."""
    anywhere = st.integers(EARLIEST * SECOND, LATEST * SECOND)
    changes = clock_changes(period.zone)
    if not changes or draw(st.booleans()):
        return draw(anywhere)
    return draw(st.sampled_from(changes)) * SECOND + draw(st.integers(-30 * 3_600, 30 * 3_600)) * SECOND // 10


@given(st.data(), periods())
def test_every_instant_lies_in_its_period(data: st.DataObject, period: CalendarPeriod) -> None:
    now = data.draw(instants(period))
    start, end = period.bounds(now)
    assert start <= now < end
    assert end - start <= period.longest_us


@given(st.data(), periods())
def test_a_period_ends_where_the_next_begins(data: st.DataObject, period: CalendarPeriod) -> None:
    start, end = period.bounds(data.draw(instants(period)))
    assert period.bounds(start) == period.bounds(end - 1) == (start, end)
    assert period.bounds(end)[0] == end
    assert period.bounds(start - 1)[1] == start


@given(st.data(), zones)
def test_every_minute_around_a_change_of_clocks_is_in_its_day(data: st.DataObject, zone: str) -> None:
    changes = clock_changes(zone)
    assume(changes)
    change = data.draw(st.sampled_from(changes)) * SECOND
    period = CalendarPeriod("day", zone)
    for minute in range(-125, 126):
        now = change + minute * 60 * SECOND
        start, end = period.bounds(now)
        assert start <= now < end


@given(st.data(), periods())
def test_away_from_changes_of_clocks_a_period_begins_at_midnight_of_its_first_day(
    data: st.DataObject, period: CalendarPeriod
) -> None:
    now = data.draw(st.integers(EARLIEST * SECOND, RULES_REPEAT_FROM * SECOND))
    start, _ = period.bounds(now)
    assume(all(abs(start - change * SECOND) > 2 * DAY for change in clock_changes(period.zone)))
    local = (EPOCH + timedelta(microseconds=start)).astimezone(ZoneInfo(period.zone))
    assert (local.hour, local.minute, local.second, local.microsecond) == (0, 0, 0, 0)
    if period.unit == "week":
        assert local.isoweekday() == period.first
    if period.unit == "month":
        tomorrow = local + timedelta(days=1)
        assert local.day == period.first or (local.day < period.first and tomorrow.month != local.month)
    if period.unit == "year":
        assert (local.month, local.day) == (1, 1)


@given(st.integers(1, 2**32), periods(), st.sampled_from(["", " penalty 15m", " count denied", " name plan"]))
def test_calendar_quotas_read_as_they_are_written(limit: int, period: CalendarPeriod, option: str) -> None:
    quota = Quota.parse(f"{limit}/{period}{option}")
    assert quota.calendar == period
    assert Quota.parse(str(quota)) is quota
    assert str(quota) == f"{limit}/{period}{option}"

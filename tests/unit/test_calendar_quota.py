"""Quotas by the calendar: how they are written, and how they count."""

import copy
import pickle
from datetime import datetime

import pytest

from penstock import Limiter, ManualClock, Quota
from penstock.errors import CostExceedsLimit, InvalidQuota, InvalidRequest
from penstock.quota.periods import CalendarPeriod

ALL_WORDS = (
    "fixed_window, sliding_window, rolling_window, token_bucket, gcra, leaky_bucket, burst, queue, ttl, min_interval, "
    "penalty, count denied, starts, anchor, name"
)


def clock_at(text: str) -> ManualClock:
    return ManualClock(datetime.fromisoformat(text).timestamp())


def set_to(clock: ManualClock, text: str) -> None:
    clock.set(datetime.fromisoformat(text).timestamp())


# Texts


BERLIN = CalendarPeriod("month", "Europe/Berlin")
BUENOS_AIRES = CalendarPeriod("day", "America/Argentina/Buenos_Aires")


@pytest.mark.parametrize(
    ("text", "period", "written"),
    [
        ("10/day calendar", CalendarPeriod("day"), "10/day calendar UTC"),
        ("10/day calendar UTC", CalendarPeriod("day"), "10/day calendar UTC"),
        ("10 per DAY Calendar utc", CalendarPeriod("day"), "10/day calendar UTC"),
        ("10000/month calendar Europe/Berlin", BERLIN, None),
        ("10/month calendar europe/berlin", BERLIN, "10/month calendar Europe/Berlin"),
        ("10/month calendar UTC anchor 31", CalendarPeriod("month", "UTC", 31), None),
        ("10/month calendar anchor 15", CalendarPeriod("month", "UTC", 15), "10/month calendar UTC anchor 15"),
        ("10/month calendar UTC anchor 1", CalendarPeriod("month"), "10/month calendar UTC"),
        ("10/week calendar America/New_York", CalendarPeriod("week", "America/New_York"), None),
        ("10/week calendar UTC starts sunday", CalendarPeriod("week", "UTC", 7), None),
        ("10/week calendar STARTS Monday", CalendarPeriod("week"), "10/week calendar UTC"),
        ("10/year calendar Pacific/Apia", CalendarPeriod("year", "Pacific/Apia"), None),
        ("10/day calendar America/Port-au-Prince", CalendarPeriod("day", "America/Port-au-Prince"), None),
        ("10/day calendar Etc/GMT+5", CalendarPeriod("day", "Etc/GMT+5"), None),
        ("10/day calendar America/Argentina/Buenos_Aires", BUENOS_AIRES, None),
    ],
)
def test_calendar_quotas_read_and_are_written_back(text: str, period: CalendarPeriod, written: str | None) -> None:
    quota = Quota.parse(text)
    assert (quota.algorithm, quota.calendar, quota.flat) == ("calendar", period, False)
    assert str(quota) == (written or text)
    assert Quota.parse(str(quota)) is quota
    assert Quota(quota.limit, period) is quota


@pytest.mark.parametrize(
    "text",
    [
        "10/month calendar Europe/Berlin anchor 31 min_interval 1s penalty 15m count denied name plan",
        "10/week calendar Asia/Kolkata starts saturday name a.b:c-d",
        "10/day calendar UTC penalty 1h",
        "10/year calendar UTC count denied",
    ],
)
def test_options_stand_beside_the_calendar(text: str) -> None:
    assert str(Quota.parse(text)) == text


def test_several_quotas_stand_in_one_text() -> None:
    text = "10/day calendar Europe/Berlin, 100/month calendar; 5 concurrent ttl 30s"
    assert [str(quota) for quota in Quota.parse_all(text)] == [
        "10/day calendar Europe/Berlin",
        "100/month calendar UTC",
        "5 concurrent ttl 30s",
    ]


def test_copies_and_pickles_are_the_same_object() -> None:
    quota = Quota(10, CalendarPeriod("month", "Europe/Berlin", 31))
    assert copy.deepcopy(quota) is copy.copy(quota) is pickle.loads(pickle.dumps(quota)) is quota
    assert repr(quota) == "Quota.parse('10/month calendar Europe/Berlin anchor 31')"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "10/month calendar Mars/Olympus",
            (
                "time zone 'Mars/Olympus': unknown (expected an IANA name such as Europe/Berlin; "
                "where the system has no time zones, install penstock[calendar])"
            ),
        ),
        ("10/month calendar UTC anchor 0", "first day 0 of a month: expected 1 to 31"),
        ("10/month calendar UTC anchor 32", "first day 32 of a month: expected 1 to 31"),
        (
            "10/month calendar UTC anchor",
            'quota "10/month calendar UTC anchor": ends too early (expected a day of the month)',
        ),
        (
            "10/month calendar UTC anchor last",
            "quota \"10/month calendar UTC anchor last\": unexpected 'last' at column 30 (expected a day of the month)",
        ),
        (
            "10/day calendar UTC anchor 3",
            (
                "quota \"10/day calendar UTC anchor 3\": unexpected 'anchor' at column 21 "
                "(expected anchor only after month calendar)"
            ),
        ),
        (
            "10/month anchor 3",
            (
                "quota \"10/month anchor 3\": no fixed length: 'month' at column 4 "
                '(expected "30 days", or "month calendar UTC")'
            ),
        ),
        (
            "10/months",
            'quota "10/months": no fixed length: \'months\' at column 4 (expected "30 days", or "month calendar UTC")',
        ),
        (
            "10/year",
            'quota "10/year": no fixed length: \'year\' at column 4 (expected "365 days", or "year calendar UTC")',
        ),
        (
            "10/month calendar UTC starts monday",
            (
                "quota \"10/month calendar UTC starts monday\": unexpected 'starts' at column 23 "
                "(expected starts only after week calendar)"
            ),
        ),
        (
            "10/week calendar UTC starts someday",
            (
                "quota \"10/week calendar UTC starts someday\": unexpected 'someday' at column 29 "
                "(expected monday, tuesday, wednesday, thursday, friday, saturday, sunday)"
            ),
        ),
        (
            "10/week calendar UTC starts",
            (
                'quota "10/week calendar UTC starts": ends too early '
                "(expected monday, tuesday, wednesday, thursday, friday, saturday, sunday)"
            ),
        ),
        (
            "10/week calendar UTC starts sunday starts monday",
            (
                "quota \"10/week calendar UTC starts sunday starts monday\": repeated 'starts' at column 36 "
                "(expected each option, and one algorithm, at most once)"
            ),
        ),
        (
            "10/week calendar UTC Europe/Berlin",
            (
                "quota \"10/week calendar UTC Europe/Berlin\": unknown word 'Europe' at column 22 "
                f"(expected {ALL_WORDS})"
            ),
        ),
        ("10/day calendar UTC burst 5", "burst 5: calendar has no burst (expected token_bucket or gcra)"),
        ("10/day calendar UTC queue 5", "queue 5: calendar has no queue (expected leaky_bucket)"),
        (
            "10/day calendar UTC ttl 5s",
            'ttl: only concurrency limits have one (expected e.g. "5 concurrent ttl 30s")',
        ),
        (
            "10/day calendar UTC gcra",
            (
                "quota \"10/day calendar UTC gcra\": unexpected 'gcra' at column 21 "
                "(expected no algorithm: this kind of quota implies one)"
            ),
        ),
        ("0/day calendar UTC", "limit 0: expected 1 to 4294967296"),
    ],
)
def test_mistakes_are_reported_with_exact_messages(text: str, error: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(("text", "column"), [("10/hour calendar UTC", 9), ("10/2 days calendar UTC", 11)])
def test_only_some_units_have_a_calendar(text: str, column: int) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == (
        f"quota \"{text}\": unexpected 'calendar' at column {column} "
        "(expected calendar only right after day, week, month or year)"
    )


def test_the_calendar_algorithm_needs_a_calendar() -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(10, 60, "calendar")
    assert str(caught.value) == "algorithm 'calendar': calendar periods have their own algorithm (expected none)"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10/day calendar UTC", "10/day calendar Europe/Berlin"),
        ("10/day calendar UTC", "10/month calendar UTC"),
        ("10/month calendar UTC", "10/month calendar UTC anchor 2"),
        ("10/day calendar UTC", "10/day"),
    ],
)
def test_zone_unit_and_anchor_tell_counters_apart(one: str, other: str) -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.acquire("alice", one, cost=10)
    assert limiter.acquire("alice", other)
    assert not limiter.acquire("alice", one)


def test_one_request_cannot_ask_the_same_calendar_twice() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Limiter().acquire("alice", "10/day calendar UTC, 20/day calendar utc")
    assert str(caught.value) == (
        "20/day calendar UTC: asked twice in one request (give one of them a name to keep them apart)"
    )


# Counting


BOUNDARIES = [
    # quota, an instant in the period, the beginning of the next
    ("3/day calendar Europe/Berlin", "2024-03-30T12:00+01:00", "2024-03-31T00:00+01:00"),
    ("3/day calendar Europe/Berlin", "2024-03-31T00:00+01:00", "2024-04-01T00:00+02:00"),
    ("3/day calendar Europe/Berlin", "2024-10-27T00:00+02:00", "2024-10-28T00:00+01:00"),
    ("3/day calendar America/New_York", "2024-11-03T12:00-05:00", "2024-11-04T00:00-05:00"),
    ("3/day calendar Pacific/Apia", "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00"),
    ("3/day calendar America/Sao_Paulo", "2018-11-03T12:00-03:00", "2018-11-04T01:00-02:00"),
    ("3/week calendar UTC", "2024-05-15T00:00+00:00", "2024-05-20T00:00+00:00"),
    ("3/week calendar UTC starts sunday", "2024-05-15T00:00+00:00", "2024-05-19T00:00+00:00"),
    ("3/month calendar Asia/Kolkata", "2024-02-10T00:00+05:30", "2024-03-01T00:00+05:30"),
    ("3/month calendar UTC anchor 31", "2024-02-10T00:00+00:00", "2024-02-29T00:00+00:00"),
    ("3/year calendar America/New_York", "2024-02-29T00:00-05:00", "2025-01-01T00:00-05:00"),
]


@pytest.mark.parametrize(("quota", "now", "boundary"), BOUNDARIES)
def test_counting_starts_again_at_the_boundary_and_not_a_microsecond_earlier(
    quota: str, now: str, boundary: str
) -> None:
    clock = clock_at(now)
    limiter = Limiter(clock=clock)
    until_boundary = datetime.fromisoformat(boundary).timestamp() - datetime.fromisoformat(now).timestamp()
    first = limiter.acquire("alice", quota, cost=2)
    assert (first.remaining, first.reset_after, first.more_after) == (1, until_boundary, until_boundary)
    refused = limiter.acquire("alice", quota, cost=2)
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 1, until_boundary)
    assert limiter.acquire("alice", quota).remaining == 0
    set_to(clock, boundary)
    clock.micros -= 1
    assert limiter.acquire("alice", quota).retry_after_us == 1
    clock.micros += 1
    assert limiter.acquire("alice", quota, cost=3)
    assert not limiter.acquire("alice", quota)


@pytest.mark.parametrize("minute", ["00:00-02:30", "23:01-03:30", "23:59-03:30"])
def test_the_hour_that_goes_back_to_yesterday_counts_like_any_other(minute: str) -> None:
    day = "2010-11-07" if minute.startswith("00") else "2010-11-06"
    limiter = Limiter(clock=clock_at(f"{day}T{minute}"))
    quota = "2/day calendar America/St_Johns"
    verdicts = [limiter.acquire("alice", quota) for _ in range(4)]
    assert [bool(verdict) for verdict in verdicts] == [True, True, False, False]
    assert verdicts[-1].retry_after > 0


def test_a_peek_describes_the_period() -> None:
    clock = clock_at("2024-03-31T12:00+02:00")
    limiter = Limiter(clock=clock)
    quota = "5/day calendar Europe/Berlin"
    untouched = limiter.peek("alice", quota, cost=0)
    assert (untouched.remaining, untouched.more_after, untouched.reset_after) == (5, 0, 12 * 3_600)
    limiter.acquire("alice", quota, cost=5)
    assert limiter.peek("alice", quota, cost=0).remaining == 0
    assert not limiter.peek("alice", quota)


def test_a_cost_above_the_limit_can_never_pass() -> None:
    with pytest.raises(CostExceedsLimit) as caught:
        Limiter().acquire("alice", "5/day calendar UTC", cost=6)
    assert str(caught.value) == "cost 6: 5/day calendar UTC admits at most 5 at once, however long one waits"


def test_a_changed_limit_keeps_what_was_used() -> None:
    limiter = Limiter(clock=clock_at("2024-05-15T00:00+00:00"))
    limiter.acquire("alice", "10/month calendar UTC", cost=8)
    assert limiter.acquire("alice", "20/month calendar UTC").remaining == 11
    refused = limiter.acquire("alice", "5/month calendar UTC")
    assert (refused.allowed, refused.remaining) == (False, 0)


def test_calendars_and_rates_are_charged_all_or_none() -> None:
    limiter = Limiter(clock=clock_at("2024-05-15T00:00+00:00"))
    both = ["2/minute", "3/month calendar UTC"]
    assert [bool(limiter.acquire("alice", both)) for _ in range(3)] == [True, True, False]
    assert limiter.peek("alice", "3/month calendar UTC", cost=0).remaining == 1


# Giving back


def test_a_refund_in_the_same_period_comes_back() -> None:
    clock = clock_at("2024-05-31T23:00+00:00")
    limiter = Limiter(clock=clock)
    verdict = limiter.acquire("alice", "5/month calendar UTC", cost=5)
    clock.advance(3_599)
    assert limiter.refund(verdict, units=2).units == 2
    assert limiter.peek("alice", "5/month calendar UTC", cost=0).remaining == 2


def test_a_refund_in_a_later_period_gives_nothing() -> None:
    clock = clock_at("2024-05-31T23:00+00:00")
    limiter = Limiter(clock=clock)
    verdict = limiter.acquire("alice", "5/month calendar UTC", cost=3)
    clock.advance(3_600)
    limiter.acquire("alice", "5/month calendar UTC", cost=4)
    assert limiter.refund(verdict).units == 0
    assert limiter.peek("alice", "5/month calendar UTC", cost=0).remaining == 1


def test_settling_in_a_later_period_charges_that_one_but_gives_it_nothing() -> None:
    clock = clock_at("2024-05-31T23:59+00:00")
    limiter = Limiter(clock=clock)
    quota = "10/month calendar UTC"
    less, more = limiter.reserve("alice", quota, cost=4), limiter.reserve("bob", quota, cost=4)
    clock.advance(60)
    limiter.acquire("alice", quota, cost=5)
    assert less.settle(1).units == 0
    assert limiter.peek("alice", quota, cost=0).remaining == 5
    more.settle(7)
    assert limiter.peek("bob", quota, cost=0).remaining == 7


# Time going back


def test_time_going_back_over_a_boundary_admits_no_more() -> None:
    clock = clock_at("2024-05-15T00:00+00:00")
    limiter = Limiter(clock=clock)
    quota = "3/day calendar UTC"
    limiter.acquire("alice", quota, cost=3)
    set_to(clock, "2024-05-14T23:59:59+00:00")
    refused = limiter.acquire("alice", quota)
    assert (refused.allowed, refused.retry_after) == (False, 86_401)
    set_to(clock, "2024-05-15T12:00+00:00")
    assert not limiter.acquire("alice", quota)
    set_to(clock, "2024-05-16T00:00+00:00")
    assert limiter.acquire("alice", quota)


def test_time_going_back_within_a_period_changes_nothing() -> None:
    clock = clock_at("2024-05-15T12:00+00:00")
    limiter = Limiter(clock=clock)
    limiter.acquire("alice", "3/day calendar UTC", cost=2)
    set_to(clock, "2024-05-15T01:00+00:00")
    assert limiter.acquire("alice", "3/day calendar UTC").remaining == 0


def test_a_clock_stepped_back_by_more_than_a_period_keeps_what_was_used_in_the_period_it_now_is() -> None:
    clock = clock_at("2024-05-15T12:00+00:00")
    limiter = Limiter(clock=clock)
    limiter.acquire("alice", "3/day calendar UTC", cost=2)
    set_to(clock, "2024-05-05T12:00+00:00")
    verdict = limiter.acquire("alice", "3/day calendar UTC")
    assert (verdict.remaining, verdict.reset_after) == (0, 12 * 3_600)


@pytest.mark.parametrize("unit", ["day", "week", "month", "year"])
def test_refusals_last_at_most_a_period_after_a_clock_step_back(unit: str) -> None:
    clock = clock_at("2024-05-15T12:00+00:00")
    limiter = Limiter(clock=clock)
    quota = f"3/{unit} calendar UTC"
    limiter.acquire("alice", quota, cost=3)
    set_to(clock, "2014-05-05T12:00+00:00")
    refused = limiter.acquire("alice", quota)
    assert not refused
    clock.advance(refused.retry_after)
    assert limiter.acquire("alice", quota)

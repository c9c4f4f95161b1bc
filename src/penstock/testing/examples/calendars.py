"""Calendars: a budget for each day, week, month or year, as the clocks of a time zone show them."""

from __future__ import annotations

from datetime import datetime

import pytest

from penstock.clock import SECOND, Micros
from penstock.testing.kit import Kit

BOUNDARIES = [
    ("day calendar UTC", "2024-05-06T00:00:00Z"),
    ("day calendar Asia/Kolkata", "2024-05-05T18:30:00Z"),
    ("day calendar Europe/Berlin", "2024-03-30T23:00:00Z"),  # begins in winter time
    ("day calendar Europe/Berlin", "2024-03-31T22:00:00Z"),  # and ends in summer time, an hour early
    ("day calendar Europe/Berlin", "2024-10-27T23:00:00Z"),  # 25 hours
    ("day calendar America/Havana", "2024-03-10T05:00:00Z"),  # the clocks skip midnight
    ("day calendar America/Havana", "2024-11-03T04:00:00Z"),  # the first of two midnights
    ("day calendar Africa/Cairo", "2024-10-31T22:00:00Z"),  # the hour before midnight comes twice
    ("day calendar America/St_Johns", "2010-11-07T02:30:00Z"),  # a minute later it is yesterday again
    ("day calendar Pacific/Apia", "2011-12-30T10:00:00Z"),  # from the 29th to the 31st
    ("week calendar UTC", "2024-05-06T00:00:00Z"),
    ("week calendar America/New_York starts sunday", "2024-03-10T05:00:00Z"),
    ("month calendar UTC", "2024-03-01T00:00:00Z"),
    ("month calendar Europe/Berlin", "2024-03-31T22:00:00Z"),
    ("month calendar UTC anchor 31", "2024-02-29T00:00:00Z"),
    ("month calendar UTC anchor 31", "2023-02-28T00:00:00Z"),
    ("month calendar UTC anchor 31", "2024-04-30T00:00:00Z"),
    ("month calendar UTC anchor 15", "2024-01-15T00:00:00Z"),
    ("month calendar Pacific/Apia anchor 30", "2011-12-30T10:00:00Z"),
    ("year calendar Pacific/Auckland", "2023-12-31T11:00:00Z"),
    ("year calendar UTC", "2024-01-01T00:00:00Z"),
]


def instant(text: str) -> Micros:
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


class CalendarExamples(Kit):
    """Examples of calendar periods."""

    @pytest.mark.parametrize(("period", "boundary"), BOUNDARIES)
    def test_a_period_ends_where_the_next_begins_and_not_a_microsecond_earlier(
        self, period: str, boundary: str
    ) -> None:
        quota = f"3/{period}"
        self.clock.micros = instant(boundary) - 1
        assert self.acquire("alice", quota, cost=3).reset_after_us == 1
        assert self.acquire("alice", quota).retry_after_us == 1
        self.clock.micros += 1
        assert self.acquire("alice", quota, cost=3)
        assert not self.acquire("alice", quota)

    @pytest.mark.parametrize(
        ("period", "first", "last"),
        [
            ("day calendar Europe/Berlin", "2024-03-30T23:00:00Z", "2024-03-31T21:59:59Z"),
            ("day calendar Europe/Berlin", "2024-10-26T22:00:00Z", "2024-10-27T22:59:59Z"),
            ("day calendar America/St_Johns", "2010-11-07T02:30:00Z", "2010-11-08T03:29:59Z"),
            ("month calendar UTC anchor 31", "2024-01-31T00:00:00Z", "2024-02-28T23:59:59Z"),
            ("year calendar UTC", "2024-01-01T00:00:00Z", "2024-12-31T23:59:59Z"),
        ],
    )
    def test_a_period_is_one_budget_from_its_first_moment_to_its_last(self, period: str, first: str, last: str) -> None:
        quota = f"3/{period}"
        self.clock.micros = instant(first)
        assert self.acquire("alice", quota, cost=2)
        self.clock.micros = instant(last)
        assert not self.acquire("alice", quota, cost=2)
        assert self.acquire("alice", quota)
        self.clock.micros += SECOND
        assert self.acquire("alice", quota, cost=3)

    def test_zone_unit_and_first_day_tell_counters_apart(self) -> None:
        for quota in (
            "3/day calendar UTC",
            "3/day calendar Europe/Berlin",
            "3/week calendar UTC",
            "3/week calendar UTC starts sunday",
            "3/month calendar UTC",
            "3/month calendar UTC anchor 2",
            "3/day fixed_window",
        ):
            assert self.acquire("alice", quota, cost=3)

    def test_a_changed_limit_keeps_what_was_used(self) -> None:
        self.acquire("alice", "9/month calendar UTC", cost=6)
        assert self.left("alice", "4/month calendar UTC") == 0
        assert self.left("alice", "20/month calendar UTC") == 14

    def test_a_calendar_stands_beside_rates_all_or_none(self) -> None:
        month, minute = "9/month calendar UTC", "2/minute gcra"
        assert [bool(self.acquire("alice", month, minute)) for _ in range(3)] == [True, True, False]
        assert self.left("alice", month) == 7

    def test_what_was_charged_comes_back_within_its_period_alone(self) -> None:
        quota = "9/day calendar Europe/Berlin"
        self.clock.micros = instant("2024-10-27T22:00:00Z")
        soon, late = self.acquire("alice", quota, cost=4), self.acquire("alice", quota, cost=4)
        self.clock.advance(3_599)
        assert self.refund(soon).units == 4
        self.clock.advance(1)
        self.acquire("alice", quota, cost=4)
        assert self.refund(late).units == 0

    def test_time_going_back_over_a_boundary_admits_no_more(self) -> None:
        quota = "3/month calendar Europe/Berlin"
        self.clock.micros = instant("2024-03-31T22:00:00Z")
        self.acquire("alice", quota, cost=3)
        for step in (1, SECOND, 3_600 * SECOND):
            self.clock.micros -= step
            assert not self.alone("alice", quota)

    @pytest.mark.parametrize("unit", ["day", "week", "month"])
    def test_a_clock_set_back_by_a_year_shuts_no_key_out_for_longer_than_a_period(self, unit: str) -> None:
        quota = f"3/{unit} calendar UTC"
        self.acquire("alice", quota, cost=3)
        self.clock.micros -= 400 * 86_400 * SECOND
        told = self.alone("alice", quota)
        assert told.retry_after <= {"day": 1, "week": 7, "month": 31}[unit] * 86_400
        self.clock.micros += told.retry_after_us
        assert told or self.alone("alice", quota)

"""Damaged values and clocks that step: at most one budget more, no refusal without end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from penstock.clock import SECOND, Micros
from penstock.model import Amend, Amended, Verdict
from penstock.quota import Quota
from penstock.stores.redis.store import RedisStore
from tests.integration.redis_support import acquire, decided, one, opened
from tests.rig.clock_shim import can_step_clocks
from tests.rig.fixtures import Keyspace
from tests.rig.servers import Server, flavours

HOUR: Micros = 3_600 * SECOND

RATES = (
    "5/{} fixed_window",
    "5/{}",
    "5/{} rolling_window",
    "5/{} token_bucket",
    "5/{} gcra",
    "5/{} queue 4",
)
ALL = (*[rate.format("hour") for rate in RATES], "5/day calendar UTC", "5 concurrent ttl 60s")

for_every_quota = pytest.mark.parametrize("quota", ALL)


def admitted(store: RedisStore, quota: str, attempts: int = 12) -> int:
    return sum(bool(decided(one(store, acquire(quota)))) for _ in range(attempts))


def patience(quota: Quota, back: Micros = 0) -> Micros:
    """The longest that a refusal may last when the clock has been stepped `back`.

    Two counters may make wait for two periods, everything else for one. What lies ahead by no more than a period may
    be right, so time stands still until it has caught up; what lies further ahead is pulled back at once.
    """
    if quota.calendar is not None:
        return 25 * HOUR + back  # the day on which clocks are set back
    periods = 2 if quota.algorithm == "sliding_window" else 1
    return quota.period_us * periods + (back if back <= quota.period_us else 0)


def check_refusal(verdict: Verdict, back: Micros = 0) -> None:
    assert verdict or verdict.retry_after_us <= patience(verdict.quota, back), verdict


# ---------------------------------------------------------------- damaged values

DAMAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    "a list": (("DEL", "{key}"), ("RPUSH", "{key}", "x"), ("EXPIRE", "{key}", "60")),
    "a hash": (("DEL", "{key}"), ("HSET", "{key}", "x", "y"), ("EXPIRE", "{key}", "60")),
    "a text": (("SET", "{key}", "not a number", "EX", "60"),),
    "an empty text": (("SET", "{key}", "", "EX", "60"),),
    "negative numbers": (("SET", "{key}", "-1 -1", "EX", "60"),),
    "huge numbers": (("SET", "{key}", "9" * 400, "EX", "60"),),
}


@for_every_quota
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_overwritten_counter_is_reported_and_replaced(
    keyspace: Keyspace, quota: str, damage: tuple[tuple[str, ...], ...], caplog: pytest.LogCaptureFixture
) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:
        before = admitted(store, quota, attempts=3)
        (key,) = keyspace.keys()
        for command in damage:
            keyspace.server.ask(*[word.format(key=key.decode()) for word in command])
        with caplog.at_level(logging.WARNING, "penstock.redis"):
            after = admitted(store, quota)
        assert (before, after) == (3, 5), "one budget, and what had been spent"
        assert store.commands.corrupt == 1
        (record,) = [told for told in caplog.records if "damaged" in told.message]
        assert "1 stored values were damaged and have been replaced" in record.getMessage()
        assert key.decode() not in record.getMessage()


FAR = 2**53 - 1


@for_every_quota
@pytest.mark.parametrize("future", [f"{FAR}", f"{FAR} 5", f"{FAR} 5 5", f"5 {FAR}", f"{FAR} {FAR} 0 0", f"!{FAR}"])
def test_a_counter_from_the_far_future_refuses_no_longer_than_usual(
    keyspace: Keyspace, quota: str, future: str
) -> None:
    """Whether it can be read or not: it looks like a clock that stepped, or like damage."""
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:
        admitted(store, quota, attempts=3)
        (key,) = keyspace.keys()
        keyspace.server.ask("SET", key, future, "EX", 60)
        assert admitted(store, quota) <= 5
        check_refusal(decided(one(store, acquire(quota))))


@pytest.mark.parametrize("quota", [quota for quota in ALL if "rolling" in quota or "concurrent" in quota])
@pytest.mark.parametrize("score", ["inf", "-inf", str(FAR), "-5", "1.5"])
def test_a_log_with_foreign_entries_refuses_no_longer_than_usual(keyspace: Keyspace, quota: str, score: str) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:
        admitted(store, quota, attempts=3)
        (key,) = keyspace.keys()
        for number in range(20):
            keyspace.server.ask("ZADD", key, score, f"nonsense {number}")
        assert admitted(store, quota) <= 5
        check_refusal(decided(one(store, acquire(quota))))


def test_a_damaged_record_of_a_request_costs_at_most_its_charge_again(keyspace: Keyspace) -> None:
    with opened(keyspace.server.url, prefix=keyspace.prefix) as store:
        request = acquire("5/hour", cost=2, id=b"once")
        assert decided(one(store, request)).remaining == 3
        _, record = sorted(keyspace.keys(), key=lambda key: b"}#" in key)
        keyspace.server.ask("SET", record, "nonsense", "EX", 60)
        assert decided(one(store, request)).remaining == 1
        assert decided(one(store, request)).remaining == 1
        assert store.commands.corrupt == 1


# ---------------------------------------------------------------- clocks that step

needs_compiler = pytest.mark.skipif(not can_step_clocks(), reason="no C compiler to build the clock shim with")

PERIODS = ("10 minutes", "1 day")
STEPPED = (*[rate.format(period) for period in PERIODS for rate in RATES], "5/day calendar UTC", "5 concurrent ttl 60s")
LIMIT = 5
ATTEMPTS = 4 * LIMIT


@pytest.fixture(scope="module", params=flavours())
def steppable(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param, steppable=True) as server:
        yield server


@needs_compiler
@pytest.mark.parametrize("steps", [(+HOUR, -HOUR), (-HOUR, +HOUR)], ids=["ahead and back", "back and ahead"])
def test_a_clock_that_steps_costs_at_most_one_budget_and_one_period(steppable: Server, steps: tuple[int, ...]) -> None:
    """Each algorithm, with a period shorter than the step and with one that is longer."""
    steppable.ask("FLUSHALL")
    with opened(steppable.url) as store:
        room = {quota: Quota.parse(quota).capacity for quota in STEPPED}
        for quota in STEPPED:
            assert admitted(store, quota, ATTEMPTS) == room[quota]
        for step in steps:
            steppable.step_clock(step / SECOND)
            for quota in STEPPED:
                check_refusal(decided(one(store, acquire(quota, dry=True))), max(0, -step))
                extra = admitted(store, quota, ATTEMPTS)
                print(f"{quota}: {extra} more after a step of {step / SECOND:+} s")
                assert extra <= room[quota]
                check_refusal(decided(one(store, acquire(quota))), max(0, -step))
    for key in steppable.ask("KEYS", "*"):
        assert 0 < steppable.ask("PTTL", key) * 1_000 <= 3 * 24 * HOUR


@needs_compiler
def test_holds_can_be_released_after_a_step_either_way(steppable: Server) -> None:
    with opened(steppable.url, namespace="holds") as store:
        for step in (-HOUR, +HOUR):
            verdict = decided(one(store, acquire("5 concurrent ttl 1 day", id=b"%d" % step)))
            assert verdict.receipt is not None
            steppable.step_clock(step / SECOND)
            assert isinstance(one(store, Amend(verdict.receipt, "release")), Amended)
            left = decided(one(store, acquire("5 concurrent ttl 1 day", dry=True)))
            assert left.remaining == 5

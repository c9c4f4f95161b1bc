"""How things stand, in words."""

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock
from tests.unit.support import finish


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(clock=ManualClock(1_700_000_020))  # twenty seconds before a full minute


@pytest.mark.parametrize(
    ("quota", "cost", "text"),
    [
        (
            "100/minute fixed_window",
            12,
            "100/minute fixed_window: 12 of 100 used, 88 left, reset in 20 s",
        ),
        ("100/minute", 12, "100/minute (sliding_window): 12 of 100 used, 88 left, reset in 20 s"),
        ("60/minute gcra", 30, "60/minute gcra: 30 of 60 used, 30 left, reset in 30 s"),
        (
            "5/minute rolling_window",
            5,
            "5/minute rolling_window: 5 of 5 used, 0 left, refused for 60 s, reset in 60 s",
        ),
        ("3 concurrent ttl 30s", 1, "3 concurrent ttl 30s: 1 of 3 places held, 2 left, reset in 30 s"),
    ],
)
def test_a_counter_is_told_in_words(limiter: Limiter, quota: str, cost: int, text: str) -> None:
    limiter.acquire("alice", quota, cost)
    (inspection,) = limiter.inspect("alice", quota)
    assert str(inspection) == text


def test_a_counter_nobody_touched_has_everything_left(limiter: Limiter) -> None:
    (inspection,) = limiter.inspect("alice", "60/minute gcra")
    assert (inspection.used, inspection.remaining, inspection.capacity) == (0, 60, 60)
    assert str(inspection) == "60/minute gcra: 0 of 60 used, 60 left"


def test_who_is_shut_out_is_told_for_how_long(limiter: Limiter) -> None:
    for _ in range(2):
        limiter.acquire("alice", "1/minute penalty 15m")
    (inspection,) = limiter.inspect("alice", "1/minute penalty 15m")
    assert inspection.blocked_for == 900


def test_every_counter_is_told_and_none_is_charged(limiter: Limiter) -> None:
    quotas = ["10/second min_interval 50ms", "1000/hour"]
    limiter.acquire("alice", quotas)
    first = limiter.inspect("alice", quotas)
    assert [inspection.used for inspection in first] == [1, 1, 1]
    assert limiter.inspect("alice", quotas) == first


def test_asyncio_tells_the_same() -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    finish(limiter.acquire("alice", "10/hour gcra"))
    (inspection,) = finish(limiter.inspect("alice", "10/hour gcra"))
    assert (inspection.algorithm, inspection.used) == ("gcra", 1)

"""`acquire_all`: requests of several keys, of which all are charged or none."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncLimiter, InvalidInput, Limiter, ManualClock
from penstock.engine.operations import Request
from penstock.errors import CostExceedsLimit

USER, TENANT = ("user", "alice"), ("tenant", "acme")


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def _left(limiter: Limiter) -> tuple[int, int]:
    return limiter.peek(USER, "2/minute").remaining, limiter.peek(TENANT, "10/minute").remaining


def test_all_are_charged(limiter: Limiter) -> None:
    verdict = limiter.acquire_all([(USER, "2/minute"), (TENANT, "10/minute", 4)])
    assert verdict
    assert [(one.key, one.cost, one.remaining) for one in verdict.decisions] == [(USER, 1, 1), (TENANT, 4, 6)]
    assert _left(limiter) == (1, 6)


def test_none_is_charged_if_one_refuses(limiter: Limiter) -> None:
    limiter.acquire(TENANT, "10/minute", cost=9)
    requests: list[Request] = [(USER, "2/minute"), (TENANT, "10/minute", 2)]
    verdict = limiter.acquire_all(iter(requests))
    assert not verdict
    assert (verdict.key, str(verdict.quota)) == (TENANT, "10/minute")
    assert [one.allowed for one in verdict.decisions] == [True, False]
    assert _left(limiter) == (2, 1)


def test_one_receipt_gives_all_back(limiter: Limiter) -> None:
    verdict = limiter.acquire_all([(USER, "2/minute"), (TENANT, "10/minute", 4)])
    assert limiter.refund(verdict).each == (1, 4)
    assert _left(limiter) == (2, 10)


def test_places_are_released_and_rates_stay_charged(limiter: Limiter) -> None:
    verdict = limiter.acquire_all([(USER, "1 concurrent"), (TENANT, "10/minute", 4)])
    assert limiter.renew(verdict)
    assert limiter.release(verdict).each == (1, 0)
    assert limiter.acquire(USER, "1 concurrent")
    assert _left(limiter)[1] == 6


def test_a_repeated_id_is_charged_once_and_can_be_settled(limiter: Limiter) -> None:
    requests = [(USER, "2/minute", 2), (TENANT, "10/minute", 2)]
    verdict = limiter.acquire_all(requests, id="one")
    assert limiter.acquire_all(requests, id="one") == verdict
    assert limiter.settle(verdict, 1).each == (1, 1)
    assert _left(limiter) == (1, 9)


async def test_asyncio_decides_as_well(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    requests: list[Request] = [(USER, ["2/minute", "3/minute name other"]), (TENANT, "10/minute", 4)]
    verdict = await limiter.acquire_all(requests)
    assert [one.remaining for one in verdict.decisions] == [1, 2, 6]
    assert (await limiter.refund(verdict)).each == (1, 1, 4)


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ([], "no requests: expected at least one"),
        ([("a", "1/minute"), (("a",), "2/minute")], r"2/minute: asked twice of one key \(give one of the quotas"),
        ([("a",)], r"request 0: expected \(key, quota\) or \(key, quota, cost\)"),
        (["ab"], "request 0: expected"),
        ([("a", "1/minute"), ("", "1/minute")], "key: expected text"),
    ],
)
def test_mistakes_are_raised_and_nothing_is_charged(limiter: Limiter, requests: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        limiter.acquire_all(requests)
    assert limiter.peek("a", "1/minute").remaining == 1


def test_a_cost_that_can_never_fit_is_raised(limiter: Limiter) -> None:
    with pytest.raises(CostExceedsLimit):
        limiter.acquire_all([(USER, "2/minute", 2), (TENANT, "10/minute", 11)])
    assert _left(limiter) == (2, 10)


def test_the_same_quota_of_different_keys_is_two_counters(limiter: Limiter) -> None:
    assert limiter.acquire_all([("a", "1/minute"), ("b", "1/minute")])
    assert not limiter.acquire_all([("b", "1/minute"), ("c", "1/minute")])
    assert limiter.acquire("c", "1/minute")

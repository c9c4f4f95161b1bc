"""Units charged by estimate and settled once the true cost is known."""

import asyncio

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, RateLimited
from penstock.errors import CostExceedsLimit, InvalidCost, InvalidReceipt

RATE = "100/minute"

RATES = [
    "100/minute fixed_window",
    "100/minute sliding_window",
    "100/minute rolling_window",
    "100/minute token_bucket",
    "100/minute gcra",
    "100/day calendar Europe/Berlin",
]
"""Every algorithm whose units can be told right after the charge."""


@pytest.fixture
def clock() -> ManualClock:
    """Stands at the beginning of a minute, so that windows of a minute have just begun."""
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def left(limiter: Limiter, quota: str = RATE, key: str = "alice") -> int:
    return limiter.peek(key, quota, cost=0).remaining


# Settling


@pytest.mark.parametrize("quota", RATES)
@pytest.mark.parametrize(
    ("actual", "back", "remaining"),
    [(0, 40, 100), (1, 39, 99), (39, 1, 61), (40, 0, 60), (41, -1, 59), (100, -60, 0)],
)
def test_settling_makes_the_cost_what_it_really_was(
    limiter: Limiter, quota: str, actual: int, back: int, remaining: int
) -> None:
    reservation = limiter.reserve("alice", quota, cost=40)
    assert left(limiter, quota) == 60
    assert reservation.settle(actual).each == (back,)
    assert left(limiter, quota) == remaining


@pytest.mark.parametrize("quota", RATES)
@pytest.mark.parametrize("actual", [101, 150, 100_000, 2**53 - 1])
def test_a_settlement_above_the_limit_is_charged_all_the_same_and_shows_zero(
    limiter: Limiter, quota: str, actual: int
) -> None:
    reservation = limiter.reserve("alice", quota, cost=40)
    reservation.settle(actual)
    assert left(limiter, quota) == 0
    refused = limiter.acquire("alice", quota)
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert refused.retry_after > 0


@pytest.mark.parametrize("quota", RATES)
def test_whoever_overdrew_comes_back_after_the_time_to_retry(limiter: Limiter, clock: ManualClock, quota: str) -> None:
    limiter.reserve("alice", quota, cost=40).settle(300)
    refused = limiter.acquire("alice", quota)
    clock.micros += refused.retry_after_us - 1
    assert not limiter.peek("alice", quota)
    clock.micros += 1
    assert limiter.acquire("alice", quota)


@pytest.mark.parametrize("quota", RATES)
@pytest.mark.parametrize("first", [10, 40, 70])
def test_only_the_first_settlement_counts(limiter: Limiter, quota: str, first: int) -> None:
    reservation = limiter.reserve("alice", quota, cost=40)
    reservation.settle(first)
    for again in (first, 0, 90):
        assert reservation.settle(again).each == (0,)
    assert left(limiter, quota) == 100 - first


@pytest.mark.parametrize("quota", RATES)
def test_what_is_never_settled_stays_charged(limiter: Limiter, quota: str) -> None:
    with limiter.reserve("alice", quota, cost=40):
        pass
    with pytest.raises(KeyError), limiter.reserve("alice", quota, cost=40):
        raise KeyError
    assert left(limiter, quota) == 20


def test_a_block_settles_what_it_used(limiter: Limiter) -> None:
    with limiter.reserve("alice", RATE, cost=50) as reservation:
        assert reservation
        reservation.settle(14)
    assert left(limiter) == 86


def test_a_refused_reservation_is_false_and_raises_when_entered(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=90)
    refused = limiter.reserve("alice", RATE, cost=20)
    assert not refused
    with pytest.raises(RateLimited) as caught, refused:
        raise AssertionError("the block ran")
    assert caught.value.verdict is refused.verdict
    assert left(limiter) == 10


def test_a_reservation_prints_without_its_key(limiter: Limiter) -> None:
    assert repr(limiter.reserve("alice", RATE, cost=20)) == "<Reservation <Verdict 100/minute: allowed, 80 left>>"


def test_equal_reservations_are_settled_each_for_itself(limiter: Limiter) -> None:
    one, other = limiter.reserve("alice", RATE, cost=30), limiter.reserve("alice", RATE, cost=30)
    one.settle(10)
    one.settle(10)
    assert left(limiter) == 60
    other.settle(20)
    assert left(limiter) == 70


def test_what_was_settled_upwards_is_given_back_by_time(limiter: Limiter, clock: ManualClock) -> None:
    quota = "60/minute gcra"
    limiter.reserve("alice", quota, cost=10).settle(30)
    clock.advance(20)
    assert left(limiter, quota) == 50


# Windows that have passed


@pytest.mark.parametrize("quota", ["100/minute fixed_window", "100/minute rolling_window"])
def test_settling_late_gives_nothing_back_to_a_later_window(limiter: Limiter, clock: ManualClock, quota: str) -> None:
    reservation = limiter.reserve("alice", quota, cost=40)
    clock.advance(60)
    limiter.acquire("alice", quota, cost=30)
    assert reservation.settle(10).units == 0
    assert left(limiter, quota) == 70


def test_time_has_paid_back_what_a_late_settlement_does_not(limiter: Limiter, clock: ManualClock) -> None:
    quota = "60/minute token_bucket"
    reservation = limiter.reserve("alice", quota, cost=30)
    clock.advance(10)  # ten of them are paid back
    assert reservation.settle(0).units == 20
    assert left(limiter, quota) == 60


@pytest.mark.parametrize(
    ("quota", "cost", "later", "back"),
    [
        ("1/second burst 1000", 1_000, 120, 880),
        ("1/minute gcra burst 60", 60, 1_800, 30),
        ("1/second queue 1000", 1_000, 120, 880),
        ("1000/hour", 1_000, 3_600, 1_000),
        ("1000/month calendar UTC", 1_000, 86_400, 1_000),
    ],
)
def test_a_reservation_can_be_settled_as_long_as_it_counts(
    limiter: Limiter, clock: ManualClock, quota: str, cost: int, later: float, back: int
) -> None:
    reservation = limiter.reserve("alice", quota, cost=cost)
    clock.advance(later)
    assert reservation.settle(0).units == back


def test_settling_long_after_the_period_is_harmless(limiter: Limiter, clock: ManualClock) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    clock.advance(86_400)
    limiter.acquire("alice", RATE, cost=30)
    assert reservation.settle(0).units == 0
    assert reservation.settle(100).units == 0
    assert left(limiter) == 70


# Refunds of reservations


def test_a_settled_reservation_gives_back_what_it_still_costs(limiter: Limiter) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    reservation.settle(10)
    assert limiter.refund(reservation.verdict).units == 10
    assert left(limiter) == 100
    assert limiter.refund(reservation.verdict).units == 0
    assert left(limiter) == 100


def test_settling_after_a_refund_changes_nothing(limiter: Limiter) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    assert limiter.refund(reservation.verdict).units == 40
    assert reservation.settle(20).each == (0,)
    assert left(limiter) == 100


def test_settling_after_a_partial_refund_counts_from_what_is_left(limiter: Limiter) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    limiter.refund(reservation.verdict, units=10)
    assert reservation.settle(25).units == 5
    assert left(limiter) == 75


def test_partial_refunds_add_up_to_no_more_than_the_cost(limiter: Limiter) -> None:
    verdict = limiter.reserve("alice", RATE, cost=40).verdict
    assert [limiter.refund(verdict, units=15).units for _ in range(4)] == [15, 15, 10, 0]
    assert left(limiter) == 100


def test_refunding_twice_is_harmless_with_an_id(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=40)
    verdict = limiter.acquire("alice", RATE, cost=20, id="a")
    assert [limiter.refund(verdict).units for _ in range(3)] == [20, 0, 0]
    assert left(limiter) == 60


# Several quotas


def test_a_reservation_settles_in_all_its_quotas(limiter: Limiter) -> None:
    both = ["100/minute", "1000/hour"]
    reservation = limiter.reserve("alice", both, cost=40)
    assert reservation.settle(30).each == (10, 10)
    assert [d.remaining for d in limiter.peek("alice", both, cost=0).decisions] == [70, 970]


def test_a_forced_charge_passes_every_limit(limiter: Limiter) -> None:
    both = ["100/minute", "120/hour"]
    limiter.reserve("alice", both, cost=40).settle(150)
    assert [d.remaining for d in limiter.peek("alice", both, cost=0).decisions] == [0, 0]


def test_a_reservation_refused_by_one_quota_is_charged_to_none(limiter: Limiter) -> None:
    both = ["100/minute", "30/hour"]
    assert limiter.reserve("alice", both, cost=30)
    assert not limiter.reserve("alice", both, cost=30)
    assert left(limiter) == 70


@pytest.mark.parametrize("actual", [0, 10, 40, 70])
def test_flat_parts_stay_as_they_are(limiter: Limiter, actual: int) -> None:
    quotas = ["100/minute min_interval 1s", "3 concurrent"]
    reservation = limiter.reserve("alice", quotas, cost=40)
    assert reservation.settle(actual).each == (40 - actual, 0, 0)
    rate, interval, places = limiter.peek("alice", quotas, cost=0).decisions
    assert (rate.remaining, interval.remaining, places.remaining) == (100 - actual, 0, 2)


def test_a_place_beside_a_reservation_comes_back_at_the_end_of_the_block(limiter: Limiter) -> None:
    with limiter.reserve("alice", ["3 concurrent", RATE], cost=40) as reservation:
        reservation.settle(10)
        assert left(limiter, "3 concurrent") == 2
    assert left(limiter, "3 concurrent") == 3
    assert left(limiter) == 90


def test_a_reservation_with_a_place_can_be_settled_after_the_block(limiter: Limiter) -> None:
    with limiter.reserve("alice", ["3 concurrent", RATE], cost=40) as reservation:
        pass
    reservation.settle(10)
    assert left(limiter) == 90


@pytest.mark.parametrize("first", [1, 3])
def test_parts_that_add_up_to_the_whole_give_flat_charges_back_too(limiter: Limiter, first: int) -> None:
    verdict = limiter.acquire("alice", ["1 concurrent", RATE], cost=4, id="a")
    limiter.refund(verdict, units=first)
    limiter.refund(verdict)
    assert left(limiter) == 100
    assert left(limiter, "1 concurrent") == 1


def test_after_settling_the_whole_can_still_be_given_back(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", ["1 concurrent", RATE], cost=4, id="a")
    limiter.settle(verdict, 2)
    limiter.refund(verdict)
    assert left(limiter) == 100
    assert left(limiter, "1 concurrent") == 1


# Bad input


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (-1, "units -1: expected 0 to 9007199254740991"),
        (2**53, "units 9007199254740992: expected 0 to 9007199254740991"),
        (1.5, "units 1.5: expected a whole number, not float"),
        (True, "units True: expected a whole number, not bool"),
        (None, "units None: expected a whole number, not NoneType"),
        ("5", "units '5': expected a whole number, not str"),
    ],
)
def test_the_true_cost_is_a_whole_number(limiter: Limiter, units: int, text: str) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    with pytest.raises(InvalidCost) as caught:
        reservation.settle(units)
    assert str(caught.value) == text
    assert reservation.settle(10).units == 30  # the mistake did not use it up


def test_only_requests_with_an_id_can_be_settled(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", RATE)
    with pytest.raises(InvalidReceipt) as caught:
        limiter.settle(verdict, 1)
    assert str(caught.value) == "settle of a request without an id (expected one made by reserve, or with an id)"


def test_a_refused_reservation_cannot_be_settled(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=100)
    refused = limiter.reserve("alice", RATE, cost=1)
    with pytest.raises(InvalidReceipt) as caught:
        refused.settle(1)
    assert str(caught.value) == "settle of a verdict that charged nothing (expected one that was allowed)"


@pytest.mark.parametrize(("thing", "kind"), [(None, "NoneType"), ("alice", "str"), ({}, "dict")])
def test_foreign_things_cannot_be_settled(limiter: Limiter, thing: object, kind: str) -> None:
    with pytest.raises(InvalidReceipt) as caught:
        limiter.settle(thing, 1)  # type: ignore[arg-type]
    assert str(caught.value) == f"settle of {kind}: expected a verdict or its receipt"


def test_a_reservation_of_another_limiter_is_unknown_here(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", RATE, cost=40)
    foreign = Limiter(clock=clock).reserve("alice", RATE, cost=40)
    assert limiter.settle(foreign.verdict, 0).units == 0
    assert left(limiter) == 60


def test_an_estimate_above_the_limit_can_never_be_reserved(limiter: Limiter) -> None:
    with pytest.raises(CostExceedsLimit):
        limiter.reserve("alice", RATE, cost=101)


def test_a_refund_of_more_than_was_charged_is_an_error(limiter: Limiter) -> None:
    reservation = limiter.reserve("alice", RATE, cost=40)
    with pytest.raises(InvalidCost) as caught:
        limiter.refund(reservation.verdict, units=41)
    assert str(caught.value) == "units 41: expected at most 40, which is what was charged"


# asyncio


async def test_a_reservation_may_be_awaited_or_entered(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    async with limiter.reserve("alice", RATE, cost=40) as entered:
        assert (await entered.settle(10)).units == 30
    awaited = await limiter.reserve("alice", RATE, cost=40)
    assert awaited
    async with awaited as same:
        assert same is awaited
        await same.settle(50)
        await same.settle(0)
    assert (await limiter.peek("alice", RATE, cost=0)).remaining == 40
    assert repr(awaited) == "<AsyncReservation <Verdict 100/minute: allowed, 50 left>>"
    with pytest.raises(RateLimited):
        async with limiter.reserve("alice", RATE, cost=50):
            raise AssertionError("the block ran")
    assert not await limiter.reserve("alice", RATE, cost=50)


async def test_a_cancelled_block_stays_charged_and_gives_its_place_back(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)

    async def work() -> None:
        async with limiter.reserve("alice", [RATE, "1 concurrent"], cost=40):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await limiter.peek("alice", RATE, cost=0)).remaining == 60
    assert (await limiter.peek("alice", "1 concurrent", cost=0)).remaining == 1


# Around functions


def test_a_limited_function_is_settled_by_what_it_returns(limiter: Limiter) -> None:
    @limiter.limit(RATE, cost=40, name="complete", settle=len)
    def complete(text: str) -> str:
        if not text:
            raise KeyError
        return text

    assert complete("x" * 15) == "x" * 15
    assert left(limiter, key="complete") == 85
    with pytest.raises(KeyError):
        complete("")  # nobody knows what it cost: the estimate stays charged
    assert left(limiter, key="complete") == 45


async def test_a_limited_coroutine_is_settled_by_what_it_returns(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)

    @limiter.limit(RATE, cost=lambda text: 2 * len(text), name="complete", settle=len)
    async def complete(text: str) -> str:
        return text

    assert await complete("x" * 15) == "x" * 15
    assert (await limiter.peek("complete", RATE, cost=0)).remaining == 85

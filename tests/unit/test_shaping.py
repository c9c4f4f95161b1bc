"""The leaky bucket: admissions at an even pace, each told how long to wait, and a queue that can be full."""

import asyncio
from itertools import pairwise

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, RateLimited
from penstock.errors import CostExceedsLimit, InvalidOption, InvalidQuota

STEADY = "10/second queue 4"  # one every 100 ms, four may wait


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


# Texts


@pytest.mark.parametrize(
    ("text", "written", "queue"),
    [
        ("10/second leaky_bucket", "10/second queue 10", 10),
        ("10/second queue 4", "10/second queue 4", 4),
        ("10/second queue 0", "10/second queue 0", 0),
        ("10/second leaky-bucket QUEUE 4", "10/second queue 4", 4),
        ("10/second queue 4 leaky_bucket", "10/second queue 4", 4),
        ("1/5 minutes queue 2 min_interval 1s name crawl", "1/5 minutes queue 2 min_interval 1s name crawl", 2),
        ("10/second queue 4 penalty 1m count denied", "10/second queue 4 penalty 1m count denied", 4),
        ("1/second queue 4294967295", None, 0),
    ],
)
def test_queues_read_and_are_written_back(text: str, written: str | None, queue: int) -> None:
    if written is None:
        with pytest.raises(InvalidQuota) as caught:
            Quota.parse(text)
        assert str(caught.value) == "queue 4294967296 at 1/second: would take more than 3650 days to drain"
        return
    quota = Quota.parse(text)
    assert (quota.algorithm, quota.queue, quota.capacity) == ("leaky_bucket", queue, queue + 1)
    assert str(quota) == written
    assert Quota.parse(written) is quota


def test_a_queue_can_be_made_from_numbers() -> None:
    assert Quota(10, 1, queue=4) is Quota(10, 1, "leaky_bucket", queue=4) is Quota.parse(STEADY)
    assert Quota(10, 1, "leaky_bucket").queue == 10


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("10/second gcra queue 4", "queue 4: gcra has no queue (expected leaky_bucket)"),
        ("10/second burst 3 queue 4", "burst 3: leaky_bucket has no burst (expected token_bucket or gcra)"),
        ("10/second leaky_bucket burst 3", "burst 3: leaky_bucket has no burst (expected token_bucket or gcra)"),
        ("10/second queue 4294967296", "queue 4294967296: expected a whole number, 0 to 4294967295"),
        ("10/second queue", 'quota "10/second queue": ends too early (expected a number of units)'),
        (
            "10/second queue -1",
            "quota \"10/second queue -1\": unexpected '-' at column 17 (expected a number of units)",
        ),
        ("1/3650 days queue 1", "queue 2 at 1/3650 days: would take more than 3650 days to drain"),
    ],
)
def test_mistakes_are_reported_with_exact_messages(text: str, error: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("queue", [-1, 1.5, True, "4", 2**32])
def test_a_queue_is_a_whole_number(queue: int) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota(10, 1, queue=queue)
    assert str(caught.value) == f"queue {queue!r}: expected a whole number, 0 to 4294967295"


# Delays


def test_each_admission_has_its_delay_and_a_full_queue_refuses(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", STEADY) for _ in range(6)]
    assert [bool(verdict) for verdict in verdicts] == [True] * 5 + [False]
    assert [verdict.delay_us for verdict in verdicts] == [0, 100_000, 200_000, 300_000, 400_000, 0]
    assert [verdict.remaining for verdict in verdicts] == [4, 3, 2, 1, 0, 0]
    assert [verdict.reset_after for verdict in verdicts] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.5]
    assert verdicts[-1].retry_after_us == 100_000


def test_a_refusal_tells_the_shortest_time_that_suffices(limiter: Limiter, clock: ManualClock) -> None:
    quota = "3/second queue 1"  # an interval that is no whole number of microseconds
    for _ in range(2):
        limiter.acquire("alice", quota)
    refused = limiter.acquire("alice", quota)
    assert refused.retry_after_us == 333_334
    clock.micros += 333_333
    assert not limiter.acquire("alice", quota)
    clock.micros += 1
    admitted = limiter.acquire("alice", quota)
    assert (admitted.allowed, admitted.delay_us) == (True, 333_333)


def test_a_costly_request_makes_those_behind_it_wait_longer(limiter: Limiter) -> None:
    assert limiter.acquire("alice", STEADY, cost=3).delay == 0
    assert limiter.acquire("alice", STEADY).delay == 0.3
    refused = limiter.acquire("alice", STEADY, cost=3)
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 1, 0.2)
    assert limiter.acquire("alice", STEADY).delay == 0.4


def test_a_cost_is_at_most_the_queue_and_the_one_in_service(limiter: Limiter) -> None:
    assert limiter.acquire("alice", STEADY, cost=5).delay == 0
    with pytest.raises(CostExceedsLimit) as caught:
        limiter.acquire("alice", STEADY, cost=6)
    assert str(caught.value) == "cost 6: 10/second queue 4 admits at most 5 at once, however long one waits"


def test_requests_without_a_queue_do_not_wait(limiter: Limiter, clock: ManualClock) -> None:
    quota = "10/second queue 0"
    assert limiter.acquire("alice", quota).delay == 0
    assert limiter.acquire("alice", quota).retry_after_us == 100_000
    clock.micros += 100_000 - 1
    assert limiter.acquire("alice", quota).retry_after_us == 1
    clock.micros += 1
    assert limiter.acquire("alice", quota).delay == 0


def test_the_queue_drains_without_requests(limiter: Limiter, clock: ManualClock) -> None:
    for _ in range(5):
        limiter.acquire("alice", STEADY)
    clock.advance(0.25)
    assert limiter.peek("alice", STEADY, cost=0).remaining == 2
    assert limiter.acquire("alice", STEADY).delay == 0.25
    clock.advance(10)
    assert limiter.acquire("alice", STEADY).delay == 0


def test_a_peek_tells_the_delay_and_takes_no_place(limiter: Limiter) -> None:
    limiter.acquire("alice", STEADY)
    for _ in range(2):
        seen = limiter.peek("alice", STEADY)
        assert (seen.allowed, seen.delay, seen.remaining, seen.receipt) == (True, 0.1, 4, None)
    limiter.acquire("alice", STEADY, cost=4)
    assert limiter.peek("alice", STEADY).retry_after == 0.1


def test_the_longest_delay_of_several_quotas_counts(limiter: Limiter) -> None:
    both = ["10/second queue 4", "20/10 seconds queue 4", "100/minute"]
    assert limiter.acquire("alice", both).delay == 0
    assert limiter.acquire("alice", both).delay == 0.5


def test_a_refusal_beside_a_queue_takes_no_place_in_it(limiter: Limiter) -> None:
    both = [STEADY, "1/hour"]
    limiter.acquire("alice", both)
    refused = limiter.acquire("alice", both)
    assert (refused.allowed, refused.delay) == (False, 0)
    assert limiter.peek("alice", STEADY).delay == 0.1


# Giving back


def test_the_tail_can_be_given_back(limiter: Limiter) -> None:
    limiter.acquire("alice", STEADY)
    tail = limiter.acquire("alice", STEADY, cost=2)
    assert limiter.refund(tail).units == 2
    assert limiter.acquire("alice", STEADY).delay == 0.1


def test_a_place_in_the_middle_cannot_be_given_back(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", STEADY) for _ in range(3)]
    for verdict in verdicts[:2]:
        assert limiter.refund(verdict).units == 0
    assert limiter.acquire("alice", STEADY).delay == 0.3


def test_places_can_be_given_back_from_the_tail_on(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", STEADY) for _ in range(4)]
    assert [limiter.refund(verdict).units for verdict in reversed(verdicts)] == [1, 1, 1, 1]
    assert limiter.acquire("alice", STEADY).delay == 0


def test_a_part_of_the_tail_can_be_given_back(limiter: Limiter) -> None:
    tail = limiter.acquire("alice", STEADY, cost=4)
    assert limiter.refund(tail, units=3).units == 3
    assert limiter.acquire("alice", STEADY).delay == 0.1


def test_a_place_given_back_twice_with_an_id_frees_no_other(limiter: Limiter) -> None:
    limiter.acquire("alice", STEADY)
    tail = limiter.acquire("alice", STEADY, id="a")
    assert limiter.refund(tail).units == 1
    limiter.acquire("alice", STEADY)  # takes the very same place
    assert limiter.refund(tail).units == 0
    assert limiter.acquire("alice", STEADY).delay == 0.2


def test_served_units_cannot_be_given_back(limiter: Limiter, clock: ManualClock) -> None:
    verdict = limiter.acquire("alice", STEADY)
    clock.advance(0.1)
    assert limiter.refund(verdict).units == 0
    assert limiter.acquire("alice", STEADY).delay == 0


def test_giving_back_late_frees_only_what_is_still_queued(limiter: Limiter, clock: ManualClock) -> None:
    verdict = limiter.acquire("alice", STEADY, cost=5)
    clock.advance(0.3)
    assert limiter.refund(verdict).units == 2
    assert limiter.acquire("alice", STEADY).delay == 0


def test_settling_downwards_lets_those_behind_come_sooner(limiter: Limiter) -> None:
    reservation = limiter.reserve("alice", STEADY, cost=4)
    assert reservation.settle(1).units == 3
    assert limiter.acquire("alice", STEADY).delay == 0.1


def test_settling_upwards_makes_those_behind_wait(limiter: Limiter) -> None:
    limiter.reserve("alice", STEADY, cost=1).settle(3)
    assert limiter.acquire("alice", STEADY).delay == 0.3


# Changed limits


def test_a_changed_limit_keeps_the_units_in_the_queue(limiter: Limiter) -> None:
    for _ in range(3):
        limiter.acquire("alice", STEADY)
    assert limiter.acquire("alice", "30/second queue 4").delay == 0.1
    assert limiter.acquire("alice", "20/second queue 9").delay == 0.2


def test_a_shorter_queue_counts_as_full(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", STEADY, cost=5)
    refused = limiter.acquire("alice", "10/second queue 1")
    assert (refused.allowed, refused.remaining) == (False, 0)
    clock.advance(0.5)
    assert limiter.acquire("alice", "10/second queue 1").delay == 0


# Time going back


def test_time_going_back_lets_no_request_start_earlier(limiter: Limiter, clock: ManualClock) -> None:
    quota = "10/second queue 99"
    start = clock.micros
    for _ in range(3):
        limiter.acquire("alice", quota)
    clock.micros -= 500_000
    verdict = limiter.acquire("alice", quota)
    assert clock.micros + verdict.delay_us == start + 300_000


def test_refusals_last_no_longer_than_the_queue_after_a_clock_step_back(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", STEADY, cost=5)
    clock.micros -= 3_600_000_000
    refused = limiter.acquire("alice", STEADY)
    assert (refused.allowed, refused.retry_after) == (False, 0.1)
    clock.micros += refused.retry_after_us
    assert limiter.acquire("alice", STEADY)


# Sitting it out


def test_waiting_sits_the_delay_out(limiter: Limiter, clock: ManualClock) -> None:
    start = clock.micros
    assert [(bool(limiter.wait("alice", STEADY)), clock.micros - start) for _ in range(7)] == [
        (True, 100_000 * number) for number in range(7)
    ]


def test_a_limited_function_starts_when_it_is_its_turn(limiter: Limiter, clock: ManualClock) -> None:
    starts: list[int] = []

    @limiter.limit("10/second queue 4")
    def fetch() -> None:
        starts.append(clock.micros)

    begin = clock.micros
    for _ in range(4):
        fetch()
    assert [start - begin for start in starts] == [0, 100_000, 200_000, 300_000]


def test_a_limited_function_is_refused_when_the_queue_is_full(limiter: Limiter) -> None:
    @limiter.limit("10/second queue 0", name="fetch")
    def fetch() -> None:
        raise AssertionError("it ran")

    limiter.acquire("fetch", "10/second queue 0")
    with pytest.raises(RateLimited) as caught:
        fetch()
    assert str(caught.value) == "refused by 10/second queue 0: retry after 0.100 s"


def test_a_coroutine_cannot_be_shaped_by_a_blocking_limiter(limiter: Limiter) -> None:
    with pytest.raises(InvalidOption) as caught:

        @limiter.limit(STEADY, name="fetch")
        async def fetch() -> None: ...

    assert str(caught.value) == "fetch: waiting would block its event loop (expected AsyncLimiter)"


async def test_coroutines_are_given_turns_one_after_the_other(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    verdicts = await asyncio.gather(*(limiter.wait("alice", STEADY) for _ in range(20)))
    turns = [verdict.at_us + verdict.delay_us for verdict in verdicts]
    assert all(later - earlier >= 100_000 for earlier, later in pairwise(turns))
    assert clock.micros >= turns[-1]

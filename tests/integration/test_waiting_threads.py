"""Lines of real threads and event loops, by the real clock, with periods of milliseconds and generous deadlines."""

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock import AsyncLimiter, Limiter, Verdict
from penstock.stores import AsyncMemoryStore, MemoryStore
from tests.integration.support import DEADLINE, in_threads

FAST = "200/second gcra burst 1"  # one every 5 ms
INTERVAL_US = 5_000
NEVER = "1/hour fixed_window"


def until(condition: Callable[[], bool]) -> None:
    """Look until `condition` holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.001)


def standing(limiter: Limiter | AsyncLimiter) -> int:
    """How many stand in lines."""
    return sum(len(line) for line in list(limiter.operations.queues._lines.values()))


def admitted_apart(verdicts: list[Verdict], micros: int) -> bool:
    times = sorted(verdict.at_us for verdict in verdicts)
    return all(later - earlier >= micros for earlier, later in pairwise(times))


def test_threads_are_admitted_one_after_the_other() -> None:
    limiter = Limiter()
    verdicts = in_threads(lambda _: [limiter.wait("alice", FAST) for _ in range(10)], threads=8)
    flat = [verdict for own in verdicts for verdict in own]
    assert all(flat)
    assert admitted_apart(flat, INTERVAL_US)
    assert standing(limiter) == 0


def test_threads_are_admitted_in_the_order_in_which_they_came() -> None:
    limiter = Limiter()
    place = limiter.acquire("alice", "1 concurrent")
    order: list[int] = []
    together = threading.Lock()

    def wait(number: int) -> None:
        verdict = limiter.wait("alice", "1 concurrent")
        with together:
            order.append(number)
        limiter.release(verdict)

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=wait, args=(number,), daemon=True))
        threads[-1].start()
        until(lambda: standing(limiter) == len(threads))
    limiter.release(place)
    for thread in threads:
        thread.join(DEADLINE)
    assert order == list(range(20))
    assert standing(limiter) == 0


def test_threads_that_run_out_of_time_leave_and_the_others_go_on() -> None:
    limiter = Limiter()
    limiter.acquire("alice", "1 concurrent")

    def wait(number: int) -> bool:
        return bool(limiter.wait("alice", "1 concurrent", timeout=0.02 * (number + 1)))

    assert in_threads(wait, threads=8) == [False] * 8
    assert standing(limiter) == 0


@pytest.mark.parametrize("timeout", [0, 0.001, 0.05])
def test_a_wait_for_a_place_ends_soon_after_its_timeout(timeout: float) -> None:
    limiter = Limiter()
    limiter.acquire("alice", "1 concurrent ttl 1h")
    start = time.monotonic()
    assert not limiter.wait("alice", "1 concurrent ttl 1h", timeout=timeout)
    assert timeout <= time.monotonic() - start + 0.001 < DEADLINE


def test_a_wait_that_cannot_suffice_ends_at_once() -> None:
    limiter = Limiter()
    limiter.acquire("alice", NEVER)
    start = time.monotonic()
    refused = limiter.wait("alice", NEVER, timeout=DEADLINE)
    if refused:  # the hour ended just now
        return
    assert time.monotonic() - start < DEADLINE


def test_a_timeout_of_zero_admits_whom_the_limit_admits() -> None:
    limiter = Limiter()
    assert [bool(limiter.wait("alice", "3/hour gcra", timeout=0)) for _ in range(4)] == [True, True, True, False]


def test_waits_of_as_long_as_it_takes_are_admitted() -> None:
    """Real clocks wake a little late; an admission must not be lost by that, unless the machine stood still before."""
    limiter = Limiter()
    limiter.acquire("alice", FAST)
    admitted = 0
    for _ in range(20):
        refused = limiter.peek("alice", FAST)
        admitted += limiter.wait("alice", FAST, timeout=refused.retry_after + 0.001).allowed
    assert admitted >= 10


def test_a_released_place_is_soon_noticed() -> None:
    limiter = Limiter()
    place = limiter.acquire("alice", "1 concurrent ttl 1h")
    found: list[Verdict] = []
    waiter = threading.Thread(target=lambda: found.append(limiter.wait("alice", "1 concurrent ttl 1h")), daemon=True)
    waiter.start()
    until(lambda: standing(limiter) == 1)
    limiter.release(place)
    waiter.join(DEADLINE)
    assert found
    assert found[0].allowed


def test_shaped_threads_start_apart() -> None:
    limiter = Limiter()
    starts: list[float] = []

    def work(_: int) -> None:
        for _ in range(5):
            assert limiter.wait("alice", "100/second queue 3")
            starts.append(time.time())

    began = time.time()
    in_threads(work, threads=8)
    # The n-th start may be late, but never early: the clock of the store is that of the threads.
    assert all(start - began >= 0.01 * position - 0.001 for position, start in enumerate(sorted(starts)))
    assert standing(limiter) == 0


def test_several_event_loops_share_one_line() -> None:
    limiter = AsyncLimiter()

    async def wait_ten_times() -> list[Verdict]:
        return list(await asyncio.gather(*(limiter.wait("alice", FAST) for _ in range(10))))

    verdicts = in_threads(lambda _: asyncio.run(wait_ten_times()), threads=4)
    flat = [verdict for own in verdicts for verdict in own]
    assert len(flat) == 40
    assert all(flat)
    assert admitted_apart(flat, INTERVAL_US)
    assert standing(limiter) == 0


def test_loops_whose_waiters_are_cancelled_do_not_hold_up_other_loops() -> None:
    limiter = AsyncLimiter()

    async def give_up() -> int:
        tasks = [asyncio.create_task(limiter.wait("alice", FAST)) for _ in range(50)]
        await tasks[0]
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)

    async def stay() -> int:
        return sum(map(bool, await asyncio.gather(*(limiter.wait("alice", FAST) for _ in range(10)))))

    outcomes = in_threads(lambda number: asyncio.run(give_up() if number % 2 else stay()), threads=6)
    assert outcomes[::2] == [10, 10, 10]
    assert all(outcomes[1::2])
    assert standing(limiter) == 0


async def test_waiting_does_not_stop_the_loop() -> None:
    limiter = AsyncLimiter()
    await limiter.acquire("alice", "3/second gcra burst 1")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    assert await limiter.wait("alice", "3/second gcra burst 1")
    counting.cancel()
    assert turns > 10


def test_blocking_and_asyncio_limiters_share_the_store_though_not_the_line() -> None:
    store = MemoryStore()
    blocking, awaited = Limiter(store), AsyncLimiter(AsyncMemoryStore(store))

    async def wait_ten_times() -> list[Verdict]:
        return [await awaited.wait("alice", FAST) for _ in range(10)]

    def work(number: int) -> list[Verdict]:
        return asyncio.run(wait_ten_times()) if number % 2 else [blocking.wait("alice", FAST) for _ in range(10)]

    flat = [verdict for own in in_threads(work, threads=4) for verdict in own]
    assert all(flat)
    assert admitted_apart(flat, INTERVAL_US)

"""Many tasks, several event loops in as many threads, both kinds of limiter: one store, exact."""

import asyncio

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota
from penstock.quota import RATES
from penstock.stores import AsyncMemoryStore, MemoryStore
from tests.integration.support import in_threads

TASKS = 64


async def admitted(limiter: AsyncLimiter, quota: Quota, *, each: int) -> int:
    async def work() -> int:
        count = 0
        for _ in range(each):
            count += bool(await limiter.acquire("alice", quota))
            await asyncio.sleep(0)  # lets the next task have its turn
        return count

    return sum(await asyncio.gather(*(work() for _ in range(TASKS))))


@pytest.mark.parametrize("algorithm", RATES)
async def test_tasks_on_one_key_admit_exactly_the_limit(algorithm: str) -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    assert await admitted(limiter, Quota(1_000, 3600, algorithm), each=50) == 1_000


@pytest.mark.parametrize("algorithm", RATES)
def test_event_loops_in_several_threads_share_one_limiter(algorithm: str) -> None:
    limiter = AsyncLimiter(clock=ManualClock())
    quota = Quota(1_000, 3600, algorithm)
    assert sum(in_threads(lambda _: asyncio.run(admitted(limiter, quota, each=8)), threads=4)) == 1_000


def test_blocking_threads_and_event_loops_share_one_store() -> None:
    store = MemoryStore(clock=ManualClock())
    blocking, waiting = Limiter(store), AsyncLimiter(AsyncMemoryStore(store))
    quota = Quota(2_000, 3600)

    def work(number: int) -> int:
        if number % 2:
            return asyncio.run(admitted(waiting, quota, each=10))
        return sum(blocking.acquire("alice", quota).allowed for _ in range(640))

    assert sum(in_threads(work)) == 2_000


@pytest.mark.parametrize("turns", range(9))
async def test_a_waiter_that_is_cancelled_on_becoming_the_head_is_not_charged(turns: int) -> None:
    limiter = AsyncLimiter()
    quota = "1/hour gcra"
    await limiter.acquire("alice", quota)
    head = asyncio.create_task(limiter.wait("alice", quota, timeout=3_600))
    await asyncio.sleep(0)
    behind = asyncio.create_task(limiter.wait("alice", quota, timeout=3_600))
    for _ in range(5):
        await asyncio.sleep(0)
    await limiter.reset("alice", quota)
    head.cancel()
    for _ in range(turns):
        await asyncio.sleep(0)
    if behind.cancel():
        with pytest.raises(asyncio.CancelledError):
            await behind
        assert (await limiter.peek("alice", quota)).remaining == 1

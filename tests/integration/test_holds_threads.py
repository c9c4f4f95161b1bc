"""Places held by real threads and tasks, by the real clock: never more than there are, and none lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock import AsyncLimiter, Limiter, ManualClock
from tests.integration.support import DEADLINE, in_threads

PLACES = 3
THREE = "3 concurrent ttl 1h"
SHORT = "1 concurrent ttl 90ms"
TTL = 0.09


class Room:
    """Counts who is inside, and the most there ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.visits = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._lock:
            self.inside += 1
            self.visits += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1


def until(condition: Callable[[], bool]) -> None:
    """Look until `condition` holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        threading.Event().wait(0.001)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]


def test_never_more_threads_are_inside_than_there_are_places() -> None:
    limiter = Limiter()
    room = Room()

    def work(_: int) -> None:
        for _ in range(200):
            hold = limiter.hold("alice", THREE)
            if hold:
                with hold, room.entered():
                    pass

    in_threads(work, threads=8)
    assert 0 < room.most <= PLACES
    assert limiter.peek("alice", THREE, cost=0).remaining == PLACES


def test_threads_that_wait_for_a_place_all_get_one() -> None:
    limiter = Limiter()
    room = Room()

    def work(_: int) -> None:
        for _ in range(5):
            with limiter.hold("alice", THREE, timeout=None), room.entered():
                pass

    in_threads(work, threads=8)
    assert room.visits == 40
    assert room.most <= PLACES
    assert limiter.peek("alice", THREE, cost=0).remaining == PLACES


def test_threads_that_fail_inside_give_their_places_back() -> None:
    limiter = Limiter()

    def work(number: int) -> int:
        failures = 0
        for _ in range(100):
            try:
                with limiter.hold("alice", "8 concurrent ttl 1h"):
                    raise KeyError(number)
            except KeyError:
                failures += 1
        return failures

    assert in_threads(work, threads=8) == [100] * 8
    assert limiter.peek("alice", "8 concurrent ttl 1h", cost=0).remaining == 8


def test_releasing_from_many_threads_at_once_frees_one_place_once() -> None:
    limiter = Limiter()
    for _ in range(50):
        mine, other = limiter.acquire("alice", THREE), limiter.acquire("alice", THREE)
        freed = in_threads(lambda _, mine=mine: limiter.release(mine).units, threads=4)  # type: ignore[misc]
        assert sum(freed) == 1
        assert limiter.peek("alice", THREE, cost=0).remaining == 2
        limiter.release(other)


def test_a_thread_that_dies_without_a_word_frees_its_place_by_its_ttl() -> None:
    limiter = Limiter()
    died = threading.Thread(target=lambda: limiter.acquire("alice", SHORT))
    died.start()
    died.join(DEADLINE)
    verdict = limiter.wait("alice", SHORT, timeout=DEADLINE)
    assert verdict.allowed


def test_places_and_rates_stay_in_step_under_contention() -> None:
    limiter = Limiter()
    both = "3 concurrent ttl 1h; 500/hour fixed_window"
    hour = time.time() // 3_600

    def work(_: int) -> int:
        admitted = 0
        for _ in range(200):
            hold = limiter.hold("alice", both)
            if hold:
                admitted += 1
                hold.release()
        return admitted

    admitted = sum(in_threads(work, threads=8))
    rate = limiter.peek("alice", "500/hour fixed_window", cost=0)
    if time.time() // 3_600 == hour:  # else the window turned while counting
        assert 500 - rate.remaining == admitted <= 500
    assert limiter.peek("alice", THREE, cost=0).remaining == PLACES


def test_one_id_asked_by_many_threads_at_once_takes_one_place() -> None:
    limiter = Limiter()
    verdicts = in_threads(lambda _: limiter.acquire("alice", THREE, id="a"), threads=8)
    assert len(set(verdicts)) == 1
    assert limiter.peek("alice", THREE, cost=0).remaining == 2


def test_one_reservation_settled_by_many_threads_at_once_is_settled_once() -> None:
    limiter = Limiter(clock=ManualClock())  # what is owed must not drain meanwhile
    for _ in range(20):
        reservation = limiter.reserve("alice", "100000/hour gcra", cost=10)
        back = in_threads(lambda _, own=reservation: own.settle(4).units, threads=4)  # type: ignore[misc]
        assert sorted(back) == [0, 0, 0, 6]


def test_a_place_renewed_in_the_background_outlives_its_ttl() -> None:
    limiter = Limiter()
    with limiter.hold("alice", SHORT, renew=True) as hold:
        taken = hold.verdict.at_us
        until(lambda: limiter.peek("alice", SHORT, cost=0).at_us - taken > 5 * TTL * 1_000_000)
        if limiter.acquire("alice", SHORT):  # a machine that stood still for a whole ttl has lost it, and must say so
            until(lambda: hold.lost)
    until(lambda: keepers() == [])
    assert hold.lost or limiter.acquire("alice", SHORT)


async def test_a_place_renewed_by_a_task_outlives_its_ttl() -> None:
    limiter = AsyncLimiter()
    async with limiter.hold("alice", SHORT, renew=True) as hold:
        taken = hold.verdict.at_us
        await asyncio.to_thread(until, lambda: time.time_ns() // 1_000 - taken > 5 * TTL * 1_000_000)
        if await limiter.acquire("alice", SHORT):
            await asyncio.to_thread(until, lambda: hold.lost)
    assert hold.lost or await limiter.acquire("alice", SHORT)


async def test_never_more_tasks_are_inside_than_there_are_places() -> None:
    limiter = AsyncLimiter()
    room = Room()

    async def work() -> None:
        async with limiter.hold("alice", THREE, timeout=None):
            with room.entered():
                await asyncio.sleep(0)

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(work() for _ in range(30)))
    assert (room.visits, room.inside) == (30, 0)
    assert room.most <= PLACES

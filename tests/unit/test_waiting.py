"""Waiting in line: in order, without crowding the store, and leaving nothing behind."""

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, RateLimited, StoreError
from penstock.clock import SECOND, Micros
from penstock.errors import CostExceedsLimit, InvalidOption
from penstock.model import Failed, Op, Outcome
from penstock.stores import MemoryStore

EVEN = "1/second gcra burst 1"


class CountingStore:
    """A store that counts its calls, and has no short cut past them."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.calls: list[Op] = []

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.calls.extend(ops)
        return self.inner.run(ops, deadline)

    def close(self) -> None:
        self.inner.close()


class AsyncCountingStore(CountingStore):
    """The same for asyncio, where every call lets others run first."""

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().run(ops, deadline)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


class StoppedClock(ManualClock):
    """A clock that waiting does not move: who waits by it sleeps until the test lets time pass."""

    def __init__(self) -> None:
        super().__init__(1_700_000_040)
        self.sleepers: dict[asyncio.Event, Micros] = {}
        self.waits = 0

    async def wait_async(self, woken: asyncio.Event, micros: Micros) -> None:
        self.waits += 1
        self.sleepers[woken] = self.micros + micros
        try:
            await woken.wait()
        finally:
            del self.sleepers[woken]

    async def let_pass(self, seconds: float) -> None:
        """Let time pass, wake whose time has come, and let everybody run who can."""
        self.advance(seconds)
        for woken, until in list(self.sleepers.items()):
            if until <= self.micros:
                woken.set()
        await quiet()


class TickingClock(ManualClock):
    """A clock that moves on by a microsecond whenever somebody looks, as real ones do; and waits a little too long."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[Micros] = []

    def time_ns(self) -> int:
        self.micros += 1
        return self.micros * 1_000

    def wait(self, woken: threading.Event, micros: Micros) -> None:
        self.waits.append(micros)
        assert micros > 0
        assert len(self.waits) < 1_000, "waits for ever"
        self.micros += micros + 50


async def quiet() -> None:
    """Let all tasks run until they wait for something that only the test can bring."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_040)


@pytest.fixture
def store(clock: ManualClock) -> CountingStore:
    return CountingStore(clock)


@pytest.fixture
def limiter(store: CountingStore, clock: ManualClock) -> Limiter:
    return Limiter(store, clock=clock, layers=())


def lines(limiter: Limiter | AsyncLimiter) -> dict[object, object]:
    """Everybody who stands in a line; nothing else in Penstock shows that nothing was left behind."""
    return dict(limiter.operations.queues._lines)


# One waiter


def test_whoever_is_admitted_does_not_wait(limiter: Limiter, store: CountingStore, clock: ManualClock) -> None:
    start = clock.micros
    assert limiter.wait("alice", EVEN)
    assert (clock.micros - start, len(store.calls)) == (0, 1)
    assert lines(limiter) == {}


@pytest.mark.parametrize(
    "quota",
    [
        "1/second gcra burst 1",
        "1/second token_bucket burst 1",
        "1/second fixed_window",
        "1/second rolling_window",
        "1/second",
        "1/day calendar Europe/Berlin",
        "1/second queue 0",
        "9/hour min_interval 1s",
    ],
)
def test_a_refused_request_waits_exactly_as_long_as_it_must(
    limiter: Limiter, store: CountingStore, clock: ManualClock, quota: str
) -> None:
    limiter.acquire("alice", quota)
    refused = limiter.peek("alice", quota)
    start, before = clock.micros, len(store.calls)
    verdict = limiter.wait("alice", quota)
    assert verdict.allowed
    assert clock.micros - start == refused.retry_after_us
    assert len(store.calls) - before == 2  # the refusal and the admission
    assert lines(limiter) == {}


def test_a_long_row_of_waits_keeps_the_pace(limiter: Limiter, clock: ManualClock) -> None:
    start = clock.micros
    for _ in range(100):
        assert limiter.wait("alice", EVEN)
    assert clock.micros - start == 99 * SECOND


def test_a_place_is_looked_for_again_and_again_until_it_expires(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", "1 concurrent ttl 1s")
    start = clock.micros
    assert limiter.wait("alice", "1 concurrent ttl 1s")
    assert clock.micros - start == SECOND


def test_a_hold_may_wait_for_its_place(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", "1 concurrent ttl 1s")
    assert not limiter.hold("alice", "1 concurrent ttl 1s")
    assert not limiter.hold("alice", "1 concurrent ttl 1s", timeout=0.5)
    with limiter.hold("alice", "1 concurrent ttl 1s", timeout=0.6) as hold:
        assert hold
    assert limiter.acquire("alice", "1 concurrent ttl 1s")


def test_a_wait_with_an_id_is_charged_once(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", EVEN)
    first = limiter.wait("alice", EVEN, id="a")
    start = clock.micros
    assert limiter.wait("alice", EVEN, id="a") == first
    assert clock.micros == start


def test_a_cost_that_never_fits_is_not_waited_for(limiter: Limiter) -> None:
    with pytest.raises(CostExceedsLimit):
        limiter.wait("alice", EVEN, cost=2)
    assert lines(limiter) == {}


# Timeouts


def test_a_wait_that_cannot_suffice_is_refused_at_once(
    limiter: Limiter, store: CountingStore, clock: ManualClock
) -> None:
    limiter.acquire("alice", EVEN)
    start, before = clock.micros, len(store.calls)
    refused = limiter.wait("alice", EVEN, timeout=0.999_999)
    assert (refused.allowed, refused.retry_after) == (False, 1)
    assert (clock.micros - start, len(store.calls) - before) == (0, 1)
    assert lines(limiter) == {}


def test_a_wait_that_just_suffices_is_admitted(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", EVEN)
    assert limiter.wait("alice", EVEN, timeout=1)


def test_a_timeout_of_zero_only_asks(limiter: Limiter, store: CountingStore, clock: ManualClock) -> None:
    start = clock.micros
    assert limiter.wait("alice", EVEN, timeout=0)
    assert not limiter.wait("alice", EVEN, timeout=0)
    assert not limiter.wait("alice", "1 concurrent; 1/second gcra burst 1", timeout=0)
    assert (clock.micros - start, len(store.calls)) == (0, 3)


def test_a_timeout_of_zero_admits_although_time_passes_while_asking() -> None:
    limiter = Limiter(clock=TickingClock())
    assert limiter.wait("alice", "100/minute", timeout=0)
    assert limiter.peek("alice", "100/minute", cost=0).remaining == 99


def test_a_timeout_of_zero_refuses_although_time_passes_while_asking() -> None:
    clock = TickingClock()
    limiter = Limiter(clock=clock)
    limiter.acquire("alice", "1 concurrent")
    assert not limiter.wait("alice", "1 concurrent", timeout=0)
    assert clock.waits == []


def test_an_admission_is_not_given_up_because_the_clock_woke_it_a_little_late() -> None:
    limiter = Limiter(clock=TickingClock())
    limiter.acquire("alice", EVEN)
    assert limiter.wait("alice", EVEN, timeout=1)


def test_waiting_for_a_place_ends_with_the_timeout() -> None:
    clock = TickingClock()
    limiter = Limiter(clock=clock)
    limiter.acquire("alice", "1 concurrent")
    start = clock.micros
    refused = limiter.wait("alice", "1 concurrent", timeout=0.5)
    assert not refused
    assert 500_000 <= clock.micros - start < 510_000


def test_waiting_for_a_place_asks_about_fifty_times_a_second(limiter: Limiter, store: CountingStore) -> None:
    limiter.acquire("alice", "1 concurrent")
    before = len(store.calls)
    assert not limiter.wait("alice", "1 concurrent", timeout=2)
    assert len(store.calls) - before <= 101


def test_a_rate_that_cannot_pass_in_time_ends_the_wait_for_a_place_beside_it(
    limiter: Limiter, store: CountingStore, clock: ManualClock
) -> None:
    both = ["1 concurrent ttl 1m", "1/minute fixed_window"]
    limiter.acquire("alice", both)
    start, before = clock.micros, len(store.calls)
    assert not limiter.wait("alice", both, timeout=5)
    assert (clock.micros - start, len(store.calls) - before) == (0, 1)


def test_a_place_in_the_queue_that_comes_too_late_is_given_back(
    limiter: Limiter, store: CountingStore, clock: ManualClock
) -> None:
    quota = "1/second queue 9"
    for _ in range(3):
        limiter.acquire("alice", quota)
    start = clock.micros
    refused = limiter.wait("alice", quota, timeout=2.9)
    assert (refused.allowed, refused.retry_after, refused.delay, refused.receipt) == (False, 3, 0, None)
    assert clock.micros == start
    assert limiter.peek("alice", quota).delay == 3  # the next one gets the same place
    assert limiter.wait("alice", quota, timeout=3)
    assert clock.micros - start == 3 * SECOND


def test_a_full_queue_is_waited_for_only_if_both_waits_fit(limiter: Limiter, clock: ManualClock) -> None:
    quota = "1/second queue 1"
    limiter.acquire("alice", quota, cost=2)
    start = clock.micros
    assert not limiter.wait("alice", quota, timeout=1.9)  # a second until there is room, another in the queue
    assert clock.micros == start
    assert limiter.wait("alice", quota, timeout=2)
    assert clock.micros - start == 2 * SECOND


def test_what_came_too_late_gives_everything_back_beside_the_queue(limiter: Limiter) -> None:
    both = ["1/second queue 9", "10/minute", "3 concurrent"]
    limiter.acquire("alice", "1/second queue 9", cost=5)
    assert not limiter.wait("alice", both, timeout=1)
    assert [d.remaining for d in limiter.peek("alice", both, cost=0).decisions] == [5, 10, 3]


def test_what_came_too_late_is_given_back_before_the_next_in_line_asks(
    limiter: Limiter, store: CountingStore, clock: ManualClock
) -> None:
    """Otherwise the next would stand behind a place that nobody uses and nobody can give back."""
    quota = "1/second queue 9"
    limiter.acquire("alice", quota, cost=3)
    delays: list[float] = []

    def look() -> bool:
        delays.append(limiter.peek("alice", quota).delay)
        return True

    def second_in_line(ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        """Comes while the first is being admitted, and is woken as soon as that one leaves the line."""
        (line,) = lines(limiter)
        store.run = run  # type: ignore[method-assign]
        limiter.operations.queues.join(line, look)
        return run(ops, deadline)

    run, store.run = store.run, second_in_line  # type: ignore[method-assign]
    assert not limiter.wait("alice", quota, timeout=1)
    assert delays == [3]


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("inf"), 86_400 * 3_651, "5", True, b"1"])
def test_a_timeout_is_a_number_of_seconds(limiter: Limiter, store: CountingStore, timeout: float) -> None:
    with pytest.raises(InvalidOption) as caught:
        limiter.wait("alice", EVEN, timeout=timeout)
    assert str(caught.value) == f"timeout {timeout!r}: expected seconds, 0 to 315360000, or None to wait for ever"
    assert (len(store.calls), lines(limiter)) == (0, {})


# When things go wrong


def test_a_failing_store_ends_the_wait_and_clears_the_line(clock: ManualClock) -> None:
    class Failing(CountingStore):
        def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
            return [Failed(StoreError("the store is away", transient=True), "no")]

    limiter = Limiter(Failing(clock), clock=clock, layers=())
    with pytest.raises(StoreError, match="the store is away"):
        limiter.wait("alice", EVEN)
    assert lines(limiter) == {}


def test_an_interrupted_wait_leaves_the_line() -> None:
    class Interrupted(ManualClock):
        def wait(self, woken: threading.Event, micros: Micros) -> None:
            raise KeyboardInterrupt

    limiter = Limiter(clock=Interrupted())
    limiter.acquire("alice", EVEN)
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("alice", EVEN)
    assert lines(limiter) == {}


def test_a_wait_interrupted_in_the_queue_gives_its_place_back() -> None:
    class Interrupted(ManualClock):
        def wait(self, woken: threading.Event, micros: Micros) -> None:
            raise KeyboardInterrupt

    limiter = Limiter(clock=Interrupted())
    limiter.acquire("alice", "1/second queue 9")
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("alice", "1/second queue 9")
    assert limiter.peek("alice", "1/second queue 9").delay == 1
    assert lines(limiter) == {}


def test_a_closed_limiter_lets_nobody_wait() -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.close()
    with pytest.raises(StoreError, match=r"^the limiter is closed$"):
        limiter.wait("alice", EVEN)


# Around functions


def test_a_limited_function_waits_for_its_turn(limiter: Limiter, clock: ManualClock) -> None:
    @limiter.limit(EVEN, timeout=1)
    def crawl() -> Micros:
        return clock.micros

    start = clock.micros
    assert [crawl() - start for _ in range(3)] == [0, SECOND, 2 * SECOND]


def test_a_limited_function_that_would_wait_too_long_is_refused(limiter: Limiter) -> None:
    @limiter.limit(EVEN, timeout=0.5)
    def crawl() -> None: ...

    crawl()
    with pytest.raises(RateLimited) as caught:
        crawl()
    assert caught.value.verdict.retry_after == 1


# Many waiters (asyncio)


async def test_a_thousand_waiters_are_admitted_in_order_by_two_calls_each(clock: ManualClock) -> None:
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    order: list[int] = []

    async def wait(number: int) -> None:
        assert await limiter.wait("alice", EVEN)
        order.append(number)

    start = clock.micros
    await asyncio.gather(*(wait(number) for number in range(1_000)))
    assert order == list(range(1_000))
    assert clock.micros - start == 999 * SECOND
    assert len(store.calls) <= 2 * 1_000  # one per admission, and one per wake-up
    assert lines(limiter) == {}


async def test_those_who_fit_are_admitted_by_one_call_each(clock: ManualClock) -> None:
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    verdicts = await asyncio.gather(*(limiter.wait("alice", "100/minute") for _ in range(100)))
    assert all(verdicts)
    assert len(store.calls) == 100


async def test_only_the_head_of_a_line_asks() -> None:
    clock = StoppedClock()
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    await limiter.acquire("alice", EVEN)
    tasks = [asyncio.create_task(limiter.wait("alice", EVEN)) for _ in range(100)]
    await quiet()
    assert (len(store.calls), clock.waits) == (2, 1)
    for admitted in range(1, 6):
        await clock.let_pass(1)
        assert sum(task.done() for task in tasks) == admitted
        assert len(store.calls) == 2 + 2 * admitted
    await cancel(tasks)


async def test_each_key_and_each_quota_has_a_line_of_its_own() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    for key in ("alice", "bob"):
        for quota in (EVEN, "1/minute gcra burst 1"):
            await limiter.acquire(key, quota)
    waiting = [
        asyncio.create_task(limiter.wait(key, quota))
        for key in ("alice", "bob")
        for quota in (EVEN, "1/minute gcra burst 1")
    ]
    await quiet()
    assert len(lines(limiter)) == 4
    await clock.let_pass(1)
    assert [task.done() for task in waiting] == [True, False, True, False]
    await cancel(waiting)


async def test_a_small_request_does_not_overtake_a_large_one() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    quota = "10/second gcra"
    await limiter.acquire("alice", quota, cost=10)
    large = asyncio.create_task(limiter.wait("alice", quota, cost=10))
    small = asyncio.create_task(limiter.wait("alice", quota, cost=1))
    hurried = asyncio.create_task(limiter.wait("alice", quota, cost=1, timeout=0))
    await quiet()
    assert hurried.done()
    assert not hurried.result()
    await clock.let_pass(0.5)
    assert not large.done()
    assert not small.done()
    await clock.let_pass(0.5)
    assert large.done()
    assert not small.done()
    await clock.let_pass(0.1)
    assert small.done()


async def test_a_waiter_in_the_middle_is_refused_when_its_time_is_up() -> None:
    """Who is not at the head waits in real time, as short as can be here."""
    clock = StoppedClock()
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    await limiter.acquire("alice", EVEN)
    head = asyncio.create_task(limiter.wait("alice", EVEN))
    await quiet()
    refused = await limiter.wait("alice", EVEN, timeout=0.001)
    assert not refused
    assert refused.receipt is None
    assert refused.retry_after > 0
    await clock.let_pass(1)
    assert (await head).allowed
    assert lines(limiter) == {}


async def test_a_refused_head_makes_way_for_the_next() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    await limiter.acquire("alice", EVEN)
    hurried = asyncio.create_task(limiter.wait("alice", EVEN, timeout=0.5))
    patient = asyncio.create_task(limiter.wait("alice", EVEN))
    await quiet()
    assert hurried.done()
    assert not hurried.result()
    await clock.let_pass(1)
    assert patient.done()
    assert lines(limiter) == {}


async def test_waiters_who_fit_a_shared_delay_leave_the_line_at_once() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    tasks = [asyncio.create_task(limiter.wait("alice", "1/second queue 9")) for _ in range(5)]
    await quiet()
    assert lines(limiter) == {}  # all have their place, and sit out their delays side by side
    for done in range(1, 6):
        assert sum(task.done() for task in tasks) == done
        await clock.let_pass(1)


# Cancellation


async def cancel(tasks: Sequence["asyncio.Task[object]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(lambda tasks: tasks[:1], id="head"),
        pytest.param(lambda tasks: tasks[3:4], id="middle"),
        pytest.param(lambda tasks: tasks[-1:], id="last"),
        pytest.param(lambda tasks: tasks[:3], id="the first three"),
        pytest.param(lambda tasks: tasks[::2], id="every other"),
    ],
)
async def test_those_who_are_cancelled_leave_and_the_others_proceed_in_order(
    gone: Callable[[list["asyncio.Task[object]"]], list["asyncio.Task[object]"]],
) -> None:
    clock = StoppedClock()
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    await limiter.acquire("alice", EVEN)
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(limiter.wait("alice", EVEN)) for _ in range(7)]
    await quiet()
    leaving = gone(tasks)
    await cancel(leaving)
    staying = [task for task in tasks if task not in leaving]
    for number in range(len(staying)):
        await clock.let_pass(1)
        assert [task.done() for task in staying] == [True] * (number + 1) + [False] * (len(staying) - number - 1)
    assert lines(limiter) == {}
    assert clock.sleepers == {}


async def test_who_leaves_from_the_middle_does_not_wake_the_head() -> None:
    clock = StoppedClock()
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    await limiter.acquire("alice", EVEN)
    tasks = [asyncio.create_task(limiter.wait("alice", EVEN)) for _ in range(10)]
    await quiet()
    before = len(store.calls)
    await cancel(tasks[1:])
    await quiet()
    assert (len(store.calls), clock.waits) == (before, 1)
    await clock.let_pass(1)
    assert tasks[0].done()


async def test_when_all_are_cancelled_nothing_is_left() -> None:
    clock = StoppedClock()
    store = AsyncCountingStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    await limiter.acquire("alice", EVEN)
    tasks = [asyncio.create_task(limiter.wait("alice", EVEN)) for _ in range(100)]
    await quiet()
    before = len(store.calls)
    await cancel(tasks)
    await quiet()
    assert lines(limiter) == {}
    assert clock.sleepers == {}
    assert len(store.calls) - before <= 100
    await clock.let_pass(1)
    assert await limiter.acquire("alice", EVEN)  # nobody was charged


async def test_a_wait_cancelled_in_the_queue_gives_its_place_back() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    quota = "1/second queue 9"
    await limiter.acquire("alice", quota)
    task = asyncio.create_task(limiter.wait("alice", quota))
    await quiet()
    assert (await limiter.peek("alice", quota)).delay == 2
    await cancel([task])
    assert (await limiter.peek("alice", quota)).delay == 1


async def test_a_timeout_from_outside_leaves_nothing_behind() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    await limiter.acquire("alice", EVEN)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(limiter.wait("alice", EVEN), 0.001)
    assert lines(limiter) == {}


def test_waiters_of_a_loop_that_ends_leave_the_line() -> None:
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    waiting: list[asyncio.Task[object]] = []

    async def leave_waiters() -> None:
        await limiter.acquire("alice", EVEN)
        waiting.extend(asyncio.create_task(limiter.wait("alice", EVEN)) for _ in range(3))
        await quiet()

    asyncio.run(leave_waiters())  # which cancels whatever is still running
    assert all(task.cancelled() for task in waiting)
    assert lines(limiter) == {}


def test_a_waiter_whose_loop_was_closed_harms_nobody() -> None:
    """Whoever leaves the line wakes the next. If that one can no longer be woken, the one behind it is."""
    clock = StoppedClock()
    limiter = AsyncLimiter(clock=clock)
    alive, closed = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def join_line() -> "asyncio.Task[object]":
        task: asyncio.Task[object] = asyncio.create_task(limiter.wait("alice", EVEN))
        await quiet()
        return task

    alive.run_until_complete(limiter.acquire("alice", EVEN))
    head = alive.run_until_complete(join_line())
    abandoned = closed.run_until_complete(join_line())
    last = alive.run_until_complete(join_line())
    closed.close()
    try:
        alive.run_until_complete(clock.let_pass(1))
        assert head.done()
        assert head.result()
        alive.run_until_complete(clock.let_pass(1))
        assert last.done()
        assert last.result()
        assert lines(limiter) == {}
    finally:
        alive.run_until_complete(cancel([head, last]))
        alive.close()
        abandoned._log_destroy_pending = False  # type: ignore[attr-defined]
        del abandoned
        gc.collect()


async def test_asyncio_timeouts_follow_the_same_rules(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    assert await limiter.wait("alice", EVEN, timeout=0)
    assert not await limiter.wait("alice", EVEN, timeout=0)
    assert not await limiter.wait("alice", EVEN, timeout=0.5)
    assert await limiter.wait("alice", EVEN, timeout=1)
    for _ in range(3):
        await limiter.acquire("bob", "1/second queue 9")
    refused = await limiter.wait("bob", "1/second queue 9", timeout=2)
    assert (refused.allowed, refused.retry_after) == (False, 3)
    assert (await limiter.peek("bob", "1/second queue 9")).delay == 3
    with pytest.raises(InvalidOption) as caught:
        await limiter.wait("alice", EVEN, timeout=-1)
    assert str(caught.value) == "timeout -1: expected seconds, 0 to 315360000, or None to wait for ever"
    assert lines(limiter) == {}

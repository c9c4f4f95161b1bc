"""What happens at the edges of an outage: reservations, forks, ends, shadows, crowds behind one key."""

import asyncio
import logging
import os
import threading
import time
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, RateLimited, Verdict
from penstock.clock import SECOND, monotonic
from penstock.engine.breaker import CLOSED, Breaker, Limits
from penstock.engine.engine import Engine
from penstock.events import Degraded, tell
from penstock.layers import DenyCache, Fallback
from penstock.layers.reports import Admissions
from penstock.model import Acquire, Ask
from penstock.stores.redis.errors import not_sent
from penstock.stores.redis.guard import RedisGuard
from tests.unit.flaky import AsyncFlaky, Flaky
from tests.unit.test_fallback import Fleet, acquire


@pytest.fixture
def store(clock: ManualClock) -> Flaky:
    return Flaky(clock)


def used(store: Flaky, key: str, quota: str = "10/minute fixed_window") -> int:
    whole = Quota.parse(quota)
    (verdict,) = store.inner.run([Acquire((Ask(key, whole, 0),), dry=True)])
    assert isinstance(verdict, Verdict)
    return whole.capacity - verdict.remaining


@pytest.mark.parametrize("behaviour", ["local", "open"])
def test_a_reservation_made_in_an_outage_can_be_settled(store: Flaky, clock: ManualClock, behaviour: Any) -> None:
    limiter = Limiter(store, clock=clock, on_failure=behaviour)
    store.up = False
    with limiter.reserve("ann", "100/minute", cost=5) as reservation:
        reservation.settle(2)

    @limiter.limit("100/minute", settle=lambda result: 1)
    def work() -> int:
        return 1

    assert work() == 1


async def test_a_reservation_made_in_an_outage_can_be_settled_async(store: Flaky, clock: ManualClock) -> None:
    limiter = AsyncLimiter(AsyncFlaky(store), clock=clock, on_failure="open")
    store.up = False
    async with limiter.reserve("ann", "100/minute", cost=5) as reservation:
        await reservation.settle(2)


async def test_clock_that_is_set_back_delays_no_report(store: Flaky, clock: ManualClock) -> None:
    limiter = AsyncLimiter(AsyncFlaky(store), clock=clock)

    async def acquire_and_run_due() -> None:
        clock.advance(2)
        await limiter.acquire("bob", "10/minute")
        await asyncio.gather(*limiter.engine._tasks)

    await acquire_and_run_due()  # announces the host
    store.up = False
    await limiter.acquire("ann", "10/day fixed_window")
    clock.set(clock.micros / SECOND - 3_600)
    store.up = True
    await acquire_and_run_due()
    assert used(store, "ann", "10/day fixed_window") == 1


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_failed_work_of_layers_is_begun_again_after_the_clock_is_set(clock: ManualClock, step: float) -> None:
    engine = Engine(Flaky(clock), [Fallback()], clock, "local")
    work = engine._chain.begin_due()
    assert work
    assert not engine._chain.begin_due(), "it is under way"
    clock.set(clock.micros / SECOND + step)
    engine._chain.end_due(work)
    assert engine._chain.begin_due()


def test_clock_that_is_set_back_makes_no_delay_longer(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    first, second = [limiter.acquire("ann", "1/second leaky_bucket") for _ in range(2)]
    clock.set(clock.micros / SECOND - 3_600)
    assert limiter.operations.delay_left(second) == second.delay_us == SECOND
    assert not limiter.operations.delay_left(first)


class SetBack(ManualClock):
    """A clock that is set back by an hour during every wait."""

    async def wait_async(self, woken: asyncio.Event, micros: int) -> None:
        await super().wait_async(woken, micros)
        self.set(self.micros / SECOND - 3_600)


async def test_clock_that_is_set_back_makes_no_wait_longer() -> None:
    clock = SetBack()
    limiter = AsyncLimiter(clock=clock)
    began = clock.steady_ns()
    assert await limiter.acquire("ann", "1 concurrent ttl 1d")
    assert not await limiter.wait("ann", "1 concurrent ttl 1d", timeout=5)
    assert clock.steady_ns() - began == 5 * SECOND * 1_000


def test_a_forked_child_does_not_tell_what_its_parent_will_tell() -> None:
    fleet = Fleet(hosts=1)
    fleet.settle_in()
    fleet.store.up = False
    for _ in range(3):
        assert fleet.ask()
    child = os.fork()
    if not child:
        os._exit(int(fleet.layers[0].pending))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fleet.layers[0].pending


def test_all_is_told_at_the_end(store: Flaky, clock: ManualClock) -> None:
    limiter = Limiter(store, clock=clock)
    store.up = False
    keys = [f"key {number}" for number in range(200)]
    assert all(limiter.acquire(key, "10/minute fixed_window") for key in keys)
    clock.advance(2)
    store.up = True
    limiter.close()
    assert sum(used(store, key) for key in keys) == 200


def test_what_no_thread_could_be_found_for_is_told_later(
    store: Flaky, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(store, clock=clock)
    store.up = False
    assert limiter.acquire("ann", "10/minute fixed_window")
    while limiter.engine._chain._busy_until:
        time.sleep(0.001)
    store.up = True

    def none_left(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("_thread.start_new_thread", none_left)
        clock.advance(2)
        limiter.acquire("bob", "10/minute fixed_window")
    clock.advance(2)
    limiter.close()
    assert used(store, "ann") == 1


async def test_what_a_task_was_cancelled_for_is_told_later(clock: ManualClock) -> None:
    flaky = Flaky(clock)

    class Slow(AsyncFlaky):
        async def run(self, ops: Any, deadline: Any = None) -> Any:
            await asyncio.sleep(0)
            return await super().run(ops, deadline)

    limiter = AsyncLimiter(Slow(flaky), clock=clock)
    flaky.up = False
    held = await limiter.acquire("ann", "3 concurrent ttl 1h")
    flaky.up = True
    held = await limiter.acquire("ann", "3 concurrent ttl 1h")
    assert held.source == "store"
    flaky.up = False
    await limiter.release(held)  # to be done later
    clock.advance(2)
    flaky.up = True
    await limiter.acquire("bob", "10/minute")
    for task in list(limiter.engine._tasks):
        task.cancel()
    await asyncio.sleep(0.01)
    clock.advance(2)
    await limiter.close()
    quota = Quota.parse("3 concurrent ttl 1h")
    (verdict,) = flaky.inner.run([Acquire((Ask("ann", quota, 0),), dry=True)])
    assert isinstance(verdict, Verdict)
    assert verdict.remaining == 3


@pytest.mark.parametrize("behaviour", ["closed", "local", "open"])
def test_who_waited_in_vain_in_a_line_hears_who_answered(store: Flaky, clock: ManualClock, behaviour: Any) -> None:
    limiter = Limiter(store, on_failure=behaviour)
    store.up = False
    first = limiter.operations.queues.join(
        tuple((ask.key, ask.quota) for ask in limiter.operations.acquire("ann", "10/minute", 1).asks), lambda: True
    )
    verdict = limiter.wait("ann", "10/minute", timeout=0.01)
    limiter.operations.queues.leave(first)
    assert (verdict.allowed, verdict.source) == (False, behaviour)


def test_a_refusal_does_not_refuse_those_who_only_want_to_be_counted(store: Flaky, clock: ManualClock) -> None:
    cache = DenyCache()
    driver = Engine(store, [cache, Fallback(known=cache)], clock)
    quota = Quota.parse("1/minute fixed_window")
    enforced, shadow = Acquire((Ask("ann", quota),)), Acquire((Ask("ann", quota, 1, True),))
    assert driver.run([enforced])[0]
    assert not driver.run([enforced])[0]
    assert driver.run([shadow])[0]
    store.up = False
    assert driver.run([shadow])[0]


def test_memory_is_bounded_if_many_are_refused_for_the_same_reason(store: Flaky, clock: ManualClock) -> None:
    cache = DenyCache(max_keys=100)
    driver = Engine(store, [cache], clock)
    everybody, each = Quota.parse("1/minute fixed_window name all"), Quota.parse("10/minute fixed_window")
    for number in range(1_000):
        driver.run([Acquire((Ask(f"user {number}", each), Ask("all", everybody)))])
    assert sum(len(refusals) for half in (cache._young, cache._old) for refusals in half.values()) <= 100


def test_a_hook_that_always_fails_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def hook(event: object) -> None:
        raise ValueError

    with caplog.at_level(logging.ERROR, "penstock.events"):
        for _ in range(1_000):
            tell(hook, Degraded("local", 1, ""))
    assert 1 <= len(caplog.records) <= 2


def test_what_was_asked_before_it_opened_does_not_count_after_it_closed() -> None:
    told: list[Any] = []
    breaker = Breaker(Limits(failures=5), lambda *change: told.append(change), lambda: 1.0)
    for _ in range(5):
        breaker.failed(0.0, 0.1, "gone")
    for at in (1.0, 1.1):
        assert breaker.admits(at)
        breaker.succeeded(at, at + 0.01)
    assert breaker.state == CLOSED
    for _ in range(5):  # asked long before, by whoever has a long deadline
        breaker.failed(0.05, 2.0, "no answer within the deadline")
    assert breaker.state == CLOSED


def test_a_request_may_say_open_where_the_limiter_says_raise(store: Flaky, clock: ManualClock) -> None:
    limiter = Limiter(store, clock=clock, on_failure="raise")
    store.up = False
    outcome = limiter.engine.run([acquire(on_failure="open")])[0]
    assert isinstance(outcome, Verdict)


def test_a_fault_of_the_deny_cache_is_not_raised(
    store: Flaky, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(store, clock=clock)
    assert limiter.acquire("ann", "10/minute").source == "store"
    monkeypatch.setattr(limiter.engine._chain.layers[0], "_young", object())
    assert limiter.acquire("ann", "10/minute").source == "store"
    assert limiter.peek("ann", "10/minute").source == "open"


def test_a_hook_that_blocks_holds_up_one_caller_not_all() -> None:
    held_up = threading.Event()

    def hook(event: object) -> None:
        held_up.wait(60)

    guard = RedisGuard("here", Limits(failures=1), 10, hook)
    failed = not_sent("gone", "here")
    teller = threading.Thread(target=guard.unanswered, args=(0.0, failed))
    teller.start()
    while not guard.shut:
        time.sleep(0.001)
    assert guard.admit(0.0) is not None
    assert guard.admit(monotonic() + 10) is None
    assert teller.is_alive()  # while it is held up
    held_up.set()
    teller.join()


def test_a_refusal_because_the_store_is_gone_does_not_read_like_a_limit(store: Flaky, clock: ManualClock) -> None:
    limiter = Limiter(store, clock=clock, on_failure="closed")
    store.up = False
    with pytest.raises(RateLimited, match="the store cannot answer"), limiter.hold("ann", "3 concurrent ttl 1h"):
        pass


def test_hosts_that_are_seldom_asked_still_count_one_another() -> None:
    fleet = Fleet(hosts=5)
    fleet.settle_in()
    for _ in range(10):  # each is asked every 15 seconds
        for driver in fleet.drivers:
            fleet.clock.advance(3)
            driver.run_due()
            fleet._not_in_passing()
        fleet.clock.advance(12)
    assert [layer.hosts.number for layer in fleet.layers] == [5] * 5


def test_what_the_store_may_have_charged_is_not_told_to_it() -> None:
    fleet = Fleet()
    fleet.settle_in()
    fleet.store.up, fleet.store.charged = False, "unknown"
    assert fleet.ask(cost=5).source == "local"
    assert len(fleet.layers[0].unreported) == 0


@pytest.mark.parametrize("behind", [-90, 90])
def test_reports_go_by_the_stores_clock(behind: int) -> None:
    fleet = Fleet()
    host = ManualClock(fleet.clock.micros / SECOND - behind)
    layer = Fallback()
    driver = Engine(fleet.store, [layer], host, "local")
    driver.run_due()
    driver._chain.due_at = 2**63
    assert layer.hosts.offset == behind * SECOND
    fleet.store.up = False
    driver.run([acquire(cost=1)])
    fleet.store.up = True
    host.advance(1)
    driver.run_due()
    assert fleet.used() == 1


def test_much_that_was_admitted_is_kept_in_little() -> None:
    admissions = Admissions(10)
    for text in ("1000/minute", "1000/minute fixed_window", "1000/minute rolling_window", "1000/minute gcra"):
        for second in range(600):
            admissions.add("ann", Quota.parse(text), 1, second * SECOND)
    assert max(len(times) for times in admissions._counters.values()) <= 17
    assert sum(units for _, units in admissions._counters["ann", Quota.parse("1000/minute")]) == 180

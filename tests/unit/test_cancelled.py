"""What an asyncio caller is charged that is cancelled during the call is given back when the reply comes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from penstock import AsyncLimiter, ManualClock, Quota, Verdict
from penstock.clock import Micros
from penstock.enforcer import AsyncEnforcer
from penstock.engine.protocols import Done, Gone
from penstock.errors import StoreError
from penstock.layers import Fallback
from penstock.model import Acquire, Ask, Failed, Op, Outcome
from penstock.stores import MemoryStore
from tests.unit.rules.support import rule_set

RATE = Quota.parse("10/minute fixed_window")
PLACES = Quota.parse("2 concurrent ttl 1h")


class Late:
    """An asyncio store that decides at once, and whose replies come when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.lost = False
        self.gone: list[Gone | None] = []
        self.waiting: list[tuple[Done, list[Outcome]]] = []

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        self.gone.append(gone)
        outcomes = self.inner.run(ops)
        if self.lost:
            outcomes = [Failed(StoreError("the reply was lost", transient=True), "unknown")] * len(ops)
        self.waiting.append((done, outcomes))

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        raise AssertionError("a store with submit is not asked by run")

    async def close(self) -> None: ...

    def reply(self) -> None:
        """Deliver all replies, also those to what is sent thereupon."""
        while self.waiting:
            done, outcomes = self.waiting.pop(0)
            done(outcomes)

    def used(self, quota: Quota = RATE, key: Any = "ann") -> int:
        (verdict,) = self.inner.run([Acquire((Ask(key, quota, 0),), dry=True)])
        assert isinstance(verdict, Verdict)
        return quota.capacity - verdict.remaining


@pytest.fixture
def store(clock: ManualClock) -> Late:
    return Late(clock)


async def sent(store: Late) -> None:
    """Return when the call that was started last has reached the store."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.waiting


async def cancelled_on_the_way(call: Awaitable[object], store: Late) -> None:
    """The reply comes after the cancellation."""
    task = asyncio.ensure_future(call)
    await sent(store)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    store.reply()


async def cancelled_with_the_reply(call: Awaitable[object], store: Late) -> None:
    """The reply comes in the same turn of the loop, before the cancellation."""
    task = asyncio.ensure_future(call)
    await sent(store)
    store.reply()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    store.reply()


CALLS: dict[str, Callable[[AsyncLimiter], Awaitable[object]]] = {
    "acquire": lambda limiter: limiter.acquire("ann", RATE, 3),
    "several quotas": lambda limiter: limiter.acquire("ann", [RATE, PLACES]),
    "acquire_all": lambda limiter: limiter.acquire_all([("bob", RATE), ("ann", RATE, 3), ("ann", PLACES)]),
    "acquire_many": lambda limiter: limiter.acquire_many([("ann", RATE, 2), ("ann", PLACES), ("ann", RATE, 9)]),
    "wait": lambda limiter: limiter.wait("ann", RATE, 3, timeout=5),
    "hold": lambda limiter: limiter.hold("ann", PLACES),
    "hold with a timeout": lambda limiter: limiter.hold("ann", PLACES, timeout=5),
    "reserve": lambda limiter: limiter.reserve("ann", RATE, 3),
    "a decorated function": lambda limiter: limiter.limit(RATE, key="ann", name="f", settle=int)(asyncio.sleep)(0),
}


@pytest.mark.parametrize("cancelled", [cancelled_on_the_way, cancelled_with_the_reply])
@pytest.mark.parametrize("layers", [None, []])
@pytest.mark.parametrize("call", CALLS)
async def test_charge_of_a_cancelled_call_is_given_back(
    call: str, layers: Any, cancelled: Any, store: Late, clock: ManualClock
) -> None:
    await cancelled(CALLS[call](AsyncLimiter(store, clock=clock, layers=layers)), store)
    assert (store.used(), store.used(PLACES), store.used(key="bob")) == (0, 0, 0)


@pytest.mark.parametrize("cancelled", [cancelled_on_the_way, cancelled_with_the_reply])
async def test_charge_of_a_cancelled_check_by_rules_is_given_back(
    cancelled: Any, store: Late, clock: ManualClock
) -> None:
    rules = rule_set({"id": "all", "quota": "10/minute fixed_window"})
    enforcer = AsyncEnforcer(rules, AsyncLimiter(store, clock=clock))
    await cancelled(enforcer.check({"ip": "192.0.2.1"}, 4), store)
    task = asyncio.ensure_future(enforcer.check({"ip": "192.0.2.1"}))
    await sent(store)
    store.reply()
    assert (await task).remaining == 9


@pytest.mark.parametrize("cancelled", [cancelled_on_the_way, cancelled_with_the_reply])
async def test_request_with_an_id_stays_charged_for_its_retry(cancelled: Any, store: Late, clock: ManualClock) -> None:
    limiter = AsyncLimiter(store, clock=clock)
    await cancelled(limiter.acquire("ann", RATE, 3, id="order 7"), store)
    assert store.used() == 3
    retry = asyncio.ensure_future(limiter.acquire("ann", RATE, 3, id="order 7"))
    await sent(store)
    store.reply()
    assert await retry
    assert store.used() == 3


async def test_refusals_and_peeks_leave_nothing_to_give_back(store: Late, clock: ManualClock) -> None:
    store.inner.run([Acquire((Ask("ann", RATE, 10),))])
    limiter = AsyncLimiter(store, clock=clock)
    await cancelled_on_the_way(limiter.acquire("ann", RATE), store)
    await cancelled_on_the_way(limiter.peek("ann", RATE), store)
    assert store.used() == 10


async def test_local_charge_of_a_cancelled_call_is_given_back_here(store: Late, clock: ManualClock) -> None:
    fallback = Fallback(hosts=1)
    limiter = AsyncLimiter(store, clock=clock, layers=[fallback])
    store.lost = True
    await cancelled_on_the_way(limiter.acquire("ann", RATE, 10), store)
    again = asyncio.ensure_future(limiter.acquire("ann", RATE, 10))
    await sent(store)
    store.reply()
    verdict = await again
    assert verdict
    assert verdict.source == "local"


@pytest.mark.parametrize("amend", ["refund", "release", "settle"])
async def test_amendment_of_a_cancelled_caller_is_sent(amend: str, store: Late, clock: ManualClock) -> None:
    """The store asks whether the caller is gone when it sends; an amendment is sent in any case."""
    limiter = AsyncLimiter(store, clock=clock, layers=[])
    task = asyncio.ensure_future(limiter.acquire("ann", [RATE, PLACES], id="x"))
    await sent(store)
    store.reply()
    verdict = await task
    call = getattr(limiter, amend)
    await cancelled_on_the_way(call(verdict, 0) if amend == "settle" else call(verdict), store)
    acquired, amended = store.gone
    assert acquired is not None
    assert amended is None or not amended()

"""What AsyncLimiter adds: coroutines, event loops, `async with`. All it shares with Limiter is in test_limiter.py."""

import asyncio
import gc
import pickle
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, RateLimited, StoreError
from penstock.errors import InvalidOption, InvalidQuota
from penstock.stores import MemoryStore


def test_both_limiters_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert methods(Limiter) == methods(AsyncLimiter)


async def test_the_whole_interface_awaited(clock: ManualClock) -> None:
    async with AsyncLimiter("memory://?max_keys=100000", clock=clock) as limiter:
        quota = Quota(10, 60)
        verdict = await limiter.acquire("alice", "10/minute", cost=4)
        assert verdict.remaining == 6
        assert (await limiter.acquire("alice", ["10/minute", "1000/hour"], cost=2)).remaining == 4
        assert [bool(v) for v in await limiter.acquire_many([("alice", quota), ("bob", quota)])] == [True, True]
        assert (await limiter.peek("alice", quota, cost=1)).remaining == 3
        assert (await limiter.refund(verdict, units=1)).units == 1
        assert (await limiter.refund(verdict, units=3)).units == 3
        await limiter.reset("alice", quota)
        assert (await limiter.peek("alice", quota)).remaining == 10
    with pytest.raises(StoreError, match=r"^the limiter is closed$"):
        await limiter.acquire("alice", quota)


async def test_async_with_lets_errors_through() -> None:
    with pytest.raises(KeyError):
        async with AsyncLimiter():
            raise KeyError


def test_one_limiter_serves_several_event_loops_one_after_the_other() -> None:
    limiter = AsyncLimiter(clock=ManualClock())

    async def ask() -> int:
        return (await limiter.acquire("alice", "3/minute")).remaining

    assert [asyncio.run(ask()) for _ in range(3)] == [2, 1, 0]


async def test_tasks_share_the_counters() -> None:
    limiter = AsyncLimiter(clock=ManualClock())

    async def ask() -> bool:
        await asyncio.sleep(0)
        return bool(await limiter.acquire("alice", "10/minute"))

    assert sum(await asyncio.gather(*(ask() for _ in range(50)))) == 10


async def test_a_limited_coroutine_raises_when_refused(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)

    @limiter.limit("1/minute", key=lambda user, **_: user, cost=lambda user, **_: len(user) - 4)
    async def greet(user: str, *, mark: str = "!") -> str:
        """Say hello."""
        await asyncio.sleep(0)
        return f"hello {user}{mark}"

    assert await greet("alice") == "hello alice!"
    assert await greet("boris", mark="?") == "hello boris?"
    with pytest.raises(RateLimited) as caught:
        await greet("alice")
    assert pickle.loads(pickle.dumps(caught.value)).verdict == caught.value.verdict
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    clock.advance(caught.value.verdict.retry_after)
    assert await greet("alice") == "hello alice!"


async def test_methods_can_be_limited() -> None:
    limiter = AsyncLimiter()

    class Account:
        @limiter.limit("1/hour", name="account", cost=1)
        async def close(self) -> str:
            return "closed"

    assert await Account().close() == "closed"
    with pytest.raises(RateLimited):
        await Account().close()


async def test_functions_share_counters_by_name_alone() -> None:
    limiter = AsyncLimiter()

    async def work() -> int:
        return 1

    async def rest() -> int:
        return 2

    await limiter.limit("1/hour")(work)()
    assert await limiter.limit("1/hour")(rest)() == 2
    await limiter.limit("1/hour", name="both")(work)()
    with pytest.raises(RateLimited):
        await limiter.limit("1/hour", name="both")(rest)()


def test_only_coroutine_functions_can_be_limited() -> None:
    decorate: Any = AsyncLimiter().limit("1/hour")
    with pytest.raises(InvalidOption) as caught:
        decorate(len)
    text = "builtins.len: not a coroutine function (expected one; Limiter limits both kinds)"
    assert str(caught.value) == text


def test_a_bad_quota_fails_where_it_is_written() -> None:
    async def work() -> None: ...

    with pytest.raises(InvalidQuota):
        AsyncLimiter().limit("5/fortnight")(work)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_limiter_nobody_holds_is_freed_with_its_store(kind: type[Limiter]) -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(thing) is MemoryStore for thing in gc.get_objects())

    before = alive()
    limiter = kind()
    assert alive() == before + 1
    del limiter
    assert alive() == before

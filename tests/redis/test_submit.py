"""`AsyncRedisStore.submit`: operations are sent in the loop turn in which they are submitted, and call back."""

import asyncio
from collections.abc import Sequence

from penstock.model import Amend, Op, Outcome, Receipt, Verdict
from penstock.stores.redis.scatter import MAX_OPS
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import acquire, decided, failed, opened_async, our_tasks
from tests.rig.fixtures import Keyspace

QUOTA = "1000/hour"


class Answers:
    """What a caller of `submit` was answered."""

    def __init__(self) -> None:
        self.given: list[list[Outcome] | Exception] = []
        self._event = asyncio.Event()

    def __call__(self, outcomes: list[Outcome] | Exception) -> None:
        self.given.append(outcomes)
        self._event.set()

    async def outcomes(self) -> list[Outcome]:
        await asyncio.wait_for(self._event.wait(), 30)
        (given,) = self.given
        assert isinstance(given, list)
        return given


async def submitted(store: AsyncRedisStore, ops: Sequence[Op]) -> list[Outcome]:
    answers = Answers()
    store.submit(ops, None, answers)
    return await answers.outcomes()


def remaining(outcomes: Sequence[Outcome]) -> list[int]:
    return [decided(outcome).remaining for outcome in outcomes]


async def test_a_submitted_batch_is_answered_in_order(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        assert remaining(await submitted(store, [acquire(QUOTA)] * 3)) == [999, 998, 997]


async def test_a_submitted_batch_makes_no_task(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        await submitted(store, [acquire(QUOTA)])  # connects, by a task
        answers = Answers()
        store.submit([acquire(QUOTA)] * MAX_OPS, None, answers)
        assert our_tasks() == 0
        assert len(await answers.outcomes()) == MAX_OPS


async def test_a_submitted_batch_overtakes_what_run_sends_at_the_end_of_the_turn(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        await submitted(store, [acquire(QUOTA)])
        run = store.run([acquire(QUOTA)])
        assert remaining(await submitted(store, [acquire(QUOTA)])) == [998]
        assert remaining(await run) == [997]


async def test_a_submitted_batch_without_operations_is_answered(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        assert await submitted(store, []) == []


async def test_a_submitted_batch_of_more_than_one_script_call_is_answered(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        outcomes = await submitted(store, [acquire(QUOTA)] * (2 * MAX_OPS + 1))
    assert remaining(outcomes) == list(range(999, 999 - len(outcomes), -1))


async def test_an_invalid_operation_fails_its_own_batch_only(keyspace: Keyspace) -> None:
    invalid, valid = Answers(), Answers()
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        store.submit([Amend(Receipt((), "a record without a serial"), "refund")], None, invalid)
        store.submit([acquire(QUOTA)], None, valid)
        assert remaining(await valid.outcomes()) == [999]
    assert [type(given) for given in invalid.given] == [ValueError]


async def test_a_closed_store_answers_a_submitted_batch_at_once(keyspace: Keyspace) -> None:
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        await submitted(store, [acquire(QUOTA)])
        await store.close()
        answers = Answers()
        store.submit([acquire(QUOTA)], None, answers)
        ((outcome,),) = (given for given in answers.given if isinstance(given, list))
    assert failed(outcome).charged == "no"


async def test_an_open_breaker_answers_a_submitted_batch_at_once(keyspace: Keyspace) -> None:
    answers = Answers()
    async with opened_async(keyspace.server.url, prefix=keyspace.prefix) as store:
        await submitted(store, [acquire(QUOTA)])
        store.force_breakers("open")
        store.submit([acquire(QUOTA)], None, answers)
        ((outcome,),) = (given for given in answers.given if isinstance(given, list))
    assert failed(outcome).charged == "no"


def test_a_loop_that_ends_does_not_hinder_the_next_one(keyspace: Keyspace) -> None:
    store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, secret="test")

    async def leave() -> None:
        store.submit([acquire(QUOTA)], None, lambda _: None)

    async def use_again() -> None:
        assert isinstance((await submitted(store, [acquire(QUOTA)]))[0], Verdict)
        await store.close()

    asyncio.run(leave())
    asyncio.run(use_again())

"""Load on a Redis store by tasks and by threads, every call noted. As a program: one node of a fleet.

python -m tests.integration.redis_load SCENARIO URL PREFIX NODE FILE

A node says that it is ready, waits for a line on its standard input, works, and leaves its history in the file.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from penstock.model import Acquire, Amend, Amended, Ask, Op, Outcome, Verdict
from penstock.quota import Quota
from penstock.stores import AsyncStore, Store
from penstock.stores.redis.store import AsyncRedisStore, RedisStore
from penstock.testing.history import CallHistory, outcome_of
from tests.integration.redis_support import LONG, PATIENT, acquire
from tests.integration.support import in_threads

TASKS = 64
THREADS = 16
EACH = 8
HOT = "1000/day"

RATES = tuple(f"{limit}/{LONG} {name}" for limit, name in ((900, "fixed_window"), (700, ""), (500, "rolling_window")))
"""Charged together by one request, all or none."""

BUCKETS = (f"400/{LONG} gcra", f"300/{LONG} token_bucket burst 350")
HOLDS = "10 concurrent ttl 60s"
ESTIMATE = 5


async def hammer(store: AsyncStore, history: CallHistory, quota: str, tasks: int = TASKS, each: int = EACH) -> None:
    """One key, asked by many tasks at once."""

    async def work() -> None:
        for _ in range(each):
            invoked = history.now()
            (outcome,) = await store.run([acquire(quota, "hot")])
            assert not isinstance(outcome, Amended)
            history.note("hot", invoked, outcome_of(outcome))

    await asyncio.gather(*[work() for _ in range(tasks)])


def hammer_in_threads(store: Store, history: CallHistory, quota: str, each: int = 2 * EACH) -> None:
    """One key, asked by many threads at once."""

    def work(_: int) -> None:
        for _ in range(each):
            invoked = history.now()
            (outcome,) = store.run([acquire(quota, "hot")])
            assert not isinstance(outcome, Amended)
            history.note("hot", invoked, outcome_of(outcome))

    in_threads(work, THREADS)


class Mixture:
    """Requests of several quotas and costs, refunds, reservations and holds, by chance, but the same every time."""

    def __init__(self, store: AsyncStore, history: CallHistory, seed: str) -> None:
        self._store, self._history = store, history
        self._random = random.Random(seed)

    async def run(self, tasks: int = TASKS, each: int = EACH) -> None:
        await asyncio.gather(*[self._work(each) for _ in range(tasks)])

    async def _work(self, each: int) -> None:
        deeds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._spend,
            self._spend_of_bucket,
            self._reserve,
            self._hold,
        )
        for _ in range(each):
            await self._random.choice(deeds)()

    async def _spend(self) -> None:
        """A request of several quotas, of which some is given back."""
        cost = self._random.randint(1, 4)
        invoked, returned, verdict = await self._acquire(Acquire(_asks(RATES, cost)))
        back = [0] * len(RATES)
        if verdict and self._random.random() < 0.4:
            back = await self._amend(verdict, "refund", self._random.choice([None, 1]))
        self._note(RATES, invoked, returned, verdict, back)

    async def _reserve(self) -> None:
        """An estimate that is settled for less, and settled again in vain."""
        request_id = self._random.randbytes(16)
        invoked, returned, verdict = await self._acquire(Acquire(_asks(RATES, ESTIMATE), id=request_id))
        back = [0] * len(RATES)
        if verdict:
            back = await self._amend(verdict, "settle", self._random.randint(0, ESTIMATE))
            assert not any(await self._amend(verdict, "settle", 0))
        self._note(RATES, invoked, returned, verdict, back)

    async def _spend_of_bucket(self) -> None:
        quota = self._random.choice(BUCKETS)
        invoked, returned, verdict = await self._acquire(Acquire(_asks((quota,), self._random.randint(1, 3))))
        self._note((quota,), invoked, returned, verdict, [0])

    async def _hold(self) -> None:
        request_id = self._random.randbytes(16)
        invoked, returned, verdict = await self._acquire(Acquire(_asks((HOLDS,)), id=request_id))
        until = None
        if verdict:
            await asyncio.sleep(0)
            until = self._history.now()
            assert await self._amend(verdict, "release") == [1]
        self._history.note((HOLDS, "hot"), invoked, outcome_of(verdict), returned=returned, until=until)

    async def _acquire(self, op: Acquire) -> tuple[int, int, Verdict]:
        invoked = self._history.now()
        outcome = await self._run(op)
        assert isinstance(outcome, Verdict), outcome
        return invoked, self._history.now(), outcome

    async def _amend(self, verdict: Verdict, verb: str, units: int | None = None) -> list[int]:
        assert verdict.receipt is not None
        outcome = await self._run(Amend(verdict.receipt, verb, units))  # type: ignore[arg-type]
        assert isinstance(outcome, Amended), outcome
        return list(outcome.each)

    async def _run(self, op: Op) -> Outcome:
        (outcome,) = await self._store.run([op])
        return outcome

    def _note(
        self, quotas: tuple[str, ...], invoked: int, returned: int, verdict: Verdict, given_back: list[int]
    ) -> None:
        """A request that was refused says nothing about those of its quotas that would have let it pass."""
        for quota, decision, back in zip(quotas, verdict.decisions, given_back, strict=True):
            if verdict or not decision:
                key, outcome = (quota, "hot"), "admitted" if verdict else "refused"
                self._history.note(
                    key,
                    invoked,
                    outcome,  # type: ignore[arg-type]
                    cost=decision.cost,
                    given_back=back,
                    returned=returned,
                )


def _asks(quotas: tuple[str, ...], cost: int = 1) -> tuple[Ask, ...]:
    return tuple(Ask("hot", Quota.parse(quota), cost) for quota in quotas)


async def _in_tasks(scenario: str, url: str, prefix: str, history: CallHistory) -> None:
    store = AsyncRedisStore(url, prefix=prefix, **PATIENT)
    try:
        if scenario == "mixture":
            await Mixture(store, history, history.node).run()
        else:
            await hammer(store, history, HOT)
    finally:
        await store.close()


def _node(scenario: str, url: str, prefix: str, node: str, file: str) -> None:
    history = CallHistory(node=node)
    print("ready", flush=True)
    sys.stdin.readline()
    if scenario == "threads":
        store = RedisStore(url, prefix=prefix, **PATIENT)
        hammer_in_threads(store, history, HOT)
        store.close()
    else:
        asyncio.run(_in_tasks(scenario, url, prefix, history))
    history.write(Path(file))


if __name__ == "__main__":
    _node(*sys.argv[1:])

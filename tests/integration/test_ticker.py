"""The ticker: a layer's own work is done in time without callers, and nothing is kept alive or left behind by it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Sequence
from typing import Any
from weakref import ref

import pytest

from penstock import Quota
from penstock.clock import SECOND, Clock, ManualClock, Micros, SystemClock, monotonic
from penstock.engine import ticker
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.lifetime import Token
from penstock.engine.protocols import Due, Entered, Local
from penstock.model import Acquire, Ask, Op, Outcome, Reset
from penstock.stores.memory.store import MemoryStore
from tests.rig.processes import wait_until

QUOTA = Quota.parse("5/minute")
OP = Acquire((Ask("k", QUOTA),))


class Debtor:
    """A layer that has something to say to the store until it has said it `times` times."""

    def __init__(self, times: int, every: Micros = SECOND // 20) -> None:
        self.left, self.every = times, every
        self.threads: list[int] = []
        self.said_all = asyncio.Event()

    @property
    def pending(self) -> bool:
        return self.left > 0

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        return None

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        return Entered(ops)

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        if token == "own":
            self.left -= 1
            self.threads.append(threading.get_ident())
            if self.left <= 0:
                self.said_all.set()
        return list(outcomes)

    def due(self, now: Micros) -> Due:
        return Due([Reset("k", QUOTA)] if self.left > 0 else [], "own", now + self.every)


class AsyncMemory:
    """A store for asyncio that answers from memory."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self._store.run(ops, deadline)

    async def close(self) -> None: ...


def made(layer: Debtor, clock: Clock | None = None) -> Engine:
    return Engine(MemoryStore(), [layer], clock or SystemClock())


def test_one_caller_is_enough_for_all_that_is_due() -> None:
    layer = Debtor(3)
    driver = made(layer)
    driver.run([OP])
    wait_until(lambda: layer.left == 0, "work that is done without callers")
    assert threading.get_ident() not in layer.threads


def test_many_engines_share_a_thread_that_ends_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "LINGER", 0.05)
    wait_until(lambda: ticker._ticking() is None, "no thread of other tests")
    layers = [Debtor(2) for _ in range(20)]
    drivers = [made(layer) for layer in layers]
    started: list[object] = []
    tick_on = ticker._tick_on

    def counted(*args: Any) -> None:
        started.append(args)
        tick_on(*args)

    monkeypatch.setattr(ticker, "_tick_on", counted)
    for driver in drivers:
        driver.run([OP])
    wait_until(lambda: not any(layer.left for layer in layers), "work of all engines")
    assert len(started) <= 2  # a stall longer than it lingers may end it in between
    wait_until(lambda: ticker._ticking() is None, "a thread that ends")
    again = Debtor(2)
    driver = made(again)
    driver.run([OP])
    wait_until(lambda: again.left == 0, "work after the thread has ended")


def test_an_engine_is_not_kept_alive_by_being_ticked() -> None:
    layer = Debtor(1_000_000)
    driver: Engine | None = made(layer)
    assert driver is not None
    driver.run([OP])
    gone = ref(driver)
    driver = None

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    wait_until(is_gone, "an engine that is forgotten")


def test_engines_that_are_gone_at_once_do_no_harm() -> None:
    for _ in range(200):
        made(Debtor(5)).run([OP])
    layer = Debtor(2)
    driver = made(layer)
    driver.run([OP])
    wait_until(lambda: layer.left == 0, "a thread that goes on")


def test_after_the_end_nothing_is_ticked() -> None:
    layer = Debtor(1_000_000, every=0)
    driver = made(layer)
    driver.run([OP])
    driver.finish()
    assert driver.tick() is None


def test_a_clock_moved_by_hand_is_not_ticked_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("penstock.engine.engine.call_after", lambda *args: asked.append(args))
    clock, layer = ManualClock(), Debtor(3)
    driver = made(layer, clock)
    driver.run([OP])
    clock.advance(10)
    driver.run([OP])
    assert asked == []
    made(layer).run([OP])
    assert len(asked) == 1


def test_ticks_are_neither_too_soon_nor_put_off_by_a_clock_set_back() -> None:
    assert ticker.spaced(-5) == ticker.SOONEST / SECOND
    assert ticker.spaced(2**62) == ticker.LATEST / SECOND


def test_a_forked_child_ticks_for_itself() -> None:
    layer = Debtor(1_000_000)
    driver = made(layer)
    driver.run([OP])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = Debtor(3)
            other = made(mine)
            other.run([OP])
            until = monotonic() + 60
            while mine.left and monotonic() < until:
                threading.Event().wait(0.01)
            status = 0 if mine.left == 0 else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    layer.left = 0


async def test_a_loop_does_what_is_due_without_callers() -> None:
    layer = Debtor(3)
    driver = AsyncEngine(AsyncMemory(), [layer], SystemClock())
    await driver.run([OP])
    async with asyncio.timeout(60):
        await layer.said_all.wait()


async def test_timer_of_the_parents_loop_does_not_count_in_a_forked_child() -> None:
    layer = Debtor(1_000_000)
    engine = AsyncEngine(AsyncMemory(), [layer], SystemClock())
    await engine.run([OP])
    child = os.fork()
    if child == 0:
        os._exit(0 if engine._timer._set() is None else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert engine._timer._set() is not None
    await engine.finish()


def test_a_closed_loop_leaves_the_timer_to_the_next_one() -> None:
    layer = Debtor(4)
    driver = AsyncEngine(AsyncMemory(), [layer], SystemClock())

    async def once() -> None:
        await driver.run([OP])

    async def until_done() -> None:
        await driver.run([OP])
        async with asyncio.timeout(60):
            await layer.said_all.wait()

    asyncio.run(once())
    gc.collect()
    driver._chain.due_at = 0
    asyncio.run(until_done())
    assert layer.left == 0


async def test_an_engine_that_is_finished_or_forgotten_sets_no_more_timers() -> None:
    layer = Debtor(1_000_000)
    driver = AsyncEngine(AsyncMemory(), [layer], SystemClock())
    await driver.run([OP])
    await driver.finish()
    assert driver.tick() is None
    timer, token = ticker.LoopTimer(), Token()
    timer._call(ref(AsyncEngine(AsyncMemory(), [], SystemClock())), token)  # gone at once
    assert timer._set() is None

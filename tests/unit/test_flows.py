"""The runners of flows: results, errors, interrupts and cancellations reach the flow; nothing of it is left open."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from penstock.engine.flows import Flow, drive, drive_async


class Calls:
    """Calls that block and calls that are awaited, under the same names."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def echo(self, value: str) -> str:
        self.log.append(value)
        return value

    def fail(self) -> None:
        raise OSError("no route to host")


class AsyncCalls(Calls):
    async def echo(self, value: str) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().echo(value)

    async def fail(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().fail()

    async def hang(self) -> None:
        await asyncio.Event().wait()


Both = Callable[[Callable[[Any], Flow[Any]]], Any]


def blocking(flow_of: Callable[[Any], Flow[Any]]) -> Any:
    return drive(flow_of(Calls()))


def awaited(flow_of: Callable[[Any], Flow[Any]]) -> Any:
    return asyncio.run(drive_async(flow_of(AsyncCalls())))


both = pytest.mark.parametrize("run", [blocking, awaited])


@both
def test_flow_receives_results_and_returns_its_value(run: Both) -> None:
    def greeting(io: Any) -> Flow[str]:
        first = yield io.echo("hello")
        second = yield io.echo("world")
        return f"{first} {second}"

    assert run(greeting) == "hello world"


@both
def test_flow_that_never_waits_returns_its_value(run: Both) -> None:
    def at_once(io: Any) -> Flow[int]:
        if not io:
            yield
        return 7

    assert run(at_once) == 7


@both
def test_flows_nest(run: Both) -> None:
    def inner(io: Any) -> Flow[str]:
        return (yield io.echo("inner")).upper()  # type: ignore[no-any-return]

    def outer(io: Any) -> Flow[str]:
        said = yield from inner(io)
        return (yield io.echo(f"outer {said}"))  # type: ignore[no-any-return]

    assert run(outer) == "outer INNER"


@both
def test_error_of_a_call_is_raised_at_its_yield(run: Both) -> None:
    def failing(io: Any) -> Flow[str]:
        try:
            yield io.fail()
        except OSError as error:
            return (yield io.echo(f"caught: {error}"))  # type: ignore[no-any-return]
        return "not reached"

    assert run(failing) == "caught: no route to host"


@both
def test_error_that_a_flow_lets_through_reaches_the_caller(run: Both) -> None:
    def failing(io: Any) -> Flow[None]:
        yield io.echo("before")
        yield io.fail()

    with pytest.raises(OSError, match="no route to host"):
        run(failing)


@both
def test_error_that_a_flow_raises_reaches_the_caller(run: Both) -> None:
    def failing(io: Any) -> Flow[None]:
        yield io.echo("before")
        raise ValueError("no such key")

    with pytest.raises(ValueError, match="no such key"):
        run(failing)


@both
def test_flow_cleans_up_with_calls_of_its_own(run: Both) -> None:
    said = []

    def failing(io: Any) -> Flow[None]:
        try:
            yield io.fail()
        finally:
            said.append((yield io.echo("cleaned up")))

    with pytest.raises(OSError, match="no route to host"):
        run(failing)
    assert said == ["cleaned up"]


def test_interrupt_inside_a_blocking_call_is_raised_at_its_yield() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    def refunding() -> Flow[None]:
        try:
            yield interrupted()
        except KeyboardInterrupt:
            log.append((yield "refunded"))
            raise

    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        drive(refunding())
    assert log == ["refunded"]


def interrupting(function: Any, at: int) -> Any:
    """A trace function that raises `KeyboardInterrupt` at the `at`-th instruction of `function` itself."""
    left = at

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions only if a frame had this before settrace
    return trace


def test_interrupt_between_two_steps_is_thrown_into_the_flow_or_closes_it() -> None:
    """At every instruction of the runner: no flow goes on as if nothing had happened, and none is left open."""
    thrown = 0
    for at in range(1, 500):
        log: list[str] = []

        def charging(log: list[str] = log) -> Flow[str]:
            try:
                log.append("charged")
                yield 1
                yield 2
            except BaseException as error:
                log.append(type(error).__name__)
                raise
            log.append("returned")
            return "done"

        before = sys.gettrace()
        sys.settrace(interrupting(drive, at))
        try:
            result = drive(charging())
        except KeyboardInterrupt:
            result = "interrupted"
        finally:
            sys.settrace(before)
        if result == "done":
            break
        assert log in ([], *(["charged", end] for end in ("KeyboardInterrupt", "GeneratorExit", "returned")))
        thrown += log[1:] == ["KeyboardInterrupt"]
    else:
        pytest.fail("the runner was interrupted at every count: expected an end")
    assert thrown >= 5


def test_interrupt_at_any_instruction_stays_an_interrupt_where_the_flow_cleans_up() -> None:
    refunded = 0
    for at in range(1, 500):
        log: list[str] = []

        def refunding(log: list[str] = log) -> Flow[str]:
            try:
                log.append("charged")
                yield 1
                yield 2
            except BaseException:
                log.append("refunded")
                yield 3
                raise
            log.append("returned")
            return "done"

        before = sys.gettrace()
        sys.settrace(interrupting(drive, at))
        try:
            result = drive(refunding())
        except KeyboardInterrupt:
            result = "interrupted"
        finally:
            sys.settrace(before)
        if result == "done":
            break
        assert log in ([], ["charged", "refunded"], ["charged", "returned"])
        refunded += log[1:] == ["refunded"]
    else:
        pytest.fail("the runner was interrupted at every count: expected an end")
    assert refunded >= 5


def test_interrupt_that_a_flow_swallows_does_not_end_it() -> None:
    def stubborn() -> Flow[str]:
        try:
            yield 1
        except KeyboardInterrupt:
            return (yield "went on")  # type: ignore[no-any-return]
        return "not interrupted"

    results = set()
    for at in range(1, 60):
        before = sys.gettrace()
        sys.settrace(interrupting(drive, at))
        try:
            results.add(drive(stubborn()))
        except KeyboardInterrupt:
            results.add("interrupted")
        finally:
            sys.settrace(before)
    assert "went on" in results


def test_cancellation_is_thrown_into_the_flow_that_may_still_wait() -> None:
    log: list[Any] = []

    def refunding(io: AsyncCalls) -> Flow[None]:
        try:
            yield io.hang()
        except asyncio.CancelledError:
            log.append((yield io.echo("refunded")))
            raise

    async def cancel() -> None:
        task = asyncio.create_task(drive_async(refunding(AsyncCalls())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert log == ["refunded"]


def test_cancellation_that_a_flow_swallows_lets_it_return() -> None:
    def stubborn(io: AsyncCalls) -> Flow[str]:
        try:
            yield io.hang()
        except asyncio.CancelledError:
            return (yield io.echo("went on"))  # type: ignore[no-any-return]
        return "not cancelled"

    async def cancel() -> str:
        task = asyncio.create_task(drive_async(stubborn(AsyncCalls())))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(cancel()) == "went on"


def test_closed_coroutine_closes_its_flow() -> None:
    log: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield asyncio.sleep(0)
        finally:
            log.append("closed")

    coroutine = drive_async(flow())
    coroutine.send(None)
    coroutine.close()
    assert log == ["closed"]


def test_closed_coroutine_still_finishes_cleanup_that_does_not_suspend() -> None:
    log: list[str] = []

    async def at_once(value: str) -> str:
        return value

    def flow() -> Flow[None]:
        try:
            yield asyncio.sleep(0)
        finally:
            log.append((yield at_once("refunded")))

    coroutine = drive_async(flow())
    coroutine.send(None)
    coroutine.close()
    assert log == ["refunded"]


@both
def test_failed_flow_is_freed_without_the_garbage_collector(run: Both) -> None:
    class Witness:
        """Dies with the flow."""

    alive: list[weakref.ref[Witness]] = []

    def failing(io: Any) -> Flow[None]:
        witness = Witness()
        alive.append(weakref.ref(witness))
        yield io.fail()

    gc.collect()
    gc.disable()
    try:
        try:
            run(failing)
        except OSError:
            pass
        if run is blocking:
            assert alive[0]() is None
    finally:
        gc.enable()


def test_awaitables_of_any_kind_are_awaited() -> None:
    def flow(loop: asyncio.AbstractEventLoop) -> Flow[list[Any]]:
        future: Awaitable[str] = loop.create_future()
        loop.call_soon(future.set_result, "future")  # type: ignore[attr-defined]
        return [(yield future), (yield asyncio.create_task(AsyncCalls().echo("task")))]

    async def main() -> list[Any]:
        return await drive_async(flow(asyncio.get_running_loop()))

    assert asyncio.run(main()) == ["future", "task"]

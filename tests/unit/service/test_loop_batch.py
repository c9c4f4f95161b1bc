"""One batch per turn of the event loop, one write per connection and batch."""

from __future__ import annotations

import asyncio
import re

import pytest

from penstock.service.wire.calls import Connection, Handler
from penstock.service.wire.limits import ServerLimits
from penstock.service.wire.loop_batch import LoopBatch
from penstock.service.wire.traffic import Traffic


class Line(Connection):
    """A connection that can be told to fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.flushed, self.aborted = fails, 0, False

    def flush(self) -> None:
        self.flushed += 1
        if self.fails:
            raise OSError("secret")

    def drain(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def sweep(self, now: float) -> None: ...


class Nobody:
    def handle(self, calls: list) -> None: ...  # type: ignore[type-arg]


async def test_each_connection_is_flushed_once_and_one_that_fails_fails_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler: Handler = Nobody()
    turns = LoopBatch(handler, asyncio.get_running_loop())
    lines = [Line(), Line(fails=True), Line()]
    for _ in range(3):
        for line in lines:
            turns.wrote(line)
    assert [line.flushed for line in lines] == [0, 0, 0]
    await asyncio.sleep(0)
    assert [line.flushed for line in lines] == [1, 1, 1]
    assert [line.aborted for line in lines] == [False, True, False]
    assert "OSError" in caplog.text


async def test_traffic_reports_when_the_last_connection_closes() -> None:
    traffic = Traffic(LoopBatch(Nobody(), asyncio.get_running_loop()), ServerLimits(connections=2))
    one, two = Line(), Line()
    traffic.enter(one)
    assert not traffic.closed
    traffic.enter(two)
    assert traffic.closed
    emptied: list[int] = []
    traffic.when_empty(lambda: emptied.append(len(traffic.connections)))
    traffic.leave(one)
    traffic.leave(one)
    assert emptied == []
    traffic.leave(two)
    assert emptied == [0]
    assert not traffic.closed
    traffic.draining = True
    assert traffic.closed
    traffic.when_empty(lambda: emptied.append(-1))
    assert emptied == [0, -1]


async def test_the_date_is_one_of_http() -> None:
    traffic = Traffic(LoopBatch(Nobody(), asyncio.get_running_loop()), ServerLimits())
    assert re.fullmatch(rb"date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n", traffic.date)

"""Requests by rules that callers of an event loop make in one turn are asked as one, and each gets its own answer.

Nobody waits for others to come: a turn is what the loop has to run anyway. Who is alone in it asks for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from penstock.client.exchange import Question
from penstock.client.front import RuleAsker, portions, together
from penstock.client.service import AsyncService
from penstock.errors import InvalidInput

_Waiting: TypeAlias = tuple[Question, asyncio.Future[Any]]
_ALONE = object()


class Gathering:
    """Gathers what is asked, for all event loops of one client."""

    def __init__(self, service: AsyncService, asker: RuleAsker) -> None:
        self._service, self._asker = service, asker
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Waiting]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, question: Question) -> Any:
        """What was told of a request, or a `Failed`. What is the caller's fault is raised."""
        loop = asyncio.get_running_loop()
        waiting = self._by_loop.get(loop)
        if waiting is None:
            waiting = self._by_loop.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._go, loop, waiting)
        coming: asyncio.Future[Any] = loop.create_future()
        waiting.append((question, coming))
        told = await coming
        if told is _ALONE:
            return self._asker.told((await self._service.ask([question]))[0])
        return told

    def _go(self, loop: asyncio.AbstractEventLoop, waiting: list[_Waiting]) -> None:
        """The turn is over: ask what was asked in it, without those who have given up."""
        asking = [one for one in waiting if not one[1].done()]
        waiting.clear()
        if len(asking) == 1:
            asking[0][1].set_result(_ALONE)
            return
        for some in portions([question for question, _ in asking]):
            task = loop.create_task(self._ask_together(asking[some]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask_together(self, asking: Sequence[_Waiting]) -> None:
        try:
            heard = (await self._service.ask([together([question for question, _ in asking])]))[0]
            for (_, coming), told in zip(asking, self._asker.told_each(heard, len(asking)), strict=True):
                if not coming.done():
                    coming.set_result(told)
        except InvalidInput as error:  # of the question as a whole
            for _, coming in asking:
                if not coming.done():
                    coming.set_exception(type(error)(str(error)))
        finally:
            for _, coming in asking:
                coming.cancel()  # does nothing to those who have their answer

"""Requests by rules that callers of an event loop make in one turn are asked as one, and each gets its own answer.

Nobody waits for others to come: a turn is what the loop has to run anyway. Who is alone in it asks for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from penstock.client.exchange import Question
from penstock.client.front import AT_ONCE, RuleAsker
from penstock.client.service import AsyncService
from penstock.errors import InvalidInput

MAX_BODY = 524_288
"""Bytes of one question; a service takes twice as much."""

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
        together = [one for one in waiting if not one[1].done()]
        waiting.clear()
        if len(together) == 1:
            together[0][1].set_result(_ALONE)
            return
        for some in portions(together):
            task = loop.create_task(self._ask_together(some))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask_together(self, together: Sequence[_Waiting]) -> None:
        bodies = [question.body or b"" for question, _ in together]
        safe = all(question.safe for question, _ in together)
        question = Question(b"/v1/check/batch", b"[" + b",".join(bodies) + b"]", safe)
        try:
            heard = (await self._service.ask([question]))[0]
            for (_, coming), told in zip(together, self._asker.told_each(heard, len(together)), strict=True):
                if not coming.done():
                    coming.set_result(told)
        except InvalidInput as error:  # of the question as a whole
            for _, coming in together:
                if not coming.done():
                    coming.set_exception(type(error)(str(error)))
        finally:
            for _, coming in together:
                coming.cancel()  # does nothing to those who have their answer


def portions(together: Sequence[_Waiting]) -> Iterator[Sequence[_Waiting]]:
    """As much at a time as a service takes."""
    some: list[_Waiting] = []
    size = 0
    for one in together:
        length = len(one[0].body or b"")
        if some and (len(some) >= AT_ONCE or size + length > MAX_BODY):
            yield some
            some, size = [], 0
        some.append(one)
        size += length
    if some:
        yield some

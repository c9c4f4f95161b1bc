"""A service that is asked, by blocking callers and by asyncio: deadline, breaker, and one more try where it is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.address import Address
from penstock.client.async_link import AsyncLinks
from penstock.client.exchange import Guard, Heard, Lost, Question, to_repeat
from penstock.client.link import Links
from penstock.clock import Micros, monotonic
from penstock.events import Hook, nobody


class _Asked:
    """What both kinds have."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        self.address = address
        self.guard = Guard(address.place, timeout, hook)
        self._closed = False

    def _refusal(self, now: float) -> Lost | None:
        return Lost("the client is closed", "no") if self._closed else self.guard.refusal(now)

    def _requests(self, questions: Sequence[Question]) -> list[bytes]:
        address = self.address
        return [address.get(path) if body is None else address.post(path, body) for path, body, _ in questions]


class Service(_Asked):
    """For blocking callers."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        super().__init__(address, timeout, hook)
        self._links = Links(address)

    def ask(self, questions: Sequence[Question], deadline: Micros | None = None) -> list[Heard]:
        """What is heard of each question, within `deadline` microseconds; never raises."""
        began = monotonic()
        refusal = self._refusal(began)
        if refusal is not None:
            return [refusal] * len(questions)
        until = began + self.guard.within(deadline)
        requests = self._requests(questions)
        heard = self._links.exchange(requests, until)
        again = to_repeat(questions, heard)
        if again:
            repeated = self._links.exchange([requests[n] for n in again], until, fresh=True)
            for position, one in zip(again, repeated, strict=True):
                heard[position] = one
        self.guard.heard(heard, began, monotonic())
        return heard

    def close(self) -> None:
        self._closed = True
        self._links.close()


class AsyncService(_Asked):
    """For asyncio."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        super().__init__(address, timeout, hook)
        self._links = AsyncLinks(address)

    async def ask(self, questions: Sequence[Question], deadline: Micros | None = None) -> list[Heard]:
        """What is heard of each question, within `deadline` microseconds; never raises."""
        began = monotonic()
        refusal = self._refusal(began)
        if refusal is not None:
            return [refusal] * len(questions)
        until = began + self.guard.within(deadline)
        requests = self._requests(questions)
        heard = await self._links.exchange(requests, until)
        again = to_repeat(questions, heard)
        if again:
            repeated = await self._links.exchange([requests[n] for n in again], until, fresh=True)
            for position, one in zip(again, repeated, strict=True):
                heard[position] = one
        self.guard.heard(heard, began, monotonic())
        return heard

    async def close(self) -> None:
        self._closed = True
        self._links.close()
        await asyncio.sleep(0)  # so that sockets are closed when this returns

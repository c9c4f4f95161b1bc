"""A service as a store: each operation is a question, and a batch goes out together.

It answers what limiters ask: requests of one key, amendments by receipt, resets. Requests of several keys are for the
service's own rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.address import Address
from penstock.client.codec import outcome, question_of
from penstock.client.http import Heard, Lost, Question, ServiceGuard, to_repeat
from penstock.client.pipeline import AsyncLinks
from penstock.client.pool import Links
from penstock.clock import Clock, Micros, SystemClock, monotonic
from penstock.events import Hook, nobody
from penstock.model import Op, Outcome

# ---------------------------------------------------------------- service


# A service that is asked, by blocking callers and by asyncio: deadline, breaker, and one more try where it is safe.


class _Asked:
    """What both kinds have."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        self.address = address
        self.guard = ServiceGuard(address.place, timeout, hook)
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


# ---------------------------------------------------------------- store


class ServiceStore:
    """For blocking callers."""

    def __init__(self, service: Service, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        heard = self.service.ask([question_of(op) for op in ops], deadline)
        return _read(ops, heard, self._time_ns() // 1_000, self.service.guard)

    def close(self) -> None:
        self.service.close()


class AsyncServiceStore:
    """For asyncio."""

    def __init__(self, service: AsyncService, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        heard = await self.service.ask([question_of(op) for op in ops], deadline)
        return _read(ops, heard, self._time_ns() // 1_000, self.service.guard)

    async def close(self) -> None:
        await self.service.close()


def _read(ops: Sequence[Op], heard: Sequence[Heard], now: Micros, guard: ServiceGuard) -> list[Outcome]:
    place = guard.place
    return [
        guard.failure(one) if isinstance(one, Lost) else outcome(op, one, now, place)
        for op, one in zip(ops, heard, strict=True)
    ]

"""A service as a store: each operation is a question, and a batch goes out together.

It answers what limiters ask: requests of one key, amendments by receipt, resets. Requests of several keys are for the
service's own rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.exchange import Guard, Heard, Lost
from penstock.client.plan import outcome, question_of
from penstock.client.service import AsyncService, Service
from penstock.clock import Clock, Micros, SystemClock
from penstock.model import Op, Outcome


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


def _read(ops: Sequence[Op], heard: Sequence[Heard], now: Micros, guard: Guard) -> list[Outcome]:
    place = guard.place
    return [
        guard.failed(one) if isinstance(one, Lost) else outcome(op, one, now, place)
        for op, one in zip(ops, heard, strict=True)
    ]

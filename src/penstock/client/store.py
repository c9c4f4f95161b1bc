"""A service as a store: each operation is a question, and a batch goes out together.

It answers what limiters ask: requests of one key, amendments by receipt, resets. Requests of several keys are for the
service's own rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.exchange import Guard, Heard, Lost
from penstock.client.plan import Planned, outcomes, plan
from penstock.client.service import AsyncService, Service
from penstock.clock import Clock, Micros, SystemClock
from penstock.model import Op, Outcome


class ServiceStore:
    """For blocking callers."""

    def __init__(self, service: Service, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        planned = plan(ops)
        heard = self.service.ask([one.question for one in planned], deadline)
        return _read(planned, heard, self._time_ns() // 1_000, self.service.guard)

    def close(self) -> None:
        self.service.close()


class AsyncServiceStore:
    """For asyncio."""

    def __init__(self, service: AsyncService, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        planned = plan(ops)
        heard = await self.service.ask([one.question for one in planned], deadline)
        return _read(planned, heard, self._time_ns() // 1_000, self.service.guard)

    async def close(self) -> None:
        await self.service.close()


def _read(planned: Sequence[Planned], heard: Sequence[Heard], now: Micros, guard: Guard) -> list[Outcome]:
    read: list[Outcome] = []
    for asked, one in zip(planned, heard, strict=True):
        if isinstance(one, Lost):
            read += [guard.failed(one)] * len(asked.ops)
        else:
            read += outcomes(asked, one, now, guard.place)
    return read

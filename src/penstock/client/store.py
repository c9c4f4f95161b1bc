"""A service as a store: each operation is an API request, and operations that are run together are sent together.

It runs the operations of limiters: requests of one key or of several, amendments by receipt, resets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.client.address import Address
from penstock.client.codec import outcome, request_of
from penstock.client.http import ApiRequest, Lost, ReplyOrLost, ServiceGuard, to_retry
from penstock.client.pipeline import AsyncConnectionPool
from penstock.client.pool import ConnectionPool
from penstock.clock import Clock, Micros, SystemClock, monotonic
from penstock.engine.flows import Flow, drive, drive_async
from penstock.events import Hook, nobody
from penstock.model import Op, Outcome


class _Calls:
    """Calls to one service: with a deadline, behind a breaker, and with one retry where it is safe."""

    connections: Any

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        self.address = address
        self.guard = ServiceGuard(address.place, timeout, hook)
        self.closed = False

    def asking(self, requests: Sequence[ApiRequest], deadline: Micros | None = None) -> Flow[list[ReplyOrLost]]:
        """Send `requests` together."""
        began = monotonic()
        refusal = Lost("the client is closed", "no") if self.closed else self.guard.refusal(began)
        if refusal is not None:
            return [refusal] * len(requests)
        until = began + self.guard.within(deadline)
        address = self.address
        sent = [address.get(path) if body is None else address.post(path, body) for path, body, _ in requests]
        replies: list[ReplyOrLost] = yield self.connections.exchange(sent, until)
        again = to_retry(requests, replies)
        if again:
            repeated = yield self.connections.exchange([sent[n] for n in again], until, fresh=True)
            for position, reply in zip(again, repeated, strict=True):
                replies[position] = reply
        self.guard.record(replies, began, monotonic())
        return replies


class ServiceCalls(_Calls):
    """Calls to one service, for blocking code."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        super().__init__(address, timeout, hook)
        self.connections = ConnectionPool(address)

    def ask(self, requests: Sequence[ApiRequest], deadline: Micros | None = None) -> list[ReplyOrLost]:
        """Return a reply to each request, within `deadline` microseconds. It never raises."""
        return drive(self.asking(requests, deadline))

    def close(self) -> None:
        self.closed = True
        self.connections.close()


class AsyncServiceCalls(_Calls):
    """Calls to one service, for asyncio."""

    def __init__(self, address: Address, timeout: float, hook: Hook = nobody) -> None:
        super().__init__(address, timeout, hook)
        self.connections = AsyncConnectionPool(address)

    async def ask(self, requests: Sequence[ApiRequest], deadline: Micros | None = None) -> list[ReplyOrLost]:
        """Return a reply to each request, within `deadline` microseconds. It never raises."""
        return await drive_async(self.asking(requests, deadline))

    async def close(self) -> None:
        self.closed = True
        self.connections.close()
        await asyncio.sleep(0)  # so that sockets are closed when this returns


class ServiceStore:
    """A service as a store, for blocking code."""

    def __init__(self, service: ServiceCalls, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        replies = self.service.ask([request_of(op) for op in ops], deadline)
        return _read(ops, replies, self._time_ns() // 1_000, self.service.guard)

    def close(self) -> None:
        self.service.close()


class AsyncServiceStore:
    """A service as a store, for asyncio."""

    def __init__(self, service: AsyncServiceCalls, clock: Clock | None = None) -> None:
        self.service = service
        self._time_ns = (clock or SystemClock()).time_ns

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        replies = await self.service.ask([request_of(op) for op in ops], deadline)
        return _read(ops, replies, self._time_ns() // 1_000, self.service.guard)

    async def close(self) -> None:
        await self.service.close()


def _read(ops: Sequence[Op], replies: Sequence[ReplyOrLost], now: Micros, guard: ServiceGuard) -> list[Outcome]:
    return [
        guard.failure(reply) if isinstance(reply, Lost) else outcome(op, reply, now, guard.place)
        for op, reply in zip(ops, replies, strict=True)
    ]

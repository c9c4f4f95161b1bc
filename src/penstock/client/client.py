"""Client and AsyncClient: a service in the hands of an application.

    client = Client("http://127.0.0.1:8080", token=...)
    if not client.check({"path": "/v1/orders", "api_key": key}):       # by the service's rules
        ...
    if not client.acquire("alice", "100/minute"):                      # by a quota, without rules
        ...

A client is a limiter whose store is a service, so it has everything that a limiter has: waiting, holds, reservations,
the decorator. And it has what an enforcer has, by the rules of the service: `check`, `check_many`, `explain`; `peek`,
`reset`, `hold` and `reserve` take a descriptor in place of a key and a quota.

Both classes have the same methods and differ in one word, `await`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import overload

from penstock.client.address import DEFAULT_URL, Address, Tls
from penstock.client.answers import Ruling, holds, is_free
from penstock.client.exchange import DEFAULT_TIMEOUT
from penstock.client.front import Descriptor, Request, RuleAsker, WhenGone
from penstock.client.gathering import Gathering
from penstock.client.service import AsyncService, Service
from penstock.client.store import AsyncServiceStore, ServiceStore
from penstock.clock import Clock
from penstock.errors import InvalidRequest
from penstock.events import Hook, nobody
from penstock.front import Id, QuotaLike
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.inspection import Explanation
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Amended, Key, Receipt, Verdict


class Client(Limiter):
    """A service, for blocking code. One instance serves any number of threads.

    - `url`: `http://host:port`, `https://host:port` or `unix:/path`.
    - `token`: what the service wants to be told, if it does; `tls`: what to trust, and what to show.
    - `timeout`: seconds that a call may take, connecting included.
    - `on_failure`: what happens when the service cannot be asked: "open" (everybody passes), "closed" or "raise".
    - `hook`: told of events; see `penstock.events`. `clock`: for tests.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        on_failure: WhenGone = "open",
        hook: Hook = nobody,
        clock: Clock | None = None,
    ) -> None:
        self._service = Service(Address(url, token, tls), timeout, hook)
        self._asker = RuleAsker(self._service.guard, on_failure, hook)
        super().__init__(ServiceStore(self._service, clock), hook=hook, clock=clock, layers=self._asker.layers)
        self._owns_store = True

    def __repr__(self) -> str:
        return f"<Client {self._service.address.place}>"

    def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request by the service's rules, and charge it to every rule that matches if it may pass.

        Once admitted, a request with an `id` is remembered: asked again with the same id it gets the same answer, and
        is not charged again.
        """
        return self._ruling(b"/v1/check", descriptor, cost, id)

    def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests, in order; each stands for itself."""
        self._check_open()
        asked = self._asker.check_many(requests)
        heard = self._service.ask([one.question for one in asked])
        pairs = zip(asked, heard, strict=True)
        return [ruling for one, reply in pairs for ruling in self._asker.rulings(one, reply, self._now())]

    def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the service's rules make of a request and why, and how its counters stand. Charges nothing."""
        self._check_open()
        return self._asker.explanation(self._service.ask([self._asker.explain(descriptor, cost)])[0])

    @overload
    def peek(self, key: Descriptor, quota: None = None, cost: int = 1) -> Ruling: ...
    @overload
    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    def peek(self, key: Key | Descriptor, quota: QuotaLike | None = None, cost: int = 1) -> Verdict:
        """What `acquire`, or `check` of a descriptor, would answer now, charging nothing."""
        if isinstance(key, Mapping):
            return self._ruling(b"/v1/peek", key, cost, None)
        return super().peek(key, needed(quota), cost)

    @overload
    def reset(self, key: Descriptor, quota: None = None) -> None: ...
    @overload
    def reset(self, key: Key, quota: QuotaLike) -> None: ...
    def reset(self, key: Key | Descriptor, quota: QuotaLike | None = None) -> None:
        """Forget what `key` has used of `quota`; or all that requests of this descriptor are counted by."""
        if isinstance(key, Mapping):
            self._check_open()
            self._asker.answer(self._service.ask([self._asker.reset(key)])[0])
        else:
            super().reset(key, needed(quota))

    def hold(
        self,
        key: Key | Descriptor,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Hold:
        """Take a place of a concurrency quota, to be held in a `with` block.

        By a descriptor it takes those that the rules have, if any, and does not wait for them.
        """
        if not isinstance(key, Mapping):
            return super().hold(key, needed(quota), cost, id=id, timeout=timeout, renew=renew)
        hold = Hold(self, self.check(key, cost, id=id))
        if renew and holds_place(hold.verdict):
            hold._keep()
        return hold

    def reserve(
        self, key: Key | Descriptor, quota: QuotaLike | None = None, cost: int = 1, *, id: Id | None = None
    ) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        if not isinstance(key, Mapping):
            return super().reserve(key, needed(quota), cost, id=id)
        return Reservation(self, self.check(key, cost, id=os.urandom(ID_BYTES) if id is None else id))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged) else super().refund(charged, units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        return Amended() if is_free(charged) else super().settle(charged, units)

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds, if it holds any. Doing so late or twice changes nothing."""
        return super().release(charged) if holds(charged) else Amended()

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return super().renew(charged) if holds(charged) else True

    def _ruling(self, path: bytes, descriptor: Descriptor, cost: int, id: Id | None) -> Ruling:
        self._check_open()
        asked = self._asker.check(path, descriptor, cost, id)
        told = self._asker.told(self._service.ask([asked.question])[0])
        return self._asker.ruling(asked, told, self._now())


class AsyncClient(AsyncLimiter):
    """A service, for asyncio: the methods of `Client`, awaited. One instance serves any number of event loops.

    What callers ask in one turn of an event loop goes out together, and reaches the service as one batch.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        on_failure: WhenGone = "open",
        hook: Hook = nobody,
        clock: Clock | None = None,
    ) -> None:
        self._service = AsyncService(Address(url, token, tls), timeout, hook)
        self._asker = RuleAsker(self._service.guard, on_failure, hook)
        self._gathering = Gathering(self._service, self._asker)
        super().__init__(AsyncServiceStore(self._service, clock), hook=hook, clock=clock, layers=self._asker.layers)
        self._owns_store = True

    def __repr__(self) -> str:
        return f"<AsyncClient {self._service.address.place}>"

    async def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request by the service's rules, and charge it to every rule that matches if it may pass.

        Once admitted, a request with an `id` is remembered: asked again with the same id it gets the same answer, and
        is not charged again.
        """
        return await self._ruling(b"/v1/check", descriptor, cost, id)

    async def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests, in order; each stands for itself."""
        self._check_open()
        asked = self._asker.check_many(requests)
        heard = await self._service.ask([one.question for one in asked])
        pairs = zip(asked, heard, strict=True)
        return [ruling for one, reply in pairs for ruling in self._asker.rulings(one, reply, self._now())]

    async def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the service's rules make of a request and why, and how its counters stand. Charges nothing."""
        self._check_open()
        return self._asker.explanation((await self._service.ask([self._asker.explain(descriptor, cost)]))[0])

    @overload
    async def peek(self, key: Descriptor, quota: None = None, cost: int = 1) -> Ruling: ...
    @overload
    async def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    async def peek(self, key: Key | Descriptor, quota: QuotaLike | None = None, cost: int = 1) -> Verdict:
        """What `acquire`, or `check` of a descriptor, would answer now, charging nothing."""
        if isinstance(key, Mapping):
            return await self._ruling(b"/v1/peek", key, cost, None)
        return await super().peek(key, needed(quota), cost)

    @overload
    async def reset(self, key: Descriptor, quota: None = None) -> None: ...
    @overload
    async def reset(self, key: Key, quota: QuotaLike) -> None: ...
    async def reset(self, key: Key | Descriptor, quota: QuotaLike | None = None) -> None:
        """Forget what `key` has used of `quota`; or all that requests of this descriptor are counted by."""
        if isinstance(key, Mapping):
            self._check_open()
            self._asker.answer((await self._service.ask([self._asker.reset(key)]))[0])
        else:
            await super().reset(key, needed(quota))

    def hold(
        self,
        key: Key | Descriptor,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Opening[AsyncHold]:
        """Take a place of a concurrency quota, to be held in an `async with` block.

        By a descriptor it takes those that the rules have, if any, and does not wait for them.
        """
        if not isinstance(key, Mapping):
            return super().hold(key, needed(quota), cost, id=id, timeout=timeout, renew=renew)
        descriptor = key

        async def held() -> AsyncHold:
            hold = AsyncHold(self, await self.check(descriptor, cost, id=id))
            if renew and holds_place(hold.verdict):
                hold._keep()
            return hold

        return Opening(held())

    def reserve(
        self, key: Key | Descriptor, quota: QuotaLike | None = None, cost: int = 1, *, id: Id | None = None
    ) -> Opening[AsyncReservation]:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        if not isinstance(key, Mapping):
            return super().reserve(key, needed(quota), cost, id=id)
        descriptor = key

        async def reserved() -> AsyncReservation:
            known = os.urandom(ID_BYTES) if id is None else id
            return AsyncReservation(self, await self.check(descriptor, cost, id=known))

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged) else await super().refund(charged, units)

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        return Amended() if is_free(charged) else await super().settle(charged, units)

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds, if it holds any. Doing so late or twice changes nothing."""
        return await super().release(charged) if holds(charged) else Amended()

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return await super().renew(charged) if holds(charged) else True

    async def _ruling(self, path: bytes, descriptor: Descriptor, cost: int, id: Id | None) -> Ruling:
        self._check_open()
        asked = self._asker.check(path, descriptor, cost, id)
        if path == b"/v1/check":
            told = await self._gathering.ask(asked.question)
        else:
            told = self._asker.told((await self._service.ask([asked.question]))[0])
        return self._asker.ruling(asked, told, self._now())


def needed(quota: QuotaLike | None) -> QuotaLike:
    """A quota, where there is no descriptor."""
    if quota is None:
        raise InvalidRequest("quota: missing (expected a key and a quota, or a descriptor)")
    return quota

"""Client and AsyncClient: the decisions of a service, as methods of an application.

    client = Client("http://127.0.0.1:8080", token=...)
    if not client.check({"path": "/v1/orders", "api_key": key}):       # by the service's rules
        ...
    if not client.acquire("alice", "100/minute"):                      # by a quota, without rules
        ...

A client is a limiter whose store is a service, so it has all that a limiter has: waiting, holds, reservations, the
decorator. By the rules of the service it has what an enforcer has: `check`, `check_many`, `explain`; and `peek`,
`reset`, `hold` and `reserve` take a `descriptor=` in place of a key and a quota.

Both classes have the same methods and differ in one word, `await`. Decisions by rules are flows, which both run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload
from weakref import WeakKeyDictionary

from penstock.client.address import DEFAULT_URL, Address, Tls
from penstock.client.codec import (
    UNUSABLE,
    ServiceRuling,
    body_of,
    check_body,
    explanation,
    problem,
    request,
    ruling,
    unanswered,
    unparsable,
)
from penstock.client.http import DEFAULT_TIMEOUT, ApiRequest, Lost, ReplyOrLost
from penstock.client.store import AsyncServiceCalls, AsyncServiceStore, ServiceCalls, ServiceStore
from penstock.clock import Clock, SystemClock
from penstock.enforcer import Request, holds, is_free, pairs_of
from penstock.engine.cancelled import new_id
from penstock.engine.flows import Flow, drive, drive_async
from penstock.engine.operations import Id, QuotaLike, check_id
from penstock.errors import InvalidInput, InvalidOption, InvalidRequest, StoreError, shown
from penstock.events import Degraded, Hook, nobody, tell
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.layers import DenyCache, Fallback, Layer
from penstock.limiter import AsyncLimiter, Limiter
from penstock.model import Amended, Explanation, Failed, Key, Receipt, Verdict, check_units
from penstock.rules.ruleset import Descriptor

WhenGone: TypeAlias = Literal["open", "closed", "raise"]
"""What happens when the service does not answer: all requests pass, none passes, or an error is raised."""

CHECK, PEEK, BATCH = b"/v1/check", b"/v1/peek", b"/v1/check/batch"

AT_ONCE = 500
"""How many checks go in one request; a service takes a thousand."""

MAX_BODY = 524_288
"""Bytes of checks that go in one request; a service takes twice as much."""


class ServiceRules:
    """Decisions by the rules of a service, as flows."""

    def __init__(self, service: Any, on_failure: WhenGone, hook: Hook, clock: Clock | None) -> None:
        if on_failure not in ("open", "closed", "raise"):
            raise InvalidOption(f"on_failure {shown(on_failure)}: expected open, closed or raise")
        self._service, self._guard, self._on_failure, self._hook = service, service.guard, on_failure, hook
        self._clock = clock or SystemClock()
        known = DenyCache()
        self._fallback = Fallback(on_failure, hosts=1, known=known, hook=hook)
        self.layers: tuple[Layer, ...] = (known, self._fallback)

    # Flows

    def checking(self, path: bytes, descriptor: Descriptor, cost: int, id: Id | None) -> Flow[ServiceRuling]:
        """Decide on one request; with the path of a peek nothing is charged."""
        self._check_open()
        known = None if id is None else check_id(id)
        body = check_body(_checked(descriptor), check_units("cost", cost, least=0), known)
        if path == PEEK:
            del body["receipt"]
        result = yield from self.asking(request(path, body, safe=path == PEEK or known is not None))
        return self._ruling(result, cost, remembered=known is not None)

    def checking_many(self, requests: Iterable[Request]) -> Flow[list[ServiceRuling]]:
        """Decide on many requests, in as few API requests as a service takes."""
        self._check_open()
        pairs = pairs_of(requests)
        bodies = [check_body(_checked(one), check_units("cost", cost, least=0), None) for one, cost in pairs]
        checks = [request(BATCH, body, safe=False) for body in bodies]
        parts = list(portions(checks))
        replies = yield from self._service.asking([together(checks[part]) for part in parts])
        read = [one for part, reply in zip(parts, replies, strict=True) for one in self.read_each(reply, pairs[part])]
        return [self._ruling(one, cost) for one, (_, cost) in zip(read, pairs, strict=True)]

    def explaining(self, descriptor: Descriptor, cost: int) -> Flow[Explanation]:
        """Explain what the rules make of a request."""
        body = {"descriptor": dict(_checked(descriptor)), "cost": check_units("cost", cost, least=1)}
        result = yield from self._answering(request(b"/v1/explain", body, safe=True))
        try:
            return explanation(result)
        except UNUSABLE:
            raise unparsable(self._guard.place).error from None

    def resetting(self, descriptor: Descriptor) -> Flow[None]:
        """Reset all counters of a request."""
        yield from self._answering(request(b"/v1/reset", {"descriptor": dict(_checked(descriptor))}, safe=True))

    def asking(self, check: ApiRequest) -> Flow[Any]:
        """Send one check. Return the body of the reply, or a `Failed`."""
        return self.read((yield from self._service.asking([check]))[0])

    def _answering(self, one: ApiRequest) -> Flow[dict[str, Any]]:
        """Send a request for which no fallback can answer."""
        self._check_open()
        result = self.read((yield from self._service.asking([one]))[0])
        if isinstance(result, Failed):
            raise result.error.to_raise(result.charged)
        return result  # type: ignore[no-any-return]

    # Replies

    def read(self, reply: ReplyOrLost) -> Any:
        """Return the body of a reply, or a `Failed`. Errors of the caller are raised."""
        return self._guard.failure(reply) if isinstance(reply, Lost) else body_of(reply, self._guard.place)

    def read_each(self, reply: ReplyOrLost, checks: Sequence[object]) -> Sequence[Any]:
        """Return the same for each of the checks that were sent as one."""
        result = self.read(reply)
        results = [result] * len(checks) if isinstance(result, Failed) else result.get("results")
        usable = isinstance(results, list) and len(results) == len(checks)
        return results if usable else [unparsable(self._guard.place)] * len(checks)

    def _ruling(self, result: Any, cost: int, *, remembered: bool = False) -> ServiceRuling:
        now = self._clock.time_ns() // 1_000
        if isinstance(result, dict) and "problem" in result:
            details = result["problem"]
            status = details.get("status", 500) if isinstance(details, dict) else None
            place = self._guard.place
            result = problem(details, status, place) if isinstance(status, int) else unparsable(place)
        if not isinstance(result, Failed):
            try:
                return ruling(result, cost, now, remembered=remembered)
            except UNUSABLE:
                result = unparsable(self._guard.place)
        if self._on_failure == "raise":
            raise result.error.to_raise(result.charged)
        why = str(result.error)
        tell(self._hook, Degraded(self._on_failure, 1, why))
        self._fallback.answered[self._on_failure] += 1
        self._fallback.warn(1, why, now)
        return unanswered(cost, now, closed=self._on_failure == "closed")

    def _check_open(self) -> None:
        if self._service.closed:
            raise StoreError("the client is closed", transient=False)


def portions(checks: Sequence[ApiRequest]) -> Iterator[slice]:
    """Yield which checks go in one request, as many as a service takes."""
    start = size = 0
    for position, one in enumerate(checks):
        length = len(one.body or b"")
        if position > start and (position - start >= AT_ONCE or size + length > MAX_BODY):
            yield slice(start, position)
            start, size = position, 0
        size += length
    if checks:
        yield slice(start, len(checks))


def together(checks: Sequence[ApiRequest]) -> ApiRequest:
    """Return several checks as one request."""
    body = b",".join([one.body or b"" for one in checks])
    return ApiRequest(BATCH, b"[" + body + b"]", all(one.safe for one in checks))


def _checked(descriptor: Descriptor) -> Descriptor:
    if not isinstance(descriptor, Mapping):
        raise InvalidRequest(f"descriptor: expected a mapping of entries to texts, not {type(descriptor).__name__}")
    return descriptor


_Waiting: TypeAlias = tuple[ApiRequest, asyncio.Future[Any]]
_ALONE = object()


class GatheredRules(ServiceRules):
    """Decisions for asyncio: checks that callers of one event loop make in one turn are sent as one request.

    No caller waits for others: the turn ends when the loop has run all that is ready. A lone check is sent as it is.
    """

    def __init__(self, service: AsyncServiceCalls, on_failure: WhenGone, hook: Hook, clock: Clock | None) -> None:
        super().__init__(service, on_failure, hook, clock)
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Waiting]] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def asking(self, check: ApiRequest) -> Flow[Any]:
        result = _ALONE if check.path == PEEK else (yield self._gathered(check))
        if result is _ALONE:
            result = yield from super().asking(check)
        return result

    def _gathered(self, check: ApiRequest) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        waiting = self._by_loop.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._send, loop, waiting)
        coming: asyncio.Future[Any] = loop.create_future()
        waiting.append((check, coming))
        return coming

    def _send(self, loop: asyncio.AbstractEventLoop, waiting: list[_Waiting]) -> None:
        """Send the checks of the turn, without those that were cancelled."""
        sending = [one for one in waiting if not one[1].done()]
        waiting.clear()
        if len(sending) == 1:
            sending[0][1].set_result(_ALONE)
            return
        for part in portions([check for check, _ in sending]):
            task = loop.create_task(self._send_together(sending[part]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_together(self, sending: Sequence[_Waiting]) -> None:
        try:
            reply = (await self._service.ask([together([check for check, _ in sending])]))[0]
            for (_, coming), result in zip(sending, self.read_each(reply, sending), strict=True):
                if not coming.done():
                    coming.set_result(result)
        except InvalidInput as error:  # of the request as a whole
            for _, coming in sending:
                if not coming.done():
                    coming.set_exception(type(error)(str(error)))
        finally:
            for _, coming in sending:
                coming.cancel()  # has no effect on those that are done


class Client(Limiter):
    """A service, for blocking code. One instance serves any number of threads.

    - `url`: `http://host:port`, `https://host:port` or `unix:/path`.
    - `token`: the token of the service, if it has any; `tls`: certificates to trust and to show.
    - `timeout`: seconds that a call may take, connecting included.
    - `on_failure`: what happens when the service does not answer: "open" (all requests pass), "closed" or "raise".
    - `hook`: receives events; see `penstock.events`. `clock`: for tests.
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
        self._service = ServiceCalls(Address(url, token, tls), timeout, hook)
        self._rules = ServiceRules(self._service, on_failure, hook, clock)
        super().__init__(ServiceStore(self._service, clock), hook=hook, clock=clock, layers=self._rules.layers)
        self._owns_store = True

    def __repr__(self) -> str:
        return f"<Client {self._service.address.place}>"

    def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> ServiceRuling:
        """Decide on a request by the service's rules, and charge it to every rule that matches if it may pass.

        An admitted request with an `id` is remembered: with the same id it gets the same answer, and no second charge.
        """
        return drive(self._rules.checking(CHECK, descriptor, cost, id))

    def check_many(self, requests: Iterable[Request]) -> list[ServiceRuling]:
        """Decide on many requests, in order and each on its own."""
        return drive(self._rules.checking_many(requests))

    def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """Return what the service's rules make of a request and why, and the state of its counters. Charges nothing."""
        return drive(self._rules.explaining(descriptor, cost))

    @overload
    def peek(self, *, descriptor: Descriptor, cost: int = 1) -> ServiceRuling: ...
    @overload
    def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    def peek(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
    ) -> Verdict:
        """Return what `acquire`, or `check` of a descriptor, would return now. Charges nothing."""
        if descriptor is None:
            return super().peek(*needed(key, quota), cost)
        return drive(self._rules.checking(PEEK, lone(descriptor, key, quota), cost, None))

    def reset(
        self, key: Key | None = None, quota: QuotaLike | None = None, *, descriptor: Descriptor | None = None
    ) -> None:
        """Forget what `key` has used of `quota`; or reset all counters of requests with this descriptor."""
        if descriptor is None:
            super().reset(*needed(key, quota))
        else:
            drive(self._rules.resetting(lone(descriptor, key, quota)))

    def hold(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Hold:
        """Take a place of a concurrency quota, to be held in a `with` block.

        By a descriptor it takes the places of the rules, if any, and does not wait for them.
        """
        if descriptor is None:
            return super().hold(*needed(key, quota), cost, id=id, timeout=timeout, renew=renew)
        hold = Hold(self, self.check(lone(descriptor, key, quota), cost, id=id))
        if renew and holds_place(hold.verdict):
            hold.keep()
        return hold

    def reserve(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
        id: Id | None = None,
    ) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        if descriptor is None:
            return super().reserve(*needed(key, quota), cost, id=id)
        known = new_id() if id is None else id
        return Reservation(self, self.check(lone(descriptor, key, quota), cost, id=known))

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged, ServiceRuling) else super().refund(charged, units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        return Amended() if is_free(charged, ServiceRuling) else super().settle(charged, units)

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds, if it holds any. Doing so late or twice changes nothing."""
        return super().release(charged) if holds(charged, ServiceRuling) else Amended()

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold places for another ttl. False if they are no longer held."""
        return super().renew(charged) if holds(charged, ServiceRuling) else True


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
        self._service = AsyncServiceCalls(Address(url, token, tls), timeout, hook)
        self._rules = GatheredRules(self._service, on_failure, hook, clock)
        super().__init__(AsyncServiceStore(self._service, clock), hook=hook, clock=clock, layers=self._rules.layers)
        self._owns_store = True

    def __repr__(self) -> str:
        return f"<AsyncClient {self._service.address.place}>"

    async def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> ServiceRuling:
        """Decide on a request by the service's rules, and charge it to every rule that matches if it may pass."""
        return await drive_async(self._rules.checking(CHECK, descriptor, cost, id))

    async def check_many(self, requests: Iterable[Request]) -> list[ServiceRuling]:
        """Decide on many requests, in order and each on its own."""
        return await drive_async(self._rules.checking_many(requests))

    async def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """Return what the service's rules make of a request and why, and the state of its counters. Charges nothing."""
        return await drive_async(self._rules.explaining(descriptor, cost))

    @overload
    async def peek(self, *, descriptor: Descriptor, cost: int = 1) -> ServiceRuling: ...
    @overload
    async def peek(self, key: Key, quota: QuotaLike, cost: int = 1) -> Verdict: ...
    async def peek(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
    ) -> Verdict:
        """Return what `acquire`, or `check` of a descriptor, would return now. Charges nothing."""
        if descriptor is None:
            return await super().peek(*needed(key, quota), cost)
        return await drive_async(self._rules.checking(PEEK, lone(descriptor, key, quota), cost, None))

    async def reset(
        self, key: Key | None = None, quota: QuotaLike | None = None, *, descriptor: Descriptor | None = None
    ) -> None:
        """Forget what `key` has used of `quota`; or reset all counters of requests with this descriptor."""
        if descriptor is None:
            await super().reset(*needed(key, quota))
        else:
            await drive_async(self._rules.resetting(lone(descriptor, key, quota)))

    def hold(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
        id: Id | None = None,
        timeout: float | None = 0,
        renew: bool = False,
    ) -> Opening[AsyncHold]:
        """Take a place of a concurrency quota, or the places of the rules, to be held in an `async with` block."""
        if descriptor is None:
            return super().hold(*needed(key, quota), cost, id=id, timeout=timeout, renew=renew)
        request = lone(descriptor, key, quota)

        async def held() -> AsyncHold:
            hold = AsyncHold(self, await self.check(request, cost, id=id))
            if renew and holds_place(hold.verdict):
                hold.keep()
            return hold

        return Opening(held())

    def reserve(
        self,
        key: Key | None = None,
        quota: QuotaLike | None = None,
        cost: int = 1,
        *,
        descriptor: Descriptor | None = None,
        id: Id | None = None,
    ) -> Opening[AsyncReservation]:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        if descriptor is None:
            return super().reserve(*needed(key, quota), cost, id=id)
        request = lone(descriptor, key, quota)

        async def reserved() -> AsyncReservation:
            known = new_id() if id is None else id
            return AsyncReservation(self, await self.check(request, cost, id=known))

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged, ServiceRuling) else await super().refund(charged, units)

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, even if they do not fit. Only the first time counts."""
        return Amended() if is_free(charged, ServiceRuling) else await super().settle(charged, units)

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a verdict holds, if it holds any. Doing so late or twice changes nothing."""
        return await super().release(charged) if holds(charged, ServiceRuling) else Amended()

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold places for another ttl. False if they are no longer held."""
        return await super().renew(charged) if holds(charged, ServiceRuling) else True


def needed(key: Key | None, quota: QuotaLike | None) -> tuple[Key, QuotaLike]:
    """Return key and quota, where there is no descriptor."""
    if key is None or quota is None:
        raise InvalidRequest("expected a key and a quota, or a descriptor")
    return key, quota


def lone(descriptor: Descriptor, key: Key | None, quota: QuotaLike | None) -> Descriptor:
    """Return the descriptor, where there is neither key nor quota."""
    if key is not None or quota is not None:
        raise InvalidRequest("descriptor: the rules say by which key and quota (expected it alone)")
    return descriptor

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

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, overload
from weakref import WeakKeyDictionary

from penstock.client.address import DEFAULT_URL, Address, Tls
from penstock.client.codec import (
    Ruling,
    body_of,
    check,
    explanation,
    holds,
    is_free,
    problem,
    question,
    ruling,
    senseless,
    unanswered,
)
from penstock.client.http import DEFAULT_TIMEOUT, Heard, Lost, Question, ServiceGuard
from penstock.client.store import AsyncService, AsyncServiceStore, Service, ServiceStore
from penstock.clock import Clock, Micros
from penstock.engine.operations import Id, QuotaLike, check_id
from penstock.errors import InvalidInput, InvalidOption, InvalidRequest, shown
from penstock.events import Degraded, Hook, nobody, tell
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.layers import DenyCache, Fallback, Layer
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Amended, Explanation, Failed, Key, Receipt, Verdict, check_units

# ---------------------------------------------------------------- front


# What both clients share: questions by rules, and what becomes of their answers. Nothing here waits.


Descriptor: TypeAlias = Mapping[str, object]
"""What is known of a request: names of entries, and their texts."""

Request: TypeAlias = Descriptor | tuple[Descriptor, int]
"""A descriptor, or (descriptor, cost)."""

WhenGone: TypeAlias = Literal["open", "closed", "raise"]
"""What happens when the service cannot be asked: everybody passes, nobody passes, an error is raised."""

BATCH = b"/v1/check/batch"

AT_ONCE = 500
"""How many requests are one question; a service takes a thousand."""

MAX_BODY = 524_288
"""Bytes of one question; a service takes twice as much."""


class Asked(NamedTuple):
    """Requests by rules that are one question, each with its cost."""

    question: Question
    costs: Sequence[int]
    remembered: bool = False


class RuleAsker:
    """How requests by rules are asked and answered."""

    def __init__(self, guard: ServiceGuard, on_failure: WhenGone, hook: Hook = nobody) -> None:
        if on_failure not in ("open", "closed", "raise"):
            raise InvalidOption(f"on_failure {shown(on_failure)}: expected open, closed or raise")
        self._guard, self._on_failure, self._hook = guard, on_failure, hook
        known = DenyCache()
        self.fallback = Fallback(on_failure, hosts=1, known=known, hook=hook)
        self.layers: tuple[Layer, ...] = (known, self.fallback)

    def check(self, path: bytes, descriptor: Descriptor, cost: int, request_id: Id | None = None) -> Asked:
        """One request; at `/v1/peek` it charges nothing."""
        known = None if request_id is None else check_id(request_id)
        asked = check(_checked(descriptor), check_units("cost", cost, least=0), known)
        dry = path == b"/v1/peek"
        if dry:
            del asked["receipt"]
        return Asked(question(path, asked, safe=dry or known is not None), (cost,), known is not None)

    def check_many(self, requests: Iterable[Request]) -> list[Asked]:
        """Many, in as few questions as a service takes."""
        pairs = [request if isinstance(request, tuple) else (request, 1) for request in requests]
        for position, pair in enumerate(pairs):
            if len(pair) != 2:
                raise InvalidRequest(f"request {position}: expected a descriptor, or (descriptor, cost)")
        checks = [check(_checked(one), check_units("cost", cost, least=0), None) for one, cost in pairs]
        each = [question(BATCH, one, safe=False) for one in checks]
        return [Asked(together(each[some]), [cost for _, cost in pairs[some]]) for some in portions(each)]

    def told(self, heard: Heard) -> Any:
        """What was said, or a `Failed`. What is the caller's fault is raised."""
        return self._guard.failure(heard) if isinstance(heard, Lost) else body_of(heard, self._guard.place)

    def told_each(self, heard: Heard, number: int) -> Sequence[Any]:
        """The same of each of so many requests that were asked as one."""
        told = self.told(heard)
        results = [told] * number if isinstance(told, Failed) else told.get("results", ())
        return results if len(results) == number else [senseless(self._guard.place)] * number

    def ruling(self, asked: Asked, told: Any, now: Micros) -> Ruling:
        """What became of one request."""
        return self._ruled(told, asked.costs[0], now, remembered=asked.remembered)

    def rulings(self, asked: Asked, heard: Heard, now: Micros) -> list[Ruling]:
        """What became of each request of a batch."""
        results = self.told_each(heard, len(asked.costs))
        return [self._ruled(one, cost, now) for one, cost in zip(results, asked.costs, strict=True)]

    def _ruled(self, told: Any, cost: int, now: Micros, *, remembered: bool = False) -> Ruling:
        if isinstance(told, dict) and "problem" in told:
            told = problem(told["problem"], int(told["problem"].get("status", 500)), self._guard.place)
        if not isinstance(told, Failed):
            try:
                return ruling(told, cost, now, remembered=remembered)
            except (KeyError, TypeError, ValueError):
                told = senseless(self._guard.place)
        if self._on_failure == "raise":
            raise told.error.to_raise(told.charged)
        why = str(told.error)
        tell(self._hook, Degraded(self._on_failure, 1, why))
        self.fallback.answered[self._on_failure] += 1
        self.fallback.warn(1, why, now)
        return unanswered(cost, now, closed=self._on_failure == "closed")

    def explain(self, descriptor: Descriptor, cost: int) -> Question:
        asked = {"descriptor": dict(_checked(descriptor)), "cost": check_units("cost", cost, least=1)}
        return question(b"/v1/explain", asked, safe=True)

    def explanation(self, heard: Heard) -> Explanation:
        try:
            return explanation(self.answer(heard))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise senseless(self._guard.place).error from None

    def reset(self, descriptor: Descriptor) -> Question:
        return question(b"/v1/reset", {"descriptor": dict(_checked(descriptor))}, safe=True)

    def answer(self, heard: Heard) -> dict[str, Any]:
        """What was answered where nobody can stand in."""
        told = self.told(heard)
        if isinstance(told, Failed):
            raise told.error.to_raise(told.charged)
        answered: dict[str, Any] = told
        return answered


def portions(questions: Sequence[Question]) -> Iterator[slice]:
    """As many of them at a time as a service takes."""
    start = size = 0
    for position, one in enumerate(questions):
        length = len(one.body or b"")
        if position > start and (position - start >= AT_ONCE or size + length > MAX_BODY):
            yield slice(start, position)
            start, size = position, 0
        size += length
    if questions:
        yield slice(start, len(questions))


def together(questions: Sequence[Question]) -> Question:
    """Several checks as one question."""
    body = b",".join([one.body or b"" for one in questions])
    return Question(BATCH, b"[" + body + b"]", all(one.safe for one in questions))


def _checked(descriptor: Descriptor) -> Descriptor:
    if not isinstance(descriptor, Mapping):
        raise InvalidRequest(f"descriptor: expected a mapping of entries to texts, not {type(descriptor).__name__}")
    return descriptor


# ---------------------------------------------------------------- gathering


# Requests by rules that callers of an event loop make in one turn are asked as one, and each gets its own answer.
#
# Nobody waits for others to come: a turn is what the loop has to run anyway. Who is alone in it asks for itself.


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
        for some in portions([one for one, _ in asking]):
            task = loop.create_task(self._ask_together(asking[some]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask_together(self, asking: Sequence[_Waiting]) -> None:
        try:
            heard = (await self._service.ask([together([one for one, _ in asking])]))[0]
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


# ---------------------------------------------------------------- client


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
        self.operations.check_open()
        asked = self._asker.check_many(requests)
        heard = self._service.ask([one.question for one in asked])
        pairs = zip(asked, heard, strict=True)
        return [ruling for one, reply in pairs for ruling in self._asker.rulings(one, reply, self.operations.now())]

    def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the service's rules make of a request and why, and how its counters stand. Charges nothing."""
        self.operations.check_open()
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
            self.operations.check_open()
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
            hold.keep()
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
        self.operations.check_open()
        asked = self._asker.check(path, descriptor, cost, id)
        told = self._asker.told(self._service.ask([asked.question])[0])
        return self._asker.ruling(asked, told, self.operations.now())


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
        self.operations.check_open()
        asked = self._asker.check_many(requests)
        heard = await self._service.ask([one.question for one in asked])
        pairs = zip(asked, heard, strict=True)
        return [ruling for one, reply in pairs for ruling in self._asker.rulings(one, reply, self.operations.now())]

    async def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the service's rules make of a request and why, and how its counters stand. Charges nothing."""
        self.operations.check_open()
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
            self.operations.check_open()
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
                hold.keep()
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
        self.operations.check_open()
        asked = self._asker.check(path, descriptor, cost, id)
        if path == b"/v1/check":
            told = await self._gathering.ask(asked.question)
        else:
            told = self._asker.told((await self._service.ask([asked.question]))[0])
        return self._asker.ruling(asked, told, self.operations.now())


def needed(quota: QuotaLike | None) -> QuotaLike:
    """A quota, where there is no descriptor."""
    if quota is None:
        raise InvalidRequest("quota: missing (expected a key and a quota, or a descriptor)")
    return quota

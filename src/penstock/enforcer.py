"""Enforcer and AsyncEnforcer: from what is known of a request to a verdict, by the rules in force.

    enforcer = Enforcer(rules, limiter)
    ruling = enforcer.check({"path": "/v1/orders", "api_key": key, "ip": ip})

All rules that match are one request to the store: all are charged or none. A request that no rule matches may pass, and
so may one that an `allow` rule matches; one that a `deny` rule matches is refused. None of these asks the store.

A request uses one set of rules from start to end. `enforcer.rules = others` puts others in force, by one assignment; a
`RuleSource` in their place is asked for the current set at each request.

Both classes have the same methods and differ in one word, `await`. What they share is `RuleFront`, which never waits.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable
from typing import cast

from penstock.clock import Micros
from penstock.events import Hook, nobody
from penstock.front import Id, verdict_of
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Amended, Receipt, Verdict
from penstock.rule_front import Request, RuleFront, Shedder, Source, deadline, holds, is_free, parted
from penstock.rules.course import Plan
from penstock.rules.directory import AsyncKeyDirectory, KeyDirectory
from penstock.rules.explaining import Explanation
from penstock.rules.ruleset import Descriptor, RuleSet
from penstock.ruling import Ruling


class Enforcer(RuleFront):
    """Rules for blocking code.

    - `rules`: a `RuleSet`, or a source of the one in force.
    - `limiter`: whose store holds the counters.
    - `directory`: who owns an API key; with one, `owner` and `tier` of a descriptor come from there alone. Another one
      may be assigned at any time.
    - `shedder`: asked before any counter, with the highest priority among the matching rules. An `allow` rule exempts
      from it too.
    - `hook`: told of every decision; see `penstock.events.Decided`.

    >>> if not enforcer.check({"path": "/login", "ip": ip}):
    ...     ...  # refuse
    """

    def __init__(
        self,
        rules: RuleSet | Source,
        limiter: Limiter,
        *,
        directory: KeyDirectory | None = None,
        shedder: Shedder | None = None,
        hook: Hook = nobody,
    ) -> None:
        super().__init__(rules, limiter, shedder, hook)
        self._limiter = limiter
        self.directory = directory

    def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request, and charge it to every rule that matches if it may pass.

        Once admitted, a request with an `id` is remembered: asked again with the same id it gets the same answer, and
        is not charged again.
        """
        rules = self._source.current
        time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
        now = time_ns() // 1_000
        if self.directory is not None:
            descriptor = self.directory.describe(descriptor, now)
        plan = rules.match(descriptor, now, cost)
        verdict, admission = None, None
        if self._shedder is not None or not plan[1]:
            verdict, admission = self._unasked(plan, cost, now)
        if verdict is None:
            ask_all = self._front._ask_all
            if ask_all is None or id is not None:
                verdict = self._run(plan, id)
            else:
                ruling = ask_all(plan[1], now, Ruling)
                if admission is None and self._hook is nobody:  # as on most hot paths: nothing else to do
                    ruling.plan = plan
                    return ruling
                verdict = ruling
        return self._ruled(verdict, plan, admission)

    def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests in one batch, in order and by one set of rules; each stands for itself."""
        rules, now = self._source.current, self._now()
        planned = self._plans(rules, [(self._described(one, now), cost) for one, cost in parted(requests)], now)
        ops = [self._acquire(one.plan, None) for one in planned if one.verdict is None]
        outcomes = self._limiter._driver.run(ops, deadline(planned)) if ops else []
        return self._rulings(planned, outcomes)

    def hold(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None, renew: bool = False) -> Hold:
        """Check a request that holds places of concurrency quotas, to be given back at the end of a `with` block.

        Where no matching rule has places there is nothing to give back, and the block runs all the same. With `renew`
        a background thread keeps the places beyond their ttl.
        """
        hold = Hold(cast("Limiter", self), self.check(descriptor, cost, id=id))
        if renew and holds_place(hold.verdict):
            hold._keep()
        return hold

    def reserve(self, descriptor: Descriptor, cost: int, *, id: Id | None = None) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        ruling = self.check(descriptor, cost, id=os.urandom(ID_BYTES) if id is None else id)
        return Reservation(cast("Limiter", self), ruling)

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a request was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged) else self._limiter.refund(charged, units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, on every counter it was charged to."""
        return Amended() if is_free(charged) else self._limiter.settle(charged, units)

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return self._limiter.release(charged) if holds(charged) else Amended()

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return self._limiter.renew(charged) if holds(charged) else True

    def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the rules make of a request and why, and how its counters stand. Charges nothing."""
        rules, now = self._source.current, self._now()
        descriptor = self._described(descriptor, now)
        plan = rules.match(descriptor, now, cost)
        peeked = self._run(plan, None, dry=True) if plan.posed else None
        return self._explanation(rules, descriptor, plan, peeked)

    def _described(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        return descriptor if self.directory is None else self.directory.describe(descriptor, now)

    def _run(self, plan: Plan, request_id: Id | None, *, dry: bool = False) -> Verdict:
        op = self._acquire(plan, request_id, dry=dry)
        return verdict_of(self._limiter._driver.run([op], plan.course.deadline)[0])


class AsyncEnforcer(RuleFront):
    """Rules for asyncio: the methods of `Enforcer`, awaited. Its directory may be an `AsyncKeyDirectory`.

    >>> if not await enforcer.check({"path": "/login", "ip": ip}):
    ...     ...  # refuse
    """

    def __init__(
        self,
        rules: RuleSet | Source,
        limiter: AsyncLimiter,
        *,
        directory: KeyDirectory | AsyncKeyDirectory | None = None,
        shedder: Shedder | None = None,
        hook: Hook = nobody,
    ) -> None:
        super().__init__(rules, limiter, shedder, hook)
        self._limiter = limiter
        self.directory = directory

    async def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request, and charge it to every rule that matches if it may pass.

        Once admitted, a request with an `id` is remembered: asked again with the same id it gets the same answer, and
        is not charged again.
        """
        rules = self._source.current
        time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
        now = time_ns() // 1_000
        if self.directory is not None:
            descriptor = await self._described(descriptor, now)
        plan = rules.match(descriptor, now, cost)
        verdict, admission = None, None
        if self._shedder is not None or not plan[1]:
            verdict, admission = self._unasked(plan, cost, now)
        if verdict is None:
            ask_all = self._front._ask_all
            if ask_all is None or id is not None:
                verdict = await self._run(plan, id)
            else:
                ruling = ask_all(plan[1], now, Ruling)
                if admission is None and self._hook is nobody:  # as on most hot paths: nothing else to do
                    ruling.plan = plan
                    return ruling
                verdict = ruling
        return self._ruled(verdict, plan, admission)

    async def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests in one batch, in order and by one set of rules; each stands for itself."""
        rules, now = self._source.current, self._now()
        planned = self._plans(rules, [(await self._described(one, now), cost) for one, cost in parted(requests)], now)
        ops = [self._acquire(one.plan, None) for one in planned if one.verdict is None]
        outcomes = await self._limiter._driver.run(ops, deadline(planned)) if ops else []
        return self._rulings(planned, outcomes)

    def hold(
        self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None, renew: bool = False
    ) -> Opening[AsyncHold]:
        """Check a request that holds places of concurrency quotas, to be given back at the end of an `async with`.

        Where no matching rule has places there is nothing to give back, and the block runs all the same. With `renew`
        a background task keeps the places beyond their ttl.
        """

        async def held() -> AsyncHold:
            hold = AsyncHold(cast("AsyncLimiter", self), await self.check(descriptor, cost, id=id))
            if renew and holds_place(hold.verdict):
                hold._keep()
            return hold

        return Opening(held())

    def reserve(self, descriptor: Descriptor, cost: int, *, id: Id | None = None) -> Opening[AsyncReservation]:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""

        async def reserved() -> AsyncReservation:
            ruling = await self.check(descriptor, cost, id=os.urandom(ID_BYTES) if id is None else id)
            return AsyncReservation(cast("AsyncLimiter", self), ruling)

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a request was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged) else await self._limiter.refund(charged, units)

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, on every counter it was charged to."""
        return Amended() if is_free(charged) else await self._limiter.settle(charged, units)

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return await self._limiter.release(charged) if holds(charged) else Amended()

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return await self._limiter.renew(charged) if holds(charged) else True

    async def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """What the rules make of a request and why, and how its counters stand. Charges nothing."""
        rules, now = self._source.current, self._now()
        descriptor = await self._described(descriptor, now)
        plan = rules.match(descriptor, now, cost)
        peeked = await self._run(plan, None, dry=True) if plan.posed else None
        return self._explanation(rules, descriptor, plan, peeked)

    async def _described(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        if self.directory is None:
            return descriptor
        described = self.directory.describe(descriptor, now)
        return await described if isinstance(described, Awaitable) else described

    async def _run(self, plan: Plan, request_id: Id | None, *, dry: bool = False) -> Verdict:
        op = self._acquire(plan, request_id, dry=dry)
        return verdict_of((await self._limiter._driver.run([op], plan.course.deadline))[0])

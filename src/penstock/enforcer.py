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
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, cast

from penstock.clock import SECOND, Micros
from penstock.engine.operations import Id, check_id, verdict_of
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Hook, nobody, tell
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Acquire, Amended, Inspection, Outcome, Receipt, Verdict, inspections
from penstock.quota import CONCURRENCY
from penstock.rules.api_keys import AsyncKeyDirectory, KeyDirectory, KeyTable
from penstock.rules.explain import Explanation, explain
from penstock.rules.plan import STRICTNESS, Plan
from penstock.rules.ruleset import Descriptor, RuleSet
from penstock.rules.ruling import Ruling, blocked, passed, ruled, shed
from penstock.stores import AsyncStore, Store

if TYPE_CHECKING:
    from penstock.rules.source import RuleSource

# ---------------------------------------------------------------- rule front


# What both enforcers share: which set of rules applies, what follows from it, and who is told. Nothing here waits.


Request: TypeAlias = Descriptor | tuple[Descriptor, int]
"""A descriptor, or (descriptor, cost)."""


class Source(Protocol):
    """Where the rules in force come from, such as a `RuleSource`."""

    @property
    def current(self) -> RuleSet:
        """The set in force."""


class Shedder(Protocol):
    """Who refuses when the system is too busy, whoever asks."""

    def admit(self, priority: str, /) -> Any:
        """An answer that is true or false, knows `retry_after` in seconds, and has an `end()`."""


class _Fixed:
    """Rules that stay until others are put in their place."""

    __slots__ = ("current",)

    def __init__(self, rules: RuleSet) -> None:
        if not isinstance(rules, RuleSet):
            raise InvalidOption(f"rules {shown(rules)}: expected a RuleSet, or a source with one in force")
        self.current = rules


class RuleFront:
    """Everything about an enforcer that does not wait."""

    def __init__(
        self, rules: RuleSet | Source, limiter: Limiter | AsyncLimiter, shedder: Shedder | None, hook: Hook
    ) -> None:
        self._source: Source = rules if hasattr(rules, "current") else _Fixed(rules)
        self._front = limiter
        self._shedder = shedder
        self._hook = hook
        self._time_ns = limiter.clock.time_ns
        self._followed: RuleSource[RuleSet] | None = None
        self._owns_limiter = False

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._source.current

    @rules.setter
    def rules(self, rules: RuleSet) -> None:
        self._source = _Fixed(rules)

    def _follow(self, *, owns_limiter: bool) -> None:
        """Begin to follow the file of the rules, if it is to be followed."""
        self._owns_limiter = owns_limiter
        if not isinstance(self._source, _Fixed):
            self._followed = cast("RuleSource[RuleSet]", self._source).start()

    def _unfollow(self) -> None:
        if self._followed is not None:
            self._followed.close()

    def _now(self) -> Micros:
        return self._time_ns() // 1_000

    def _unasked(self, plan: Plan, cost: int, now: Micros) -> tuple[Verdict | None, Any]:
        """The verdict on a request of which no counter needs to be asked, and the shedder's admission, if any."""
        verdict = decided(plan, cost, now)
        if self._shedder is None or plan.course.decided_by is not None:
            return verdict, None
        admission = self._shedder.admit(plan.course.priority)
        if admission:
            return verdict, admission
        return shed(max(round(admission.retry_after * SECOND), 1), cost, now), None

    def _ruled(self, verdict: Verdict, plan: Plan, admission: Any) -> Ruling:
        """The ruling that is handed out, and told of."""
        ruling = ruled(verdict, plan)
        if admission is not None:
            if verdict:
                ruling.admission = admission
            else:
                admission.end()
        if self._hook is not nobody:
            tell(self._hook, ruling.event())
        return ruling

    def _acquire(self, plan: Plan, request_id: Id | None, *, dry: bool = False) -> Acquire:
        self._front.operations.check_open()
        course, on_failure = plan.course, plan.course.on_failure
        if course.leaves_open and on_failure is not None:  # a lenient rule must not loosen one that says nothing
            on_failure = max(on_failure, self._front.engine.on_failure, key=STRICTNESS.index)
        return Acquire(plan.asks, dry, None if request_id is None else check_id(request_id), on_failure)

    def _plans(self, rules: RuleSet, requests: Sequence[tuple[Descriptor, int]], now: Micros) -> list[Planned]:
        """What each request of a batch asks, or the verdict on it if it asks nobody."""
        planned = []
        for descriptor, cost in requests:
            plan = rules.match(descriptor, now, cost)
            planned.append(Planned(plan, *self._unasked(plan, cost, now)))
        return planned

    def _rulings(self, planned: Sequence[Planned], outcomes: Iterable[Outcome]) -> list[Ruling]:
        """The rulings on a batch, from the outcomes of those who had to be asked."""
        answers = iter(outcomes)
        verdicts = [verdict_of(next(answers)) if one.verdict is None else one.verdict for one in planned]
        return [self._ruled(verdict, one.plan, one.admission) for verdict, one in zip(verdicts, planned, strict=True)]

    def _explanation(self, rules: RuleSet, descriptor: Descriptor, plan: Plan, peeked: Verdict | None) -> Explanation:
        """What became of a request, in words; `peeked` is what its counters say, if there are any."""
        now = self._now()
        verdict = peeked if peeked is not None else decided(plan, 1, now)
        ruling = ruled(cast("Verdict", verdict), plan)
        states: dict[str, list[Inspection]] = {}
        if peeked is not None and peeked.source not in ("open", "closed"):  # who made up an answer has seen no counter
            for inspection, rule in zip(inspections(ruling), plan.owners, strict=True):
                states.setdefault(rule.id, []).append(inspection)
        explained = tuple(
            one._replace(counters=tuple(states.get(one.rule, ()))) for one in explain(rules, descriptor, now)
        )
        return Explanation(rules.version, outcome(ruling), explained)


def read_rules(path: str | Path, hook: Hook, *, follow: bool) -> RuleSet | RuleSource[RuleSet]:
    """Return the rules in a file; with `follow`, a source of them that has yet to be started."""
    from penstock.rules import RuleSource, load  # here, because reading a file needs penstock[rules]

    return RuleSource(path, RuleSet, hook=hook) if follow else RuleSet(load(path))


def read_keys(path: str | Path | None, secret: bytes | None, hook: Hook) -> KeyDirectory | None:
    """Return the directory of the keys in a file, if there is one."""
    if path is None and secret is None:
        return None
    if path is None or secret is None:
        raise InvalidOption("keys, keys_secret: expected both or neither")
    return KeyDirectory(KeyTable.load(path), secret, hook=hook)


class Planned(NamedTuple):
    """A request of a batch: what it asks; the verdict on it if it asks nobody; the shedder's admission."""

    plan: Plan
    verdict: Verdict | None
    admission: Any


def parted(requests: Iterable[Request]) -> list[tuple[Descriptor, int]]:
    """Descriptors and costs."""
    pairs = [request if isinstance(request, tuple) else (request, 1) for request in requests]
    for position, pair in enumerate(pairs):
        if len(pair) != 2:
            raise InvalidRequest(f"request {position}: expected a descriptor, or (descriptor, cost)")
    return pairs


def decided(plan: Plan, cost: int, now: Micros) -> Verdict | None:
    """The verdict that follows from the rules alone; None if counters must be asked."""
    rule = plan.course.decided_by
    if rule is not None and rule.action == "deny":
        return blocked(cost, now)
    return None if plan.posed else passed(cost, now)


def deadline(planned: Iterable[Planned]) -> Micros | None:
    """The shortest of a batch."""
    deadlines = [one.plan.course.deadline for one in planned if one.verdict is None]
    return min([deadline for deadline in deadlines if deadline is not None], default=None)


def is_free(charged: Verdict | Receipt) -> bool:
    """Whether it was a request that passed without being charged, so that there is nothing to change."""
    return isinstance(charged, Ruling) and charged.allowed and charged.receipt is None


def holds(charged: Verdict | Receipt) -> bool:
    """Whether a place came with it. What is neither verdict nor receipt is left to the limiter to complain about."""
    if isinstance(charged, Ruling):
        receipt = charged.receipt
        return receipt is not None and any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges)
    return True


def outcome(ruling: Ruling) -> str:
    """What would become of the request."""
    if ruling.source in ("open", "closed"):
        return f"the store cannot answer: it {'may pass' if ruling else 'is refused'}"
    if ruling:
        by = f" by {ruling.rule}" if ruling.rule and not ruling.decisions else ""
        return f"it may pass{by}" if ruling.rule else "no rule applies: it may pass"
    wait = f", and may pass in {ruling.retry_after:.6g} s" if ruling.reason != "blocked" else ""
    return f"it is refused by {ruling.rule} ({ruling.reason}){wait}"


# ---------------------------------------------------------------- enforcer


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
        self.limiter = limiter
        self.directory = directory

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        store: str | Store | None = None,
        limiter: Limiter | None = None,
        follow: bool = False,
        keys: str | Path | None = None,
        keys_secret: bytes | None = None,
        shedder: Shedder | None = None,
        hook: Hook = nobody,
    ) -> Self:
        """Return an enforcer of the rules in a YAML file, to be closed when it is no longer used.

        - `store` or `limiter`: what holds the counters; by default this process does.
        - `follow`: whether a background thread looks at the file every second. Threads do not survive a fork.
        - `keys`, `keys_secret`: a CSV file of API keys and what its hashes are keyed with; see `KeyDirectory`.
        """
        if store is not None and limiter is not None:
            raise InvalidOption("store, limiter: expected one of them, because a limiter has its store")
        rules, directory = read_rules(path, hook, follow=follow), read_keys(keys, keys_secret, hook)
        used = limiter or Limiter("memory://" if store is None else store, hook=hook)
        enforcer = cls(rules, used, directory=directory, shedder=shedder, hook=hook)
        enforcer._follow(owns_limiter=limiter is None)
        return enforcer

    def close(self) -> None:
        """Close what `from_file` opened: stop looking at the file, and close the limiter unless it was given."""
        self._unfollow()
        if self._owns_limiter:
            self.limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            ruling = self._front.engine.decide(plan[1], now, Ruling) if id is None else None
            if ruling is None:
                verdict = self._run(plan, id)
            else:
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
        outcomes = self.limiter.engine.run(ops, deadline(planned)) if ops else []
        return self._rulings(planned, outcomes)

    def hold(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None, renew: bool = False) -> Hold:
        """Check a request that holds places of concurrency quotas, to be given back at the end of a `with` block.

        Where no matching rule has places there is nothing to give back, and the block runs all the same. With `renew`
        a background thread keeps the places beyond their ttl.
        """
        hold = Hold(cast("Limiter", self), self.check(descriptor, cost, id=id))
        if renew and holds_place(hold.verdict):
            hold.keep()
        return hold

    def reserve(self, descriptor: Descriptor, cost: int, *, id: Id | None = None) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        ruling = self.check(descriptor, cost, id=os.urandom(ID_BYTES) if id is None else id)
        return Reservation(cast("Limiter", self), ruling)

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back what a request was charged, or `units` of it; nothing, if it passed without being charged."""
        return Amended() if is_free(charged) else self.limiter.refund(charged, units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, on every counter it was charged to."""
        return Amended() if is_free(charged) else self.limiter.settle(charged, units)

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return self.limiter.release(charged) if holds(charged) else Amended()

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return self.limiter.renew(charged) if holds(charged) else True

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
        return verdict_of(self.limiter.engine.run([op], plan.course.deadline)[0])


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
        self.limiter = limiter
        self.directory = directory

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        store: str | AsyncStore | None = None,
        limiter: AsyncLimiter | None = None,
        follow: bool = False,
        keys: str | Path | None = None,
        keys_secret: bytes | None = None,
        shedder: Shedder | None = None,
        hook: Hook = nobody,
    ) -> Self:
        """Return an enforcer of the rules in a YAML file; see `Enforcer.from_file`. It reads the files at once."""
        if store is not None and limiter is not None:
            raise InvalidOption("store, limiter: expected one of them, because a limiter has its store")
        rules, directory = read_rules(path, hook, follow=follow), read_keys(keys, keys_secret, hook)
        used = limiter or AsyncLimiter("memory://" if store is None else store, hook=hook)
        enforcer = cls(rules, used, directory=directory, shedder=shedder, hook=hook)
        enforcer._follow(owns_limiter=limiter is None)
        return enforcer

    async def close(self) -> None:
        """Close what `from_file` opened: stop looking at the file, and close the limiter unless it was given."""
        self._unfollow()
        if self._owns_limiter:
            await self.limiter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
            ruling = self._front.engine.decide(plan[1], now, Ruling) if id is None else None
            if ruling is None:
                verdict = await self._run(plan, id)
            else:
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
        outcomes = await self.limiter.engine.run(ops, deadline(planned)) if ops else []
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
                hold.keep()
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
        return Amended() if is_free(charged) else await self.limiter.refund(charged, units)

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Make the cost of a reservation `units` after all, on every counter it was charged to."""
        return Amended() if is_free(charged) else await self.limiter.settle(charged, units)

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return await self.limiter.release(charged) if holds(charged) else Amended()

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Hold on to places for another ttl. False if they are no longer held."""
        return await self.limiter.renew(charged) if holds(charged) else True

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
        return verdict_of((await self.limiter.engine.run([op], plan.course.deadline))[0])

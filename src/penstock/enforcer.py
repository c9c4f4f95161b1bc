"""Enforcer and AsyncEnforcer: from the descriptor of a request to a ruling, by the rules in force.

    enforcer = Enforcer(rules, limiter)
    ruling = enforcer.check({"path": "/v1/orders", "api_key": key, "ip": ip})

All rules that match are one request to the store: all are charged or none. A request that no rule matches may pass, and
so may one that an `allow` rule matches; one that a `deny` rule matches is refused. None of these reaches the store.

A request uses one set of rules from start to end. The assignment `enforcer.rules = others` puts others in force. A
`RuleSource` in place of a set returns the current set for each request.

A decision takes two steps without I/O, `begin` and `finish`, with the engine between them:

    begun = enforcer.begin(descriptor)
    if isinstance(begun, Pending):                     # the counters are not in this process
        (outcome,) = engine.run([begun.op], begun.deadline)
        begun = enforcer.finish(begun, outcome)        # a Ruling

`check` and the other methods take all three. The decision service and the gates, which wait in their own ways, call
`begin` and `finish` themselves. Both classes have the same methods and differ in one word, `await`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

from penstock.clock import SECOND, Micros
from penstock.engine.cancelled import new_id
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.operations import Id, check_id, verdict_of
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Hook, nobody, tell
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.limiter import AsyncLimiter, Limiter
from penstock.model import (
    Acquire,
    Amended,
    Ask,
    Explanation,
    Failed,
    Inspection,
    Outcome,
    Receipt,
    Verdict,
    inspections,
    new,
)
from penstock.quota import CONCURRENCY
from penstock.rules.api_keys import AsyncKeyDirectory, Described, KeyDirectory, KeyTable
from penstock.rules.explain import explain
from penstock.rules.plan import STRICTNESS, Plan
from penstock.rules.ruleset import Descriptor, RuleSet
from penstock.rules.ruling import Ruling, blocked, passed, shed
from penstock.stores import AsyncStore, Store

if TYPE_CHECKING:
    from penstock.rules.source import RuleSource

Request: TypeAlias = Descriptor | tuple[Descriptor, int]
"""A descriptor, or (descriptor, cost)."""


class Source(Protocol):
    """The source of the rules in force, such as a `RuleSource`."""

    @property
    def current(self) -> RuleSet:
        """The set in force."""


class AdmissionControl(Protocol):
    """Refuses requests when the system is too busy, such as a `Shedder`."""

    def admit(self, priority: str, /) -> Any:
        """Return an admission: true or false, with `retry_after` in seconds and a method `end()`."""


class Pending(NamedTuple):
    """A request that only the store can decide: the operation, and how many microseconds the store may take.

    `plan` and `admission` (of the shedder, if there is one) are for `finish`.
    """

    op: Acquire
    deadline: Micros | None
    plan: Plan
    admission: Any = None


Begun: TypeAlias = Ruling | Pending


class _Fixed:
    """A source of rules that never change."""

    __slots__ = ("current",)

    def __init__(self, rules: RuleSet) -> None:
        if not isinstance(rules, RuleSet):
            raise InvalidOption(f"rules {shown(rules)}: expected a RuleSet, or a source with one in force")
        self.current = rules


L = TypeVar("L", bound=Limiter | AsyncLimiter)
D = TypeVar("D", bound=KeyDirectory | AsyncKeyDirectory)
S = TypeVar("S")


class RuleFront(Generic[L, D, S]):
    """The steps of an enforcer that do not wait."""

    kind: ClassVar[Any]
    """The class of its limiter."""

    def __init__(
        self,
        rules: RuleSet | Source,
        limiter: L,
        *,
        directory: D | None = None,
        shedder: AdmissionControl | None = None,
        hook: Hook = nobody,
    ) -> None:
        self.limiter = limiter
        self.directory = directory
        self._source: Source = rules if hasattr(rules, "current") else _Fixed(rules)
        self._operations = limiter.operations
        self._engine: Engine | AsyncEngine = limiter.engine
        self._runs_here = limiter.engine.in_process and isinstance(limiter.engine, Engine)
        self._shedder = shedder
        self._hook = hook
        self._time_ns = limiter.clock.time_ns
        self._followed: RuleSource[RuleSet] | None = None
        self._owns_limiter = False

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        store: str | S | None = None,
        limiter: L | None = None,
        follow: bool = False,
        keys: str | Path | None = None,
        keys_secret: bytes | None = None,
        shedder: AdmissionControl | None = None,
        hook: Hook = nobody,
    ) -> Self:
        """Return an enforcer of the rules in a YAML file, to be closed when it is no longer used. It reads at once.

        - `store` or `limiter`: where the counters are; by default in this process.
        - `follow`: whether a background thread looks at the file every second. Threads do not survive a fork.
        - `keys`, `keys_secret`: a CSV file of API keys, and the secret of its hashes; see `KeyDirectory`.
        """
        if store is not None and limiter is not None:
            raise InvalidOption("store, limiter: expected one of them, because a limiter has its store")
        rules, directory = read_rules(path, hook, follow=follow), read_keys(keys, keys_secret, hook)
        used = limiter or cls.kind("memory://" if store is None else store, hook=hook)
        enforcer = cls(rules, used, directory=cast("D | None", directory), shedder=shedder, hook=hook)
        enforcer._owns_limiter = limiter is None
        if follow:
            enforcer._followed = cast("RuleSource[RuleSet]", rules).start()
        return enforcer

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._source.current

    @rules.setter
    def rules(self, rules: RuleSet) -> None:
        self._source = _Fixed(rules)

    def _unfollow(self) -> None:
        if self._followed is not None:
            self._followed.close()

    # Two steps, without I/O

    def begin(self, descriptor: Descriptor, cost: int = 1, id: Id | None = None, *, dry: bool = False) -> Begun:
        """Return the ruling, if it can be made in this process; else the operation to run, for `finish`.

        A `dry` request charges nothing and reaches neither shedder nor hook. A descriptor for an `AsyncKeyDirectory`
        must come from `describe`.
        """
        time_ns = self._time_ns  # not called as a method, the slow way to find an attribute
        now = time_ns() // 1_000
        if self.directory is not None and descriptor.__class__ is not Described:
            descriptor = self._described(descriptor, now)
        plan = self._source.current.match(descriptor, now, cost)
        if plan[1] and id is None and not dry and self._shedder is None:  # as on most hot paths
            ruling = self._engine.decide(plan[1], now, Ruling)
            if ruling is None:
                return new(Pending, (self._acquire(plan, None), plan[0].deadline, plan, None))
            if self._hook is nobody:
                ruling.plan = plan
                return ruling
            return self._ruled(ruling, plan, None)
        return self._begun(plan, cost, id, now, dry=dry)

    def finish(self, pending: Pending, outcome: Outcome) -> Ruling:
        """Return the ruling that follows from the store's outcome; raise the error of a `Failed`."""
        op, _, plan, admission = pending
        if outcome.__class__ is Verdict and admission is None and self._hook is nobody:  # as on most hot paths
            ruling = Ruling(outcome)
            ruling.plan = plan
            return ruling
        if admission is not None and isinstance(outcome, Failed):
            admission.end()
        return self._ruled(verdict_of(outcome), plan, admission, dry=op[1])

    def begin_explain(self, descriptor: Descriptor, cost: int = 1) -> tuple[Begun, Callable[[Ruling], Explanation]]:
        """Begin a dry request; also return a function that makes an explanation of its ruling."""
        rules, now = self._source.current, self._now()
        if self.directory is not None and descriptor.__class__ is not Described:
            descriptor = self._described(descriptor, now)
        begun = self._begun(rules.match(descriptor, now, cost), cost, None, now, dry=True)
        return begun, partial(self._explanation, rules, descriptor)

    def _now(self) -> Micros:
        return self._time_ns() // 1_000

    def _described(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        directory = cast("KeyDirectory", self.directory)
        if isinstance(directory, AsyncKeyDirectory):
            raise InvalidOption("directory: has to be awaited (expected a descriptor that describe returned)")
        return directory.describe(descriptor, now)

    def _begun(self, plan: Plan, cost: int, id: Id | None, now: Micros, *, dry: bool = False) -> Begun:
        """Return the ruling on a plan if it can be made in this process, else the operation for the store."""
        course, posed, _ = plan
        request_id = None if id is None or not posed else check_id(id)  # only a charge is remembered by its id
        verdict = None if posed else _unlimited(plan, cost, now)
        admission = None
        if self._shedder is not None and course.decided_by is None and not dry:
            admission = self._shedder.admit(course.priority)
            if not admission:
                verdict = shed(max(round(admission.retry_after * SECOND), 1), cost, now)
                admission = None
        if verdict is None and request_id is None and not dry:
            verdict = self._engine.decide(posed, now, Ruling)
        if verdict is None:
            op = self._acquire(plan, request_id, dry=dry)
            if not self._runs_here:
                return Pending(op, course.deadline, plan, admission)
            verdict = verdict_of(self._engine.run((op,))[0])  # type: ignore[index]
        return self._ruled(verdict, plan, admission, dry=dry)

    def _begun_many(self, requests: Iterable[tuple[Descriptor, int]]) -> list[Begun]:
        """Begin requests by one set of rules, at one instant; nothing is charged if one of them is invalid."""
        rules, now = self._source.current, self._now()
        plans = [(rules.match(descriptor, now, cost), cost) for descriptor, cost in requests]
        return [self._begun(plan, cost, None, now) for plan, cost in plans]

    def _finished_many(self, begun: Sequence[Begun], outcomes: Iterable[Outcome]) -> list[Ruling]:
        answers = iter(outcomes)
        return [self.finish(one, next(answers)) if isinstance(one, Pending) else one for one in begun]

    def _acquire(self, plan: Plan, request_id: bytes | None, *, dry: bool = False) -> Acquire:
        if self._operations.closed:
            self._operations.check_open()
        course, posed, _ = plan
        on_failure = course.on_failure
        if on_failure is not None and course.leaves_open:  # a rule without one has the limiter's; the strictest counts
            on_failure = max(on_failure, self._engine.on_failure, key=STRICTNESS.index)
        return new(Acquire, (tuple(map(new, repeat(Ask), posed)), dry, request_id, on_failure))

    def _ruled(self, verdict: Verdict, plan: Plan, admission: Any, *, dry: bool = False) -> Ruling:
        """Return the ruling for the caller, and send it to the hook."""
        ruling = verdict if isinstance(verdict, Ruling) else Ruling(verdict)
        ruling.plan = plan
        if admission is not None:
            if ruling:
                ruling.admission = admission
            else:
                admission.end()
        if self._hook is not nobody and not dry:
            tell(self._hook, ruling.event())
        return ruling

    def _explanation(self, rules: RuleSet, descriptor: Descriptor, ruling: Ruling) -> Explanation:
        states: dict[str, list[Inspection]] = {}
        if ruling.plan.posed and ruling.source not in ("open", "closed"):  # decided without counters
            for inspection, rule in zip(inspections(ruling), ruling.plan.owners, strict=True):
                states.setdefault(rule.id, []).append(inspection)
        explained = tuple(
            one._replace(counters=tuple(states.get(one.rule, ()))) for one in explain(rules, descriptor, self._now())
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


def _unlimited(plan: Plan, cost: int, now: Micros) -> Verdict:
    """Return the verdict of rules without counters."""
    rule = plan.course.decided_by
    return blocked(cost, now) if rule is not None and rule.action == "deny" else passed(cost, now)


def pairs_of(requests: Iterable[Request]) -> list[tuple[Descriptor, int]]:
    """Return descriptors and costs."""
    pairs = [request if isinstance(request, tuple) else (request, 1) for request in requests]
    for position, pair in enumerate(pairs):
        if len(pair) != 2:
            raise InvalidRequest(f"request {position}: expected a descriptor, or (descriptor, cost)")
    return pairs


def batch_of(begun: Iterable[Begun]) -> tuple[list[Acquire], Micros | None]:
    """Return the operations of a batch, and the shortest of their deadlines."""
    pending = [one for one in begun if isinstance(one, Pending)]
    deadlines = [one.deadline for one in pending if one.deadline is not None]
    return [one.op for one in pending], min(deadlines, default=None)


def is_free(charged: Verdict | Receipt, kind: type[Verdict] = Ruling) -> bool:
    """Return whether a ruling of this kind passed without a charge, so that there is nothing to amend."""
    return isinstance(charged, kind) and charged.allowed and charged.receipt is None


def holds(charged: Verdict | Receipt, kind: type[Verdict] = Ruling) -> bool:
    """Return whether a ruling of this kind holds a place; True for other values, which the limiter checks."""
    if isinstance(charged, kind):
        receipt = charged.receipt
        return receipt is not None and any(charge.quota.algorithm == CONCURRENCY for charge in receipt.charges)
    return True


def outcome(ruling: Ruling) -> str:
    """Return the result of a request in words."""
    if ruling.source in ("open", "closed"):
        return f"the store cannot answer: it {'may pass' if ruling else 'is refused'}"
    if ruling:
        by = f" by {ruling.rule}" if ruling.rule and not ruling.decisions else ""
        return f"it may pass{by}" if ruling.rule else "no rule applies: it may pass"
    wait = f", and may pass in {ruling.retry_after:.6g} s" if ruling.reason != "blocked" else ""
    return f"it is refused by {ruling.rule} ({ruling.reason}){wait}"


class Enforcer(RuleFront[Limiter, KeyDirectory, Store]):
    """Rules for blocking code.

    - `rules`: a `RuleSet`, or a source of the one in force.
    - `limiter`: its store holds the counters.
    - `directory`: the owners of API keys; with one, `owner` and `tier` of a descriptor come from there alone. Another
      one may be assigned at any time.
    - `shedder`: decides before any counter, by the highest priority among the matching rules. An `allow` rule exempts
      from it too.
    - `hook`: receives every decision; see `penstock.events.Decided`.

    >>> if not enforcer.check({"path": "/login", "ip": ip}):
    ...     ...  # refuse
    """

    kind = Limiter

    def close(self) -> None:
        """Close what `from_file` opened: stop following the file, and close the limiter unless it was passed in."""
        self._unfollow()
        if self._owns_limiter:
            self.limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request, and charge it to every rule that matches if it may pass.

        An admitted request with an `id` is remembered: a repeat with the same id gets the same answer, and is not
        charged again.
        """
        begun = self.begin(descriptor, cost, id)
        if isinstance(begun, Pending):
            return self.finish(begun, self.limiter.engine.run((begun.op,), begun.deadline)[0])
        return begun

    def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests in one batch, in order and by one set of rules; each is decided alone."""
        begun = self._begun_many([(self.describe(one), cost) for one, cost in pairs_of(requests)])
        ops, deadline = batch_of(begun)
        return self._finished_many(begun, self.limiter.engine.run(ops, deadline) if ops else ())

    def hold(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None, renew: bool = False) -> Hold:
        """Check a request that holds places of concurrency quotas, to be given back at the end of a `with` block.

        If no matching rule has places, the block runs and nothing is given back. With `renew`
        a background thread keeps the places beyond their ttl.
        """
        hold = Hold(cast("Limiter", self), self.check(descriptor, cost, id=id))
        if renew and holds_place(hold.verdict):
            hold.keep()
        return hold

    def reserve(self, descriptor: Descriptor, cost: int, *, id: Id | None = None) -> Reservation:
        """Charge an estimated `cost` now, to be settled when the true cost is known."""
        ruling = self.check(descriptor, cost, id=new_id() if id is None else id)
        return Reservation(cast("Limiter", self), ruling)

    def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back the charge of a request, or `units` of it; nothing, if it passed without a charge."""
        return Amended() if is_free(charged) else self.limiter.refund(charged, units)

    def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Correct the cost of a reservation to `units`, on every counter it was charged to."""
        return Amended() if is_free(charged) else self.limiter.settle(charged, units)

    def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return self.limiter.release(charged) if holds(charged) else Amended()

    def renew(self, charged: Verdict | Receipt) -> bool:
        """Keep places for another ttl. False if they are no longer held."""
        return self.limiter.renew(charged) if holds(charged) else True

    def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """Explain the ruling on a request, rule by rule, with the state of its counters. Charges nothing."""
        begun, explanation = self.begin_explain(descriptor, cost)
        if isinstance(begun, Pending):
            begun = self.finish(begun, self.limiter.engine.run((begun.op,), begun.deadline)[0])
        return explanation(begun)

    def describe(self, descriptor: Descriptor) -> Descriptor:
        """Return a descriptor with the owner and tier of its API key."""
        if self.directory is None or descriptor.__class__ is Described:
            return descriptor
        return self.directory.describe(descriptor, self._now())


class AsyncEnforcer(RuleFront[AsyncLimiter, KeyDirectory | AsyncKeyDirectory, AsyncStore]):
    """Rules for asyncio: the methods of `Enforcer`, awaited. Its directory may be an `AsyncKeyDirectory`.

    >>> if not await enforcer.check({"path": "/login", "ip": ip}):
    ...     ...  # refuse
    """

    kind = AsyncLimiter

    async def close(self) -> None:
        """Close what `from_file` opened: stop following the file, and close the limiter unless it was passed in."""
        self._unfollow()
        if self._owns_limiter:
            await self.limiter.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None) -> Ruling:
        """Decide on a request, and charge it to every rule that matches if it may pass.

        An admitted request with an `id` is remembered: a repeat with the same id gets the same answer, and is not
        charged again.
        """
        if isinstance(self.directory, AsyncKeyDirectory):
            descriptor = await self.describe(descriptor)
        begun = self.begin(descriptor, cost, id)
        if isinstance(begun, Pending):
            return self.finish(begun, (await self.limiter.engine.run((begun.op,), begun.deadline))[0])
        return begun

    async def check_many(self, requests: Iterable[Request]) -> list[Ruling]:
        """Decide on many requests in one batch, in order and by one set of rules; each is decided alone."""
        begun = self._begun_many([(await self.describe(one), cost) for one, cost in pairs_of(requests)])
        ops, deadline = batch_of(begun)
        return self._finished_many(begun, await self.limiter.engine.run(ops, deadline) if ops else ())

    def hold(
        self, descriptor: Descriptor, cost: int = 1, *, id: Id | None = None, renew: bool = False
    ) -> Opening[AsyncHold]:
        """Check a request that holds places of concurrency quotas, to be given back at the end of an `async with`.

        If no matching rule has places, the block runs and nothing is given back. With `renew`
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
            ruling = await self.check(descriptor, cost, id=new_id() if id is None else id)
            return AsyncReservation(cast("AsyncLimiter", self), ruling)

        return Opening(reserved())

    async def refund(self, charged: Verdict | Receipt, units: int | None = None) -> Amended:
        """Give back the charge of a request, or `units` of it; nothing, if it passed without a charge."""
        return Amended() if is_free(charged) else await self.limiter.refund(charged, units)

    async def settle(self, charged: Verdict | Receipt, units: int) -> Amended:
        """Correct the cost of a reservation to `units`, on every counter it was charged to."""
        return Amended() if is_free(charged) else await self.limiter.settle(charged, units)

    async def release(self, charged: Verdict | Receipt) -> Amended:
        """Give back the places that a request holds, if it holds any."""
        return await self.limiter.release(charged) if holds(charged) else Amended()

    async def renew(self, charged: Verdict | Receipt) -> bool:
        """Keep places for another ttl. False if they are no longer held."""
        return await self.limiter.renew(charged) if holds(charged) else True

    async def explain(self, descriptor: Descriptor, cost: int = 1) -> Explanation:
        """Explain the ruling on a request, rule by rule, with the state of its counters. Charges nothing."""
        begun, explanation = self.begin_explain(await self.describe(descriptor), cost)
        if isinstance(begun, Pending):
            begun = self.finish(begun, (await self.limiter.engine.run((begun.op,), begun.deadline))[0])
        return explanation(begun)

    async def describe(self, descriptor: Descriptor) -> Descriptor:
        """Return a descriptor with the owner and tier of its API key."""
        directory = self.directory
        if directory is None or descriptor.__class__ is Described:
            return descriptor
        if isinstance(directory, AsyncKeyDirectory):
            return await directory.describe(descriptor, self._now())
        return directory.describe(descriptor, self._now())

"""From what is known of requests to rulings, in batches: the part of the service that every API shares.

    batch = decider.batch()
    decider.check(batch, descriptor, then=tell)      # as often as there are requests
    batch.run()                                      # one run for all that had to be asked

A decider never waits. Where the counters are in this process a ruling is returned at once. Elsewhere `then` is called
with it when the store has answered, and all that a batch wants of the store goes there together. Each request fails
alone: what is wrong with it is raised, or handed to `then` if it is found out later.

**How long the store may take.** What the rules say, else `budget`; and never longer than the caller waits, less a
millisecond to tell it what was decided without the store. Requests with another deadline are another run, so that one
who is in a hurry costs nobody else the store's answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from penstock.clock import SECOND, Micros, monotonic
from penstock.enforcer import AsyncEnforcer, Enforcer, decided
from penstock.engine.engine import Runner
from penstock.engine.operations import Id, verdict_of
from penstock.engine.protocols import Observer, Unobserved
from penstock.errors import InvalidOption, PenstockError, StoreError, fault
from penstock.model import Failed, Op, Outcome, Verdict
from penstock.rules.api_keys import AsyncKeyDirectory
from penstock.rules.explain import Explanation
from penstock.rules.plan import Plan
from penstock.rules.ruleset import Descriptor, RuleSet
from penstock.rules.ruling import Ruling, ruled

log = logging.getLogger("penstock.service")

BUDGET: Micros = 3_000
"""How long the store may take, where nobody says otherwise."""

TELLING: Micros = 1_000
"""What is left of a caller's time to tell it what was decided without the store."""

STEP: Micros = 1_000
"""Deadlines of callers are rounded down to these, so that few of them differ."""

Result: TypeAlias = Ruling | PenstockError
Then: TypeAlias = Callable[[Outcome], Verdict | None]
"""Hears of an operation's outcome, and returns the verdict that came of it, if one did."""


class Batch:
    """What a batch of calls wants of the store, and who waits for it."""

    __slots__ = ("_asked", "_began", "_observer", "_runner", "_waiting", "decided", "statuses")

    def __init__(self, runner: Runner, observer: Observer) -> None:
        self._runner = runner
        self._observer = None if observer.__class__ is Unobserved else observer
        self._began = self._asked = monotonic()
        self._waiting: dict[Micros, tuple[list[Op], list[Then]]] = {}
        self.decided: list[Verdict] = []
        self.statuses: dict[str, list[int]] = {}

    def add(self, op: Op, deadline: Micros, then: Then) -> None:
        """Run `op` with the batch."""
        group = self._waiting.get(deadline)
        if group is None:
            group = self._waiting[deadline] = ([], [])
        ops, thens = group
        ops.append(op)
        thens.append(then)

    def answered(self, route: str, status: int) -> None:
        """A call was answered."""
        if self._observer is None:
            return
        if route in self.statuses:
            self.statuses[route].append(status)
        else:
            self.statuses[route] = [status]

    def run(self) -> None:
        """All have been added: hand over what is left to ask."""
        waiting, self._waiting = self._waiting, {}
        self._tell(monotonic())
        if waiting:
            self._asked = monotonic()
        for deadline, (ops, thens) in waiting.items():
            self._runner.run(ops, deadline, partial(self._done, thens))

    def _done(self, thens: Sequence[Then], outcomes: Sequence[Outcome]) -> None:
        decided_at = monotonic()
        for then, outcome in zip(thens, outcomes, strict=True):
            verdict = self._told(then, outcome)
            if verdict is not None:
                self.decided.append(verdict)
        self._tell(decided_at)

    def _told(self, then: Then, outcome: Outcome) -> Verdict | None:
        """Tell one of an outcome. A fault of our own must keep neither the others from theirs, nor this one waiting."""
        try:
            return then(outcome)
        except Exception as error:
            log.error("an answer that could not be told: %s", fault(error))
        try:
            return then(Failed(StoreError("an unexpected error", transient=False), "unknown"))
        except Exception:
            return None  # it was told of the first one already

    def _tell(self, decided_at: float) -> None:
        """Tell the observer what has happened since it was told."""
        observer = self._observer
        if observer is None:
            return
        if self.decided:
            decided, self.decided = self.decided, []
            observer.decided(decided, round((decided_at - self._asked) * SECOND))
        took = round((monotonic() - self._began) * SECOND)
        statuses, self.statuses = self.statuses, {}
        for route, each in statuses.items():
            observer.answered(route, each, took)


class Decider:
    """Rulings by the rules of an enforcer, whose counters are asked through a runner."""

    def __init__(
        self,
        enforcer: Enforcer | AsyncEnforcer,
        runner: Runner,
        observer: Observer,
        *,
        budget: Micros = BUDGET,
    ) -> None:
        if isinstance(enforcer.directory, AsyncKeyDirectory):
            raise InvalidOption("directory: expected a KeyDirectory, because a service waits for nothing but its store")
        self.enforcer, self.runner, self.observer = enforcer, runner, observer
        self.budget = budget
        self._observed = observer.__class__ is not Unobserved
        in_process = isinstance(enforcer, Enforcer) and enforcer.limiter.engine.in_process
        self.check_now = self._check_now if in_process else None
        """Where the counters are in this process: (batch, descriptor, cost, id) to a ruling."""

    def batch(self) -> Batch:
        """A batch to be decided together."""
        return Batch(self.runner, self.observer)

    def check(
        self,
        batch: Batch,
        descriptor: Descriptor,
        cost: int = 1,
        id: Id | None = None,
        *,
        dry: bool = False,
        expires: float | None = None,
        then: Callable[[Result], None],
    ) -> Ruling | None:
        """The ruling on a request, if it is known now; else None, and `then` hears of it when `batch` was run."""
        if self.check_now is not None and not dry:
            return self.check_now(batch, descriptor, cost, id)
        enforcer = self.enforcer
        _, _, plan = self.plan(descriptor, cost)
        now = enforcer._now()
        verdict, admission = (decided(plan, cost, now), None) if dry else enforcer._unasked(plan, cost, now)
        if verdict is None:
            op = enforcer._acquire(plan, id, dry=dry)
            batch.add(op, self.deadline(plan, expires), partial(self._ruled, plan, admission, then, dry))
            return None
        if dry:
            return ruled(verdict, plan)
        ruling = enforcer._ruled(verdict, plan, admission)
        ruling.end()
        batch.decided.append(ruling)
        return ruling

    def _check_now(self, batch: Batch, descriptor: Descriptor, cost: int, id: Id | None) -> Ruling:
        ruling: Ruling = self.enforcer.check(descriptor, cost, id=id)  # type: ignore[assignment]
        if self._observed:
            batch.decided.append(ruling)
        if ruling.admission is not None:
            ruling.end()  # what a shedder counts is the work of this service, and that is done
        return ruling

    def plan(self, descriptor: Descriptor, cost: int) -> tuple[RuleSet, Descriptor, Plan]:
        """The rules in force, what they are told of a request, and what follows from them."""
        enforcer = self.enforcer
        rules, now = enforcer._source.current, enforcer._now()
        if enforcer.directory is not None:
            described: Any = enforcer.directory.describe(descriptor, now)
            descriptor = described
        return rules, descriptor, rules.match(descriptor, now, cost)

    def explain(
        self,
        batch: Batch,
        descriptor: Descriptor,
        cost: int,
        expires: float | None,
        then: Callable[[Explanation | PenstockError], None],
    ) -> None:
        """What the rules make of a request and why. Charges nothing."""
        enforcer = self.enforcer
        rules, descriptor, plan = self.plan(descriptor, cost)
        if not plan.posed:
            then(enforcer._explanation(rules, descriptor, plan, None))
            return

        def explained(outcome: Outcome) -> None:
            try:
                then(enforcer._explanation(rules, descriptor, plan, verdict_of(outcome)))
            except PenstockError as error:
                then(error)

        batch.add(enforcer._acquire(plan, None, dry=True), self.deadline(plan, expires), explained)

    def deadline(self, plan: Plan | None, expires: float | None) -> Micros:
        """How many microseconds the store may take."""
        deadline = None if plan is None else plan.course.deadline
        deadline = self.budget if deadline is None else deadline
        if expires is None:
            return deadline
        left = round((expires - monotonic()) * SECOND) - TELLING
        return deadline if left >= deadline else max(left - left % STEP, STEP)

    def _ruled(
        self, plan: Plan, admission: Any, then: Callable[[Result], None], dry: bool, outcome: Outcome
    ) -> Ruling | None:
        """Make a ruling of what the store said. Returns it, if it counts as a decision."""
        if admission is not None:
            admission.end()
        try:
            verdict = verdict_of(outcome)
        except PenstockError as error:
            then(error)
            return None
        if dry:
            then(ruled(verdict, plan))
            return None
        ruling = self.enforcer._ruled(verdict, plan, None)
        then(ruling)
        return ruling

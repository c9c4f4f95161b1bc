"""What both enforcers share: which set of rules applies, what follows from it, and who is told. Nothing here waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Hook, nobody, tell
from penstock.front import Front, Id, check_id, verdict_of
from penstock.inspection import Inspection, inspections
from penstock.model import Acquire, Outcome, Receipt, Verdict
from penstock.quota import CONCURRENCY
from penstock.rules.course import STRICTNESS, Plan
from penstock.rules.explaining import Explanation, explain
from penstock.rules.ruleset import Descriptor, RuleSet
from penstock.ruling import Ruling, blocked, passed, ruled, shed

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

    def __init__(self, rules: RuleSet | Source, limiter: Front, shedder: Shedder | None, hook: Hook) -> None:
        self._source: Source = rules if hasattr(rules, "current") else _Fixed(rules)
        self._front = limiter
        self._shedder = shedder
        self._hook = hook
        self._time_ns = limiter._clock.time_ns

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._source.current

    @rules.setter
    def rules(self, rules: RuleSet) -> None:
        self._source = _Fixed(rules)

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

    def _gave_back(self, verdict: Verdict) -> bool:
        """Whether a lone place was given back at once, for the holds that are handed out; a ruling takes longer."""
        return False

    def _acquire(self, plan: Plan, request_id: Id | None, *, dry: bool = False) -> Acquire:
        self._front._check_open()
        course, on_failure = plan.course, plan.course.on_failure
        if course.leaves_open and on_failure is not None:  # a lenient rule must not loosen one that says nothing
            on_failure = max(on_failure, self._front._on_failure, key=STRICTNESS.index)
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

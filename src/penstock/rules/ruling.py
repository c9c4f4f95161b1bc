"""A ruling: the verdict on a request, with the rules behind it.

It is a `Verdict`, so it can be used for headers, refunds and holds. If no counter was asked (no rule matches, a rule
allows or blocks the request, the system sheds load), nothing was charged, `decisions` is empty, and headers show no
policy.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.events import Decided
from penstock.model import NOT_CHARGED, Answer, Decision, Verdict, new
from penstock.quota import CONCURRENCY, MIN_INTERVAL, Quota
from penstock.rules.compiled import CompiledRule
from penstock.rules.plan import Plan

Reason: TypeAlias = Literal["", "rate", "too_close", "concurrency", "shed", "blocked", "degraded"]
"""Why a request was refused; empty if it was admitted."""

BLOCKED_FOR: Micros = 3_600 * SECOND
"""The wait that a blocked client is given, because a block has no end."""

# Placeholders for decisions without a quota. No counter is ever made of them.
UNLIMITED = Quota(2**32, 1, "fixed_window", name="unlimited")
BLOCKED = Quota(1, BLOCKED_FOR // SECOND, "fixed_window", name="blocked")
SHED = Quota(1, 1, "fixed_window", name="shed")

_PASSED: Answer = (True, UNLIMITED.limit, 0, 0, 0, 0, NOT_CHARGED)
_BLOCKED: Answer = (False, 0, BLOCKED_FOR, BLOCKED_FOR, BLOCKED_FOR, 0, NOT_CHARGED)


class Ruling(Verdict):
    """The answer to one request; true if it may pass.

    - `plan`: the asks, and the rules behind them.
    - `admission`: the answer of the shedder, if there is one; `end()` ends it.
    """

    plan: Plan
    admission: Any = None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision per ask, in order; none if no counter was asked."""
        return super().decisions if self.plan.posed and self[3] is not SHED else ()

    @property
    def version(self) -> str:
        """The version of the set of rules."""
        return self.plan.course.version

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of the rules that apply, in their order, including those in shadow mode."""
        course = self.plan.course
        applying = [course.decided_by] if course.decided_by is not None else [*course.limits]
        return tuple(rule.id for rule in sorted([*applying, *course.would_block], key=lambda rule: rule.position))

    @property
    def rule(self) -> str:
        """The id of the rule that refused, or else is the tightest; empty if no rule decided."""
        rule = self._decided_by()
        return "" if rule is None else rule.id

    @property
    def message(self) -> str | None:
        """The message of that rule for refused clients."""
        rule = self._decided_by()
        return None if rule is None else rule.rule.response.message

    @property
    def reason(self) -> Reason:
        """Why the request was refused; empty if it was admitted."""
        return reason_of(self)

    @property
    def would_refuse(self) -> tuple[str, ...]:
        """The ids of rules in shadow mode that would have refused, each once."""
        blocking = [rule.id for rule in self.plan.course.would_block]
        # While the store is gone and all requests are refused, the answers of counters are unknown.
        asked = () if self.source == "closed" else zip(self.decisions, self.plan.owners, strict=False)
        return tuple(dict.fromkeys([*blocking, *(rule.id for d, rule in asked if d.advisory and not d.allowed)]))

    def shown(self) -> Verdict:
        """Return the verdict as clients may see it: rules with hidden headers refuse, but show no policy."""
        if not self.plan[0].hides or not self.decisions:
            return self
        hidden = [rule.hidden for rule in self.plan[2]]
        decisions = tuple(
            Decision((*decision[:5], decision[5] or hide))
            for decision, hide in zip(self.decisions, hidden, strict=True)
        )
        return Verdict((*self[:5], decisions, *self[6:]))

    def end(self) -> None:
        """End the request: the shedder counts it no longer. Ending it twice changes nothing."""
        if self.admission is not None:
            self.admission.end()

    def event(self) -> Decided:
        """Return the event for a hook."""
        rule = self._decided_by()
        course = self.plan[0]
        told = (
            "" if rule is None else rule.id,
            "allowed" if self[0][0] else "refused",
            "" if self[0][0] else self.reason,
            self.would_refuse if course.has_shadows else (),
            self[4],
            self[7] if len(self) > 7 else "store",
            course.version,
            self[3].algorithm if self.plan[1] and self[3] is not SHED else "",
        )
        return new(Decided, told)

    def _decided_by(self) -> CompiledRule | None:
        course, _, owners = self.plan
        if not owners or self[3] is SHED:
            return course.decided_by
        _, _, key, quota, _, decisions, *_ = self
        for position, decision in enumerate(decisions):
            if decision[2] is key and decision[3] is quota:
                return owners[position]
        return owners[0]


def reason_of(verdict: Verdict) -> Reason:
    """Return why a request was refused, by rules or without; empty if it was admitted."""
    return "" if verdict[0][0] else reason_for(verdict[3], verdict.source)


def reason_for(quota: Quota, source: str) -> Reason:
    """Return why a request was refused by this quota, or placeholder for one, and this source."""
    if quota is BLOCKED:
        return "blocked"
    if quota is SHED:
        return "shed"
    if source == "closed":
        return "degraded"
    if quota.algorithm == MIN_INTERVAL:
        return "too_close"
    return "concurrency" if quota.algorithm == CONCURRENCY else "rate"


def ruled(verdict: Verdict, plan: Plan) -> Ruling:
    """Return a verdict with the plan behind it."""
    ruling = verdict if isinstance(verdict, Ruling) else Ruling(verdict)
    ruling.plan = plan
    return ruling


def passed(cost: int, now: Micros) -> Verdict:
    """Return the verdict on a request that no rule limits."""
    return _unasked(_PASSED, UNLIMITED, cost, now)


def blocked(cost: int, now: Micros) -> Verdict:
    """Return the verdict on a request that a rule denies."""
    return _unasked(_BLOCKED, BLOCKED, cost, now)


def shed(wait: Micros, cost: int, now: Micros) -> Verdict:
    """Return the verdict on a request that is shed."""
    return _unasked((False, 0, wait, wait, wait, 0, NOT_CHARGED), SHED, cost, now)


def _unasked(answer: Answer, quota: Quota, cost: int, now: Micros) -> Verdict:
    """Return a verdict without a counter. Its decision is advisory, because those are never shown to clients."""
    return Verdict((answer, now, "", quota, cost, (Decision((answer, now, "", quota, cost, True)),)))

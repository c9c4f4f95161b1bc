"""A ruling: the verdict on a request, and the rules that it follows from.

It is a `Verdict`, so whatever takes one takes it: headers, refunds, holds. Where no counter was asked (no rule matches,
a rule lets the request pass or blocks it, the system sheds load) it charged nothing, `decisions` is empty, and headers
tell no policy.
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
"""Why a request was refused; empty if it was not."""

BLOCKED_FOR: Micros = 3_600 * SECOND
"""What a blocked client is told to wait: a block has no end of its own."""

# What stands for a quota where there is none. No counter is ever made of them.
UNLIMITED = Quota(2**32, 1, "fixed_window", name="unlimited")
BLOCKED = Quota(1, BLOCKED_FOR // SECOND, "fixed_window", name="blocked")
SHED = Quota(1, 1, "fixed_window", name="shed")

_PASSED: Answer = (True, UNLIMITED.limit, 0, 0, 0, 0, NOT_CHARGED)
_BLOCKED: Answer = (False, 0, BLOCKED_FOR, BLOCKED_FOR, BLOCKED_FOR, 0, NOT_CHARGED)


class Ruling(Verdict):
    """The answer to one request; true when it may pass.

    - `plan`: what was asked, and by which rules.
    - `admission`: the place in flight that a shedder gave, if there is one; `end()` gives it back.
    """

    plan: Plan
    admission: Any = None

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """One decision per ask, in the order asked; none if no counter was asked."""
        return super().decisions if self.plan.posed and self[3] is not SHED else ()

    @property
    def version(self) -> str:
        """Of the set of rules."""
        return self.plan.course.version

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of the rules that apply, in their order, those in shadow mode included."""
        course = self.plan.course
        applying = [course.decided_by] if course.decided_by is not None else [*course.limits]
        return tuple(rule.id for rule in sorted([*applying, *course.would_block], key=lambda rule: rule.position))

    @property
    def rule(self) -> str:
        """The id of the rule that decided: that refused, or else is the tightest. Empty if no rule did."""
        rule = self._decided_by()
        return "" if rule is None else rule.id

    @property
    def message(self) -> str | None:
        """What that rule wants a refused client to be told."""
        rule = self._decided_by()
        return None if rule is None else rule.rule.response.message

    @property
    def reason(self) -> Reason:
        """Why it was refused; empty if it was not."""
        return reason_of(self)

    @property
    def would_refuse(self) -> tuple[str, ...]:
        """The ids of rules in shadow mode that would have refused, each once."""
        blocking = [rule.id for rule in self.plan.course.would_block]
        # Where the store could not answer and nobody passes, nobody knows what a counter would have said.
        asked = () if self.source == "closed" else zip(self.decisions, self.plan.owners, strict=False)
        return tuple(dict.fromkeys([*blocking, *(rule.id for d, rule in asked if d.advisory and not d.allowed)]))

    def shown(self) -> Verdict:
        """The verdict as clients may see it: rules whose headers are hidden refuse, but show no policy."""
        hidden = [rule.hidden for rule in self.plan[2]]
        if True not in hidden or not self.decisions:
            return self
        decisions = tuple(
            Decision((*decision[:5], decision[5] or hide))
            for decision, hide in zip(self.decisions, hidden, strict=True)
        )
        return Verdict((*self[:5], decisions, *self[6:]))

    def end(self) -> None:
        """The request is over: a shedder counts it no longer. Doing so twice changes nothing."""
        if self.admission is not None:
            self.admission.end()

    def event(self) -> Decided:
        """What a hook is told of it."""
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
    """Why a request was refused, whether by rules or without; empty if it was not."""
    return "" if verdict[0][0] else reason_for(verdict[3], verdict.source)


def reason_for(quota: Quota, source: str) -> Reason:
    """Why a request was refused that this quota refused, or what stands for one, and this source."""
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
    """A verdict with the rules it follows from."""
    ruling = verdict if isinstance(verdict, Ruling) else Ruling(verdict)
    ruling.plan = plan
    return ruling


def passed(cost: int, now: Micros) -> Verdict:
    """The verdict on a request that nothing limits."""
    return _unasked(_PASSED, UNLIMITED, cost, now)


def blocked(cost: int, now: Micros) -> Verdict:
    """The verdict on a request that a rule denies."""
    return _unasked(_BLOCKED, BLOCKED, cost, now)


def shed(wait: Micros, cost: int, now: Micros) -> Verdict:
    """The verdict on a request for which the system is too busy."""
    return _unasked((False, 0, wait, wait, wait, 0, NOT_CHARGED), SHED, cost, now)


def _unasked(answer: Answer, quota: Quota, cost: int, now: Micros) -> Verdict:
    """A verdict without a counter. Its one decision is advisory, because those are never shown to clients."""
    return Verdict((answer, now, "", quota, cost, (Decision((answer, now, "", quota, cost, True)),)))

"""Enforcer and AsyncEnforcer: from what is known of a request to a verdict, by the rules in force.

    enforcer = Enforcer(rules, limiter)
    ruling = enforcer.check({"path": "/v1/orders", "api_key": key, "ip": ip})

All rules that match are one request to the store: all are charged or none. A request that no rule matches may pass, and
so may one that an `allow` rule matches; one that a `deny` rule matches is refused. None of these asks the store.

A request uses one set of rules from start to end. `enforcer.rules = others` puts others in force, by one assignment; a
`RuleSource` in their place is asked for the current set at each request.

Both classes have the same methods and differ in one word, `await`. What they share is `_Bench`, which never waits.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, cast

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Hook, nobody, tell
from penstock.front import Front, Id, check_id, verdict_of
from penstock.holds import AsyncHold, AsyncReservation, Hold, Opening, Reservation, holds_place
from penstock.inspection import inspections
from penstock.limiter import ID_BYTES, AsyncLimiter, Limiter
from penstock.model import Acquire, Amended, Op, Outcome, Receipt, Verdict
from penstock.rules.directory import AsyncKeyDirectory, KeyDirectory
from penstock.rules.explaining import Explanation, explain
from penstock.rules.ruleset import Descriptor, Plan, RuleSet
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


class _Bench:
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
        course, asks, _ = plan
        if course.decided_by is not None:
            return (blocked if course.decided_by.action == "deny" else passed)(cost, now), None
        if self._shedder is not None:
            admission = self._shedder.admit(course.priority)
            if not admission:
                return shed(max(round(admission.retry_after * SECOND), 1), cost, now), None
            return (None if asks else passed(cost, now)), admission
        return (None if asks else passed(cost, now)), None

    def _ruled(self, verdict: Verdict, plan: Plan, rules: RuleSet, admission: Any = None) -> Ruling:
        """The ruling that is handed out, and told of."""
        ruling = ruled(verdict, plan, rules.version)
        if admission is not None:
            if verdict:
                ruling.admission = admission
            else:
                admission.end()
        if self._hook is not nobody:
            tell(self._hook, ruling.event())
        return ruling

    def _at_once(self, plan: Plan, rules: RuleSet, cost: int, request_id: Id | None, now: Micros) -> Ruling | None:
        """The ruling on a request that needs nobody to be waited for; None if the driver must be asked."""
        verdict: Verdict | None
        admission = None
        if not plan[1] or self._shedder is not None or plan[0].decided_by is not None:
            verdict, admission = self._unasked(plan, cost, now)
            if verdict is not None:
                return self._ruled(verdict, plan, rules, admission)
        ask_all = self._front._ask_all
        if ask_all is None or request_id is not None:
            return None
        return self._ruled(ask_all(plan[1], now), plan, rules, admission)


def _parted(requests: Iterable[Request]) -> list[tuple[Descriptor, int]]:
    """Descriptors and costs."""
    return [request if isinstance(request, tuple) else (request, 1) for request in requests]

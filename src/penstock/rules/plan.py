"""Plans: the asks of one request, and what a combination of matching rules implies for all requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.clock import Micros
from penstock.model import Ask, Key, OnFailure, Posed, check_fits
from penstock.rules.compiled import CompiledRule, ShortWay

STRICTNESS: tuple[OnFailure, ...] = ("open", "local", "raise", "closed")
PRIORITIES = ("low", "normal", "high", "critical")


class Short(NamedTuple):
    """Prepared asks: those that never vary, ways to make the others, and the rule behind each."""

    fixed: tuple[Posed, ...]
    ways: tuple[ShortWay, ...]
    owners: tuple[CompiledRule, ...]


class Course(NamedTuple):
    """What a combination of matching rules implies, whatever the values of the descriptor.

    - `limits`: the rules whose counters are asked.
    - `decided_by`: the `deny` or `allow` rule that decides alone, if any.
    - `would_block`: `deny` rules in shadow mode.
    - `on_failure`, `deadline`, `priority`: the strictest, the shortest and the highest of all rules. Rules in shadow
      mode count only if there are no others.
    """

    limits: tuple[CompiledRule, ...] = ()
    decided_by: CompiledRule | None = None
    would_block: tuple[CompiledRule, ...] = ()
    on_failure: OnFailure | None = None
    deadline: Micros | None = None
    priority: str = PRIORITIES[0]
    may_collide: bool = False  # two of the limits share a counter
    short: Short | None = None  # the prepared asks, if all limits have some
    has_shadows: bool = False
    version: str = ""  # of the set of rules
    leaves_open: bool = False  # some rule has no on_failure of its own, so the limiter's counts too
    hides: bool = False  # a limit is not to be shown to clients


class Plan(NamedTuple):
    """The asks of one request, and the rule behind each ask."""

    course: Course
    posed: tuple[Posed, ...]
    owners: tuple[CompiledRule, ...]


def course_of(matched: Sequence[CompiledRule], version: str) -> Course:
    """Return what these matching rules imply."""
    looked_at: list[CompiledRule] = []
    for rule in matched:
        looked_at.append(rule)
        if rule.rule.stop and not rule.advisory:
            break
    limits = tuple(rule for rule in looked_at if rule.action == "limit")
    decisive = [rule for rule in looked_at if rule.action != "limit" and not rule.advisory]
    would_block = tuple(rule for rule in looked_at if rule.action == "deny" and rule.advisory)
    enforced = [rule for rule in limits if not rule.advisory]
    priority = max((rule.rule.priority for rule in enforced or limits), key=PRIORITIES.index, default="normal")
    if decisive:
        return Course((), decisive[0], would_block, priority=priority, has_shadows=bool(would_block), version=version)
    modes = [rule.rule.on_failure for rule in enforced if rule.rule.on_failure is not None]
    scopes = [rule.rule.shared for rule in limits if rule.rule.shared is not None]
    collide = len(set(scopes)) < len(scopes)
    return Course(
        limits,
        None,
        would_block,
        max(modes, key=STRICTNESS.index, default=None),
        min((rule.deadline for rule in enforced or limits if rule.deadline is not None), default=None),
        priority,
        collide,
        None if collide else _short(limits),
        bool(would_block) or len(enforced) < len(limits),
        version,
        len(modes) < len(enforced),
        any(rule.hidden for rule in limits),
    )


def _short(limits: Sequence[CompiledRule]) -> Short | None:
    fixed = [(ask, rule) for rule in limits for ask in rule.fixed_asks()]
    ways = [way for rule in limits for way in rule.short_ways()]
    owners = [rule for _, rule in fixed] + [way[4] for way in ways]
    if len(set(owners)) < len(limits):
        return None
    return Short(tuple(ask for ask, _ in fixed), tuple(ways), tuple(owners))


_Pairs: TypeAlias = list[tuple[Posed, CompiledRule]]


def merged(pairs: _Pairs) -> _Pairs:
    """Merge the asks of rules that share a counter into one, with the smallest limit and the largest cost.

    If some of these rules are in shadow mode and others are not, only the others count.
    """
    merged: dict[tuple[Key, object], tuple[Ask, CompiledRule]] = {}
    for posed, rule in pairs:
        ask = Ask(*posed)
        counter = ask.key, ask.quota.identity
        other, owner = merged.get(counter, (ask, rule))
        if ask.advisory == other.advisory:
            if ask.quota.capacity < other.quota.capacity:
                other, owner = ask._replace(cost=other.cost), rule
            cost, quota = max(ask.cost, other.cost), other.quota
            cost = min(cost, quota.capacity) if other.advisory else check_fits(cost, quota)
            merged[counter] = other._replace(cost=cost), owner
        elif other.advisory:
            merged[counter] = ask, rule
    return [*merged.values()]

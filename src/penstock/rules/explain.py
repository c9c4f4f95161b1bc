"""Explains why rules matched a descriptor or did not.

The words name entries, the values wanted and the kind of value found; never that value itself, because it may be an
identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Micros
from penstock.model import Explained
from penstock.rules.compiled import CompiledRule
from penstock.rules.conditions import All, Any, Condition, Not
from penstock.rules.index import Slots, Values, compile_test
from penstock.rules.networks import number_of
from penstock.rules.ruleset import Descriptor, RuleSet

MAX_REASONS = 8


def explain(rules: RuleSet, descriptor: Descriptor, now: Micros) -> tuple[Explained, ...]:
    """Explain every rule of a set, in its order, without the state of any counter."""
    values = rules.read(descriptor)
    matched = rules.matching(values)
    course = rules.match(descriptor, now).course
    by_id = {rule.id: rule for rule in rules.rules}
    explained = []
    for declared in sorted(rules.file.rules, key=lambda rule: rule.order):
        rule, applies = by_id.get(declared.id), False
        if rule is None:
            why = "its mode is off"
        elif rule.position not in matched:
            why = "; ".join(why_not(declared.match, values, rules.slots)[:MAX_REASONS])
        else:
            passed_over = _passed_over(rule, [rules.rules[position] for position in matched], course.decided_by)
            why, applies = passed_over or _why(declared.match), not passed_over
        entry = Explained(declared.id, applies, why, declared.mode, declared.action)
        if rule is not None and applies and rule.action == "limit":
            entry = entry._replace(key=rule.key_in_words(values, _shape), quotas=rule.quotas(values, now))
        explained.append(entry)
    return tuple(explained)


def why_not(condition: Condition | None, values: Values, slots: Slots) -> list[str]:
    """Return the parts of a condition that do not hold, each with the kind of value that was found."""
    if condition is None or compile_test(condition, slots)(values):
        return []
    if isinstance(condition, All):
        return [reason for part in condition.conditions for reason in why_not(part, values, slots)]
    if isinstance(condition, Any | Not):
        return [f"wanted: {condition}"]
    return [f"wanted: {condition}; {condition.entry} is {_shape(values[slots.text(condition.entry)])}"]


def _why(condition: Condition | None) -> str:
    return "it has no condition" if condition is None else str(condition)


def _passed_over(rule: CompiledRule, matched: Sequence[CompiledRule], decided_by: CompiledRule | None) -> str:
    """Return why a rule whose condition holds does not apply; empty if it does."""
    for earlier in matched:
        if earlier.position < rule.position and earlier.rule.stop and not earlier.advisory:
            return f"{earlier.id} comes before it and has stop"
    if decided_by is not None and rule is not decided_by and not (rule.action == "deny" and rule.advisory):
        return f"{decided_by.id} has action {decided_by.action}, which decides alone"
    return ""


def _shape(text: str) -> str:
    """Return the kind of a value."""
    if not text:
        return "absent"
    if number_of(text) is not None:
        return "an IPv6 address" if ":" in text else "an IPv4 address"
    kind = "a number" if text.isascii() and text.isdigit() else "text"
    return f"{kind} of {len(text)} character{'s' if len(text) > 1 else ''}"

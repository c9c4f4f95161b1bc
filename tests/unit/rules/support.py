"""Rules as tests write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.clock import Micros
from penstock.errors import StoreError
from penstock.model import Ask, Failed, Op, Outcome
from penstock.rules.model import RuleFile
from penstock.rules.plan import Plan
from penstock.rules.ruleset import RuleSet

NOW = 1_700_000_000_000_000


class Gone:
    """A store that cannot answer, and the deadlines it was given."""

    def __init__(self) -> None:
        self.deadlines: list[Micros | None] = []

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.deadlines.append(deadline)
        return [Failed(StoreError("gone", transient=True), "no") for _ in ops]

    def close(self) -> None:
        """Nothing to close."""


def rule_set(*rules: dict[str, Any], **others: Any) -> RuleSet:
    """Return a compiled set; a rule without key or quota gets some."""
    return RuleSet(RuleFile.model_validate({"rules": [_whole(rule) for rule in rules], **others}))


def _whole(rule: dict[str, Any]) -> dict[str, Any]:
    return rule if rule.get("action", "limit") != "limit" else {"key": "ip", "quota": "100/minute"} | rule


def asks_of(plan: Plan) -> list[Ask]:
    """Return the asks of a plan as records."""
    return [Ask(*posed) for posed in plan.posed]

"""Rules as tests write them."""

from __future__ import annotations

from typing import Any

from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet

NOW = 1_700_000_000_000_000


def rule_set(*rules: dict[str, Any], **others: Any) -> RuleSet:
    """A compiled set; a rule without key or quota gets some."""
    return RuleSet(RuleFile.model_validate({"rules": [_whole(rule) for rule in rules], **others}))


def _whole(rule: dict[str, Any]) -> dict[str, Any]:
    return rule if rule.get("action", "limit") != "limit" else {"key": "ip", "quota": "100/minute"} | rule

"""From a configuration of envoyproxy/ratelimit to a file of Penstock's own rules, as far as rules can say the same.

Every limit becomes a rule that matches the descriptors which the configuration would have found it for: those with its
keys and no others, to which no neighbour applies that comes before it. What rules cannot say is
not dropped in silence: it is in the notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.quota import CALENDAR
from penstock.quota import text as quota_text
from penstock.rules.shorthand import JOINS, MAX_KEY_PARTS
from penstock.service.envoy.config import DOMAIN, ENTRIES, Branch, Config, Level

_UNFIT = re.compile(r"[^A-Za-z0-9_.:-]+")
MAX_ID = 64
REPLACES = "replaces: rules do not replace each other by name; write one rule with tiers, or use stop"


class Converted(NamedTuple):
    """The text of a file of rules, and notes on what rules cannot express."""

    text: str
    notes: tuple[str, ...]


class _Step(NamedTuple):
    """A branch on the way to a limit, and the branches that come before it for the values it stands for."""

    branch: Branch
    earlier: tuple[Branch, ...]


def convert(config: Config) -> Converted:
    """Return rules for all limits of a configuration."""
    notes: list[str] = []
    rules: list[str] = []
    ids: set[str] = set()
    for domain, level in config.domains.items():
        for path in _paths(level, ()):
            title = ".".join([domain, *(step.branch.title for step in path)])
            rule = _rule(domain, path, title, notes)
            if rule is not None:
                rules.append(_written({"id": _id(title, ids), **rule}))
    if not rules:
        return Converted("empty: true\n", tuple(notes))
    return Converted("rules:\n" + "".join(rules), tuple(notes))


def _paths(level: Level, above: tuple[_Step, ...]) -> Iterator[tuple[_Step, ...]]:
    """The ways to all limits, in the order of lookup."""
    branches = level.branches
    for at, branch in enumerate(branches):
        exact = branch.value and "*" not in branch.value
        neighbours = [] if exact else [one for one in branches[:at] if one.key == branch.key]
        path = (*above, _Step(branch, tuple(neighbours)))
        if any(not one.value.strip("*") for one in neighbours):
            continue  # a pattern that takes every value leaves none
        if branch.limit is not None:
            yield path
        if branch.below is not None:
            yield from _paths(branch.below, path)


def _rule(domain: str, path: Sequence[_Step], title: str, notes: list[str]) -> dict[str, Any] | None:
    limit = path[-1].branch.limit
    branches = [step.branch for step in path]
    if limit is None or limit.unlimited:
        if limit is not None and limit.replaces:  # nothing to limit, yet others count on it
            notes.append(f"{title}: {REPLACES}")
        return None
    names = [branch.key for branch in branches]
    bad = [name for name in names if not quota_text.NAME.fullmatch(name) or name in (*JOINS, DOMAIN, ENTRIES)]
    if bad or len(set(names)) < len(names):
        why = f"key {bad[0]!r} cannot name an entry of a rule" if bad else "a key comes twice on its way"
        notes.append(f"{title}: not converted: {why}")
        return None
    key = [branch.key for branch in branches if not branch.shared and ("*" in branch.value or not branch.value)]
    if len(key) > MAX_KEY_PARTS:
        notes.append(f"{title}: not converted: counted by {len(key)} entries (a rule by at most {MAX_KEY_PARTS})")
        return None
    notes += [f"{title}: {note}" for note in _losses(path)]
    rule: dict[str, Any] = {"match": _match(domain, path)}
    if limit.quota is None:
        return rule | {"action": "deny"} | ({"mode": "shadow"} if limit.shadow else {})
    rule |= {"key": key, "quota": str(limit.quota)}
    if limit.shadow:
        rule["mode"] = "shadow"
    if limit.on_failure is not None:
        rule["on_failure"] = limit.on_failure
    return rule


def _losses(path: Sequence[_Step]) -> Iterator[str]:
    """Return notes on what the rule of a limit cannot express."""
    branches = [step.branch for step in path]
    limit = branches[-1].limit
    if limit is None:
        return
    if limit.replaces:
        yield REPLACES
    if limit.quota_mode:
        yield "quota_mode: a rule that refuses, refuses"
    if limit.metadata:
        yield "metadata: rules tell Envoy none"
    if limit.detailed_metric or any(branch.value_in_metric for branch in branches):
        yield "detailed_metric, value_to_metric: metrics of rules are named after the rule"
    if limit.name:
        yield f"name {limit.name!r}: clients are told the id of the rule"
    if limit.quota is not None and limit.quota.algorithm == CALENDAR:
        yield "algorithm calendar: in UTC, as here"
    for step in path:
        for branch in (step.branch, *step.earlier):
            if "*" in branch.value[:-1]:
                yield f"value {branch.value!r}: in a rule, * within a pattern does not stand for a /"
    for branch in branches:
        if branch.key == "ip":
            yield "key 'ip': in a rule it is an address, and IPv6 counts by its first 64 bits"


def _match(domain: str, path: Sequence[_Step]) -> dict[str, Any]:
    branches = [step.branch for step in path]
    match: dict[str, Any] = {DOMAIN: domain, ENTRIES: ",".join(branch.key for branch in branches)}
    match |= {branch.key: _test(branch) for branch in branches if branch.value.strip("*")}
    earlier = [{one.key: _test(one)} for step in path for one in step.earlier if one.value.strip("*")]
    if earlier:
        match["not"] = {"any": earlier}
    return match


def _test(branch: Branch) -> Any:
    if "*" not in branch.value:
        return branch.value
    if branch.value.index("*") == len(branch.value) - 1:
        return {"prefix": branch.value[:-1]}
    return {"glob": re.sub(r"\*+", "*", branch.value)}


def _id(title: str, taken: set[str]) -> str:
    """A name for a rule that no other has."""
    base = _UNFIT.sub("-", title).strip("-.:_")[:MAX_ID] or "rule"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base[: MAX_ID - len(str(number)) - 1]}-{number}"
    taken.add(name)
    return name


def _written(rule: dict[str, Any]) -> str:
    """A rule as YAML: a field a line, values as JSON, which is YAML."""
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in rule.items()]
    return "  - " + "\n    ".join(lines) + "\n"

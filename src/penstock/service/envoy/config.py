"""A configuration of envoyproxy/ratelimit, ready for look-ups: domains, descriptors, limits.

A descriptor is a list of entries, each a key and a value. Every level of the configuration is looked up by the next
entry: first its value as it is, then patterns in the order of the file, then the bare key, which stands for all values.
A limit applies to descriptors that have exactly as many entries as it is deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from penstock.model import MAX_KEY_PART, OnFailure
from penstock.quota import Quota

Entry: TypeAlias = tuple[str, str]
"""A key and a value of a descriptor."""

DOMAIN, ENTRIES = "domain", "entries"
"""The entries that hold the domain of a descriptor, and its keys in their order, where rules are in force."""


class Unit(NamedTuple):
    """A unit of time: its name, its number in the protocol, and its length in seconds."""

    name: str
    number: int
    seconds: int


UNITS = {
    unit.name: unit
    for unit in (
        Unit("second", 1, 1),
        Unit("minute", 2, 60),
        Unit("hour", 3, 3_600),
        Unit("day", 4, 86_400),
        Unit("week", 7, 7 * 86_400),
        Unit("month", 5, 30 * 86_400),
        Unit("year", 6, 365 * 86_400),
    )
}
UNITS_BY_NUMBER = {unit.number: unit for unit in UNITS.values()}


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """The limit of a descriptor.

    - `quota`: None where there is nothing to count: `unlimited`, or a limit of 0, which refuses always.
    - `name`: shown to clients, and used by limits that replace this one.
    - `replaces`: the names of limits that do not apply to a request to which this one does.
    - `quota_mode`: of all descriptors of a request with it, one that is within its limit suffices.
    - `metadata`: sent to Envoy with a request that was within the limit.
    """

    requests: int
    unit: Unit | None
    quota: Quota | None
    name: str = ""
    replaces: tuple[str, ...] = ()
    unlimited: bool = False
    shadow: bool = False
    quota_mode: bool = False
    detailed_metric: bool = False
    on_failure: OnFailure | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Branch:
    """The part of the configuration behind one key, or one key and value."""

    key: str
    value: str
    line: int
    limit: Limit | None = None
    shared: bool = False  # all values that fit the pattern share one counter
    value_in_metric: bool = False
    below: Level | None = None

    @property
    def title(self) -> str:
        """Its name in metrics and in messages."""
        return f"{self.key}_{self.value}" if self.value else self.key


class Pattern:
    """A text in which each `*` stands for any characters, or none. Matching takes linear time but for repetitions."""

    __slots__ = ("first", "last", "least", "middle")

    def __init__(self, text: str) -> None:
        self.first, *self.middle, self.last = text.split("*")
        self.least = len(text) - text.count("*")

    def fits(self, value: str) -> bool:
        if len(value) < self.least or not value.startswith(self.first) or not value.endswith(self.last):
            return False
        at, end = len(self.first), len(value) - len(self.last)
        for part in self.middle:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


class Level:
    """The descriptors of one depth and parent."""

    __slots__ = ("bare", "exact", "patterns")

    def __init__(self) -> None:
        self.exact: dict[Entry, Branch] = {}
        self.patterns: dict[str, list[tuple[Pattern, Branch]]] = {}
        self.bare: dict[str, Branch] = {}

    def put(self, branch: Branch) -> Branch | None:
        """Add a branch; return the one with the same key and value instead, if there is one."""
        patterns = self.patterns.get(branch.key, [])
        if not branch.value:
            taken = self.bare.setdefault(branch.key, branch)
        elif "*" not in branch.value:
            taken = self.exact.setdefault((branch.key, branch.value), branch)
        else:
            taken = next((one for _, one in patterns if one.value == branch.value), branch)
            if taken is branch:
                self.patterns[branch.key] = [*patterns, (Pattern(branch.value), branch)]
        return None if taken is branch else taken

    @property
    def branches(self) -> list[Branch]:
        """All of them, in the order of lookup."""
        patterns = [branch for several in self.patterns.values() for _, branch in several]
        return [*self.exact.values(), *patterns, *self.bare.values()]

    def branch(self, key: str, value: str) -> Branch | None:
        """Return the branch of an entry."""
        found = self.exact.get((key, value))
        if found is None and key in self.patterns:
            found = next((branch for pattern, branch in self.patterns[key] if pattern.fits(value)), None)
        return self.bare.get(key) if found is None else found


class Found(NamedTuple):
    """The limit of a descriptor, the key of its counter, and its name in metrics."""

    limit: Limit
    key: str
    title: str


class Config:
    """All domains. `version` tells one configuration from another."""

    def __init__(self, domains: Mapping[str, Level], version: str = "") -> None:
        self.domains = domains
        self.version = version

    def find(self, domain: str, entries: Sequence[Entry]) -> Found | None:
        """Return the limit of a descriptor, if there is one."""
        level, branch = self.domains.get(domain), None
        path: list[Branch] = []
        for key, value in entries:
            branch = level.branch(key, value) if level is not None else None
            if branch is None:
                return None
            path.append(branch)
            level = branch.below
        if branch is None or branch.limit is None:
            return None
        return Found(branch.limit, counter_key(domain, entries, path), _title(domain, entries, path))


def counter_key(domain: str, entries: Sequence[Entry], path: Sequence[Branch] = ()) -> str:
    """Return the key of a descriptor's counter; no two descriptors have the same.

    A level that shares its counter has its pattern in place of the value.
    """
    parts = [f"envoy {len(domain)}:{domain}"]
    for at, (key, value) in enumerate(entries):
        branch = path[at] if path else None
        part = (
            f"{len(branch.value)}*{branch.value}" if branch is not None and branch.shared else f"{len(value)}:{value}"
        )
        parts.append(f"{len(key)}:{key}{part}")
    text = "".join(parts)
    if len(text) <= MAX_KEY_PART and text.isascii():
        return text
    return f"envoy digest {blake2b(text.encode(), digest_size=32).hexdigest()}"


def _title(domain: str, entries: Sequence[Entry], path: Sequence[Branch]) -> str:
    titles = [domain]
    detailed = path[-1].limit is not None and path[-1].limit.detailed_metric
    for (key, value), branch in zip(entries, path, strict=True):
        shown = value if detailed or branch.value_in_metric else branch.value
        titles.append(f"{key}_{shown}" if shown else key)
    return ".".join(titles)

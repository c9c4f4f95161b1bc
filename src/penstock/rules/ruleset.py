"""A compiled set of rules: from a descriptor to what is asked of the store.

A `RuleSet` never changes. To change rules, compile another one and put it in the place of the first; whoever has begun
with the old one finishes with it. Its `version` follows from its content alone, so every process that read the same
rules names the same version.

**Which rules apply.** Rules are looked at in their order. A matching rule with `stop` is the last that is looked at. A
matching `deny` or `allow` rule decides alone, whatever limits match before or after it; of several the first. All other
matching rules are one request: all are charged or none. Nothing matching, nothing is asked, and the request may pass.

**Whose counter it is.** The key of a counter begins with the id of its rule, or with the name it is shared under, and
goes on with one part per key part of the rule: the first of its entries that is present, marked with its name. If none
is present the part is the names alone, so all who lack them share one counter and nobody escapes by leaving something
out. What the rule matches, its tiers and amounts are not in it. (A single part is joined to the id by a space, which no
id and no name has, because one text is hashed once where a tuple is hashed at every step.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidRequest
from penstock.model import Ask, Key, Posed, check_cost, check_units, new
from penstock.quota import Quota
from penstock.rules.entries import ABSENT, MAX_PART, key_part
from penstock.rules.matching import Index, Slots, Values

if TYPE_CHECKING:
    from penstock.rules.model import CostFrom, Override, Rule, RuleFile

Descriptor: TypeAlias = Mapping[str, Any]
"""What is known of a request: names of entries, and their texts."""

OnFailure: TypeAlias = Literal["local", "open", "closed"]
STRICTNESS: tuple[OnFailure, ...] = ("open", "local", "closed")
PRIORITIES = ("low", "normal", "high", "critical")

K = TypeVar("K")

MAX_REMEMBERED = 4_096
MAX_REMEMBERED_TEXT = 512
_VERSION_BYTES = 8
_MOST_DIGITS = 18

_Alternatives: TypeAlias = tuple[tuple[int, str, int | None], ...]
"""The entries for one part of a key: slot, mark (`ip=`), and to how many bits an IPv6 address is folded."""


class _Override(NamedTuple):
    """Other quotas for requests in whose slots one of these texts is, until an instant."""

    until: Micros
    who: tuple[tuple[int, frozenset[str]], ...]
    quotas: tuple[Quota, ...]

    def holds(self, values: Values, now: Micros) -> bool:
        return now < self.until and all([values[slot] in texts for slot, texts in self.who])  # noqa: C419


class CompiledRule:
    """A rule as it is applied. `rule` is what was declared."""

    __slots__ = (
        "_cost_slot",
        "_overrides",
        "_parts",
        "_quotas",
        "_scope",
        "_tier_slot",
        "_tiers",
        "advisory",
        "deadline",
        "id",
        "position",
        "rule",
    )

    def __init__(self, rule: Rule, position: int, overrides: Sequence[Override], slots: Slots) -> None:
        self.rule = rule
        self.id = rule.id
        self.position = position
        self.advisory = rule.mode == "shadow"
        self.deadline: Micros | None = None if rule.deadline is None else round(rule.deadline * SECOND)
        # A shared name cannot be mistaken for an id, which begins with a letter or digit.
        self._scope = rule.id if rule.shared is None else f"={rule.shared}"
        self._parts = tuple(_part(entries, slots) for entries in rule.key or ())
        self._quotas = _counters(rule.quotas)
        self._tier_slot = slots.text(rule.tiers.by) if rule.tiers else -1
        read_tier = slots.read(rule.tiers.by) if rule.tiers else str
        tiers = rule.tiers.quotas.items() if rule.tiers else ()
        self._tiers = {read_tier(name): _counters(quotas) for name, quotas in tiers}
        self._overrides = _by_value([_override(one, slots) for one in overrides])
        self._cost_slot = -1 if isinstance(rule.cost, int) else slots.text(rule.cost.entry)

    @property
    def action(self) -> str:
        return self.rule.action

    def key(self, values: Values) -> Key:
        """Whose counter it is."""
        parts = [_key_part(alternatives, values) for alternatives in self._parts]
        if len(parts) > 1:
            return (self._scope, *parts)
        return f"{self._scope} {parts[0]}" if parts else self._scope

    def key_in_words(self, values: Values, shape: Callable[[str], str]) -> str:
        """Which entries make the key, and what `shape` says of their values."""
        words = []
        for part in self._parts:
            found = [(mark, values[slot]) for slot, mark, _ in part if values[slot]]
            names = " | ".join([mark[:-1] for _, mark, _ in part])
            words.append(f"{found[0][0][:-1]} ({shape(found[0][1])})" if found else f"{names} (absent)")
        shared = "" if self.rule.shared is None else f", shared as {self.rule.shared}"
        return (", ".join(words) or "nothing: one counter for everybody") + shared

    def quotas(self, values: Values, now: Micros) -> tuple[Quota, ...]:
        """The counters that a request is charged to: those of an override, of its tier, or the rule's own."""
        for slot, by_value in self._overrides:
            for override in by_value.get(values[slot], ()):
                if override.holds(values, now):
                    return override.quotas
        return self._tiers.get(values[self._tier_slot], self._quotas) if self._tiers else self._quotas

    def cost(self, values: Values) -> int:
        """What one unit of a request costs here."""
        cost = self.rule.cost
        if isinstance(cost, int):
            return cost
        return _cost(cost, values[self._cost_slot])

    def asks(self, values: Values, cost: int, now: Micros) -> list[Posed]:
        """What a request that costs `cost` asks of this rule's counters."""
        units = cost * self.cost(values)
        key = self.key(values)
        return [
            (key, quota, 1 if quota.flat or units == 1 else check_cost(units, quota), self.advisory)
            for quota in self.quotas(values, now)
        ]

    def fixed_asks(self) -> list[Posed]:
        """What a rule with one counter for everybody asks, if that never varies."""
        if self._parts or self._varies():
            return []
        return [(self._scope, quota, 1, self.advisory) for quota in self._quotas]

    def _varies(self) -> bool:
        return bool(self._tiers or self._overrides or self.rule.cost != 1)

    def short_ways(self) -> list[_ShortWay]:
        """What most rules are like needs less work: a key of one part, and quotas and cost that never vary."""
        if len(self._parts) != 1 or self._varies():
            return []
        (slot, mark, ipv6_prefix), *_ = self._parts[0]
        most, folds, begin = MAX_PART - len(mark), ipv6_prefix is not None, f"{self._scope} {mark}"
        return [(slot, most, folds, begin, self, quota, self.advisory) for quota in self._quotas]


_ShortWay: TypeAlias = tuple[int, int, bool, str, CompiledRule, Quota, bool]
"""Of the first entry slot, longest text and whether it is folded; how the key begins; rule, quota, advisory."""


class _Short(NamedTuple):
    """Asks that never vary, ways to make the others, and the rule behind each ask."""

    fixed: tuple[Posed, ...]
    ways: tuple[_ShortWay, ...]
    owners: tuple[CompiledRule, ...]


class Course(NamedTuple):
    """What follows from a combination of matching rules, whatever the values.

    - `limits`: the rules whose counters are asked.
    - `decided_by`: the `deny` or `allow` rule that decides alone, if one does.
    - `would_block`: `deny` rules in shadow mode.
    - `on_failure`, `deadline`: the strictest, and the shortest, of any rule; `priority`: the highest.
    """

    limits: tuple[CompiledRule, ...] = ()
    decided_by: CompiledRule | None = None
    would_block: tuple[CompiledRule, ...] = ()
    on_failure: OnFailure | None = None
    deadline: Micros | None = None
    priority: str = PRIORITIES[0]
    may_collide: bool = False  # two of the limits share a counter
    short: _Short | None = None  # how to ask all limits in a short way, if all have one
    has_shadows: bool = False
    version: str = ""  # of the set of rules


class Plan(NamedTuple):
    """What is asked for one request, and the rule behind each ask."""

    course: Course
    posed: tuple[Posed, ...]
    owners: tuple[CompiledRule, ...]

    @property
    def asks(self) -> tuple[Ask, ...]:
        """The same as records, for operations."""
        return tuple([new(Ask, ask) for ask in self.posed])


class RuleSet:
    """Compiled rules. `version` names their content."""

    def __init__(self, file: RuleFile) -> None:
        self.file = file
        self.version = _version(file)
        ordered = sorted(file.rules, key=attrgetter("order"))
        live = [rule for rule in ordered if rule.mode != "off"]
        overrides: dict[str, list[Override]] = {}
        for override in file.overrides:
            overrides.setdefault(override.rule, []).append(override)
        self.slots = Slots(file.options)
        self._index = Index([rule.match for rule in live], self.slots)
        self._decisive = len(self.slots.names)  # slots that conditions look at come before those that make keys
        self.rules = tuple(
            CompiledRule(rule, position, overrides.get(rule.id, ()), self.slots) for position, rule in enumerate(live)
        )
        self._names, self._reads, self._special = self.slots.names, self.slots.reads(), self.slots.special()
        self._courses: dict[tuple[int, ...], Course] = {}
        self._remembered: dict[tuple[Any, ...], Course] = {}  # by all that the conditions look at

    def __len__(self) -> int:
        return len(self.file.rules)

    def __repr__(self) -> str:
        return f"<RuleSet {self.version}: {len(self)} rules>"

    def read(self, descriptor: Descriptor) -> Values:
        """What the rules look at, in the form they look at it."""
        try:
            get = descriptor.get
        except AttributeError:
            kind = type(descriptor).__name__
            raise InvalidRequest(f"descriptor: expected a mapping of entries to texts, not {kind}") from None
        values: Values = [get(entry, ABSENT) for entry in self._names]
        try:
            if "".join(values).isascii():
                for slot, read in self._special:
                    values[slot] = read(values[slot])
                return values
        except TypeError:  # something that is not text, or None
            pass
        return [read(value) for read, value in zip(self._reads, values, strict=True)]

    def matching(self, values: Values) -> tuple[int, ...]:
        """The positions of all rules that match, in order."""
        tests = self._index.tests
        matched = []
        for position in self._index.find(values):
            test = tests[position]
            if test is None or test(values):
                matched.append(position)
        return tuple(matched)

    def _follow(self, values: Values, decisive: tuple[Any, ...]) -> Course:
        """What follows from the rules that match; remembered, because many requests look alike to the rules."""
        matched = self.matching(values)
        course = self._courses.get(matched)
        if course is None:
            course = _kept(
                self._courses, matched, _course([self.rules[position] for position in matched], self.version)
            )
        if sum([len(text) for text in decisive if text.__class__ is str]) <= MAX_REMEMBERED_TEXT:
            _kept(self._remembered, decisive, course)
        return course

    def match(self, descriptor: Descriptor, now: Micros, cost: int = 1) -> Plan:
        """What a request is to ask, and of whom."""
        values = self.read(descriptor)
        decisive = tuple(values[: self._decisive])
        course = self._remembered.get(decisive)
        if course is None:
            course = self._follow(values, decisive)
        if cost == 1 and cost.__class__ is int and course.short is not None:
            fixed, ways, owners = course.short
            asks = [*fixed]
            for slot, most, folds, mark, rule, quota, advisory in ways:
                text = values[slot]
                is_short = text and len(text) <= most and not (folds and ":" in text)
                key = mark + text if is_short else rule.key(values)
                asks.append((key, quota, 1, advisory))
            return new(Plan, (course, tuple(asks), owners))
        return self._plan(course, values, check_units("cost", cost, least=1), now)

    def _plan(self, course: Course, values: Values, cost: int, now: Micros) -> Plan:
        pairs = [(ask, rule) for rule in course.limits for ask in rule.asks(values, cost, now)]
        if course.may_collide:
            pairs = _merged(pairs)
        return Plan(course, tuple([ask for ask, _ in pairs]), tuple([rule for _, rule in pairs]))


def _kept(memory: dict[K, Course], name: K, course: Course) -> Course:
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[name] = course
    return course


def _version(file: RuleFile) -> str:
    """A name for what a file says: the same in every process, and another as soon as anything differs."""
    said = ([vars(rule) for rule in file.rules], [vars(one) for one in file.overrides], vars(file)["entries"])
    return blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=_VERSION_BYTES).hexdigest()


def _course(matched: Sequence[CompiledRule], version: str) -> Course:
    looked_at: list[CompiledRule] = []
    for rule in matched:
        looked_at.append(rule)
        if rule.rule.stop:
            break
    limits = tuple(rule for rule in looked_at if rule.action == "limit")
    decisive = [rule for rule in looked_at if rule.action != "limit" and not rule.advisory]
    would_block = tuple(rule for rule in looked_at if rule.action == "deny" and rule.advisory)
    priority = max((rule.rule.priority for rule in limits), key=PRIORITIES.index, default="normal")
    if decisive:
        return Course((), decisive[0], would_block, priority=priority, has_shadows=bool(would_block), version=version)
    enforced = [rule for rule in limits if not rule.advisory]
    modes = [rule.rule.on_failure for rule in enforced if rule.rule.on_failure is not None]
    scopes = [rule.rule.shared for rule in limits if rule.rule.shared is not None]
    collide = len(set(scopes)) < len(scopes)
    return Course(
        limits,
        None,
        would_block,
        max(modes, key=STRICTNESS.index, default=None),
        min((rule.deadline for rule in limits if rule.deadline is not None), default=None),
        priority,
        collide,
        None if collide else _short(limits),
        bool(would_block) or len(enforced) < len(limits),
        version,
    )


def _short(limits: Sequence[CompiledRule]) -> _Short | None:
    fixed = [(ask, rule) for rule in limits for ask in rule.fixed_asks()]
    ways = [way for rule in limits for way in rule.short_ways()]
    owners = [rule for _, rule in fixed] + [way[4] for way in ways]
    if len(set(owners)) < len(limits):
        return None
    return _Short(tuple(ask for ask, _ in fixed), tuple(ways), tuple(owners))


_Pairs: TypeAlias = list[tuple[Posed, CompiledRule]]


def _merged(pairs: _Pairs) -> _Pairs:
    """A counter that several rules share is asked once: by the smallest limit and the largest cost among them.

    Where one of them is in shadow mode and another is not, the other alone is asked.
    """
    merged: dict[tuple[Key, object], tuple[Ask, CompiledRule]] = {}
    for posed, rule in pairs:
        ask = Ask(*posed)
        counter = ask.key, ask.quota.identity
        other, owner = merged.get(counter, (ask, rule))
        if ask.advisory == other.advisory:
            if ask.quota.capacity < other.quota.capacity:
                other, owner = ask._replace(cost=other.cost), rule
            merged[counter] = other._replace(cost=check_cost(max(ask.cost, other.cost), other.quota)), owner
        elif other.advisory:
            merged[counter] = ask, rule
    return [*merged.values()]


def _counters(quotas: Sequence[Quota]) -> tuple[Quota, ...]:
    return tuple(part for quota in quotas for part in quota.parts)


def _part(entries: Sequence[str], slots: Slots) -> _Alternatives:
    return tuple((slots.text(entry), f"{entry}=", slots.ipv6_prefix(entry)) for entry in entries)


def _key_part(alternatives: _Alternatives, values: Values) -> str:
    for slot, mark, ipv6_prefix in alternatives:
        value = values[slot]
        if value:
            return key_part(mark, value, ipv6_prefix)
    return "|".join([mark[:-1] for _, mark, _ in alternatives])


def _override(override: Override, slots: Slots) -> _Override:
    who = tuple(
        (slots.text(entry), frozenset(slots.read(entry)(text) for text in texts) - {ABSENT})
        for entry, texts in override.who.items()
    )
    return _Override(override.until_us, who, _counters(override.quotas))


def _by_value(overrides: Sequence[_Override]) -> tuple[tuple[int, dict[str, list[_Override]]], ...]:
    """Overrides by the first entry they ask for and its value, so that a thousand of them cost no more than one."""
    tables: dict[int, dict[str, list[_Override]]] = {}
    for override in overrides:
        slot, texts = override.who[0]
        for text in texts:
            tables.setdefault(slot, {}).setdefault(text, []).append(override)
    return tuple(tables.items())


def _cost(cost: CostFrom, text: str) -> int:
    """What an entry says, held between its bounds. Absent it costs the default; if it is no number, the most."""
    if not text:
        return cost.least if cost.default is None else cost.default
    if not (text.isascii() and text.isdigit()):
        return cost.most
    return cost.most if len(text) > _MOST_DIGITS else min(max(int(text), cost.least), cost.most)

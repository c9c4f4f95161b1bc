"""The content of a file of rules as checked, frozen records.

    RuleFile
    ├── rules       Rule: which requests, counted by which key, against which quotas
    ├── overrides   Override: other quotas for some requests, until an instant
    ├── entries     EntryOptions: how the texts of a descriptor entry are normalised
    └── empty       true if a file is meant to have no rules

Fields are read strictly: values are not converted; unknown fields and fields without an effect are errors. The short
forms (`quota: 100/minute`, `key: api_key | ip`) are read by `penstock.rules.shorthand`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from penstock.clock import SECOND, Micros
from penstock.quota import MAX_LIMIT, Quota
from penstock.rules import schema_shapes, shorthand
from penstock.rules.conditions import All, Any, Condition, Equals, Not, OneOf
from penstock.rules.faults import HIDDEN, MAX_FLAWS, Flaw, Flawed, flawed, unknown
from penstock.rules.networks import address_of
from penstock.rules.shorthand import KeyPart

MAX_RULES = 20_000
MAX_TIERS = 64
MAX_TAGS = 16
IPV6_PREFIX = 64

ADDRESS = "ip"
"""The entry that is an address by default."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

LIMIT_ONLY = ("key", "quotas", "cost", "tiers", "on_failure", "deadline", "priority", "stop", "shared")
"""Fields that have no effect in a rule without counters."""


def _name(value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise flawed(value, "a letter or digit, then at most 63 letters, digits, or any of _ . : -")
    return value


def _line(value: str) -> str:
    if not value or _CONTROL.search(value):
        raise flawed(value, "one line of text, not empty")
    return value


Name: TypeAlias = Annotated[str, PlainValidator(_name), WithJsonSchema(schema_shapes.NAME)]
Entry: TypeAlias = Annotated[str, PlainValidator(shorthand.entry_name), WithJsonSchema(schema_shapes.ENTRY)]
Line: TypeAlias = Annotated[str, Field(max_length=500), AfterValidator(_line)]
Quotas: TypeAlias = Annotated[tuple[Quota, ...], PlainValidator(shorthand.quotas), WithJsonSchema(schema_shapes.QUOTAS)]
Cost: TypeAlias = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


class CostFrom(_Record):
    """The cost is the number in a descriptor entry, limited to `least` and `most`.

    An absent entry costs `default` (by default `least`); an entry that is no whole number costs `most`.
    """

    entry: Entry
    """The entry that contains the cost."""
    least: Cost = 1
    """The lowest cost."""
    most: Cost
    """The highest cost, also if the entry is no whole number."""
    default: Cost | None = None
    """The cost if the entry is absent; by default `least`."""

    @model_validator(mode="after")
    def _ordered(self) -> CostFrom:
        if self.least > self.most:
            raise Flawed(Flaw(("least",), self.least, "", f"at most {self.most}, which is the most"))
        if self.default is not None and not self.least <= self.default <= self.most:
            raise Flawed(Flaw(("default",), self.default, "", f"{self.least} to {self.most}"))
        return self


_WHOLE: TypeAdapter[int] = TypeAdapter(Cost, config=ConfigDict(strict=True))


def _cost(value: object) -> int | CostFrom:
    if isinstance(value, CostFrom):
        return value
    return CostFrom.model_validate(value) if isinstance(value, Mapping) else _WHOLE.validate_python(value)


class Tiers(_Record):
    """Quotas by the name in the entry `by`. Without one of these names the quotas of the rule itself apply."""

    by: Entry = "tier"
    """The entry that names the tier."""
    quotas: Annotated[Mapping[Name, Quotas], Field(alias="quota", min_length=1, max_length=MAX_TIERS)]
    """Names of tiers, and the quotas of each."""


class Response(_Record):
    """What clients see of a rule."""

    headers: Literal["shown", "hidden"] = "shown"
    """Whether headers show limits and what is left. A refusal always has `Retry-After`."""
    message: Line | None = None
    """The text of a refusal."""


class EntryOptions(_Record):
    """How the texts of one descriptor entry are normalised before they are matched or counted."""

    fold_case: bool = False
    """Ignore case."""
    nfc: bool = False
    """Compose accents (Unicode NFC), so that both spellings of an accented letter are equal."""
    ipv6_prefix: Annotated[int, Field(ge=1, le=128)] | None = None
    """The entry is an address, and IPv6 addresses with the same first bits are one. 64 for the entry `ip`."""


def _key(value: object, info: ValidationInfo) -> tuple[KeyPart, ...]:
    if value is not None:
        return shorthand.key_parts(value)
    return _unless_limit(info, "the entries to count by, such as api_key | ip, or [] for one counter")


def _quota(value: object, info: ValidationInfo) -> tuple[Quota, ...]:
    if value is not None:
        return shorthand.quotas(value)
    return _unless_limit(info, "a quota, such as 100/minute")


def _unless_limit(info: ValidationInfo, expected: str) -> tuple[()]:
    """Return nothing, in a rule that may omit this field."""
    if info.data.get("action") == "limit":
        raise flawed(HIDDEN, expected, "missing")
    return ()


class Rule(_Record):
    """One rule. Rules are evaluated by `order`, then in the order of the file.

    All `limit` rules that match are one request: all are charged or none. A matching `deny` or `allow` decides alone;
    of several the first. A matching rule with `stop` is the last.
    """

    id: Name
    """The name of the rule and of its counters: a renamed rule starts with new counters."""
    description: Line | None = None
    """What the rule is for."""
    order: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Rules with a smaller number come first."""
    action: Literal["limit", "deny", "allow"] = "limit"
    """Whether matching requests are counted, refused, or allowed."""
    match: Annotated[Condition | None, PlainValidator(shorthand.condition), WithJsonSchema({})] = None
    """The requests that the rule applies to; by default all."""
    key: Annotated[tuple[KeyPart, ...], PlainValidator(_key), WithJsonSchema(schema_shapes.KEY)] = Field(
        default=None, validate_default=True
    )
    """Which requests are counted together: entries, `|` for "or else"; [] for one counter."""
    quotas: Annotated[tuple[Quota, ...], PlainValidator(_quota), WithJsonSchema(schema_shapes.QUOTAS)] = Field(
        default=None, validate_default=True, alias="quota"
    )
    """How much is allowed, in which time; of several quotas, all must have room."""
    cost: Annotated[int | CostFrom, PlainValidator(_cost, json_schema_input_type=Cost | CostFrom)] = 1
    """The cost of a request: a number, or an entry that contains it."""
    tiers: Tiers | None = None
    """Other quotas for the requests of some tiers."""
    mode: Literal["enforce", "shadow", "off"] = "enforce"
    """Whether the rule is enforced, only reports what it would refuse, or is ignored."""
    on_failure: Literal["local", "open", "closed"] | None = None
    """What happens if the store cannot answer: this host counts for itself, admits all requests, or refuses them."""
    deadline: Annotated[float | None, PlainValidator(shorthand.seconds), WithJsonSchema(schema_shapes.DURATION)] = None
    """The timeout of the store, such as 20ms."""
    priority: Literal["critical", "high", "normal", "low"] = "normal"
    """The priority of matching requests while load is shed."""
    stop: bool = False
    """Whether later rules are skipped for requests that match this one."""
    shared: Name | None = None
    """The name of a counter that several rules share; by default each rule has its own."""
    response: Response = Response()
    """What clients see."""
    tags: Annotated[tuple[Name, ...], Field(strict=False, max_length=MAX_TAGS)] = ()
    """Names for finding rules."""

    @model_validator(mode="after")
    def _consistent(self) -> Rule:
        flaws = list(_unaffordable(self) if self.action == "limit" else _meaningless(self))
        if flaws:
            raise Flawed(*flaws)
        return self


class Override(_Record):
    """Other quotas of one rule for requests whose entries have one of the values in `for`, until an instant."""

    rule: Name
    """The id of the rule."""
    who: Annotated[Mapping[str, tuple[str, ...]], PlainValidator(shorthand.who), WithJsonSchema(schema_shapes.WHO)] = (
        Field(alias="for", repr=False)
    )
    """Entries and their values; of several entries, all must match."""
    quotas: Annotated[Quotas, Field(alias="quota")]
    """The quotas that replace those of the rule and its tiers."""
    until: Annotated[datetime, PlainValidator(shorthand.instant), WithJsonSchema(schema_shapes.INSTANT)]
    """When the override ends, with an offset from UTC."""
    description: Line | None = None
    """What the override is for."""

    @property
    def until_us(self) -> Micros:
        """The first instant at which the override no longer holds."""
        return round(self.until.timestamp() * SECOND)


def _at_most_rules(value: object) -> object:
    """Check the number of rules before they are read, because reading too many is slow."""
    if isinstance(value, list | tuple) and len(value) > MAX_RULES:
        raise flawed(HIDDEN, f"at most {MAX_RULES}", f"{len(value)} of them")
    return value


class RuleFile(_Record):
    """The content of a file of rules."""

    rules: Annotated[tuple[Rule, ...], Field(strict=False), BeforeValidator(_at_most_rules)] = ()
    """The rules."""
    overrides: Annotated[tuple[Override, ...], Field(strict=False), BeforeValidator(_at_most_rules)] = ()
    """Exceptions that end at an instant."""
    entries: Mapping[Entry, EntryOptions] = Field(default_factory=dict)
    """How the texts of entries are normalised."""
    empty: bool = False
    """True if the file is meant to have no rules."""

    def options(self, entry: str) -> EntryOptions:
        """Return how the texts of this entry are normalised."""
        options = self.entries.get(entry, EntryOptions())
        if entry == ADDRESS and options.ipv6_prefix is None:
            return options.model_copy(update={"ipv6_prefix": IPV6_PREFIX})
        return options

    @model_validator(mode="after")
    def _consistent(self) -> RuleFile:
        ids = {rule.id: at for at, rule in enumerate(self.rules)}
        flaws = [
            *emptiness(len(self.rules), self.empty),
            *repeated_ids((at, rule.id) for at, rule in enumerate(self.rules)),
            *lost_overrides(((at, one.rule) for at, one in enumerate(self.overrides)), ids),
            *_overrides(self),
            *_shared(self.rules),
            *_shared_costs(self),
            *_no_addresses(self),
        ]
        if flaws:
            raise Flawed(*flaws)
        return self


# ---------------------------------------------------------------- checks across fields


def _unaffordable(rule: Rule) -> Iterable[Flaw]:
    yield from _too_dear(rule.cost, rule.quotas)
    for name, quotas in rule.tiers.quotas.items() if rule.tiers else ():
        yield from _too_dear(rule.cost, quotas, f" of tiers.quota.{name}")


def _meaningless(rule: Rule) -> Iterable[Flaw]:
    fields = type(rule).model_fields
    for field in LIMIT_ONLY:
        if field in rule.model_fields_set:
            yield Flaw((fields[field].alias or field,), HIDDEN, f"no effect with action {rule.action}", "none")
    if rule.action == "allow" and rule.mode == "shadow":
        yield Flaw(("mode",), rule.mode, "no effect with action allow", "enforce or off")


def _too_dear(cost: int | CostFrom, quotas: Collection[Quota], whose: str = "") -> Iterable[Flaw]:
    """Yield costs that could never be admitted."""
    most, path = (cost.most, ("cost", "most")) if isinstance(cost, CostFrom) else (cost, ("cost",))
    for quota in quotas:
        if not quota.flat and most > quota.capacity:
            yield Flaw(path, most, f"never fits {str(quota)!r}{whose}", f"at most {quota.capacity}")


def emptiness(rules: int, said: bool) -> Iterable[Flaw]:
    """Yield a flaw if a file without rules lacks `empty: true`, or one with rules has it."""
    if not rules and not said:
        yield Flaw(("rules",), HIDDEN, "no rules", "at least one rule, or empty: true if no limits at all are meant")
    if rules and said:
        yield Flaw(("empty",), True, "there are rules", "no empty: true in a file with rules")


def repeated_ids(ids: Iterable[tuple[int, str]]) -> Iterable[Flaw]:
    """Yield repeated ids, because an id names the counters of its rule."""
    first: dict[str, int] = {}
    for at, name in ids:
        if first.setdefault(name, at) != at:
            yield Flaw(("rules", at, "id"), name, f"repeated: also the id of rules[{first[name]}]", "a unique id")


def lost_overrides(names: Iterable[tuple[int, str]], known: Collection[str]) -> Iterable[Flaw]:
    """Yield overrides of rules that do not exist."""
    first = tuple(known)
    lost = ((at, name) for at, name in names if name not in known)
    for at, name in islice(lost, MAX_FLAWS):
        yield Flaw(("overrides", at, "rule"), name, *unknown("rule", name, first))


def _overrides(file: RuleFile) -> Iterable[Flaw]:
    rules = {rule.id: rule for rule in file.rules}
    for at, override in enumerate(file.overrides):
        rule = rules.get(override.rule)
        if rule is None:
            continue
        if rule.action != "limit":
            problem = f"{rule.id} has action {rule.action}"
            yield Flaw(("overrides", at, "rule"), override.rule, problem, "a rule that has a quota")
        for flaw in _too_dear(rule.cost, override.quotas):
            problem = f"cost {flaw.value} of {rule.id} {flaw.problem}"
            yield Flaw(("overrides", at, "quota"), HIDDEN, problem, f"room for {flaw.value}")


def _shared(rules: Iterable[Rule]) -> Iterable[Flaw]:
    """Yield rules that share a counter by different keys, and so would not share it."""
    keys: dict[str, Rule] = {}
    for at, rule in enumerate(rules):
        if rule.shared is None:
            continue
        other = keys.setdefault(rule.shared, rule)
        if other.key != rule.key:
            problem = f"{other.id} shares {rule.shared} by another key"
            expected = f"[{', '.join(' | '.join(part) for part in other.key)}]"
            yield Flaw(("rules", at, "key"), HIDDEN, problem, expected)


def _shared_costs(file: RuleFile) -> Iterable[Flaw]:
    """Yield costs that never fit a shared counter, which is asked with the smallest limit and the largest cost."""
    overrides: dict[str, list[Quota]] = {}
    for override in file.overrides:
        overrides.setdefault(override.rule, []).extend(override.quotas)
    costs: dict[tuple[str, object], tuple[int, int]] = {}
    limits: dict[tuple[str, object], tuple[int, str, str]] = {}
    for at, rule in enumerate(file.rules):
        if rule.shared is None:
            continue
        cost = rule.cost if isinstance(rule.cost, int) else rule.cost.most
        tiers = rule.tiers.quotas.values() if rule.tiers else ()
        quotas = [*rule.quotas, *(quota for some in tiers for quota in some), *overrides.get(rule.id, ())]
        for part in [part for quota in quotas for part in quota.parts if not part.flat]:
            counter = rule.shared, part.identity
            costs[counter] = max(costs.get(counter, (0, 0)), (cost, -at))
            limit = part.capacity, str(part), rule.id
            limits[counter] = min(limits.get(counter, limit), limit)
    for counter, (cost, at) in costs.items():
        capacity, quota, other = limits[counter]
        if cost > capacity and other != file.rules[-at].id:
            path = ("rules", -at, "cost")
            yield Flaw(path, cost, f"never fits {quota!r} of {other}, which shares {counter[0]}", f"at most {capacity}")


def _no_addresses(file: RuleFile) -> Iterable[Flaw]:
    """Yield values compared with an address that are none, such as a network without `cidr`: they never match."""
    expected = "an address; for a network {cidr: ...}"
    for at, rule in enumerate(file.rules):
        for entry, value in _compared(rule.match):
            if _is_no_address(file, entry, value):
                yield Flaw(("rules", at, "match"), value, f"{entry} is an address, and this is none", expected)
    for at, override in enumerate(file.overrides):
        for entry, values in override.who.items():
            if any(_is_no_address(file, entry, value) for value in values):
                yield Flaw(("overrides", at, "for", entry), HIDDEN, "not an address", "addresses")


def _is_no_address(file: RuleFile, entry: str, value: str) -> bool:
    return file.options(entry).ipv6_prefix is not None and address_of(value) is None


def _compared(condition: Condition | None) -> Iterable[tuple[str, str]]:
    """Yield the entries that a condition compares with whole texts, and these texts."""
    if isinstance(condition, Equals):
        yield condition.entry, condition.value
    elif isinstance(condition, OneOf):
        yield from ((condition.entry, value) for value in condition.values)
    elif isinstance(condition, Not):
        yield from _compared(condition.condition)
    elif isinstance(condition, All | Any):
        for inner in condition.conditions:
            yield from _compared(inner)

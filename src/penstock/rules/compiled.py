"""A compiled rule: the key of its counter, the quotas that apply, and the asks of a request.

**The key of a counter** begins with the id of its rule, or with the name under which rules share it. Then comes one
part per key part of the rule: the first of its entries that is present, marked with its name. If none is present, the
part consists of the names alone. So requests that lack the entries share one counter, and none escapes the limit by
leaving an entry out. Conditions, tiers and amounts of the rule are not in the key. (A single part is joined to the id
by a space, which no id and no name contains, because a string caches its hash and a tuple does not.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.model import Key, Posed, check_fits
from penstock.quota import Quota
from penstock.rules.entries import ABSENT, MAX_PART, key_part
from penstock.rules.index import Slots, Values

if TYPE_CHECKING:
    from penstock.rules.model import CostFrom, Override, Rule

_MOST_DIGITS = 18

_Alternatives: TypeAlias = tuple[tuple[int, str, int | None], ...]
"""The entries for one part of a key: slot, mark (`ip=`), and the bits to which IPv6 addresses are folded."""


class _Override(NamedTuple):
    """Other quotas until an instant, for requests that have one of these texts in each of these slots."""

    at: int  # its position: of several that hold, the first in the file applies
    until: Micros
    who: tuple[tuple[int, frozenset[str]], ...]
    quotas: tuple[Quota, ...]

    def holds(self, values: Values, now: Micros) -> bool:
        return now < self.until and all([values[slot] in texts for slot, texts in self.who])  # noqa: C419


class CompiledRule:
    """A rule as it is applied; `rule` is its declaration."""

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
        "hidden",
        "id",
        "position",
        "rule",
    )

    def __init__(self, rule: Rule, position: int, overrides: Sequence[Override], slots: Slots) -> None:
        self.rule = rule
        self.id = rule.id
        self.position = position
        self.advisory = rule.mode == "shadow"
        self.hidden = rule.response.headers == "hidden"
        self.deadline: Micros | None = None if rule.deadline is None else round(rule.deadline * SECOND)
        # A shared name cannot be mistaken for an id, which begins with a letter or digit.
        self._scope = rule.id if rule.shared is None else f"={rule.shared}"
        self._parts = tuple(_part(entries, slots) for entries in rule.key or ())
        self._quotas = _counters(rule.quotas)
        self._tier_slot = slots.text(rule.tiers.by) if rule.tiers else -1
        read_tier = slots.read(rule.tiers.by) if rule.tiers else str
        tiers = rule.tiers.quotas.items() if rule.tiers else ()
        self._tiers = {read_tier(name): _counters(quotas) for name, quotas in tiers}
        self._overrides = _by_value([_override(at, one, slots) for at, one in enumerate(overrides)])
        self._cost_slot = -1 if isinstance(rule.cost, int) else slots.text(rule.cost.entry)

    @property
    def action(self) -> str:
        return self.rule.action

    def key(self, values: Values) -> Key:
        """Return the key of the counter of a request."""
        parts = [_key_part(alternatives, values) for alternatives in self._parts]
        if len(parts) > 1:
            return (self._scope, *parts)
        return f"{self._scope} {parts[0]}" if parts else self._scope

    def key_in_words(self, values: Values, shape: Callable[[str], str]) -> str:
        """Describe the entries of the key, with values described by `shape`."""
        words = []
        for part in self._parts:
            found = [(mark, values[slot]) for slot, mark, _ in part if values[slot]]
            names = " | ".join([mark[:-1] for _, mark, _ in part])
            words.append(f"{found[0][0][:-1]} ({shape(found[0][1])})" if found else f"{names} (absent)")
        shared = "" if self.rule.shared is None else f", shared as {self.rule.shared}"
        return (", ".join(words) or "nothing: one counter for all requests") + shared

    def quotas(self, values: Values, now: Micros) -> tuple[Quota, ...]:
        """Return the quotas that apply: those of an override, of the tier, or the rule's own."""
        first: _Override | None = None
        for slot, by_value in self._overrides:
            for override in by_value.get(values[slot], ()):
                if override.holds(values, now):
                    first = override if first is None or override.at < first.at else first
                    break
        if first is not None:
            return first.quotas
        return self._tiers.get(values[self._tier_slot], self._quotas) if self._tiers else self._quotas

    def cost(self, values: Values) -> int:
        """Return what one unit of a request costs."""
        cost = self.rule.cost
        if isinstance(cost, int):
            return cost
        return _cost(cost, values[self._cost_slot])

    def asks(self, values: Values, cost: int, now: Micros) -> list[Posed]:
        """Return the asks of a request that costs `cost`."""
        units = cost * self.cost(values)
        key = self.key(values)
        if self.advisory:  # shadow mode must not raise: a cost that never fits asks for the capacity
            return [
                (key, quota, 1 if quota.flat else min(units, quota.capacity), True)
                for quota in self.quotas(values, now)
            ]
        return [
            (key, quota, 1 if quota.flat or units == 1 else check_fits(units, quota), False)
            for quota in self.quotas(values, now)
        ]

    def fixed_asks(self) -> list[Posed]:
        """Return the asks of a rule with one counter for all requests, if they never vary."""
        if self._parts or self._varies():
            return []
        return [(self._scope, quota, 1, self.advisory) for quota in self._quotas]

    def _varies(self) -> bool:
        return bool(self._tiers or self._overrides or self.rule.cost != 1)

    def short_ways(self) -> list[ShortWay]:
        """Return how to ask with less work, for most rules: a key of one part, and quotas and cost that never vary."""
        if len(self._parts) != 1 or self._varies():
            return []
        (slot, mark, ipv6_prefix), *_ = self._parts[0]
        most, folds, begin = MAX_PART - len(mark), ipv6_prefix is not None, f"{self._scope} {mark}"
        return [(slot, most, folds, begin, self, quota, self.advisory) for quota in self._quotas]


ShortWay: TypeAlias = tuple[int, int, bool, str, CompiledRule, Quota, bool]
"""Slot of the first entry, longest text, whether it is folded; beginning of the key; rule, quota, advisory."""


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


def _override(at: int, override: Override, slots: Slots) -> _Override:
    who = tuple(
        (slots.text(entry), frozenset(slots.read(entry)(text) for text in texts) - {ABSENT})
        for entry, texts in override.who.items()
    )
    return _Override(at, override.until_us, who, _counters(override.quotas))


def _by_value(overrides: Sequence[_Override]) -> tuple[tuple[int, dict[str, list[_Override]]], ...]:
    """Index overrides by their first entry and its value, so that a thousand of them cost no more than one."""
    tables: dict[int, dict[str, list[_Override]]] = {}
    for override in overrides:
        slot, texts = override.who[0]
        for text in texts:
            tables.setdefault(slot, {}).setdefault(text, []).append(override)
    return tuple(tables.items())


def _cost(cost: CostFrom, text: str) -> int:
    """Return the cost in an entry, within its bounds: the default if absent, the most if it is no number."""
    if not text:
        return cost.least if cost.default is None else cost.default
    if not (text.isascii() and text.isdigit()):
        return cost.most
    return cost.most if len(text) > _MOST_DIGITS else min(max(int(text), cost.least), cost.most)

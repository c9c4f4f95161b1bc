"""A compiled set of rules: turns a descriptor into a plan of asks.

A `RuleSet` is immutable. To change rules, compile another set and replace the first; requests that began with the old
set finish with it. Its `version` depends on its content alone, so all processes with the same rules have the same one.

**Which rules apply.** Rules are evaluated in their order. A matching rule with `stop` is the last. A matching `deny` or
`allow` rule decides alone, whatever limits match before or after it; of several the first. All other matching rules are
one request: all are charged or none. If no rule matches, no counter is asked, and the request may pass.

**Freeing old sets.** Freeing ten thousand rules at once takes some 30 milliseconds, in which no other thread of the
process runs, and the last request on an old set would pay for it. So a set that is dropped leaves its parts in
`retired`, and each later request frees two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.clock import Micros
from penstock.errors import InvalidRequest
from penstock.model import check_units, new
from penstock.rules.compiled import CompiledRule
from penstock.rules.entries import ABSENT
from penstock.rules.index import Index, Slots, Values
from penstock.rules.plan import Course, Plan, course_of, merged

if TYPE_CHECKING:
    from penstock.rules.model import Override, RuleFile


Descriptor: TypeAlias = Mapping[str, Any]
"""What is known of a request: names of entries, and their texts."""

K = TypeVar("K")

MAX_REMEMBERED = 2_048
MAX_REMEMBERED_TEXT = 256
_VERSION_BYTES = 8

retired: list[list[Any]] = []
"""Lists whose contents are freed bit by bit."""

AT_ONCE = 2
MOST = 64
"""How many lists may be retired, those of some ten sets. Without requests none is freed bit by bit, but at once."""

SMALL = 256
"""Lists of no more parts are freed at once, which takes less time than a dozen decisions."""


def retire(*lists: list[Any]) -> None:
    """Have the contents of these lists freed bit by bit. They must not be used elsewhere."""
    retired.extend([parts for parts in lists if len(parts) > SMALL])
    del retired[:-MOST]


def sweep() -> None:
    """Free some parts of retired lists."""
    try:
        parts = retired[-1]
        del parts[-AT_ONCE:]
        if not parts:
            retired.remove(parts)
    except (IndexError, ValueError):  # another thread has freed them
        pass


class RuleSet:
    """Compiled rules; `version` identifies their content."""

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
        self._decisive = len(self.slots.names)  # slots of conditions come before those of keys
        self.rules = tuple(
            CompiledRule(rule, position, overrides.get(rule.id, ()), self.slots) for position, rule in enumerate(live)
        )
        self._names, self._reads, self._special = self.slots.names, self.slots.reads(), self.slots.special()
        self._courses: dict[tuple[int, ...], Course] = {}
        self._remembered: dict[tuple[Any, ...], Course] = {}  # by the values of all slots of conditions

    def __len__(self) -> int:
        return len(self.file.rules)

    def __repr__(self) -> str:
        return f"<RuleSet {self.version}: {len(self)} rules>"

    def __del__(self) -> None:
        try:
            retire([*self.rules], *self._index.parts())
        except (AttributeError, TypeError):  # __init__ failed; or the interpreter is shutting down
            pass

    def read(self, descriptor: Descriptor) -> Values:
        """Return the values of the entries that the rules use, in normal form."""
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
        except TypeError:  # a value that is no text, or None
            pass
        return [read(value) for read, value in zip(self._reads, values, strict=True)]

    def matching(self, values: Values) -> tuple[int, ...]:
        """Return the positions of all rules that match, in order."""
        tests = self._index.tests
        matched = []
        for position in self._index.find(values):
            test = tests[position]
            if test is None or test(values):
                matched.append(position)
        return tuple(matched)

    def _follow(self, values: Values, decisive: tuple[Any, ...]) -> Course:
        """Return what the matching rules imply, and cache it, because many requests look alike to the rules."""
        matched = self.matching(values)
        course = self._courses.get(matched)
        if course is None:
            course = _kept(
                self._courses, matched, course_of([self.rules[position] for position in matched], self.version)
            )
        for text in decisive:
            if text.__class__ is str and len(text) > MAX_REMEMBERED_TEXT:
                return course
        return _kept(self._remembered, decisive, course)

    def match(self, descriptor: Descriptor, now: Micros, cost: int = 1) -> Plan:
        """Return the plan of a request: its asks, and the rule behind each."""
        if retired:
            sweep()
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
                if text and len(text) <= most and not (folds and ":" in text):
                    asks.append((mark + text, quota, 1, advisory))
                else:
                    asks.append((rule.key(values), quota, 1, advisory))
            return new(Plan, (course, tuple(asks), owners))
        return self._plan(course, values, check_units("cost", cost, least=1), now)

    def _plan(self, course: Course, values: Values, cost: int, now: Micros) -> Plan:
        pairs = [(ask, rule) for rule in course.limits for ask in rule.asks(values, cost, now)]
        if course.may_collide:
            pairs = merged(pairs)
        return Plan(course, tuple([ask for ask, _ in pairs]), tuple([rule for _, rule in pairs]))


def _kept(memory: dict[K, Course], name: K, course: Course) -> Course:
    if len(memory) >= MAX_REMEMBERED:
        memory.clear()
    memory[name] = course
    return course


def _version(file: RuleFile) -> str:
    """Return a digest of the content of a file, the same in every process."""
    said = ([vars(rule) for rule in file.rules], [vars(one) for one in file.overrides], vars(file)["entries"])
    return blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=_VERSION_BYTES).hexdigest()

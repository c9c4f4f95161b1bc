"""A compiled set of rules: from a descriptor to what is asked of the store.

A `RuleSet` never changes. To change rules, compile another one and put it in the place of the first; whoever has begun
with the old one finishes with it. Its `version` follows from its content alone, so every process that read the same
rules names the same version.

**Which rules apply.** Rules are looked at in their order. A matching rule with `stop` is the last that is looked at. A
matching `deny` or `allow` rule decides alone, whatever limits match before or after it; of several the first. All other
matching rules are one request: all are charged or none. Nothing matching, nothing is asked, and the request may pass.
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


# ---------------------------------------------------------------- retiring


# Sets of rules that nobody uses any more are taken apart a little at a time.
#
# Freeing ten thousand rules at once takes some 30 milliseconds in which no other thread of the process runs, and it is
# whoever finishes last with an old set who would pay for it. So a set that is dropped leaves its parts here, and each
# later request throws two of them away.


retired: list[list[Any]] = []
"""Lists of parts that are only waiting to be thrown away."""

AT_ONCE = 2
MOST = 64
"""So many lists may wait, those of some ten sets; where nobody asks, nobody sweeps, and more are freed at once."""

SMALL = 256
"""So few are freed in less time than a decision takes to be made some dozen times; they are not worth the trouble."""


def retire(*lists: list[Any]) -> None:
    """Let the contents of these lists be freed bit by bit. Nobody else may use them."""
    retired.extend([parts for parts in lists if len(parts) > SMALL])
    del retired[:-MOST]


def sweep() -> None:
    """Free a little of what is there."""
    try:
        parts = retired[-1]
        del parts[-AT_ONCE:]
        if not parts:
            retired.remove(parts)
    except (IndexError, ValueError):  # another thread was quicker
        pass


# ---------------------------------------------------------------- ruleset


Descriptor: TypeAlias = Mapping[str, Any]
"""What is known of a request: names of entries, and their texts."""

K = TypeVar("K")

MAX_REMEMBERED = 2_048
MAX_REMEMBERED_TEXT = 256
_VERSION_BYTES = 8


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

    def __del__(self) -> None:
        try:
            retire([*self.rules], *self._index.parts())
        except (AttributeError, TypeError):  # it was never finished; or the interpreter is about to end
            pass

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
                self._courses, matched, course_of([self.rules[position] for position in matched], self.version)
            )
        for text in decisive:
            if text.__class__ is str and len(text) > MAX_REMEMBERED_TEXT:
                return course
        return _kept(self._remembered, decisive, course)

    def match(self, descriptor: Descriptor, now: Micros, cost: int = 1) -> Plan:
        """What a request is to ask, and of whom."""
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
    """A name for what a file says: the same in every process, and another as soon as anything differs."""
    said = ([vars(rule) for rule in file.rules], [vars(one) for one in file.overrides], vars(file)["entries"])
    return blake2b(repr(said).encode("utf-8", "backslashreplace"), digest_size=_VERSION_BYTES).hexdigest()

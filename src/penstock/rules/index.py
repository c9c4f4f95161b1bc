"""An index of conditions, which finds those that hold for a descriptor without trying each of them.

**Slots.** The entries that rules use are numbered. A descriptor is read once into a list of values by these numbers
(`penstock.rules.entries`); everything else works on that list.

**Anchors.** For each condition the index picks a part that must hold for the whole to hold and that can be looked up:
an equal text by hash, a prefix or a network by binary search, a pattern by a walk along the segments of the value. Of
several such parts it takes the one that the fewest other conditions share. A condition without such a part (`Not`, or
no condition) is tried on every request.

**Tests.** Conditions that their anchor does not decide are then tested, each in time linear in the value, without
backtracking.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from typing import Any as Anything

from penstock.rules.conditions import All, Any, Cidr, Condition, Equals, Glob, Not, OneOf, Prefix, Present
from penstock.rules.entries import ABSENT, Read, reader
from penstock.rules.globs import GlobTree
from penstock.rules.networks import NetworkTable, Positions, number_of, range_of

if TYPE_CHECKING:
    from penstock.rules.model import EntryOptions

Values: TypeAlias = list[Anything]
"""The values of a descriptor by slot: a text, empty if absent; or the number of an address, None if there is none."""

Test: TypeAlias = Callable[[Values], bool]


class Slots:
    """The entries that rules use, and the slots of their values."""

    def __init__(self, options: Callable[[str], EntryOptions]) -> None:
        self._options = cache(options)
        self._reads: dict[str, Read] = {}
        self._plain: dict[str, bool] = {}
        self._numbers: dict[tuple[str, bool], int] = {}

    def text(self, entry: str) -> int:
        """Return the slot of the entry's text."""
        return self._numbers.setdefault((entry, False), len(self._numbers))

    def address(self, entry: str) -> int:
        """Return the slot of the entry's number as an address."""
        self.text(entry)
        return self._numbers.setdefault((entry, True), len(self._numbers))

    def read(self, entry: str) -> Read:
        """Return the function that reads the entry, in descriptors and in rules alike."""
        if entry not in self._reads:
            how = self._options(entry)
            address = how.ipv6_prefix is not None
            self._reads[entry] = reader(entry, fold_case=how.fold_case, nfc=how.nfc, address=address)
            self._plain[entry] = not (address or how.fold_case)
        return self._reads[entry]

    def ipv6_prefix(self, entry: str) -> int | None:
        return self._options(entry).ipv6_prefix

    @property
    def names(self) -> tuple[str, ...]:
        """The entries to read, slot by slot."""
        return tuple(entry for entry, _ in self._numbers)

    def reads(self) -> tuple[Read, ...]:
        """Return the functions that read any value of a caller, slot by slot."""
        return tuple(_number(self.read(entry)) if as_number else self.read(entry) for entry, as_number in self._numbers)

    def special(self) -> tuple[tuple[int, Read], ...]:
        """Return the functions for slots in which even ASCII text is not taken as it is."""
        specials = [as_number or not self._plain[entry] for entry, as_number in self._numbers]
        return tuple((slot, read) for slot, read in enumerate(self.reads()) if specials[slot])


def _number(read: Read) -> Callable[[object], Anything]:
    def read_number(value: object) -> int | None:
        return number_of(read(value))

    return read_number


class Term(NamedTuple):
    """A look-up: its kind, the slot, and the value sought."""

    how: str  # "equal", "prefix", "glob", "network", "present", "absent"
    slot: int
    what: Hashable = None


class _Anchor(NamedTuple):
    """Terms of which at least one is found if the condition holds; `exact` if the reverse is true as well."""

    terms: tuple[Term, ...]
    exact: bool


_Option: TypeAlias = tuple[Condition, _Anchor]
"""A part of a condition that could be looked up, and how."""


class Index:
    """Compiled conditions by position; the condition None always holds."""

    def __init__(self, conditions: Sequence[Condition | None], slots: Slots) -> None:
        self.tests: list[Test | None] = []  # what remains to be tested once the anchor was found
        options = [[] if condition is None else _options(condition, slots) for condition in conditions]
        shared = Counter([term for some in options for _, anchor in some for term in anchor.terms])
        self._always: list[int] = []
        terms: list[tuple[Term, int]] = []
        for position, condition in enumerate(conditions):
            anchor, test = _compile(condition, options[position], slots, shared)
            self.tests.append(test)
            if anchor is None:
                self._always.append(position)
            else:
                terms += [(term, position) for term in dict.fromkeys(anchor.terms)]
        self._may_repeat = len({position for _, position in terms}) < len(terms)
        self._lookups = _lookups(terms)
        self._equal = list(_equal_tables(terms).items())

    def parts(self) -> list[list[Anything]]:
        """Return the lists that the index consists of, so that they can be freed bit by bit."""
        return [self.tests, *([*table.values()] for _, table in self._equal), *_contents(self._lookups)]

    def find(self, values: Values) -> list[int]:
        """Return the positions of all conditions whose anchor is found, in order; `tests` remain to be applied."""
        hits = self._always[:]
        for slot, table in self._equal:
            found = table.get(values[slot])
            if found is not None:
                hits += found
        for slot, find in self._lookups:
            hits += find(values[slot])
        if self._may_repeat:
            return sorted(set(hits))
        hits.sort()
        return hits


def _compile(
    condition: Condition | None, options: Sequence[_Option], slots: Slots, shared: Mapping[Term, int]
) -> tuple[_Anchor | None, Test | None]:
    """Return the least shared anchor of a condition, and the test of what it leaves undecided."""
    if condition is None:
        return None, None
    if not options:
        return None, compile_test(condition, slots)
    decided, anchor = min(options, key=lambda option: _dearness(option[1], shared))
    parts = _conjuncts(condition)
    left = [part for part in parts if part is not decided or not anchor.exact]
    return anchor, _all([compile_test(part, slots) for part in left]) if left else None


_DEARNESS = {"equal": 0, "network": 1, "prefix": 2, "glob": 3, "present": 4, "absent": 5}


def _dearness(anchor: _Anchor, shared: Mapping[Term, int]) -> tuple[int, int, int]:
    most = max((shared[term] for term in anchor.terms), default=0)
    return most, max((_DEARNESS[term.how] for term in anchor.terms), default=0), len(anchor.terms)


def _conjuncts(condition: Condition) -> tuple[Condition, ...]:
    """Return the parts that must all hold."""
    if isinstance(condition, All):
        return tuple(part for inner in condition.conditions for part in _conjuncts(inner))
    return (condition,)


def _options(condition: Condition, slots: Slots) -> list[_Option]:
    """Return every part of a condition that could be its anchor."""
    anchors = [(part, _anchor(part, slots)) for part in _conjuncts(condition)]
    return [(part, anchor) for part, anchor in anchors if anchor is not None]


def _anchor(part: Condition, slots: Slots) -> _Anchor | None:
    """Return the anchor of a condition other than `All`; None if it cannot be looked up."""
    if isinstance(part, Any):
        anchors = [_any_anchor(inner, slots) for inner in part.conditions]
        found = [anchor for anchor in anchors if anchor is not None]
        if len(found) < len(anchors) or not found:
            return None
        return _Anchor(tuple(term for one in found for term in one.terms), all(one.exact for one in found))
    if isinstance(part, Not):
        inner = part.condition
        return _anchor(Present(inner.entry, not inner.wanted), slots) if isinstance(inner, Present) else None
    if isinstance(part, All):
        raise AssertionError("conjuncts are never All")
    return _Anchor(tuple(_terms(part, slots)), exact=True)


def _any_anchor(inner: Condition, slots: Slots) -> _Anchor | None:
    """Return the anchor of one alternative: the first conjunct that can be looked up."""
    options = _options(inner, slots)
    if not options:
        return None
    anchor = options[0][1]
    return _Anchor(anchor.terms, anchor.exact and len(_conjuncts(inner)) == 1)


def _terms(leaf: Equals | OneOf | Prefix | Glob | Cidr | Present, slots: Slots) -> Iterable[Term]:
    entry = leaf.entry
    if isinstance(leaf, Cidr):
        slot = slots.address(entry)
        return [Term("network", slot, range_of(network)) for network in leaf.networks]
    slot, read = slots.text(entry), slots.read(entry)
    if isinstance(leaf, Equals):
        return [Term("equal", slot, read(leaf.value))]
    if isinstance(leaf, OneOf):
        return [Term("equal", slot, read(value)) for value in leaf.values]
    if isinstance(leaf, Prefix):
        return [Term("prefix", slot, read_fragment(read, leaf.text))]
    if isinstance(leaf, Glob):
        return [Term("glob", slot, read_fragment(read, leaf.pattern))]
    return [Term("present" if leaf.wanted else "absent", slot)]


def read_fragment(read: Read, text: str) -> str:
    """Return the beginning of a value, or a pattern for it, in the form in which values are read.

    A fragment of an address is no address, so it is taken as it is.
    """
    return read(text) or text


# ---------------------------------------------------------------- looking up


def _equal_tables(terms: Iterable[tuple[Term, int]]) -> dict[int, dict[Hashable, Positions]]:
    tables: dict[int, dict[Hashable, list[int]]] = {}
    for term, position in terms:
        if term.how == "equal" and term.what:  # an absent value equals nothing
            tables.setdefault(term.slot, {}).setdefault(term.what, []).append(position)
    return {slot: {what: tuple(found) for what, found in table.items()} for slot, table in tables.items()}


def _lookups(terms: Sequence[tuple[Term, int]]) -> list[tuple[int, Callable[[Anything], Positions]]]:
    """Return the slots and functions of all look-ups but those of equal texts."""
    grouped: dict[tuple[str, int], list[tuple[Anything, int]]] = {}
    for term, position in terms:
        if term.how != "equal":
            grouped.setdefault((term.how, term.slot), []).append((term.what, position))
    return [(slot, _FINDERS[how](found)) for (how, slot), found in grouped.items()]


def _contents(lookups: Iterable[tuple[int, Callable[[Anything], Positions]]]) -> Iterable[list[Anything]]:
    tables = [getattr(find, "__self__", None) for _, find in lookups]
    return [part for table in tables for part in getattr(table, "lists", ())]


class PrefixTable:
    """Finds which of many prefixes a text begins with.

    In sorted order, the last prefix that is not greater than a text is the longest that the text begins with, or itself
    begins with that one.
    """

    def __init__(self, prefixes: Iterable[tuple[str, int]]) -> None:
        found: dict[str, list[int]] = {}
        for prefix, position in prefixes:
            found.setdefault(prefix, []).append(position)
        self._sorted = sorted(found)
        self._before: list[int] = []  # the index of the longest other prefix that this one begins with, or -1
        self._hits: list[Positions] = []  # of this prefix and of all that it begins with
        open_: list[int] = []
        for index, prefix in enumerate(self._sorted):
            while open_ and not prefix.startswith(self._sorted[open_[-1]]):
                open_.pop()
            self._before.append(open_[-1] if open_ else -1)
            self._hits.append((self._hits[open_[-1]] if open_ else ()) + tuple(found[prefix]))
            open_.append(index)

    @property
    def lists(self) -> tuple[list[Anything], ...]:
        return self._sorted, self._hits

    def find(self, text: str) -> Positions:
        """Return the positions of all prefixes of `text`."""
        index = bisect_right(self._sorted, text) - 1
        while index >= 0:
            if text.startswith(self._sorted[index]):
                return self._hits[index]
            index = self._before[index]
        return ()


def _present(found: Sequence[tuple[None, int]]) -> Callable[[Anything], Positions]:
    positions = tuple(position for _, position in found)
    return lambda value: positions if value else ()


def _absent(found: Sequence[tuple[None, int]]) -> Callable[[Anything], Positions]:
    positions = tuple(position for _, position in found)
    return lambda value: () if value else positions


_FINDERS: Mapping[str, Callable[[Anything], Callable[[Anything], Positions]]] = {
    "prefix": lambda found: PrefixTable(found).find,
    "glob": lambda found: GlobTree(found).find,
    "network": lambda found: NetworkTable(found).find,
    "present": _present,
    "absent": _absent,
}


# ---------------------------------------------------------------- testing


def compile_test(condition: Condition, slots: Slots) -> Test:
    """Return a function that tests a condition on the values of a descriptor."""
    if isinstance(condition, Not):
        inner = compile_test(condition.condition, slots)
        return lambda values: not inner(values)
    if isinstance(condition, All):
        return _all([compile_test(part, slots) for part in condition.conditions])
    if isinstance(condition, Any):
        tests = [compile_test(part, slots) for part in condition.conditions]
        return lambda values: any([test(values) for test in tests])  # noqa: C419  # a list is faster than a generator
    return _test(condition, slots)


def _all(tests: Sequence[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]

    def all_hold(values: Values) -> bool:
        for test in tests:  # noqa: SIM110  # a generator would cost more than the tests
            if not test(values):
                return False
        return True

    return all_hold


def _test(leaf: Equals | OneOf | Prefix | Glob | Cidr | Present, slots: Slots) -> Test:
    if isinstance(leaf, Cidr):
        slot = slots.address(leaf.entry)
        in_network = NetworkTable((range_of(network), 0) for network in leaf.networks).find
        return lambda values: bool(in_network(values[slot]))
    slot, read = slots.text(leaf.entry), slots.read(leaf.entry)
    if isinstance(leaf, Equals | OneOf):
        wanted = {leaf.value} if isinstance(leaf, Equals) else set(leaf.values)
        texts = frozenset(read(text) for text in wanted) - {ABSENT}
        return lambda values: values[slot] in texts
    if isinstance(leaf, Prefix):
        prefix = read_fragment(read, leaf.text)
        return lambda values: values[slot].startswith(prefix)
    if isinstance(leaf, Glob):
        fits = GlobTree([(read_fragment(read, leaf.pattern), 0)]).find
        return lambda values: bool(fits(values[slot]))
    if leaf.wanted:
        return lambda values: bool(values[slot])
    return lambda values: not values[slot]

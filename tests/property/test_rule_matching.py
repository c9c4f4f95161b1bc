"""The compiled index finds exactly the rules that a naive look at every condition finds; the glob tree what a regular
expression finds; the tables of networks what `ipaddress` finds."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Mapping
from random import Random
from typing import Any as Anything

from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.conditions import All, Any, Cidr, Condition, Equals, Glob, Network, Not, OneOf, Prefix, Present
from penstock.rules.globs import GlobTree
from penstock.rules.index import Index, PrefixTable, Slots
from penstock.rules.model import EntryOptions, Rule, RuleFile
from penstock.rules.networks import address_of, folded, number_of
from penstock.rules.ruleset import RuleSet

ENTRIES = ("path", "method", "tier", "ip")
PLAIN = EntryOptions(fold_case=False, nfc=False, ipv6_prefix=None)
FOLDED = EntryOptions(fold_case=True, nfc=True, ipv6_prefix=None)
ADDRESS = EntryOptions(fold_case=False, nfc=False, ipv6_prefix=64)
OPTIONS = {"path": PLAIN, "method": PLAIN, "tier": FOLDED, "ip": ADDRESS}

TEXTS = ("a", "b", "ab", "A", "a/b", "/a", "/a/b", "/a/b/", "é", "e\u0301", "a*", "ß", "SS")
SEGMENTS = ("", "a", "b", "ab", "aab", "é")
SHAPES = ("", "a", "b", "ab", "*", "**", "a*", "*b", "a*b", "a*a", "ab*b", "*a*", "*a*b*")
ADDRESSES = (
    *(f"10.0.0.{number}" for number in range(12)),
    *(f"::ffff:10.0.0.{number}" for number in range(12)),
    *(f"2001:db8:0:{number:x}::1" for number in range(12)),
    *("", "10.0.0", "10.0.0.01", "fe80::1%eth0", "nowhere", "::"),
)
NETWORKS: tuple[Network, ...] = (
    *(ipaddress.ip_network(("10.0.0.0", bits), strict=False) for bits in (0, 8, 28, 30, 32)),
    *(ipaddress.ip_network(("10.0.0.8", bits), strict=False) for bits in (28, 29, 32)),
    *(ipaddress.ip_network(("2001:db8:0:8::", bits), strict=False) for bits in (32, 60, 61, 64)),
    ipaddress.ip_network("::/0"),
)

seeds = st.integers(0, 2**64 - 1)
"""Rules and requests are made from a seed: a thousand at a time, where a strategy would take a minute over them."""


def _path(random: Random) -> str:
    return "/".join(random.choices(SEGMENTS, k=random.randint(1, 5))) or "/"


def _pattern(random: Random) -> str:
    return "/".join(random.choices(SHAPES, k=random.randint(1, 4))) or "*"


def _condition(random: Random, depth: int = 0) -> Condition:
    kind = random.random()
    if depth < 3 and kind < 0.1:
        return Not(_condition(random, depth + 1))
    if depth < 3 and kind < 0.45:
        inner = tuple(_condition(random, depth + 1) for _ in range(random.randint(1, 3)))
        return All(inner) if kind < 0.3 else Any(inner)
    entry = random.choice(ENTRIES)
    if kind > 0.9:
        return Present(entry, random.random() < 0.5)
    if entry == "ip":
        if kind < 0.6:
            return Equals(entry, random.choice(ADDRESSES) or "10.0.0.1")
        return Cidr(entry, tuple(random.choices(NETWORKS, k=random.randint(1, 3))))
    values = [_path(random) if entry == "path" else random.choice(TEXTS) for _ in range(3)]
    leaves: list[Condition] = [
        Equals(entry, values[0]),
        OneOf(entry, tuple(values)),
        Prefix(entry, values[0]),
        Glob(entry, _pattern(random)),
    ]
    return random.choice(leaves)


def _descriptor(random: Random) -> dict[str, str]:
    entries = {
        "path": _path(random),
        "method": random.choice(TEXTS),
        "tier": random.choice(TEXTS),
        "ip": random.choice(ADDRESSES),
    }
    return {name: value for name, value in entries.items() if random.random() < 0.8}


# ---------------------------------------------------------------- the naive matcher


def _value(descriptor: Mapping[str, str], entry: str) -> str:
    value = descriptor.get(entry, "")
    if entry == "tier":
        return unicodedata.normalize("NFC", unicodedata.normalize("NFC", value).casefold())
    if entry == "ip":
        address = _address(value)
        return "" if address is None else str(address)
    return value


def _address(text: str) -> Anything:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if "%" in text:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _fits(segments: list[str], shapes: list[str]) -> bool:
    """Whether a value fits a pattern, by trying everything: the definition, segment by segment."""
    if not shapes:
        return not segments
    if shapes[0] == "**":
        return any(_fits(segments[skipped:], shapes[1:]) for skipped in range(len(segments) + 1))
    shape = "[^/]*".join(re.escape(piece) for piece in shapes[0].split("*"))
    return bool(segments) and re.fullmatch(shape, segments[0]) is not None and _fits(segments[1:], shapes[1:])


def _holds(condition: Condition, descriptor: Mapping[str, str]) -> bool:
    if isinstance(condition, Not):
        return not _holds(condition.condition, descriptor)
    if isinstance(condition, All):
        return all(_holds(one, descriptor) for one in condition.conditions)
    if isinstance(condition, Any):
        return any(_holds(one, descriptor) for one in condition.conditions)
    value = _value(descriptor, condition.entry)
    if isinstance(condition, Present):
        return bool(value) is condition.wanted
    if not value:
        return False
    if isinstance(condition, Cidr):
        address = _address(value)
        return any(address.version == network.version and address in network for network in condition.networks)
    if isinstance(condition, Equals | OneOf):
        wanted = (condition.value,) if isinstance(condition, Equals) else condition.values
        return value in [_value({condition.entry: one}, condition.entry) for one in wanted]
    if isinstance(condition, Prefix):
        return value.startswith(_value({condition.entry: condition.text}, condition.entry))
    return _fits(value.split("/"), _value({condition.entry: condition.pattern}, condition.entry).split("/"))


# ---------------------------------------------------------------- the properties


@given(seeds)
def test_the_index_finds_what_a_naive_look_finds(seed: int) -> None:
    random = Random(seed)
    declared = [_condition(random) if random.random() < 0.95 else None for _ in range(random.randint(0, 15))]
    slots = Slots(lambda entry: OPTIONS[entry])
    index = Index(declared, slots)
    for descriptor in [_descriptor(random) for _ in range(8)]:
        values = [read(descriptor.get(name)) for name, read in zip(slots.names, slots.reads(), strict=True)]
        found = index.find(values)
        assert found == sorted(set(found))
        tests = [(position, index.tests[position]) for position in found]
        matched = [position for position, test in tests if test is None or test(values)]
        naive = [position for position, one in enumerate(declared) if one is None or _holds(one, descriptor)]
        assert matched == naive


@given(seeds)
def test_a_set_finds_what_a_naive_look_finds_the_second_time_too(seed: int) -> None:
    random = Random(seed)
    declared = [_condition(random) if random.random() < 0.95 else None for _ in range(random.randint(1, 10))]
    plain = {"key": "user", "quota": "9/minute"}
    rules = [
        Rule.model_validate({"id": f"r{at}", **plain} | ({"match": one} if one else {}))
        for at, one in enumerate(declared)
    ]
    file = RuleFile.model_construct(
        rules=tuple(rules),
        overrides=(),
        entries={"tier": EntryOptions(fold_case=True, nfc=True)},
        empty=False,
    )
    compiled = RuleSet(file)
    descriptors = [_descriptor(random) for _ in range(8)]
    for descriptor in descriptors * 2:
        naive = [f"r{at}" for at, one in enumerate(declared) if one is None or _holds(one, descriptor)]
        assert [rule.id for rule in compiled.match(descriptor, 0).course.limits] == naive


@given(seeds)
def test_the_tree_finds_what_trying_every_pattern_finds(seed: int) -> None:
    random = Random(seed)
    patterns = [_pattern(random) for _ in range(random.randint(0, 10))]
    tree = GlobTree((pattern, position) for position, pattern in enumerate(patterns))
    for path in [_path(random) for _ in range(8)]:
        fitting = [at for at, one in enumerate(patterns) if _fits(path.split("/"), one.split("/"))]
        assert sorted(tree.find(path)) == fitting


@given(seeds)
def test_the_table_finds_what_trying_every_prefix_finds(seed: int) -> None:
    random = Random(seed)
    prefixes = [_path(random) for _ in range(random.randint(0, 15))]
    table = PrefixTable((prefix, position) for position, prefix in enumerate(prefixes))
    for path in [_path(random) for _ in range(8)]:
        assert sorted(table.find(path)) == [at for at, prefix in enumerate(prefixes) if path.startswith(prefix)]


@given(seeds)
def test_addresses_are_read_as_ipaddress_reads_them(seed: int) -> None:
    random = Random(seed)
    number, bits = random.getrandbits(random.choice([32, 128])) >> random.choice([0, 16, 64]), random.randint(1, 128)
    address: Anything = ipaddress.ip_address(number)
    if address.version == 4 and random.random() < 0.5:
        address = ipaddress.ip_address(f"::ffff:{address}")
    real = getattr(address, "ipv4_mapped", None) or address
    canonical = address_of(str(address))
    assert canonical is not None
    assert ipaddress.ip_address(canonical) == real
    assert number_of(str(address)) == number_of(canonical) == number_of(address.exploded)
    fold = folded(canonical, bits)
    if real.version == 4:
        assert fold == canonical
    else:
        assert ipaddress.ip_network(fold) == ipaddress.ip_network((real, bits), strict=False)

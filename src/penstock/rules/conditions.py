"""Conditions of rules on descriptors, as immutable values. `penstock.rules.index` makes them fast.

A descriptor maps names of entries to texts. An entry that is missing or empty is *absent*. It fails every condition
except `Present(entry, wanted=False)`; so `Not(Equals("tier", "free"))` holds for a request without a tier.

`str(condition)` is the condition in words. It names entries and the values wanted, never those of a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network

SHOWN = 4  # how many values of a list are written out


@dataclass(frozen=True, slots=True)
class Equals:
    """The entry is this text."""

    entry: str
    value: str

    def __str__(self) -> str:
        return f"{self.entry} is {self.value!r}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """The entry is one of these texts."""

    entry: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.entry} is one of {_list([repr(value) for value in self.values])}"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The entry starts with this text."""

    entry: str
    text: str

    def __str__(self) -> str:
        return f"{self.entry} starts with {self.text!r}"


@dataclass(frozen=True, slots=True)
class Glob:
    """The whole entry matches a pattern: `*` is any run of characters without `/`, `**` any segments, also none."""

    entry: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.entry} fits {self.pattern!r}"


@dataclass(frozen=True, slots=True)
class Cidr:
    """The entry is an address in one of these networks. IPv4 networks also hold the IPv6 form of their addresses."""

    entry: str
    networks: tuple[Network, ...]

    def __str__(self) -> str:
        return f"{self.entry} is in {_list([str(network) for network in self.networks])}"


@dataclass(frozen=True, slots=True)
class Present:
    """The entry is present, or absent if not `wanted`."""

    entry: str
    wanted: bool = True

    def __str__(self) -> str:
        return f"{self.entry} is {'present' if self.wanted else 'absent'}"


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    condition: Condition

    def __str__(self) -> str:
        return f"not ({self.condition})"


@dataclass(frozen=True, slots=True)
class All:
    """Every one of the conditions holds."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(_inner(condition, Any) for condition in self.conditions)


@dataclass(frozen=True, slots=True)
class Any:
    """At least one of the conditions holds."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(_inner(condition, All) for condition in self.conditions)


Condition: TypeAlias = Equals | OneOf | Prefix | Glob | Cidr | Present | Not | All | Any

CONDITIONS = (Equals, OneOf, Prefix, Glob, Cidr, Present, Not, All, Any)


def _inner(condition: Condition, mixed: type[All] | type[Any]) -> str:
    return f"({condition})" if isinstance(condition, mixed) else str(condition)


def _list(texts: list[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")

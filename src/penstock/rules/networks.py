"""Addresses as numbers and networks as ranges, so that one binary search finds all networks around an address.

An IPv4 address mapped into IPv6 (`::ffff:192.0.2.7`) is the IPv4 address. So the IPv6 network `::/0` contains no IPv4
address, and `::ffff:192.0.2.0/120` is `192.0.2.0/24`. Addresses are parsed by `inet_pton`, which is strict (no leading
zeros, ports or zones) and ten times as fast as the module `ipaddress`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import NamedTuple, TypeAlias

Positions: TypeAlias = tuple[int, ...]
"""The positions of rules, or of other values that are looked up."""

_V6 = 1 << 128  # added to IPv6 addresses, so that they differ from IPv4
_MAPPED = bytes(10) + b"\xff\xff"
_MAPPED_BITS = 96


class Range(NamedTuple):
    """The addresses from `low` to `high`, as numbers."""

    low: int
    high: int


def number_of(text: str) -> int | None:
    """Return the number of an address; None if `text` is no address."""
    try:
        if ":" not in text:
            return int.from_bytes(inet_pton(AF_INET, text))
        packed = inet_pton(AF_INET6, text)
    except (OSError, ValueError):  # ValueError: a NUL, or text that is not ASCII
        return None
    return int.from_bytes(packed[12:]) if packed.startswith(_MAPPED) else _V6 + int.from_bytes(packed)


def address_of(text: str) -> str | None:
    """Return an address in canonical form; None if `text` is no address."""
    number = number_of(text)
    if number is None:
        return None
    if number < _V6:
        return inet_ntop(AF_INET, number.to_bytes(4)) if ":" in text else text
    return inet_ntop(AF_INET6, (number - _V6).to_bytes(16))


def folded(address: str, bits: int) -> str:
    """Return the network of `bits` around a canonical IPv6 address as text; IPv4 addresses stay as they are."""
    if ":" not in address:
        return address
    number = int.from_bytes(inet_pton(AF_INET6, address)) >> 128 - bits << 128 - bits
    return f"{inet_ntop(AF_INET6, number.to_bytes(16))}/{bits}"


def range_of(network: IPv4Network | IPv6Network) -> Range:
    """Return the range of a network's addresses."""
    low, size = int(network.network_address), network.num_addresses
    if network.version == 4:
        return Range(low, low + size - 1)
    if network.prefixlen >= _MAPPED_BITS and network.network_address.packed.startswith(_MAPPED):
        low &= 2**32 - 1
        return Range(low, low + size - 1)
    return Range(_V6 + low, _V6 + low + size - 1)


class NetworkTable:
    """Finds which of many networks contain an address.

    Two networks are disjoint, or one contains the other. They are sorted by their lowest address, outer networks first.
    The last that begins at or before an address is the innermost around it, or lies within that.
    """

    def __init__(self, networks: Iterable[tuple[Range, int]]) -> None:
        found: dict[Range, list[int]] = {}
        for network, position in networks:
            found.setdefault(network, []).append(position)
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._around: list[int] = []  # the index of the network around this one, or -1
        self._hits: list[Positions] = []  # of this network and of all around it
        around: list[int] = []
        for network in sorted(found, key=lambda network: (network.low, -network.high)):
            while around and self._highs[around[-1]] < network.low:
                around.pop()
            outer = around[-1] if around else -1
            around.append(len(self._lows))
            self._lows.append(network.low)
            self._highs.append(network.high)
            self._around.append(outer)
            self._hits.append((self._hits[outer] if around[:-1] else ()) + tuple(found[network]))

    @property
    def lists(self) -> tuple[list[int] | list[Positions], ...]:
        return self._lows, self._highs, self._hits

    def find(self, number: int | None) -> Positions:
        """Return the positions of all networks that contain an address."""
        if number is None:
            return ()
        index = bisect_right(self._lows, number) - 1
        while index >= 0:
            if number <= self._highs[index]:
                return self._hits[index]
            index = self._around[index]
        return ()

"""Whose request it is: the address of the client, which no client can choose.

The address comes from the socket. Where proxies stand in front, the socket's is the nearest proxy's, and the client's
is in a header that every proxy adds its own caller to, at the right end. What stands further left was written by who
knows whom. So the header is read from the right, and only as far as trusted proxies wrote it:

| trusted proxies | the client is |
|---|---|
| none (0) | the peer of the socket, whatever headers say |
| a number n | the n-th address from the right; the application must be reachable through the n proxies alone |
| networks | the first from the right, the peer included, that is in none of them; if all are, the leftmost |

`"unix"` in the list trusts who comes through a Unix socket, where the peer has no address. Whoever is in a trusted
network is believed in all that they say, so where everybody on the way is, the request began inside, with the leftmost.

**In doubt it is the peer.** Where the header ends too early, has more than `MAX_HOPS` trusted addresses, or says
something else than an address where one is looked for (`unknown`, `_hidden`, garbage), the answer is the peer's: then
the clients of that proxy share what one would have, which is noticed, and nobody gets more.

Only one header is read, `X-Forwarded-For` or `Forwarded` (RFC 7239), because a proxy that writes one passes the other
on as the client sent it. An IPv4 address written as IPv6 is the IPv4 address; ports, brackets and zones are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_network
from itertools import islice

from penstock.errors import InvalidOption, shown
from penstock.rules.networks import NetworkTable, address_of, number_of, range_of

X_FORWARDED_FOR, FORWARDED = "x-forwarded-for", "forwarded"
UNIX = "unix"

MAX_HOPS = 64
"""How many addresses of a header are looked at."""

MAX_HOP = 1_024
"""Characters of one of them, with all that a proxy says beside it."""

MAX_REMEMBERED = 2_048
"""Addresses that need not be read again."""

_EVERYBODY = (range_of(ip_network("0.0.0.0/0")), range_of(ip_network("::/0")))
_PORT = re.compile(r"[0-9]{1,5}|_[0-9A-Za-z._-]+")
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s"\\;,]+)[ \t]*(?:;|$)""")
_ESCAPED = re.compile(r"\\(.)")


class TrustedProxies:
    """The proxies in front of an application, and what follows about its clients.

    `header` is the one to hand to `client`, in lower case; empty if none is read.

    >>> TrustedProxies(1).client("10.0.0.1", ["198.51.100.9, 192.0.2.7"])
    '192.0.2.7'
    """

    def __init__(self, trusted: int | Collection[str] = 0, *, header: str = X_FORWARDED_FOR) -> None:
        if not isinstance(header, str) or header.lower() not in (X_FORWARDED_FOR, FORWARDED):
            raise InvalidOption(f"forwarded_header {shown(header)}: expected X-Forwarded-For or Forwarded")
        self._count = 0
        if isinstance(trusted, list | tuple | set | frozenset):
            self._is_trusted = _test([network for network in trusted if network != UNIX], unix=UNIX in trusted)
        else:
            self._count = _checked_count(trusted)
        self.header = header.lower() if trusted else ""
        self._hop = forwarded_for if self.header == FORWARDED else node_address

    def client(self, peer: str | None, lines: Sequence[str] = ()) -> str | None:
        """The client's address in canonical form; None if there is none, as behind a Unix socket.

        `peer` is what the socket says, `lines` are all lines of `header` in the order they came.
        """
        own = None if not peer else _address(peer)
        if not self.header:
            return own
        return self._by_count(lines) or own if self._count else self._by_networks(own, lines)

    def _by_count(self, lines: Sequence[str]) -> str | None:
        """The address that the outermost of so many proxies wrote."""
        count = self._count
        if len(lines) == 1 and '"' not in lines[0]:  # nearly always: no need for a generator
            hops = lines[0].rsplit(",", count)
            return self._hop(hops[-count]) if len(hops) >= count else None
        hop = next(islice(_from_the_right(lines), count - 1, None), None)
        return None if hop is None else self._hop(hop)

    def _by_networks(self, own: str | None, lines: Sequence[str]) -> str | None:
        """The first address that is not a trusted proxy's."""
        is_trusted = self._is_trusted
        if not is_trusted(own):
            return own
        leftmost = own
        for position, hop in enumerate(_from_the_right(lines)):
            address = self._hop(hop) if position < MAX_HOPS else None
            if address is None:
                return own
            if not is_trusted(address):
                return address
            leftmost = address
        return leftmost


def node_address(text: str) -> str | None:
    """The address of what a proxy wrote about its caller: with or without port, brackets, zone. None if it is none."""
    if len(text) > MAX_HOP:
        return None
    text = text.strip(" \t")
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        if not closed or ":" not in host or (port and not _is_port(port)):
            return None
        return _address(host)
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return address_of(host) if _PORT.fullmatch(port) else None
    return _address(text)


def forwarded_for(element: str) -> str | None:
    """The address in one element of `Forwarded`; None unless there is exactly one."""
    if len(element) > MAX_HOP:
        return None
    element = element.strip(" \t")
    found: list[str] = []
    start = 0
    while start < len(element):
        pair = _PAIR.match(element, start)
        if pair is None:
            return None
        if pair[1].lower() == "for":
            found.append(pair[2])
        start = pair.end()
    if len(found) != 1:
        return None
    value = found[0]
    return node_address(_ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value)


def _is_port(text: str) -> bool:
    return text.startswith(":") and _PORT.fullmatch(text, 1) is not None


@lru_cache(MAX_REMEMBERED)
def _address(text: str) -> str | None:
    """An address in canonical form, without its zone; looking it up is cheaper than reading it again."""
    host, zoned, zone = text.partition("%")
    return None if zoned and (not zone or ":" not in host) else address_of(host)


def _from_the_right(lines: Sequence[str]) -> Iterator[str]:
    """What proxies wrote, the nearest first.

    Quoted strings, which may hold commas, are recognised from the right as well. From the left, a quote that a client
    opens and never closes would swallow what the proxies added.
    """
    for line in reversed(lines):
        if '"' not in line:
            yield from reversed(line.rsplit(",", MAX_HOPS))
            continue
        end = len(line)
        while end >= 0:
            start = _start(line, end)
            yield line[start:end]
            end = start - 1


def _start(line: str, end: int) -> int:
    """Where the element that ends at `end` begins; 0 if that is too far away, or a quote lacks its other half.

    In both cases what is left of the line is no element that anybody could read.
    """
    farthest = max(end - MAX_HOP - 1, 0)
    unread = end
    while unread >= 0:
        comma = line.rfind(",", farthest, unread)
        closing = _quote(line, max(comma + 1, farthest), unread)
        if closing < 0:
            return comma + 1
        unread = _quote(line, farthest, closing)
    return 0


def _quote(line: str, start: int, end: int) -> int:
    """The last quote between them that no backslash makes a plain character; -1 if there is none."""
    while (quote := line.rfind('"', start, end)) >= 0:
        before = quote
        while before > start and line[before - 1] == "\\":
            before -= 1
        if (quote - before) % 2 == 0:
            return quote
        end = before
    return -1


def _checked_count(trusted: object) -> int:
    if isinstance(trusted, bool) or not isinstance(trusted, int):
        raise InvalidOption(f"trusted_proxies {shown(trusted)}: expected how many, or a list of their networks")
    if not 0 <= trusted <= MAX_HOPS:
        raise InvalidOption(f"trusted_proxies {shown(trusted)}: expected 0 to {MAX_HOPS}, or a list of their networks")
    return trusted


def _test(networks: Sequence[str], *, unix: bool) -> Callable[[str | None], bool]:
    """Whether an address is a trusted proxy's; None is who comes through a Unix socket. Answers are remembered."""
    ranges = []
    for text in networks:
        try:
            network = ip_network(text if isinstance(text, str) else "")
        except ValueError:
            raise InvalidOption(
                f'trusted_proxies {shown(text)}: expected an address, a network such as 10.0.0.0/8, or "{UNIX}"'
            ) from None
        if range_of(network) in _EVERYBODY:
            raise InvalidOption(f"trusted_proxies {shown(text)}: would believe everybody (expected your own networks)")
        ranges.append((range_of(network), 0))
    table = NetworkTable(ranges)

    @lru_cache(MAX_REMEMBERED)
    def is_trusted(address: str | None) -> bool:
        return unix if address is None else bool(table.find(number_of(address)))

    return is_trusted

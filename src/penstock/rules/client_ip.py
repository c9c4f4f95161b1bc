"""The address of the client, also behind proxies, in a way that clients cannot forge.

Without proxies it is the peer of the socket. Behind proxies the peer is the nearest proxy. Each proxy appends the
address of its own caller to the right end of a header. Addresses further left may be forged, so the header is read from
the right, and only as far as trusted proxies wrote it:

| trusted proxies | the client is |
|---|---|
| none (0) | the peer of the socket; headers are ignored |
| a number n | the n-th address from the right; the application must be reachable through the n proxies alone |
| networks | the first from the right, the peer included, that is in none of them; if all are, the leftmost |

`"unix"` in the list trusts connections through a Unix socket, where the peer has no address. Headers of trusted hosts
are believed. So if every host on the way is trusted, the request began inside, at the leftmost address.

**In doubt it is the peer.** The peer is taken if the header ends too early, has more than `MAX_HOPS` trusted addresses,
or has something else in place of an address (`unknown`, `_hidden`, garbage). Then the clients of that proxy share one
counter, so no client gets more than its limit, and the mistake is noticed.

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
"""How many addresses of a header are read."""

MAX_HOP = 1_024
"""Characters of one element of a header."""

MAX_REMEMBERED = 2_048
"""How many parsed addresses are cached."""

_EVERYWHERE = (range_of(ip_network("0.0.0.0/0")), range_of(ip_network("::/0")))
_PORT = re.compile(r"[0-9]{1,5}|_[0-9A-Za-z._-]+")
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s"\\;,]+)[ \t]*(?:;|$)""")
_ESCAPED = re.compile(r"\\(.)")


class TrustedProxies:
    """The proxies in front of an application, by which the client's address is found.

    `header` is the name of the header that `client` needs, in lower case; empty if none is read.

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
        """Return the client's address in canonical form; None if there is none, as behind a Unix socket.

        `peer` is the address of the socket, `lines` are all lines of `header` in the order received.
        """
        own = None if not peer else _address(peer)
        if not self.header:
            return own
        return self._by_count(lines) or own if self._count else self._by_networks(own, lines)

    def _by_count(self, lines: Sequence[str]) -> str | None:
        """Return the address that the outermost of `n` proxies wrote."""
        count = self._count
        if len(lines) == 1 and '"' not in lines[0]:  # the usual case, without a generator
            hops = lines[0].rsplit(",", count)
            return self._hop(hops[-count]) if len(hops) >= count else None
        hop = next(islice(_from_the_right(lines), count - 1, None), None)
        return None if hop is None else self._hop(hop)

    def _by_networks(self, own: str | None, lines: Sequence[str]) -> str | None:
        """Return the first address from the right that is not a trusted proxy's."""
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
    """Return the address in an element of a header, with or without port, brackets and zone; None if there is none."""
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
    """Return the address in an element of `Forwarded`; None unless there is exactly one."""
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
    """Return an address in canonical form, without its zone; None if it is none."""
    host, zoned, zone = text.partition("%")
    return None if zoned and (not zone or ":" not in host) else address_of(host)


def _from_the_right(lines: Sequence[str]) -> Iterator[str]:
    """Yield the elements of a header, that of the nearest proxy first.

    Quoted strings, which may contain commas, are parsed from the right as well. From the left, a quote that a client
    opens and never closes would swallow what the proxies appended.
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
    """Return where the element that ends at `end` begins; 0 if it is too long, or a quote lacks its other half.

    In both cases the rest of the line is one element that cannot be parsed.
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
    """Return the position of the last quote that no backslash escapes; -1 if there is none."""
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
        raise InvalidOption(f"trusted_proxies {shown(trusted)}: expected how many, or a list of networks")
    if not 0 <= trusted <= MAX_HOPS:
        raise InvalidOption(f"trusted_proxies {shown(trusted)}: expected 0 to {MAX_HOPS}, or a list of their networks")
    return trusted


def _test(networks: Sequence[str], *, unix: bool) -> Callable[[str | None], bool]:
    """Return a cached test whether an address is a trusted proxy's; None stands for a Unix socket."""
    ranges = []
    for text in networks:
        try:
            network = ip_network(text if isinstance(text, str) else "")
        except ValueError:
            raise InvalidOption(
                f'trusted_proxies {shown(text)}: expected an address, a network such as 10.0.0.0/8, or "{UNIX}"'
            ) from None
        if range_of(network) in _EVERYWHERE:
            raise InvalidOption(f"trusted_proxies {shown(text)}: would trust every host (expected your own networks)")
        ranges.append((range_of(network), 0))
    table = NetworkTable(ranges)

    @lru_cache(MAX_REMEMBERED)
    def is_trusted(address: str | None) -> bool:
        return unix if address is None else bool(table.find(number_of(address)))

    return is_trusted

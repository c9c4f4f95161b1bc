"""No client can choose its address: whatever it sends, what trusted proxies add decides."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from itertools import product
from typing import NamedTuple, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from penstock.rules.client_ip import FORWARDED, X_FORWARDED_FOR, TrustedProxies
from penstock.rules.networks import address_of

OURS = ["10.0.0.0/8", "fd00::/8"]
PEER = "10.0.0.1"

_addresses = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**128 - 1).map(IPv6Address), st.just("::ffff:192.0.2.7")
).map(str)
_hops = st.sampled_from(["10.0.0.2", "10.200.0.3", "fd00::5"])
_TOKENS = ['"', "\\", ",", ", ", ";", "for=", "For=", "[", "]", ":80", "%eth0", "unknown", "_x", "by=", "\t", "é"]
_TOKENS += ["10.0.0.2", "fd00::5", "203.0.113.66", "2001:db8::66", "for=203.0.113.66", 'for="[2001:db8::66]"', ""]
_spoofs = st.lists(st.lists(st.sampled_from(_TOKENS), max_size=6).map("".join), max_size=2)
"""What a client may send: lines of parts of what proxies write, in any order."""

_BESIDE = ("{}", "{};proto=https", 'host="a, b\\"";{}', '{};by="[fd00::5]"')
_styles = st.sampled_from([*product(("", ":443", ":_x"), (False, True), _BESIDE, (", ", ",", ""))])
"""How a proxy writes: with which port, quoted, beside what else, and behind a comma or on a line of its own."""

Style: TypeAlias = tuple[str, bool, str, str]


def _written(address: str, style: Style, header: str) -> str:
    """What a proxy writes about its caller."""
    port, quoted, beside, _ = style
    v6 = ":" in address
    if header == X_FORWARDED_FOR:
        return f"[{address}]{port}" if v6 and (port or quoted) else f"{address}{port}"
    node = f"[{address}]{port}" if v6 else f"{address}{port}"
    return beside.format(f'for="{node}"' if v6 or port or quoted else f"for={node}")


class Journey(NamedTuple):
    """A client's true address, the lines that arrive with its request, and how many proxies it came through."""

    header: str
    client: str
    lines: list[str]
    proxies: int


def _journey(header: str, client: str, lines: list[str], proxies: list[tuple[str, Style]]) -> Journey:
    """A client that sends what it likes, and proxies that add to it, each about its caller."""
    lines = [*lines]
    callers = [client, *[address for address, _ in proxies[1:]]]
    for caller, (_, style) in zip(callers, proxies, strict=True):
        written, comma = _written(caller, style, header), style[3]
        if lines and comma:
            lines[-1] += comma + written
        else:
            lines.append(written)
    return Journey(header, client, lines, len(proxies))


_journeys = st.builds(
    _journey,
    st.sampled_from([X_FORWARDED_FOR, FORWARDED]),
    _addresses,
    _spoofs,
    st.lists(st.tuples(_hops, _styles), min_size=1, max_size=3),
)


def _is_ours(address: str) -> bool:
    number = IPv6Address(address) if ":" in address else IPv4Address(address)
    mapped = number.ipv4_mapped if isinstance(number, IPv6Address) else None
    return str(mapped or number).startswith(("10.", "fd"))


@given(_journeys)
def test_no_client_can_choose_its_address(journey: Journey) -> None:
    header, client, lines, proxies = journey
    assert TrustedProxies(proxies, header=header).client(PEER, lines) == address_of(client)
    assert TrustedProxies(header=header).client(client, lines) == address_of(client)
    if not _is_ours(client):
        networks = TrustedProxies(OURS, header=header)
        assert networks.client(PEER, lines) == address_of(client)
        assert networks.client(client, lines) == address_of(client)  # directly, whatever it says it came through


@given(peer=st.none() | st.text(max_size=20), lines=st.lists(st.text(max_size=60), max_size=4), count=st.integers(0, 4))
def test_any_text_is_answered_with_an_address_or_nothing(peer: str | None, lines: list[str], count: int) -> None:
    for trusted in (count, ["unix", *OURS]):
        for header in (X_FORWARDED_FOR, FORWARDED):
            address = TrustedProxies(trusted, header=header).client(peer, lines)
            assert address is None or address_of(address) == address

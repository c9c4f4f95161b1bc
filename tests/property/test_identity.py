"""No client can choose its address: whatever it sends, what trusted proxies add decides."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.middleware.identity import FORWARDED, X_FORWARDED_FOR, TrustedProxies
from penstock.rules.networks import address_of

OURS = ["10.0.0.0/8", "fd00::/8"]
PEER = "10.0.0.1"

_addresses = st.one_of(
    st.integers(0, 2**32 - 1).map(IPv4Address), st.integers(0, 2**128 - 1).map(IPv6Address), st.just("::ffff:192.0.2.7")
).map(str)
_hops = st.sampled_from(["10.0.0.2", "10.200.0.3", "fd00::5"])
_junk = st.text(st.sampled_from('"\\,;=:[]%._- \tfor1ax'), max_size=30)
_spoofs = st.lists(
    st.one_of(_junk, _hops, _addresses, _addresses.map("for={}".format), _addresses.map('for="[{}]"'.format)),
    max_size=5,
).map(", ".join)


def _written(draw: st.DrawFn, address: str, header: str) -> str:
    """How a proxy writes about its caller."""
    v6 = ":" in address
    port = draw(st.sampled_from(["", ":443", ":1"]))
    if header == X_FORWARDED_FOR:
        return f"[{address}]{port}" if v6 and port else f"{address}{port}"
    node = f"[{address}]{port}" if v6 else f"{address}{port}"
    quoted = f'"{node}"' if v6 or port or draw(st.booleans()) else node
    beside = draw(st.sampled_from(["{}", "{};proto=https", 'host="a, b\\"";{}', '{};by="[fd00::5]"']))
    return beside.format(f"for={quoted}")


class Journey(NamedTuple):
    """A client's true address, the lines that arrive with its request, and how many proxies it came through."""

    header: str
    client: str
    lines: list[str]
    proxies: int


@st.composite
def _journeys(draw: st.DrawFn, header: str) -> Journey:
    """A client that sends what it likes, and proxies that add to it."""
    client = draw(_addresses)
    lines = draw(st.lists(_spoofs, max_size=3))
    callers = [client, *draw(st.lists(_hops, max_size=3))]
    for caller in callers:
        written = _written(draw, caller, header)
        own_line = draw(st.booleans())
        if lines and not own_line:
            lines[-1] = f"{lines[-1]}{draw(st.sampled_from([', ', ',']))}{written}"
        else:
            lines.append(written)
    return Journey(header, client, lines, len(callers))


def _is_ours(address: str) -> bool:
    number = IPv6Address(address) if ":" in address else IPv4Address(address)
    mapped = number.ipv4_mapped if isinstance(number, IPv6Address) else None
    return str(mapped or number).startswith(("10.", "fc", "fd"))


@given(st.sampled_from([X_FORWARDED_FOR, FORWARDED]).flatmap(_journeys))
def test_behind_trusted_proxies_the_client_is_who_called_the_first_of_them(journey: Journey) -> None:
    header, client, lines, proxies = journey
    assert TrustedProxies(proxies, header=header).client(PEER, lines) == address_of(client)
    assume(not _is_ours(client))
    assert TrustedProxies(OURS, header=header).client(PEER, lines) == address_of(client)


@given(peer=_addresses, lines=st.lists(_spoofs, max_size=3))
def test_who_comes_directly_is_the_peer_whatever_it_sends(peer: str, lines: list[str]) -> None:
    assume(not _is_ours(peer))
    for header in (X_FORWARDED_FOR, FORWARDED):
        assert TrustedProxies(OURS, header=header).client(peer, lines) == address_of(peer)
        assert TrustedProxies(header=header).client(peer, lines) == address_of(peer)


@given(peer=st.none() | st.text(max_size=20), lines=st.lists(st.text(max_size=60), max_size=4), count=st.integers(0, 4))
def test_any_text_is_answered_with_an_address_or_nothing(peer: str | None, lines: list[str], count: int) -> None:
    for trusted in (count, ["unix", *OURS]):
        for header in (X_FORWARDED_FOR, FORWARDED):
            address = TrustedProxies(trusted, header=header).client(peer, lines)
            assert address is None or address_of(address) == address

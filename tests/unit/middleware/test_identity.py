"""The client's address. The corpus is what clients have tried on other programs; each line has the right result."""

from __future__ import annotations

import re

import pytest

from penstock.errors import InvalidOption
from penstock.rules.client_ip import MAX_HOP, MAX_HOPS, TrustedProxies, forwarded_for, node_address

PROXY = "10.0.0.1"
CLIENT = "192.0.2.7"
SPOOF = "203.0.113.66"
INNER = ["10.0.0.0/8", "fd00::/8"]


# ---------------------------------------------------------------- without proxies


@pytest.mark.parametrize(
    "line", [SPOOF, f"{SPOOF}, {SPOOF}", "127.0.0.1", "::1", "garbage", "", f"for={SPOOF}", ", ,", PROXY]
)
def test_no_header_is_believed_unless_proxies_are_configured(line: str) -> None:
    assert TrustedProxies().client(CLIENT, [line]) == CLIENT
    assert TrustedProxies([]).client(CLIENT, [line]) == CLIENT


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("::FFFF:192.0.2.7", "192.0.2.7"),
        ("2001:db8::192.0.2.7", "2001:db8::c000:207"),  # written alike, but no IPv4 address
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("fe80::1%", None),
        ("192.0.2.7%eth0", None),
        ("192.0.2.7:80", None),  # a peer comes without its port
        ("010.0.0.1", None),
        ("", None),
        (None, None),
        ("unix:", None),
        ("/run/app.sock", None),
        ("testclient", None),
        ("\x00", None),
        ("１.2.3.4", None),  # noqa: RUF001
    ],
)
def test_the_peer_is_read_in_one_form_or_not_at_all(peer: str | None, address: str | None) -> None:
    assert TrustedProxies().client(peer) == address


# ---------------------------------------------------------------- a number of proxies


@pytest.mark.parametrize(
    ("count", "lines", "client"),
    [
        (1, [CLIENT], CLIENT),
        (1, [f"{SPOOF}, {CLIENT}"], CLIENT),
        (1, [f"{SPOOF},{CLIENT}"], CLIENT),
        (1, [SPOOF, CLIENT], CLIENT),  # a proxy that adds a line of its own
        (1, [f"{SPOOF}, {CLIENT}:4711"], CLIENT),
        (1, [f'"{SPOOF}, {CLIENT}'], CLIENT),
        (1, [f"{SPOOF}\t,\t{CLIENT}\t"], CLIENT),
        (2, [f"{SPOOF}, {CLIENT}, 10.0.0.2"], CLIENT),
        (2, [SPOOF, CLIENT, "10.0.0.2"], CLIENT),
        (2, [f"{CLIENT}", "10.0.0.2"], CLIENT),
        (3, [f"{SPOOF}, {CLIENT}, 10.0.0.3, 10.0.0.2"], CLIENT),
        # shorter than it must be, or nothing to be read where the client should stand: the peer
        (2, [CLIENT], PROXY),
        (1, [], PROXY),
        (1, [""], PROXY),
        (1, [f"{SPOOF}, unknown"], PROXY),
        (1, [f"{SPOOF}, unix:"], PROXY),
        (1, [f"{SPOOF},"], PROXY),
        (1, [f"{SPOOF}, ,"], PROXY),
        (1, [SPOOF, ""], PROXY),
        (2, [f"{SPOOF}, garbage, 10.0.0.2"], PROXY),
    ],
)
def test_a_number_of_trusted_proxies_finds_the_client(count: int, lines: list[str], client: str) -> None:
    assert TrustedProxies(count).client(PROXY, lines) == client


def test_a_number_of_proxies_behind_a_unix_socket_is_believed_and_doubt_gives_no_client() -> None:
    assert TrustedProxies(1).client(None, [f"{SPOOF}, {CLIENT}"]) == CLIENT
    assert TrustedProxies(1).client("", ["garbage"]) is None


# ---------------------------------------------------------------- networks of proxies


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        (PROXY, [CLIENT], CLIENT),
        (PROXY, [f"{SPOOF}, {CLIENT}"], CLIENT),
        (PROXY, [f"{SPOOF}, {CLIENT}, 10.9.9.9, fd00::7"], CLIENT),
        (PROXY, [SPOOF, CLIENT, "10.9.9.9"], CLIENT),
        (PROXY, [f"10.1.1.1, {CLIENT}"], CLIENT),  # claims to have come through a proxy of ours
        (PROXY, [f"{CLIENT}:5000, [fd00::7]:443"], CLIENT),
        ("::ffff:10.0.0.1", [CLIENT], CLIENT),
        (PROXY, [f"{SPOOF}, ::ffff:192.0.2.7, ::ffff:10.9.9.9"], CLIENT),
        (PROXY, ["2001:db8::7%eth0"], "2001:db8::7"),
        ("fd00::1%eth0", [CLIENT], CLIENT),
        # the header of a peer that is no proxy of ours is not believed
        (CLIENT, [SPOOF], CLIENT),
        (CLIENT, [f"{SPOOF}, {PROXY}"], CLIENT),
        ("::ffff:192.0.2.7", [SPOOF], CLIENT),
        (None, [SPOOF], None),
        # all are ours: a client from within
        (PROXY, ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        (PROXY, [], PROXY),
        # in doubt the peer
        (PROXY, [f"{SPOOF}, garbage"], PROXY),
        (PROXY, [f"{SPOOF}, unknown, 10.9.9.9"], PROXY),
        (PROXY, [f"{SPOOF}, _hidden"], PROXY),
        (PROXY, [""], PROXY),
        (PROXY, [f"{SPOOF}, , 10.9.9.9"], PROXY),
    ],
)
def test_networks_of_trusted_proxies_find_the_client(peer: str | None, lines: list[str], client: str | None) -> None:
    assert TrustedProxies(INNER).client(peer, lines) == client


def test_the_client_is_the_first_address_if_all_are_trusted() -> None:
    """A request that began within the trusted networks: they may name themselves, as they may name others."""
    proxies = TrustedProxies(["10.0.0.0/8"])
    assert proxies.client("10.0.0.1", ["10.3.3.3, 10.2.2.2"]) == "10.3.3.3"
    assert proxies.client("10.0.0.1") == "10.0.0.1"
    assert proxies.client("10.0.0.1", [f"{CLIENT}, 10.2.2.2"]) == CLIENT


def test_a_unix_socket_is_trusted_if_the_list_says_so() -> None:
    assert TrustedProxies(["unix"]).client(None, [f"{SPOOF}, {CLIENT}"]) == CLIENT
    assert TrustedProxies(["unix"]).client("", [f"{SPOOF}, garbage"]) is None
    assert TrustedProxies(["unix"]).client(CLIENT, [SPOOF]) == CLIENT
    assert TrustedProxies(["unix", *INNER]).client(None, [f"{SPOOF}, {CLIENT}, 10.2.2.2"]) == CLIENT


def test_ten_thousand_hops_are_looked_at_no_further_than_need_be() -> None:
    hops = ", ".join([SPOOF] * 10_000)
    assert TrustedProxies(INNER).client(PROXY, [f"{hops}, {CLIENT}"]) == CLIENT
    assert TrustedProxies(1).client(PROXY, [f"{hops}, {CLIENT}"]) == CLIENT
    own = ", ".join(["10.2.2.2"] * 10_000)
    assert TrustedProxies(INNER).client(PROXY, [own]) == PROXY
    assert TrustedProxies(INNER).client(PROXY, ["10.2.2.2"] * 10_000) == PROXY
    assert TrustedProxies(INNER).client(PROXY, [", ".join([CLIENT] + ["10.2.2.2"] * (MAX_HOPS - 1))]) == CLIENT
    assert TrustedProxies(INNER).client(PROXY, [", ".join([CLIENT] + ["10.2.2.2"] * MAX_HOPS)]) == PROXY


# ---------------------------------------------------------------- Forwarded


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For={CLIENT};proto=http;by=203.0.113.43"], CLIENT),
        ([f"proto=https; host=example.org; FOR={CLIENT}"], CLIENT),
        ([f'for="{CLIENT}:4711"'], CLIENT),
        ([f"for={CLIENT}:4711"], CLIENT),  # without the quotes it needs, as many write it
        (['for="[2001:db8:cafe::17]:4711"'], "2001:db8:cafe::17"),
        (['for="[2001:db8:cafe::17]"'], "2001:db8:cafe::17"),
        (['for="[::ffff:192.0.2.7]:_port"'], CLIENT),
        (['for="\\1\\92.0.2.7"'], CLIENT),
        ([f'for={SPOOF}, for={CLIENT};host="a,b;c\\"d\\\\"'], CLIENT),
        ([f"for={SPOOF}", f"for={CLIENT}", 'for="[fd00::7]", for=10.9.9.9'], CLIENT),
        # quotes that a client opens must not swallow what the proxy added
        ([f'for="{SPOOF}, for={CLIENT}'], CLIENT),
        ([f'for="{SPOOF}, for="{CLIENT}"'], CLIENT),
        ([f'for={SPOOF};x="\\, for={CLIENT}'], CLIENT),
        ([f'for={SPOOF};x="\\", for="{CLIENT}"'], CLIENT),
        # in doubt the peer
        (["for=unknown"], PROXY),
        (["for=_SEVKISEK"], PROXY),
        (['for="_gazonk"'], PROXY),
        (["proto=https"], PROXY),
        ([f"for={SPOOF}, proto=https"], PROXY),
        ([f"for={SPOOF};for={CLIENT}"], PROXY),
        ([f"for={SPOOF}, for="], PROXY),
        ([f"for={SPOOF}, {CLIENT}"], PROXY),
        ([f'for={SPOOF}, for="{CLIENT}'], PROXY),
        ([f'for={SPOOF}, for={CLIENT}"'], PROXY),
        ([f"for = {CLIENT}"], PROXY),
        (['for="[2001:db8::1"'], PROXY),
        ([f'for=[{CLIENT}]"'], PROXY),
        ([""], PROXY),
        ([], PROXY),
    ],
)
@pytest.mark.parametrize("trusted", [1, INNER], ids=["number", "networks"])
def test_forwarded(lines: list[str], client: str, trusted: int | list[str]) -> None:
    proxies = TrustedProxies(trusted if len(lines) < 3 else 3 if trusted == 1 else trusted, header="Forwarded")
    assert proxies.client(PROXY, lines) == client


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.parametrize(
    "line",
    ['"' * 100_000, '\\"' * 100_000, ',"\\"' * 100_000, '"' + "\\" * 100_000 + '"', "," * 100_000, "1" * 100_000],
    ids=["quotes", "escaped", "mixed", "backslashes", "commas", "digits"],
)
def test_long_nonsense_is_the_peers(header: str, line: str) -> None:
    assert TrustedProxies(INNER, header=header).client(PROXY, [line]) == PROXY
    assert TrustedProxies(MAX_HOPS, header=header).client(PROXY, [line]) == PROXY


def test_an_element_that_is_too_long_is_no_address() -> None:
    padding = "a" * MAX_HOP
    assert forwarded_for(f"host={padding};for={CLIENT}") is None
    assert TrustedProxies(1, header="Forwarded").client(PROXY, [f'for={CLIENT};host="{padding}"']) == PROXY
    assert node_address(" " * MAX_HOP + CLIENT) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "localhost", "2130706433", "0x7f.1", "192.0.2", "192.0.2.256", "192.0.2.7 192.0.2.8", "192.0.2.7\n"),
        *(
            "192.0.2.7:",
            "192.0.2.7:http",
            "192.0.2.7:-1",
            "192.0.2.7:123456",
            "1:2:3:4:5:6:7:8:9",
            "fe80::1%",
            "\ud800",
        ),
        *(
            "[",
            "]",
            "[]",
            "[]:80",
            "[::1",
            "::1]",
            "[192.0.2.7]",
            "[::1]80",
            "[::1]:",
            "[::1]:x",
            "[::1]x:80",
            "[::1%]",
        ),
    ],
)
def test_what_is_no_address(text: str) -> None:
    assert node_address(text) is None


# ---------------------------------------------------------------- negative controls


def test_the_corpus_catches_who_believes_the_leftmost() -> None:
    def leftmost(lines: list[str]) -> str:
        return ",".join(lines).split(",")[0].strip()

    assert leftmost([f"{SPOOF}, {CLIENT}"]) == SPOOF
    assert leftmost([SPOOF, CLIENT, "10.9.9.9"]) == SPOOF


def test_the_corpus_catches_who_reads_quotes_from_the_left() -> None:
    def last_from_the_left(line: str) -> object:
        *_, last = re.findall(r'(?:"(?:[^"\\]|\\.)*"?|[^,"])+', line)
        return last

    line = f'for="{SPOOF}, for={CLIENT}'
    assert last_from_the_left(line) == line  # what the proxy added is part of a text that the client began
    assert TrustedProxies(1, header="Forwarded").client(PROXY, [line]) == CLIENT


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("trusted", "message"),
    [
        (-1, "trusted_proxies -1: expected 0 to 64, or a list of their networks"),
        (65, "trusted_proxies 65: expected 0 to 64, or a list of their networks"),
        (True, "trusted_proxies True: expected how many, or a list of networks"),
        (1.0, "trusted_proxies 1.0: expected how many, or a list of networks"),
        (None, "trusted_proxies None: expected how many, or a list of networks"),
        ("*", "trusted_proxies '*': expected how many, or a list of networks"),
        ("10.0.0.0/8", "trusted_proxies '10.0.0.0/8': expected how many, or a list of networks"),
        (["*"], "trusted_proxies '*': expected an address, a network such as 10.0.0.0/8, or \"unix\""),
        ([""], "trusted_proxies '': expected an address, a network such as 10.0.0.0/8, or \"unix\""),
        ([10], 'trusted_proxies 10: expected an address, a network such as 10.0.0.0/8, or "unix"'),
        (
            ["10.0.0.1/8"],
            "trusted_proxies '10.0.0.1/8': expected an address, a network such as 10.0.0.0/8, or \"unix\"",
        ),
        (
            ["proxy.local"],
            "trusted_proxies 'proxy.local': expected an address, a network such as 10.0.0.0/8, or \"unix\"",
        ),
        (["::ffff:0:0/96"], "trusted_proxies '::ffff:0:0/96': would trust every host (expected your own networks)"),
        (["0.0.0.0/0"], "trusted_proxies '0.0.0.0/0': would trust every host (expected your own networks)"),
        (["10.0.0.0/8", "::/0"], "trusted_proxies '::/0': would trust every host (expected your own networks)"),
    ],
)
def test_settings_without_meaning_are_refused(trusted: object, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        TrustedProxies(trusted)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize("header", ["X-Real-IP", "", None, 1])
def test_only_two_headers_are_known(header: object) -> None:
    with pytest.raises(InvalidOption, match=r"^forwarded_header .*: expected X-Forwarded-For or Forwarded$"):
        TrustedProxies(1, header=header)  # type: ignore[arg-type]


def test_the_header_to_read_is_named_and_none_where_none_is_read() -> None:
    assert TrustedProxies().header == TrustedProxies([]).header == ""
    assert TrustedProxies(1).header == "x-forwarded-for"
    assert TrustedProxies({"10.0.0.0/8"}, header="Forwarded").header == "forwarded"

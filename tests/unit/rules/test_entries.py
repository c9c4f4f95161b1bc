"""What callers write becomes what is matched and counted; whatever they write has a known outcome."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.errors import InvalidInput, InvalidRequest
from penstock.rules.entries import key_part, reader
from penstock.rules.globs import GlobTree, check_pattern
from penstock.rules.networks import address_of, number_of
from tests.unit.rules.support import NOW, asks_of, rule_set


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (None, ""),
        ("", ""),
        ("text", "text"),
        (" as it is ", " as it is "),
        ("a\x00b\r\n", "a\x00b\r\n"),
        ("é", "é"),
        (7, "7"),
        (-7, "-7"),
        (True, "true"),
        (False, "false"),
        ("a\ud800b", "a\\ud800b"),
    ],
)
def test_text_is_read_as_it_is(value: Any, read: str) -> None:
    assert reader("entry")(value) == read


@pytest.mark.parametrize("value", [b"text", 1.5, ["text"], {}, object(), 10**100])
def test_an_entry_that_is_no_text_is_refused_without_quoting_it(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^entry 'user': expected text, not \w+$"):
        reader("user")(value)


def test_a_text_of_a_kind_of_its_own_is_text() -> None:
    class Text(str):
        __slots__ = ()

    assert reader("entry")(Text("a")) == "a"
    assert reader("ip", address=True)(Text("192.0.2.7")) == "192.0.2.7"


def test_case_is_folded_and_accents_are_composed_by_option() -> None:
    folding, composing = reader("a", fold_case=True), reader("a", nfc=True)
    assert folding("StraßE") == folding("STRASSE") == "strasse"
    assert composing("e\u0301") == composing("é") == "é"
    assert reader("a")("e\u0301") != reader("a")("é")
    assert reader("a")("A") != reader("a")("a")


def test_composing_a_hostile_text_takes_no_time_to_speak_of() -> None:
    hostile = "a" + "\u0315\u0300" * 1_000_000
    assert len(reader("a", nfc=True)(hostile)) > 1_000_000  # in the square of that, this test would never end


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:207", "192.0.2.7"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::1", "::1"),
        ("192.0.2.07", None),
        ("192.0.2", None),
        ("192.0.2.7:80", None),
        ("[::1]", None),
        ("fe80::1%eth0", None),
        (" 192.0.2.7", None),
        ("192.0.2.7\n", None),
        ("192.0.2.7\x00", None),
        ("1" * 100_000, None),
        (":" * 100_000, None),
        ("٣.0.0.1", None),
        ("\ud800", None),
        ("", None),
    ],
)
def test_an_address_has_one_form_and_what_is_none_is_absent(written: str, address: str | None) -> None:
    assert address_of(written) == address
    assert reader("ip", address=True)(written) == (address or "")
    assert (number_of(written) is None) is (address is None)


def test_ipv4_within_ipv6_is_in_ipv4_networks_and_in_no_others() -> None:
    rules = rule_set(
        {"id": "four", "match": {"ip": {"cidr": "192.0.2.0/24"}}},
        {"id": "six", "match": {"ip": {"cidr": "::/0"}}},
        {"id": "wrapped", "match": {"ip": {"cidr": "::ffff:192.0.2.0/120"}}},
        {"id": "equal", "match": {"ip": "::ffff:192.0.2.7"}},
    )
    for written in ("192.0.2.7", "::ffff:192.0.2.7"):
        assert [rule.id for rule in rules.match({"ip": written}, NOW).course.limits] == ["four", "wrapped", "equal"]
    assert [rule.id for rule in rules.match({"ip": "2001:db8::1"}, NOW).course.limits] == ["six"]


def test_ipv6_makes_a_key_by_its_prefix_and_ipv4_as_it_is() -> None:
    rules = rule_set({"id": "a"}, {"id": "b", "key": ["peer", "user"]}, entries={"peer": {"ipv6_prefix": 48}})

    def keys(address: str) -> list[Any]:
        return [ask.key for ask in asks_of(rules.match({"ip": address, "peer": address}, NOW))]

    assert keys("2001:db8:1:2:3::4") == ["a ip=2001:db8:1:2::/64", ("b", "peer=2001:db8:1::/48", "user")]
    assert keys("2001:db8:1:2::ffff") == keys("2001:db8:1:2:3::4")
    assert keys("::ffff:192.0.2.7") == keys("192.0.2.7") == ["a ip=192.0.2.7", ("b", "peer=192.0.2.7", "user")]


def test_a_text_that_looks_like_a_digest_is_not_taken_for_one() -> None:
    digest = key_part("user=", "x" * 1_000)
    assert key_part("user=", digest.removeprefix("user")) != digest


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("/v1/*/orders", ["/v1/a/orders", "/v1//orders"], ["/v1/orders", "/v1/a/b/orders", "/v1/a/orders/"]),
        ("/v1/**", ["/v1", "/v1/", "/v1/a/b"], ["/v10", "/v2/v1"]),
        ("**/orders", ["orders", "/orders", "/a/b/orders"], ["/orders/", "/aorders"]),
        ("/a/**/b", ["/a/b", "/a/x/b", "/a/x/y/b"], ["/ab", "/a/x/b/c"]),
        ("*.csv", [".csv", "a.csv"], ["a/b.csv", "csv"]),
        ("a*b*c", ["abc", "aXbXbc", "abbcc"], ["ab", "acb", "abcd"]),
        ("*a*a", ["aa", "aba"], ["a"]),
        ("/v1/[x]?", ["/v1/[x]?"], ["/v1/x"]),
        ("**", ["a", "/", "a/b"], [""]),
        ("*", ["a"], ["a/b", ""]),
    ],
)
def test_a_pattern_fits_by_segments(pattern: str, fitting: list[str], others: list[str]) -> None:
    tree = GlobTree([(pattern, 0)])
    assert all(tree.find(value) for value in fitting)
    assert not any(tree.find(value) for value in others)


@pytest.mark.parametrize("pattern", ["/v1/a**", "**.csv", "a/***/b"])
def test_two_stars_stand_alone(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="expected \\*\\* to stand alone between slashes"):
        check_pattern(pattern)


def test_a_hostile_path_costs_no_more_than_its_length() -> None:
    tree = GlobTree((pattern, 0) for pattern in ("**/a/**/a/**/a/**/b", "**/*a*a*a*a*b", "**/**/**/b"))
    assert tree.find("/".join(["a" * 50] * 20_000)) == ()  # with backtracking, this test would never end


@pytest.mark.untraced
def test_the_time_of_a_walk_grows_with_the_patterns_and_not_with_their_square() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"

    def took(number: int) -> float:
        shapes = [f"*{letters[at % 26]}*{letters[at // 26 % 26]}*{letters[at // 676]}*" for at in range(number)]
        tree = GlobTree((f"**/{shape}/**/x", at) for at, shape in enumerate(shapes))
        value = "/".join([letters * 3] * 5)
        times = []
        for _ in range(3):
            began = time.process_time()
            tree.find(value)
            times.append(time.process_time() - began)
        return min(times)

    assert took(4_000) < 30 * took(500)  # 8 times as many; copying what was reached for each took 64 times as long


def test_folded_case_is_composed_again() -> None:
    read = reader("account", fold_case=True, nfc=True)
    assert read("\u0390") == read("\u0390".upper())

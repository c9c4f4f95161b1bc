"""What the short forms mean, and what a rule looks like once it was read."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import ValidationError

from penstock import Quota
from penstock.errors import InvalidQuota, InvalidRules
from penstock.quota.text import read_duration
from penstock.rules import shorthand
from penstock.rules.conditions import All, Cidr, Condition, Equals, Glob, Not, OneOf, Prefix, Present
from penstock.rules.conditions import Any as AnyOf
from penstock.rules.faults import Flawed
from penstock.rules.model import CostFrom, EntryOptions, Override, Rule, RuleFile
from penstock.rules.parser import parse

RULE = {"id": "api", "key": "ip", "quota": "100/minute"}


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        parse(text)
    return [f"{fault.path}: {fault.problem}" for fault in caught.value.faults]


def _rule(**fields: object) -> Rule:
    return Rule.model_validate({**RULE, **fields})


# ---------------------------------------------------------------- match

CONDITIONS: list[tuple[dict[str, Any], Condition, str]] = [
    ({"method": "POST"}, Equals("method", "POST"), "method is 'POST'"),
    ({"v": 7, "beta": True}, All((Equals("v", "7"), Equals("beta", "true"))), "v is '7' and beta is 'true'"),
    ({"method": ["GET", "GET", "PUT"]}, OneOf("method", ("GET", "PUT")), "method is one of 'GET', 'PUT'"),
    ({"a": {"in": list("abcdef")}}, OneOf("a", tuple("abcdef")), "a is one of 'a', 'b', 'c', 'd' and 2 more"),
    ({"path": {"prefix": "/v1"}}, Prefix("path", "/v1"), "path starts with '/v1'"),
    ({"p": {"glob": ["/a", "/**"]}}, AnyOf((Glob("p", "/a"), Glob("p", "/**"))), "p fits '/a' or p fits '/**'"),
    ({"ip": {"cidr": "10.0.0.0/8"}}, Cidr("ip", (ip_network("10.0.0.0/8"),)), "ip is in 10.0.0.0/8"),
    ({"ip": {"cidr": "10.1.2.3"}}, Cidr("ip", (ip_network("10.1.2.3/32"),)), "ip is in 10.1.2.3/32"),
    ({"ip": {"cidr": "::ffff:10.0.0.0/104"}}, Cidr("ip", (ip_network("10.0.0.0/8"),)), "ip is in 10.0.0.0/8"),
    ({"user": {"present": False}}, Present("user", wanted=False), "user is absent"),
    ({"user": {"present": True}}, Present("user"), "user is present"),
    ({"user": {"not": ["a"]}}, Not(OneOf("user", ("a",))), "not (user is one of 'a')"),
    ({"not": {"a": "1", "b": "2"}}, Not(All((Equals("a", "1"), Equals("b", "2")))), "not (a is '1' and b is '2')"),
    (
        {"a": "1", "any": [{"b": "2"}, {"c": "3", "d": "4"}]},
        All((Equals("a", "1"), AnyOf((Equals("b", "2"), All((Equals("c", "3"), Equals("d", "4"))))))),
        "a is '1' and (b is '2' or (c is '3' and d is '4'))",
    ),
    ({"all": [{"a": "1"}]}, Equals("a", "1"), "a is '1'"),
]


@pytest.mark.parametrize(
    ("written", "meant", "said"), CONDITIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_match_is_read_and_said_in_words(written: dict[str, Any], meant: Condition, said: str) -> None:
    condition = shorthand.condition(written)
    assert condition == meant
    assert str(condition) == said
    assert shorthand.condition(condition) is condition
    assert hash(condition) == hash(meant)


def test_conditions_of_different_kinds_are_never_equal() -> None:
    assert len({Equals("a", "b"), Prefix("a", "b"), Glob("a", "b")}) == 3


# ---------------------------------------------------------------- quota, key, deadline, until


@pytest.mark.parametrize(
    "written",
    ["10/second; 1000/hour", "10/second, 1000/hour", ["10/second", "1000/hour"], [Quota(10, 1), Quota(1000, 3600)]],
)
def test_several_quotas_can_be_written_in_one_text_or_in_a_list(written: object) -> None:
    assert _rule(quota=written).quotas == (Quota(10, 1), Quota(1000, 3600))


def test_a_flaw_in_a_list_of_quotas_has_its_index() -> None:
    with pytest.raises(Flawed) as caught:
        shorthand.quotas(["10/second", "1/eon", "0/day"])
    assert [(flaw.path, flaw.value) for flaw in caught.value.flaws] == [((1,), "1/eon"), ((2,), "0/day")]


def test_two_equal_intervals_would_be_one_counter() -> None:
    with pytest.raises(Flawed, match="two quotas with one counter"):
        shorthand.quotas("10/second min_interval 1s; 100/minute min_interval 1s")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ip", (("ip",),)),
        ("api_key|ip", (("api_key", "ip"),)),
        (["api_key | ip", "path"], (("api_key", "ip"), ("path",))),
        ([], ()),
        ((("a", "b"),), (("a", "b"),)),
    ],
)
def test_keys_are_parts_with_fallbacks(written: object, meant: tuple[tuple[str, ...], ...]) -> None:
    assert _rule(key=written).key == meant


@pytest.mark.parametrize(
    "written", ["", "|", "a |", "a b", "a | a", "1a", "a|b|c|d|e", 5, None, {"a": 1}, ["a"] * 9, [["a"]], "x" * 65]
)
def test_other_keys_are_refused(written: object) -> None:
    with pytest.raises(Flawed):
        shorthand.key_parts(written)


@pytest.mark.parametrize(("written", "meant"), [("20ms", 0.02), ("1 s", 1.0), ("60s", 60.0), ("1us", 1e-6), (0.5, 0.5)])
def test_deadlines_are_durations(written: object, meant: float) -> None:
    assert _rule(deadline=written).deadline == meant


@pytest.mark.parametrize(
    "written", ["", "20", "ms", "0ms", "61s", "2 hours", "20ms 3", 20, None, True, float("nan"), -1.0]
)
def test_other_deadlines_are_refused(written: object) -> None:
    with pytest.raises(Flawed, match="a duration"):
        shorthand.seconds(written)


def test_durations_read_as_in_quotas() -> None:
    assert [read_duration(text) for text in ("250ms", "15 minutes", "1_000us")] == [250_000, 900_000_000, 1_000]
    for text in ("", "5", "5 fortnights", "5s 5s", "x" * 2_000, None):
        with pytest.raises(InvalidQuota):
            read_duration(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written", ["2026-06-05T18:00:00Z", "2026-06-05T20:00:00+02:00", "2026-06-05 18:00+00:00", "20260605T180000Z"]
)
def test_an_instant_is_the_same_wherever_it_is_read(written: str) -> None:
    assert shorthand.instant(written) == datetime(2026, 6, 5, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    "written",
    ["2026-06-05", "2026-06-05T18:00:00", "friday", "", 5, None, "0001-01-01T00:00:00+23:59", datetime(2026, 1, 1)],  # noqa: DTZ001
)
def test_other_instants_are_refused(written: object) -> None:
    with pytest.raises(Flawed, match="offset from UTC"):
        shorthand.instant(written)


# ---------------------------------------------------------------- rules and files


def test_a_rule_needs_few_fields() -> None:
    rule = _rule()
    assert (rule.action, rule.mode, rule.order, rule.cost, rule.priority, rule.stop) == (
        "limit",
        "enforce",
        0,
        1,
        "normal",
        False,
    )
    assert (rule.match, rule.tiers, rule.on_failure, rule.deadline, rule.shared) == (None, None, None, None, None)
    assert (rule.response.headers, rule.response.message, rule.tags) == ("shown", None, ())


def test_records_do_not_change_and_compare_by_what_they_say() -> None:
    assert _rule() == _rule()
    assert _rule() != _rule(order=1)
    with pytest.raises(ValidationError, match="frozen"):
        _rule().order = 5


def test_values_of_other_types_are_not_converted() -> None:
    for field, value in [
        ("order", "1"),
        ("order", True),
        ("stop", 1),
        ("cost", "5"),
        ("cost", True),
        ("cost", 1.0),
        ("tags", "x"),
    ]:
        with pytest.raises(ValidationError):
            _rule(**{field: value})


def test_a_deny_has_no_key_and_no_quota() -> None:
    rule = Rule.model_validate({"id": "blocked", "action": "deny"})
    assert (rule.key, rule.quotas) == ((), ())


def test_a_cost_must_fit_every_counter_but_those_that_charge_one_whatever_the_cost() -> None:
    assert _rule(quota="10/minute; 5 concurrent", cost=10).cost == 10
    assert _rule(quota="10/minute burst 50", cost=50).cost == 50
    with pytest.raises(ValidationError, match="never fits '10/minute'"):
        _rule(quota="10/minute", cost={"entry": "tokens", "most": 11})


def test_a_cost_may_come_from_an_entry() -> None:
    rule = _rule(cost={"entry": "tokens", "most": 50})
    assert rule.cost == CostFrom(entry="tokens", least=1, most=50)
    assert _rule(cost=rule.cost).cost is rule.cost


def test_addresses_are_folded_by_default() -> None:
    file = parse("entries: {ip: {ipv6_prefix: 56}, host: {fold_case: true}}\nempty: true")
    assert file.options("ip") == EntryOptions(ipv6_prefix=56)
    assert file.options("host") == EntryOptions(fold_case=True)
    assert file.options("path") == EntryOptions()
    assert RuleFile(empty=True).options("ip") == EntryOptions(ipv6_prefix=64)
    assert parse("entries: {ip: {nfc: true}}\nempty: true").options("ip") == EntryOptions(nfc=True, ipv6_prefix=64)


def test_the_repr_of_an_override_hides_its_identities() -> None:
    override = Override.model_validate(
        {"rule": "api", "for": {"owner": ["acme", 7]}, "quota": "5/minute", "until": "2026-06-05T18:00:00.000001Z"}
    )
    assert override.who == {"owner": ("acme", "7")}
    assert "acme" not in repr(override)
    assert override.until_us == 1_780_682_400_000_001


@pytest.mark.parametrize("field", sorted(Rule.model_fields))
def test_a_field_of_a_rule_that_is_blank_is_a_fault(field: str) -> None:
    alias = Rule.model_fields[field].alias or field
    lines = [f"    {name}: {value}" for name, value in RULE.items() if name != alias]
    text = "rules:\n  -\n" + "\n".join([*lines, f"    {alias}:"]) + "\n"
    with pytest.raises(InvalidRules) as caught:
        parse(text)
    blank = [fault for fault in caught.value.faults if fault.problem == "blank"]
    assert [fault.path for fault in blank] == [f"rules[0].{alias}"]


def test_rules_with_a_shared_counter_and_the_same_key_are_sound() -> None:
    shared = {**RULE, "shared": "pool"}
    file = RuleFile.model_validate({"rules": [shared, {**shared, "id": "other"}]})
    assert {rule.shared for rule in file.rules} == {"pool"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('"[key]": 1', "[key]"),
        ('rules: [{"[key]": 1}]', "rules[0].[key]"),
        ('entries: {ip: {"[key]": 1}}', "entries.ip.[key]"),
    ],
)
def test_a_field_may_have_the_name_that_pydantic_gives_to_names(text: str, where: str) -> None:
    assert any(one.startswith(f"{where}: unknown field") for one in problems(text))


def test_a_cost_that_a_sharing_rule_never_admits_is_a_fault_of_the_file() -> None:
    found = problems("""
    rules:
      - {id: a, key: ip, quota: 100/minute, cost: 50, shared: x}
      - {id: b, key: ip, quota: 10/minute, shared: x}
    """)
    assert found == ["rules[0].cost: never fits '10/minute' of b, which shares x"]


def test_a_network_has_no_zone() -> None:
    found = problems('rules: [{id: a, action: deny, match: {ip: {cidr: "fe80::%eth0/64"}}}]')
    assert found == ["rules[0].match.ip.cidr: "]


def test_a_network_in_place_of_an_address_is_a_fault() -> None:
    found = problems("rules: [{id: a, action: deny, match: {any: [{ip: 203.0.113.0/24}]}}]")
    assert found == ["rules[0].match: ip is an address, and this is none"]
    override = "{rule: a, for: {ip: 10.0.0.0/8}, quota: 2/minute, until: 2100-01-01T00:00:00Z}"
    found = problems(f"rules: [{{id: a, key: ip, quota: 1/minute}}]\noverrides: [{override}]")
    assert found == ["overrides[0].for.ip: not an address"]

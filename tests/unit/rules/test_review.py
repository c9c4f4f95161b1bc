"""What a reviewer found."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import Limiter, StoreError
from penstock.cli.app import app
from penstock.clock import Micros
from penstock.enforcer import Enforcer
from penstock.errors import InvalidOption, InvalidRequest, InvalidRules
from penstock.layers.fallback import Fallback
from penstock.model import Failed, Op, Outcome
from penstock.rules.api_keys import KeyDirectory, KeyRecord, KeyTable, hash_key
from penstock.rules.entries import reader
from penstock.rules.globs import GlobTree
from penstock.rules.parser import parse
from penstock.rules.ruleset import MOST, RuleSet, retired
from penstock.rules.source import RuleSource
from tests.unit.rules.support import NOW, rule_set

IP = {"ip": "192.0.2.7"}
SECRET = b"0123456789abcdef"


class Gone:
    """A store that cannot answer."""

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return [Failed(StoreError("gone", transient=True), "no") for _ in ops]

    def close(self) -> None:
        """Nothing to close."""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidRules) as caught:
        parse(text)
    return [f"{fault.path}: {fault.problem}" for fault in caught.value.faults]


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


def test_a_rule_in_shadow_mode_stops_no_other() -> None:
    rules = rule_set({"id": "trial", "mode": "shadow", "stop": True}, {"id": "api", "quota": "1/minute"})
    enforcer = Enforcer(rules, Limiter())
    assert [bool(enforcer.check(IP)) for _ in range(2)] == [True, False]
    assert [rule.applies for rule in enforcer.explain(IP).rules] == [True, True]


def test_a_rule_in_shadow_mode_has_no_say_in_deadline_and_priority() -> None:
    course = (
        rule_set(
            {"id": "trial", "mode": "shadow", "priority": "critical", "deadline": "1ms"},
            {"id": "api", "priority": "low", "deadline": "50ms"},
        )
        .match(IP, NOW)
        .course
    )
    assert (course.priority, course.deadline) == ("low", 50_000)


def test_a_cost_too_high_for_a_rule_in_shadow_mode_does_not_raise() -> None:
    rules = rule_set({"id": "api"}, {"id": "trial", "mode": "shadow", "quota": "2/minute"})
    enforcer = Enforcer(rules, Limiter())
    assert enforcer.check(IP, cost=3)
    assert enforcer.check(IP, cost=3).would_refuse == ("trial",)


def test_a_cost_that_a_sharing_rule_never_admits_is_a_fault_of_the_file() -> None:
    found = problems("""
    rules:
      - {id: a, key: ip, quota: 100/minute, cost: 50, shared: x}
      - {id: b, key: ip, quota: 10/minute, shared: x}
    """)
    assert found == ["rules[0].cost: never fits '10/minute' of b, which shares x"]


@pytest.mark.parametrize("says", ["open", "local"])
def test_a_lenient_rule_does_not_loosen_one_that_leaves_it_to_the_limiter(says: str) -> None:
    rules = rule_set({"id": "strict"}, {"id": "lenient", "on_failure": says})
    enforcer = Enforcer(rules, Limiter(Gone(), layers=[Fallback("closed", hosts=1)]))
    assert enforcer.check(IP).reason == "degraded"
    alone = Enforcer(
        rule_set({"id": "lenient", "on_failure": says}), Limiter(Gone(), layers=[Fallback("closed", hosts=1)])
    )
    assert alone.check(IP)


def test_a_network_has_no_zone() -> None:
    found = problems('rules: [{id: a, action: deny, match: {ip: {cidr: "fe80::%eth0/64"}}}]')
    assert found == ["rules[0].match.ip.cidr: "]


def test_a_network_in_place_of_an_address_would_never_match_so_it_is_a_fault() -> None:
    found = problems("rules: [{id: a, action: deny, match: {any: [{ip: 203.0.113.0/24}]}}]")
    assert found == ["rules[0].match: ip is an address, and this is none"]
    override = "{rule: a, for: {ip: 10.0.0.0/8}, quota: 2/minute, until: 2100-01-01T00:00:00Z}"
    found = problems(f"rules: [{{id: a, key: ip, quota: 1/minute}}]\noverrides: [{override}]")
    assert found == ["overrides[0].for.ip: not an address"]


@pytest.mark.parametrize("descriptor", [None, [], "x"])
def test_what_is_no_descriptor_is_an_error_of_the_caller_with_a_directory_too(descriptor: Any) -> None:
    enforcer = Enforcer(rule_set({"id": "a"}), Limiter(), directory=KeyDirectory(KeyTable([]), SECRET))
    with pytest.raises(InvalidRequest):
        enforcer.check(descriptor)


def test_a_table_takes_no_key_twice_and_no_hash_of_another_length() -> None:
    digest = hash_key("k", SECRET)
    with pytest.raises(InvalidOption, match="once"):
        KeyTable([(digest, KeyRecord("acme")), (digest, KeyRecord("acme", status="revoked"))])
    with pytest.raises(InvalidOption, match="16 bytes"):
        KeyTable([(digest[:3], KeyRecord("acme"))])


@pytest.mark.untraced
def test_the_time_of_a_walk_grows_with_the_patterns_and_not_with_their_square() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"

    def took(number: int) -> float:
        shapes = [f"*{letters[at % 26]}*{letters[at // 26 % 26]}*{letters[at // 676]}*" for at in range(number)]
        tree = GlobTree((f"**/{shape}/**/x", at) for at, shape in enumerate(shapes))
        value = "/".join([letters * 3] * 5)
        times = []
        for _ in range(3):
            began = time.perf_counter()
            tree.find(value)
            times.append(time.perf_counter() - began)
        return min(times)

    assert took(4_000) < 30 * took(500)  # 8 times as many; copying what was reached for each took 64 times as long


@pytest.mark.untraced
def test_sets_that_are_replaced_while_nobody_asks_do_not_pile_up() -> None:
    for version in range(MOST):
        rule_set(*({"id": f"r{number}", "match": {"path": f"/{version}/{number}"}} for number in range(300)))
    assert len(retired) <= MOST
    retired.clear()


def test_of_several_overrides_that_hold_the_first_in_the_file_applies() -> None:
    until = "2100-01-01T00:00:00Z"
    whom = [{"owner": "other"}, {"tier": "gold"}, {"owner": "acme"}]
    overrides = [{"rule": "a", "for": who, "quota": f"{at}/minute", "until": until} for at, who in enumerate(whom, 1)]
    plan = rule_set({"id": "a"}, overrides=overrides).match({"owner": "acme", "tier": "gold"}, NOW)
    assert [ask.quota.limit for ask in plan.asks] == [2]


@pytest.mark.parametrize(("says", "outcome"), [("open", "it may pass"), ("closed", "it is refused")])
def test_explaining_makes_up_no_counters_while_the_store_is_gone(says: Any, outcome: str) -> None:
    enforcer = Enforcer(rule_set({"id": "a"}), Limiter(Gone(), layers=[Fallback(says, hosts=1)]))
    explanation = enforcer.explain(IP)
    assert explanation.outcome == f"the store cannot answer: {outcome}"
    assert explanation.rules[0].counters == ()


@pytest.mark.parametrize("store", ["nowhere://x", "redis://localhost:1/0?secret=a-long-random-text"])
def test_a_store_that_cannot_be_asked_is_said_in_words(tmp_path: Path, store: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("rules: [{id: a, key: ip, quota: 1/minute}]")
    result = CliRunner().invoke(app, ["rules", "explain", str(file), "ip=192.0.2.7", "--store", store])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_content_that_was_replaced_under_the_old_time_and_size_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("rules: [{id: a, key: ip, quota: 1/minute}]")
    os.utime(file, (1, 1))
    later = time.time_ns() // 1_000 + 3_600_000_000
    source = RuleSource(file, RuleSet)
    source.look(later)
    file.write_text("rules: [{id: b, key: ip, quota: 1/minute}]")
    os.utime(file, (1, 1))
    assert [source.look(later + second) for second in (1, 2)] == [False, True]
    assert source.current.rules[0].id == "b"


def test_folded_case_is_composed_again() -> None:
    read = reader("account", fold_case=True, nfc=True)
    assert read("\u0390") == read("\u0390".upper())

"""`penstock rules convert`: what becomes rules, and what is said not to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.rules.parser import parse
from penstock.service.envoy.convert import convert
from tests.unit.envoy.support import Bench


def converted(descriptors: str) -> tuple[str, tuple[str, ...]]:
    result = convert(Bench.config(f"domain: d\ndescriptors: {descriptors}"))
    parse(result.text)  # it is a file of rules
    return result.text, result.notes


def test_a_limit_becomes_a_rule() -> None:
    text, notes = converted("[{key: api_key, rate_limit: {unit: minute, requests_per_unit: 3, on_failure: closed}}]")
    assert text == (
        "rules:\n"
        '  - id: "d.api_key"\n'
        '    match: {"domain": "d", "entries": "api_key"}\n'
        '    key: ["api_key"]\n'
        '    quota: "3/minute fixed_window"\n'
        '    on_failure: "closed"\n'
    )
    assert notes == ()


def test_neighbours_come_in_their_order() -> None:
    limit = "rate_limit: {unit: minute, requests_per_unit: 3}"
    text, _ = converted(f"[{{key: k, {limit}}}, {{key: k, value: 'a*', {limit}}}, {{key: k, value: ab}}]")
    assert '"k": {"prefix": "a"}, "not": {"any": [{"k": "ab"}]}' in text
    assert '"entries": "k", "not": {"any": [{"k": "ab"}, {"k": {"prefix": "a"}}]}' in text
    assert text.count("- id") == 2


def test_nothing_to_limit_is_an_empty_file() -> None:
    assert converted("[{key: k, rate_limit: {unlimited: true}}, {key: l}]") == ("empty: true\n", ())


@pytest.mark.parametrize(
    ("descriptor", "note"),
    [
        ("key: 'a b', rate_limit: {unit: day, requests_per_unit: 1}", "d.a b: not converted: key 'a b'"),
        ("key: domain, rate_limit: {unit: day, requests_per_unit: 1}", "d.domain: not converted: key 'domain'"),
        (
            "key: k, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]",
            "d.k.k: not converted: a key comes twice on its way",
        ),
        ("key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}", "d.k: replaces: rules"),
        ("key: k, rate_limit: {unlimited: true, replaces: [{name: x}]}", "d.k: replaces: rules"),
        ("key: k, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}", "d.k: quota_mode"),
        ("key: k, metadata: {a: 1}, rate_limit: {unit: day, requests_per_unit: 1}", "d.k: metadata"),
        ("key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}", "d.k: detailed_metric"),
        ("key: k, rate_limit: {unit: day, requests_per_unit: 1, name: n}", "d.k: name 'n'"),
        ("key: k, value: 'a*b', rate_limit: {unit: day, requests_per_unit: 1}", "d.k_a*b: value 'a*b'"),
        ("key: ip, rate_limit: {unit: day, requests_per_unit: 1}", "d.ip: key 'ip'"),
    ],
)
def test_conversion_notes_what_a_rule_cannot_express(descriptor: str, note: str) -> None:
    _, notes = converted(f"[{{{descriptor}}}]")
    assert len(notes) == 1
    assert notes[0].startswith(note)


def test_conversion_notes_what_neighbours_lose() -> None:
    _, notes = converted("[{key: k, value: '/a*b'}, {key: k, rate_limit: {unit: day, requests_per_unit: 1}}]")
    assert notes == ("d.k: value '/a*b': in a rule, * within a pattern does not stand for a /",)


def test_a_shadow_and_a_limit_of_nothing() -> None:
    text, _ = converted(
        "[{key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}},"
        " {key: b, rate_limit: {unit: day, requests_per_unit: 0}}]"
    )
    assert 'mode: "shadow"' in text
    assert 'action: "deny"' in text


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["rules", "convert", *map(str, words)])


def test_the_command_prints_rules_and_notes_apart(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "domain: d\ndescriptors: [{key: k, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]"
    )
    result = _run(tmp_path)
    assert result.exit_code == 0
    assert len(parse(result.stdout).rules) == 1
    assert result.stderr == "d.k: quota_mode: a rule that refuses, refuses\n"


def test_command_prints_faults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("domain: d\ndescriptors: [{kye: k}]")
    result = _run(tmp_path)
    assert result.exit_code == 1
    assert "a.yaml:2: descriptors[0].kye: unknown key, did you mean key?" in result.stdout
    assert _run(tmp_path / "none").exit_code == 2

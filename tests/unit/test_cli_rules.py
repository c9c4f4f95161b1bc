"""`penstock rules`: what it prints, and with which code it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.app import app
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.rules.schema import schema

SOUND = "rules:\n  - {id: api, key: ip, quota: 100/minute}\n"
FAULTY = "rules:\n  - {id: api, key: ip, quota: 100/fortnight}\n  - {id: '[red]', key: ip, quota: 1/minute}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(SOUND, encoding="utf-8")
    return path


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_valid_file_is_reported_as_sound(file: Path) -> None:
    result = _run("rules", "check", file)
    assert result.exit_code == 0
    assert result.stdout == f"penstock.yaml: sound, 1 rule, 0 overrides, version {RuleSet(parse(SOUND)).version}\n"


def test_every_fault_is_a_line_that_an_editor_can_jump_to(file: Path) -> None:
    file.write_text(FAULTY, encoding="utf-8")
    result = _run("rules", "check", file)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("penstock.yaml:2: rules[0].quota: '100/fortnight': unknown unit")
    assert lines[1].startswith("penstock.yaml:3: rules[1].id: '[red]': expected a letter or digit")
    assert lines[2:] == ["2 faults"]


def test_check_prints_the_same_as_json(file: Path) -> None:
    result = _run("rules", "check", file, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "sound": True,
        "rules": 1,
        "overrides": 0,
        "version": RuleSet(parse(SOUND)).version,
    }
    file.write_text(FAULTY, encoding="utf-8")
    result = _run("rules", "check", file, "--json")
    assert result.exit_code == 1
    said = json.loads(result.stdout)
    assert said["sound"] is False
    assert [(fault["line"], fault["path"]) for fault in said["faults"]] == [(2, "rules[0].quota"), (3, "rules[1].id")]


def test_a_file_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    result = _run("rules", "check", tmp_path / "none.yaml")
    assert result.exit_code == 1
    assert "none.yaml: cannot be read: No such file or directory" in result.stdout


@pytest.mark.parametrize("words", [("rules", "check"), ("rules", "chekc", "x"), ("rules", "check", "a", "b")])
def test_wrong_usage_exits_with_2(words: tuple[str, ...]) -> None:
    assert _run(*words).exit_code == 2


def test_the_schema_is_printed_as_json() -> None:
    result = _run("rules", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == schema()


def test_the_module_runs_as_a_command(file: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "rules", "check", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert "sound" in result.stdout


def test_without_its_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "penstock.cli.app", None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "pip install 'penstock[cli]'" in capsys.readouterr().err


def test_explain_names_the_rules_that_apply(file: Path) -> None:
    result = _run("rules", "explain", file, "ip=192.0.2.7", "path=/v1=x")
    assert result.exit_code == 0
    assert "it may pass\napi: applies: it has no condition\n    counted by ip (an IPv4 address)\n" in result.stdout
    assert "0 of 100 used" in result.stdout
    assert "192.0.2.7" not in result.stdout


def test_explain_prints_the_same_as_json(file: Path) -> None:
    said = json.loads(_run("rules", "explain", file, "ip=192.0.2.7", "--json").stdout)
    assert said["outcome"] == "it may pass"
    assert said["rules"][0]["applies"] is True
    assert said["rules"][0]["quotas"] == ["100/minute"]


def test_explain_refuses_faulty_files_and_entries_without_a_name(file: Path) -> None:
    assert _run("rules", "explain", file, "=x").exit_code == 2
    assert _run("rules", "explain", file, "ip").exit_code == 2
    file.write_text(FAULTY, encoding="utf-8")
    result = _run("rules", "explain", file, "ip=192.0.2.7")
    assert result.exit_code == 1
    assert "fortnight" in result.stdout


@pytest.mark.parametrize("store", ["nowhere://x", "redis://localhost:1/0?secret=a-long-random-text"])
def test_an_unusable_store_is_reported_without_a_traceback(tmp_path: Path, store: str) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("rules: [{id: a, key: ip, quota: 1/minute}]")
    result = CliRunner().invoke(app, ["rules", "explain", str(file), "ip=192.0.2.7", "--store", store])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)

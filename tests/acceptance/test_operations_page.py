"""docs/operations.md and deploy/ are true."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.app import app
from penstock.cli.serve import EXAMPLE
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.settings import SETTINGS, load
from penstock.service.supervisor import MAX_PAUSE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_table_of_settings_is_the_settings() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(setting.name, setting.shown(setting.default), setting.help) for setting in SETTINGS]


def test_the_file_of_settings_can_be_read(tmp_path: Path) -> None:
    (block,) = _blocks("toml")
    (tmp_path / "service.toml").write_text(block, encoding="utf-8")
    settings = load(file=tmp_path / "service.toml")
    assert set(tomllib.loads(block)) == {name for name, _, origin in settings.lines() if origin != "default"}


@pytest.mark.parametrize(
    "line", [line for block in _blocks("sh") for line in block.splitlines() if "penstock serve" in line]
)
def test_every_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cert.pem", "key.pem", "clients-ca.pem"):
        (tmp_path / name).touch()
    words = shlex.split(line, comments=True)
    result = CliRunner().invoke(app, [*words[1:], "--print-config"])
    assert result.exit_code == 0, result.output


def test_flags_and_variables_that_are_named_exist() -> None:
    flags = {setting.flag for setting in SETTINGS} | {"--config", "--print-config", "--no-view"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= flags
    variables = {setting.variable for setting in SETTINGS} | {"PENSTOCK_CONFIG", "PENSTOCK_"}
    deployed = "".join((ROOT / "deploy" / name).read_text() for name in ("Containerfile", "penstock.service"))
    assert set(re.findall(r"PENSTOCK_[A-Z_]*", PAGE + deployed)) <= variables
    assert f"grows to {MAX_PAUSE:g} seconds" in PAGE


def test_the_example_of_rules_is_sound_and_the_one_that_is_deployed() -> None:
    assert len(RuleSet(parse(EXAMPLE)).version) > 0
    assert (ROOT / "deploy/penstock.yaml").read_text(encoding="utf-8") == EXAMPLE


def test_every_file_that_is_named_is_there() -> None:
    for name in re.findall(r"`(deploy/[\w./-]+\w)`", PAGE):
        assert (ROOT / name).exists(), name

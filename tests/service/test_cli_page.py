"""docs/cli.md is true: commands print what it shows, options and exit codes are those that there are."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import penstock
from penstock.cli import output
from penstock.cli.app import app
from tests.rig.processes import Workplace, wait_until
from tests.rig.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
FOLDED = re.compile(r"[\d.,]+ (?:d|h|min|ms|s)\b|reset in [\d.]+ s")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _steps(block: str) -> list[tuple[str, str]]:
    """Commands, and what is printed after each."""
    steps = (step.partition("\n") for step in re.split(r"^\$ penstock ", block, flags=re.MULTILINE)[1:])
    return [(command, shown) for command, _, shown in steps]


def _alike(text: str) -> list[str]:
    """What is printed, without what differs from time to time: spans of time, versions, spaces of tables."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "VERSION", FOLDED.sub("TIME", text))
    text = re.sub(r"packages: .*", "packages: ...", re.sub(r"127\.0\.0\.1:\d+", "PLACE", text))
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, Path]]:
    place, port = Workplace("penstock-page-"), free_port()
    try:
        rules = place.folder / "penstock.yaml"
        rules.write_text(_blocks("yaml")[0], encoding="utf-8")
        command = (sys.executable, "-m", "penstock.cli", "serve", "--no-view", "--listen", f"127.0.0.1:{port}")
        place.run(command, {"PYTHONPATH": str(Path(penstock.__file__).parents[1])})

        def listens() -> bool:
            with socket.socket() as attempt:
                return attempt.connect_ex(("127.0.0.1", port)) == 0

        wait_until(listens, "the service", pause=0.02)
        yield f"http://127.0.0.1:{port}", place.folder
    finally:
        place.close()


def test_commands_print_what_the_page_shows(service: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    url, folder = service
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.setenv("COLUMNS", "200")
    steps = [step for block in _blocks("console") for step in _steps(block)]
    assert len(steps) >= 10
    for command, shown in steps:
        words = [*shlex.split(command), *(["--interval", "0.1"] if command.startswith("top") else [])]
        printed = CliRunner().invoke(app, words)
        assert _alike(printed.stdout) == _alike(shown), command
        refused = shown.startswith("refused")
        assert printed.exit_code == (output.REFUSED if refused else output.GOOD), command


def _commands(group: typer.core.TyperGroup, name: str = "penstock") -> Iterator[tuple[str, object]]:
    for word, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from _commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def test_every_command_and_option_that_is_named_exists() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    commands = dict(_commands(group))
    named = set(re.findall(r"^\| \[`(penstock [a-z ]+)`\]", PAGE, re.MULTILINE))
    assert {name for name in commands if not name.startswith("penstock rules")} == named - {"penstock rules"}
    options = {option for command in commands.values() for one in command.params for option in one.opts}  # type: ignore[attr-defined]
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= options


def test_the_table_of_exit_codes_is_the_one_in_the_code() -> None:
    row = r"^\| (\d) \| (.+) \|$"
    assert re.findall(row, PAGE, re.MULTILINE) == re.findall(row, output.__doc__ or "", re.MULTILINE)

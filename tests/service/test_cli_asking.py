"""Commands that ask a running service: what they print, and with which code they end."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.cli.app import app
from tests.rig.processes import DEADLINE, Workplace, wait_until
from tests.rig.servers import Server, free_port

TOKEN = "a-token-that-nobody-may-see"
RULES = """
rules:
  - {id: everybody, key: ip, quota: 100/hour}
  - {id: search, match: {path: /search}, key: ip, quota: 2/hour}
  - {id: trial, match: {path: /search}, key: ip, quota: 1/day, mode: shadow}
  - {id: banned, match: {path: /banned}, action: deny}
  - {id: health, match: {path: /health}, action: allow}
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A `penstock serve` of its own process, which wants a token."""
    place = Workplace("penstock-cli-")
    port = free_port()
    try:
        (place.folder / "penstock.yaml").write_text(RULES, encoding="utf-8")
        command = (sys.executable, "-m", "penstock.cli", "serve", "--no-view", "--listen", f"127.0.0.1:{port}")
        place.run(command, {"PENSTOCK_TOKENS": TOKEN, "PYTHONPATH": str(Path(penstock.__file__).parents[1])})
        wait_until(lambda: _listens(port), "the service", pause=0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        place.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE).close()
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def _environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.setenv("PENSTOCK_TOKEN", TOKEN)
    monkeypatch.setenv("COLUMNS", "200")


def _run(*words: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert TOKEN not in result.output
    return result


def _json(*words: str | Path) -> Any:
    return json.loads(_run(*words, "--json").stdout)


def test_check_charges_and_exits_by_the_verdict() -> None:
    first = _run("check", "path=/search", "ip=192.0.2.1")
    assert first.exit_code == 0
    lines = [line.split() for line in first.stdout.splitlines()]
    assert lines[0] == ["allowed", "by", "search"]
    assert lines[2][:4] == ["everybody", "100/hour", "passes", "99"]
    assert lines[4][:5] == ["trial", "1/day", "passes", "(shadow)", "0"]
    assert _run("check", "path=/search", "ip=192.0.2.1").exit_code == 0
    refused = _run("check", "path=/search", "ip=192.0.2.1")
    assert refused.exit_code == 3
    assert refused.stdout.startswith("refused by search (rate): retry after ")
    said = _json("check", "path=/search", "ip=192.0.2.1")
    assert (said["allowed"], said["rule"], said["status"], said["would_refuse"]) == (False, "search", 429, ["trial"])
    assert [one["rule"] for one in said["decisions"]] == ["everybody", "search", "trial"]
    assert "Retry-After" in said["headers"]


def test_check_with_an_id_charges_once() -> None:
    for _ in range(2):
        said = _json("check", "path=/search", "ip=192.0.2.2", "--id", "seven", "--cost", "2")
        assert (said["allowed"], said["decisions"][1]["remaining"]) == (True, 0)


def test_check_names_the_source_of_a_degraded_verdict() -> None:
    assert _run("check", "path=/banned").stdout.startswith("refused by banned (blocked): retry after")
    assert _run("check", "path=/health").stdout == "allowed by health\n"


def test_peek_charges_nothing_by_rules_or_by_quota() -> None:
    for _ in range(3):
        assert _run("peek", "path=/search", "ip=192.0.2.3").exit_code == 0
        assert _run("peek", "--key", "a", "--key", "b", "--quota", "1/hour").exit_code == 0
    assert _run("peek", "path=/search", "ip=192.0.2.3", "--cost", "2").exit_code == 0
    said = _json("peek", "--key", "a", "--quota", "5/hour", "--cost", "0")
    assert said["decisions"][0]["remaining"] == 5


def test_reset_clears_the_counters() -> None:
    assert _run("check", "path=/search", "ip=192.0.2.4", "--cost", "2").exit_code == 0
    assert _run("peek", "path=/search", "ip=192.0.2.4").exit_code == 3
    assert _run("reset", "path=/search", "ip=192.0.2.4").stdout == "reset\n"
    assert _run("peek", "path=/search", "ip=192.0.2.4").exit_code == 0
    assert _json("reset", "--key", "a", "--quota", "5/hour") == {"reset": True}


def test_explain_names_every_rule() -> None:
    result = _run("explain", "path=/search", "ip=192.0.2.5")
    assert result.exit_code == 0
    assert "search: applies: path is '/search'" in result.stdout
    assert "banned: does not apply" in result.stdout
    assert "192.0.2.5" not in result.stdout
    rules = _json("explain", "path=/search", "ip=192.0.2.5")["rules"]
    assert [rule["rule"] for rule in rules if rule["applies"]] == ["everybody", "search", "trial"]


def test_keys_show_lists_every_counter() -> None:
    assert _run("check", "path=/search", "ip=192.0.2.6").exit_code == 0
    lines = [line.split() for line in _run("keys", "show", "path=/search", "ip=192.0.2.6").stdout.splitlines()]
    assert lines[1][:5] == ["rule", "mode", "quota", "used", "left"]
    assert lines[3][:6] == ["search", "enforce", "2/hour", "1", "1", "2"]
    counters = _json("keys", "show", "path=/search", "ip=192.0.2.6")["counters"]
    assert [(one["rule"], one["mode"], one["used"]) for one in counters] == [
        ("everybody", "enforce", 1),
        ("search", "enforce", 1),
        ("trial", "shadow", 1),
    ]


def test_keys_show_reads_a_store_without_a_service(tmp_path: Path, server: Server) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES, encoding="utf-8")
    store = f"{server.url}?deadline=30&prefix=keys-show&secret=0123456789abcdef0123"
    said = _json("keys", "show", "ip=192.0.2.1", "--rules", rules, "--store", store)
    assert [(one["rule"], one["used"]) for one in said["counters"]] == [("everybody", 0)]
    assert _run("keys", "show", "ip=192.0.2.1", "--rules", rules).exit_code == 2
    gone = f"redis://127.0.0.1:{free_port()}?secret=0123456789abcdef0123"
    assert _run("keys", "show", "ip=192.0.2.1", "--rules", rules, "--store", gone).exit_code == 4
    rules.write_text("rules: 1", encoding="utf-8")
    assert _run("keys", "show", "ip=192.0.2.1", "--rules", rules, "--store", store).exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("check",),
        ("check", "path"),
        ("check", "ip=1.1.1.1", "--cost", "1000"),
        ("check", "ip=1.1.1.1", "--url", "ftp://x"),
        ("peek",),
        ("peek", "--key", "a"),
        ("peek", "a=b", "--key", "a", "--quota", "1/s"),
        ("peek", "--key", "a", "--quota", "1/fortnight"),
        ("reset", "a=b", "--quota", "1/s"),
        ("top", "--interval", "0"),
    ],
)
def test_wrong_usage_exits_with_2(words: tuple[str, ...]) -> None:
    assert _run(*words).exit_code == 2


@pytest.mark.parametrize("words", [("check", "a=b"), ("peek", "a=b"), ("reset", "a=b"), ("explain", "a=b"), ("top",)])
def test_unavailable_service_exits_with_4(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(*words, "--url", f"http://127.0.0.1:{free_port()}")
    assert (result.exit_code, "cannot be reached: Connection refused" in result.stderr) == (4, True)
    monkeypatch.setenv("PENSTOCK_TOKEN", "another-token-of-16")
    stranger = _run(*words)
    assert stranger.exit_code == 4
    assert "token" in stranger.stderr


def test_top_prints_a_frame_for_scripts_and_for_people() -> None:
    assert _run("check", "path=/search", "ip=192.0.2.7").exit_code == 0
    text = _run("top", "--once", "--interval", "0.1").stdout
    assert text.startswith("penstock  ready  workers 1")
    assert "decisions/s" in text
    shown = json.loads(_run("top", "--once", "--json", "--interval", "0.1").stdout)
    assert (shown["status"], shown["workers"]) == ("ready", 1)
    assert len(shown["version"]) == 16
    assert "search" in [row["rule"] for row in shown["rows"]]


def test_doctor_finds_the_service_ready_and_reads_its_rules(tmp_path: Path, url: str) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES, encoding="utf-8")
    result = _run("doctor", "--rules", rules, "--url", url)
    assert result.exit_code == 0, result.output
    assert f"fine     service {url.removeprefix('http://')}: ready" in result.stdout
    assert "fine     rules rules.yaml: sound, 5 rules" in result.stdout

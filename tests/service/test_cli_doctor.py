"""`penstock doctor` against real servers, files and settings."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from tests.rig.servers import Server, free_port
from tests.service.client_support import listening

SECRET = "secret=0123456789abcdef0123&deadline=30"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    handlers = logging.getLogger("penstock").handlers[:]
    yield
    logging.getLogger("penstock").handlers[:] = handlers


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["doctor", *[str(word) for word in words]])


def _findings(*words: str | Path) -> tuple[int, list[dict[str, Any]]]:
    result = _run(*words, "--json")
    return result.exit_code, json.loads(result.stdout)["findings"]


def _levels(found: list[dict[str, Any]], about: str) -> list[str]:
    return [one["level"] for one in found if one["about"].startswith(about)]


def test_doctor_without_a_service_checks_packages() -> None:
    result = _run()
    assert result.exit_code == 0
    assert "fine     packages: python 3." in result.stdout
    assert "note     store memory: counters are in the process" in result.stdout
    assert "→ start it: penstock serve" in result.stdout
    assert "\n0 problems, " in result.stdout  # a busy machine may be warned of round trips


def test_a_good_server_is_no_problem(server: Server) -> None:
    code, found = _findings("--store", f"{server.url}?{SECRET}")
    about = [one for one in found if one["about"].startswith("redis 127.0.0.1")]
    assert about
    assert "problem" not in [one["level"] for one in about]
    assert code == 0


def test_evicting_server_is_a_problem_with_a_remedy() -> None:
    with Server("valkey", config=("maxmemory 50mb", "maxmemory-policy allkeys-lru")) as server:
        result = _run("--store", f"{server.url}?{SECRET}")
    assert result.exit_code == 1
    assert "maxmemory-policy is allkeys-lru" in result.stdout
    assert "→ set maxmemory-policy noeviction" in result.stdout
    assert "1 problem, " in result.stdout  # a busy machine may be warned of round trips


def test_a_server_that_is_gone_or_wants_a_password_is_a_problem() -> None:
    code, found = _findings("--store", f"redis://127.0.0.1:{free_port()}?{SECRET}")
    assert (code, _levels(found, "store")) == (1, ["problem"])
    with Server("valkey", password="a-password-nobody-may-see") as server:
        result = _run("--store", f"redis://127.0.0.1:{server.port}?{SECRET}")
    assert result.exit_code == 1
    assert "a-password-nobody-may-see" not in result.output


def test_a_store_without_a_hashing_secret_is_a_warning(server: Server) -> None:
    code, found = _findings("--store", f"{server.url}?deadline=30")
    assert (code, _levels(found, "store")) == (0, ["warning"])


def test_faults_in_rules_are_problems(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n  - {id: api, key: ip, quota: 100/fortnight}\n", encoding="utf-8")
    code, found = _findings("--rules", rules)
    assert (code, _levels(found, "rules")) == (1, ["problem"])
    assert any("100/fortnight" in one["says"] for one in found)
    code, found = _findings("--rules", tmp_path / "none.yaml")
    assert (code, _levels(found, "rules")) == (1, ["problem"])


def test_secrets_that_others_may_read_are_problems(tmp_path: Path) -> None:
    secret = tmp_path / "tls.key"
    secret.write_text("key", encoding="utf-8")
    secret.chmod(0o644)
    assert _findings("--secret", secret)[0] == 1
    secret.chmod(0o600)
    code, found = _findings("--secret", secret)
    assert (code, _levels(found, "file")) == (0, ["fine"])
    assert _findings("--secret", tmp_path / "none")[0] == 1


def test_doctor_checks_what_the_service_would_use(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('rules = "limits.yaml"\nstore = "memory://"\n', encoding="utf-8")
    config.chmod(0o600)
    (tmp_path / "limits.yaml").write_text("rules:\n  - {id: api, key: ip, quota: 1/s}\n", encoding="utf-8")
    code, found = _findings("--config", config)
    assert (code, _levels(found, "rules limits.yaml"), _levels(found, "file")) == (0, ["fine"], ["fine", "fine"])
    config.write_text("rules = 1\nstor = 2\n", encoding="utf-8")
    assert _run("--config", config).exit_code == 2


def test_another_program_on_the_port_is_a_problem() -> None:
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")) as url:
        code, found = _findings("--url", url)
    assert (code, _levels(found, "service")) == (1, ["problem"])


def test_named_service_that_is_down_is_a_problem() -> None:
    assert _findings("--url", f"http://127.0.0.1:{free_port()}")[0] == 1

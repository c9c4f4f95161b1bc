"""`penstock serve`: its flags, faults and messages before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.serve import _command, curl
from penstock.service.settings import SETTINGS, ListenAddress, Settings, load

TOKEN = "x" * 20


def _run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words], env={"COLUMNS": "300", **environment})


def test_every_setting_that_is_no_secret_is_a_flag() -> None:
    shown = _run("--help").stdout
    assert {setting.name for setting in SETTINGS if setting.flag and setting.flag not in shown} == set()
    assert "[v6]:port" in shown
    assert "--token" not in shown


def test_all_settings_are_printed_with_their_origin_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "service.toml").write_text("drain_seconds = 3\n")
    result = _run(
        *("--print-config", "--config", str(tmp_path / "service.toml"), "--store", "redis://:hush@db?secret=hush"),
        PENSTOCK_TOKENS=TOKEN,
    )
    assert result.exit_code == 0
    lines = dict(line.split("\t", 1) for line in result.stdout.splitlines())
    assert list(lines) == [setting.name for setting in SETTINGS]
    assert lines["drain_seconds"] == "3\tservice.toml"
    assert lines["store"] == "redis://***@db?secret=***\t--store"
    assert lines["tokens"] == "***\tPENSTOCK_TOKENS"
    assert lines["workers"] == "1\tdefault"
    assert "hush" not in result.stdout
    assert TOKEN not in result.stdout


def test_faults_are_printed_a_line_each_and_nothing_starts(tmp_path: Path) -> None:
    result = _run("--workers", "no", "--listen", "nowhere", "--config", str(tmp_path / "missing.toml"))
    assert result.exit_code == 2
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["config", "listen", "workers"]


def test_several_workers_with_a_memory_store_are_refused() -> None:
    result = _run("--workers", "2")
    assert result.exit_code == 2
    assert result.stderr.startswith("workers 2 (from --workers): processes cannot share the counts of store memory://")
    assert "redis://" in result.stderr


def test_worker_is_started_with_the_given_flags() -> None:
    flags = {"listen": [":1", ":2"], "workers": "4", "store": None, "trusted_proxies": []}
    assert _command(flags, Path("a.toml"))[3:] == [
        *("serve", "--config", "a.toml", "--listen", ":1", "--listen", ":2", "--workers", "4"),
    ]


@pytest.mark.parametrize(
    ("settings", "address", "line"),
    [
        (load(), ListenAddress("", 80), "curl -s http://127.0.0.1:80/v1/check -d '"),
        (load(), ListenAddress("::1", 80), "curl -s http://[::1]:80/v1/check -d '"),
        (load(), ListenAddress(path="a b"), "curl -s --unix-socket 'a b' http://localhost/v1/check -d '"),
        (
            Settings(tls_certificate=Path("c.pem")),
            ListenAddress("h", 1),
            "curl -s --cacert c.pem https://h:1/v1/check -d '",
        ),
        (
            Settings(tokens=(TOKEN,)),
            ListenAddress("h", 1),
            'curl -s http://h:1/v1/check -H "Authorization: Bearer $PENSTOCK_TOKEN" -d \'',
        ),
        (
            Settings(envoy_config=Path("config"), rules=Path("none.yaml")),
            ListenAddress("h", 1),
            'curl -s http://h:1/json -d \'{"domain": "DOMAIN", ',
        ),
    ],
)
def test_example_call_fits_the_settings(settings: Settings, address: ListenAddress, line: str) -> None:
    assert curl(settings, address).startswith(line)

"""`penstock serve`: what it says before it serves, and what its view shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.figures import Figures, Looks, RuleRates, labels_of
from penstock.cli.serve import _command, curl
from penstock.cli.view import drawn
from penstock.observability import series
from penstock.observability.tally import Snapshot
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


def test_what_is_wrong_is_printed_a_line_each_and_nothing_is_started(tmp_path: Path) -> None:
    result = _run("--workers", "no", "--listen", "nowhere", "--config", str(tmp_path / "missing.toml"))
    assert result.exit_code == 2
    assert [line.split(" ")[0] for line in result.stderr.splitlines()] == ["config", "listen", "workers"]


def test_several_workers_on_counts_in_memory_are_refused_and_told_of_redis() -> None:
    result = _run("--workers", "2")
    assert result.exit_code == 2
    assert result.stderr.startswith("workers 2 (from --workers): processes cannot share the counts of store memory://")
    assert "redis://" in result.stderr


def test_a_worker_is_started_by_the_flags_that_were_given() -> None:
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
def test_the_line_to_try_it_with(settings: Settings, address: ListenAddress, line: str) -> None:
    assert curl(settings, address).startswith(line)


# ---------------------------------------------------------------- the view


def _snapshot(allowed: int, refused: int, calls: list[int], **now: dict[str, float]) -> Snapshot:
    decisions = {
        series.DECISIONS.labelled('a "b"', "gcra", "store", "allowed", ""): allowed,
        series.DECISIONS.labelled("-", "-", "store", "refused", "shed"): refused,
    }
    totals = {
        series.DECISIONS.name: {labels: float(value) for labels, value in decisions.items()},
        series.REQUESTS.name: {series.REQUESTS.labelled("/v1/check", "200"): float(allowed + refused)},
    }
    counts = [*calls, *[0] * (len(series.LATENCIES) + 2 - len(calls))]
    histograms = {series.REQUEST_SECONDS.name: {series.REQUEST_SECONDS.labelled("/v1/check"): counts}}
    return Snapshot("1", totals, {getattr(series, name).name: values for name, values in now.items()}, histograms)


def test_rates_are_what_was_counted_since_the_last_look_over_all_workers() -> None:
    looks = Looks()
    looks.look([_snapshot(100, 50, [10, 10]), _snapshot(1, 1, [0])], now=10.0)
    figures = looks.look([_snapshot(300, 60, [10, 110]), _snapshot(1, 1, [0])], now=12.0)
    assert (figures.requests, figures.allowed, figures.refused) == (105.0, 100.0, 5.0)
    assert figures.rules == (RuleRates('a "b"', 100.0, 0.0), RuleRates("no rule", 0.0, 5.0))
    assert figures.p50 == pytest.approx(0.075), "all in the bucket from 50 to 100 microseconds"
    assert figures.p99 == pytest.approx(0.0995)


def test_where_nothing_happened_there_is_nothing_to_tell() -> None:
    looks = Looks()
    snapshot = _snapshot(5, 5, [3])
    looks.look([snapshot], now=1.0)
    figures = looks.look([snapshot], now=2.0)
    assert (figures.requests, figures.rules, figures.p50, figures.degraded) == (0.0, (), None, ())


def test_what_is_slower_than_every_bucket_is_as_slow_as_the_last() -> None:
    beyond = [0] * len(series.LATENCIES) + [7]
    assert Looks().look([_snapshot(0, 0, beyond)], now=1.0).p99 == 1_000.0


def test_degraded_is_what_a_worker_says_of_its_store_and_rules() -> None:
    snapshot = _snapshot(
        *(0, 0, [0]),
        BREAKERS={series.BREAKERS.labelled("db:6379", "open"): 1, series.BREAKERS.labelled("db:6380", "closed"): 1},
        RULES_STALE={"": 12.0},
        CONNECTIONS={"": 3},
        WORKERS={"": 1},
    )
    figures = Looks().look([snapshot, snapshot], now=1.0)
    assert figures.degraded == ("store db:6379: breaker open", "the file of rules has not been usable for 12 s")
    assert (figures.connections, figures.workers) == (6, 2)


def test_labels_are_read_as_they_are_spelt() -> None:
    assert labels_of(series.DECISIONS.labelled('a"\\b', "", "x", "y", "z"))["rule"] == 'a"\\b'


def _text(figures: Figures) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn(figures))
    return capture.get()


def test_the_view_shows_the_busiest_rules_and_says_how_many_there_are_besides() -> None:
    rules = tuple(RuleRates(f"[red]{number}", 100.0 - number, 1.0) for number in range(10))
    text = _text(Figures(1234.0, 955.0, 10.0, 0.25, None, rules, 3, 2, ("store: gone",)))
    first, *rest = text.splitlines()
    assert first.startswith("1,234 requests/s   955 allowed/s   10 refused/s   p50 0.25 ms   p99 -   3 connections   2")
    assert rest[0].rstrip() == "degraded: store: gone"
    assert rest[2].split() == ["[red]0", "100", "1"]
    assert rest[-1].strip() == "and 2 more"

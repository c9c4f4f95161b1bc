"""docs/metrics.md, the alerts and the dashboard speak of what is exported, and of all of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.observability import accuracy, event_counts, exposition, metrics, redis_info, series
from penstock.observability.tally import Snapshot, Values
from penstock.service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS: dict[str, Any] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))

PROMETHEUS_LABELS = {"instance", "job", "le"}
"""Which Prometheus adds, or the text format does."""

PROMTOOL = shutil.which("promtool")


def exported() -> dict[str, set[str]]:
    """Every name that a scrape may hold, with its labels."""
    names: dict[str, set[str]] = {}
    for one in series.ALL:
        suffixes = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        names |= {f"{one.name}{suffix}": set(one.labels) for suffix in suffixes}
    return names


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of alerts and dashboard, with where it stands."""
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"^label_values\((.*), .*\)$", r"\1", variable["query"]["query"])
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def unknown(expression: str) -> list[str]:
    """What an expression names that nobody exports: series, recorded ratios, labels."""
    known, recorded = exported(), {rule["record"] for rule in RULES if "record" in rule}
    found = []
    for name, selector in re.findall(r"\b(penstock[\w:]+)(\{[^}]*\})?", expression):
        labels = set(re.findall(r'(\w+)\s*[=!]~?\s*"', selector))
        if name not in known and name not in recorded:
            found.append(name)
        elif name in known:
            found += [f"{name}{{{label}}}" for label in labels - known[name] - PROMETHEUS_LABELS]
    return found


def test_everything_that_alerts_and_dashboard_name_is_exported() -> None:
    all_expressions = dict(expressions())
    assert len(all_expressions) > 40
    assert {where: wrong for where, one in all_expressions.items() if (wrong := unknown(one))} == {}


def test_a_name_that_nobody_exports_is_noticed() -> None:
    """The negative control."""
    assert unknown('rate(penstock_decision_total{rule="a"}[5m])') == ["penstock_decision_total"]
    assert unknown('penstock_decisions_total{key="a"}') == ["penstock_decisions_total{key}"]
    assert unknown("penstock_batch_decisions") == ["penstock_batch_decisions"]  # only its buckets, sum and count
    assert unknown("penstock:no_such:ratio > 1") == ["penstock:no_such:ratio"]


def test_the_dashboard_shows_every_series() -> None:
    shown = " ".join(expression for _, expression in expressions())
    missing = [one.name for one in series.ALL if not re.search(rf"\b{one.name}(_bucket)?\b", shown)]
    assert missing == []


def test_the_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_page_lists_every_series_and_no_other() -> None:
    rows = re.findall(r"^\| `(penstock_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    listed = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), f"{text}.") for name, kind, labels, text in rows]
    assert sorted(listed) == sorted((one.name, one.kind, one.labels, one.help) for one in series.ALL)


def test_the_page_explains_every_alert_by_its_severity() -> None:
    explained = re.findall(r"^\| `(Penstock\w+)` \| (\w+) \| .+ \|$", PAGE, re.MULTILINE)
    assert explained == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES if "alert" in rule]


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    bounds = f"At most {metrics.MAX_RULES:,} rules, {metrics.MAX_ROUTES} routes and {event_counts.MAX_SERVERS} servers"
    assert bounds in PAGE
    assert f"For one key in {accuracy.SHARE}," in PAGE
    assert f"at most {accuracy.MAX_KEYS} keys and {accuracy.MAX_ENTRIES_IN_ALL:,} admissions at once" in PAGE
    assert redis_info.EVERY == 10
    assert "every ten seconds" in PAGE
    assert f"at most `log_denials` per second and worker ({Settings().log_denials} by default" in PAGE


# ---------------------------------------------------------------- promtool


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    if PROMTOOL is None:
        pytest.fail("promtool is not installed (expected: tools/servers.sh)")
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120)


def test_promtool_finds_the_alerts_sound_and_at_work() -> None:
    checked = promtool("check", "rules", str(DEPLOY / "alerts.yaml"))
    assert checked.returncode == 0, checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout
    tested = promtool("test", "rules", str(DEPLOY / "alerts-test.yaml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_is_shown_firing() -> None:
    tests = yaml.safe_load((DEPLOY / "alerts-test.yaml").read_text(encoding="utf-8"))["tests"]
    firing = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert firing == {rule["alert"] for rule in RULES if "alert" in rule}


def test_an_alert_that_is_broken_is_noticed(tmp_path: Path) -> None:
    was, becomes = "ratio_rate5m > 0.01", "ratio_rate5m > 1.01"
    text = (DEPLOY / "alerts.yaml").read_text(encoding="utf-8")
    assert was in text
    (tmp_path / "alerts.yaml").write_text(text.replace(was, becomes), encoding="utf-8")
    shutil.copy(DEPLOY / "alerts-test.yaml", tmp_path)
    assert promtool("test", "rules", str(tmp_path / "alerts-test.yaml")).returncode == 1


def test_promtool_finds_nothing_to_complain_of_in_a_scrape() -> None:
    """Of all series, whatever could be exported."""
    values: Values = {one.name: {one.labelled(*one.labels): 1.0} for one in series.ALL if one.kind != "histogram"}
    histograms = {
        one.name: {one.labelled(*one.labels): [1] * (len(one.bounds) + 2)} for one in series.ALL if one.bounds
    }
    text = exposition.text([Snapshot("0", values, values, histograms)])
    assert text.count(b"# TYPE") == len(series.ALL)
    if PROMTOOL is None:
        pytest.fail("promtool is not installed (expected: tools/servers.sh)")
    linted = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (linted.stderr, linted.returncode) == (b"", 0)

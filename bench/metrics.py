"""What it costs to count a decision, and to answer a scrape for several workers; against prometheus_client.

That library keeps each value of several processes in a mapped file, and counts into it at once: every count is a look
for the labels and a write under a lock. Here a worker counts in plain dicts and writes its figures once a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import Effort, Run, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import Limiter, Verdict
from penstock.enforcer import Enforcer
from penstock.observability import exposition
from penstock.observability.accuracy import Observed
from penstock.observability.metrics import Metrics
from penstock.observability.series import DECISIONS
from penstock.observability.shared import Shared, prepare
from penstock.observability.tally import Snapshot
from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet

BATCHES = (1, 16, 64)
WORKERS, RULES = 4, 1_000

COUNTED = Target("counting a decision of one rule, in batches of 16", bar=1_000, unit="ns", at_least=False)
CHEAPER = Target("the same, prometheus_client's count ÷ ours", bar=2)
SCRAPED = Target(f"a scrape of {WORKERS} workers with {RULES:,} series each, prometheus_client's time ÷ ours", bar=5)


def measure(effort: Effort) -> Report:
    peer = _peer(effort)
    runs = _runs(effort)
    spreads = dict(zip(runs, interleaved(list(runs.values()), effort.rounds), strict=True))
    rows = [[name, str(spread)] for name, spread in spreads.items()]
    rows.append(["prometheus_client, several processes: labels(...).inc()", f"{peer['ns']:.0f}"])
    ours = spreads["one rule, batches of 16"].median
    scrape = _scrape_ms(effort)
    rows.append(["→ one rule, batches of 16", COUNTED.verdict(ours)])
    rows.append(["→ prometheus_client's count ÷ ours", CHEAPER.verdict(peer["ns"] / ours)])
    report = Report()
    report.figures += [
        Figure(COUNTED, "Metrics.decided", ours),
        Figure(CHEAPER, "Metrics.decided", peer["ns"] / ours),
        Figure(SCRAPED, "all workers", peer["ms"] / scrape),
    ]
    notes = ["Rule, algorithm, source, outcome and reason; batch size and latency as well. The peer counts the first."]
    report.tables.append(Table("Counting decisions", ["CPU ns per decision", ""], rows, notes))
    rows = [
        ["Penstock: read, merge, write", f"{scrape:.1f}"],
        ["prometheus_client: MultiProcessCollector", f"{peer['ms']:.1f}"],
        ["→ peer ÷ ours", SCRAPED.verdict(peer["ms"] / scrape)],
    ]
    title = f"A scrape of {WORKERS} workers with {RULES:,} series each"
    report.tables.append(Table(title, ["CPU ms", ""], rows))
    return report


def _runs(effort: Effort) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name, rules in (("one rule", 1), ("three rules", 3)):
        for size in BATCHES:
            batch = _decided(rules, size)
            turns = [[batch] * (effort.calls // size)] * effort.rounds
            runs[f"{name}, batches of {size}"] = cpu_ns_of_each(_telling(Metrics()), turns, per_turn=size)
        turns = [[_decided(rules, 16)] * (effort.calls // 16)] * effort.rounds
        runs[f"the accuracy sampler, {name}"] = cpu_ns_of_each(_telling(Observed(b"secret")), turns, per_turn=16)
    return runs


def _decided(rules: int, size: int) -> list[Verdict]:
    declared = [{"id": f"r{n}", "match": {"path": "/"}, "key": "ip", "quota": f"{10**6 + n}/day"} for n in range(rules)]
    enforcer = Enforcer(RuleSet(RuleFile.model_validate({"rules": declared})), Limiter())
    return [enforcer.check({"path": "/", "ip": f"192.0.2.{n}"}) for n in range(size)]


def _telling(observer: Any) -> Any:
    def visit(batches: Collection[Sequence[Verdict]]) -> None:
        for batch in batches:
            observer.decided(batch, 100)

    return visit


def _scrape_ms(effort: Effort) -> float:
    labels = [DECISIONS.labelled(f"rule-{n}", "gcra", "store", "allowed", "") for n in range(RULES)]
    snapshot = Snapshot("", {DECISIONS.name: {text: n + 1.0 for n, text in enumerate(labels)}})
    with tempfile.TemporaryDirectory() as folder:
        directory = prepare(Path(folder))
        workers = [Shared(directory, str(n)) for n in range(WORKERS)]
        for worker in workers:
            worker.write(snapshot)
        figures = []
        for _ in range(effort.rounds):
            start = time.process_time_ns()
            workers[0].write(snapshot)
            exposition.text([*workers[0].read(), snapshot])
            figures.append((time.process_time_ns() - start) / 1e6)
        for worker in workers:
            worker.close()
    return median(figures)


def _peer(effort: Effort) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [sys.executable, "-m", "bench.metrics_peer", *map(str, (WORKERS, RULES, effort.calls, effort.rounds))],
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": folder},
            capture_output=True,
            check=True,
        )
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures

"""asyncio on uvloop, one process, one server: decisions per second, against the fastest peer with any algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.measure import Effort, Spread, interleaved
from bench.redis_rig import Contender, Field, a_field, a_server, apart, described
from bench.report import Figure, Report, Table, Target

TARGETS: Mapping[int, Target] = {
    1: Target("decisions/s on Redis, 1 task, against the fastest peer with any algorithm", bar=0.8),
    64: Target("decisions/s on Redis, 64 tasks, against the fastest peer with any algorithm", bar=5),
    512: Target("decisions/s on Redis, 512 tasks, against the fastest peer with any algorithm", bar=10),
}
ALGORITHMS = ("sliding_window", "fixed_window", "gcra")

Figures = Mapping[Contender, Spread]


def measure(effort: Effort) -> Report:
    cores = apart()
    with a_server(cores) as server, a_field("asyncio", server, ALGORITHMS) as field:
        by_tasks = {}
        for tasks in TARGETS:
            runs = [contender.rate(tasks, effort.seconds, cores) for contender in field.all]
            by_tasks[tasks] = dict(zip(field.all, interleaved(runs, effort.rounds), strict=True))
        return _report(field, by_tasks, described(server))


def _report(field: Field, by_tasks: Mapping[int, Figures], server: str) -> Report:
    report = Report()
    rows = [[each.name, *(str(figures[each]) for figures in by_tasks.values())] for each in field.all]
    for ours in field.ours:
        ratios = {tasks: _ratio(ours, field.peers, figures) for tasks, figures in by_tasks.items()}
        verdicts = [TARGETS[tasks].verdict(ratio) for tasks, ratio in ratios.items()]
        rows.append([f"→ {ours.name} ÷ fastest peer", *verdicts])
        report.figures += [Figure(TARGETS[tasks], ours.algorithm, ratio) for tasks, ratio in ratios.items()]
    for ours in field.ours:
        same = [peer for peer in field.peers if peer.algorithm == ours.algorithm]
        alike = [f"{_ratio(ours, same, figures):.2f} x" for figures in by_tasks.values()]
        rows.append([f"→ {ours.name} ÷ fastest peer with the same algorithm", *alike])
    columns = ["decisions/s", *(f"{tasks} task{'s' if tasks > 1 else ''}" for tasks in by_tasks)]
    notes = [
        f"{server} over TCP on one core, the process that asks on another; allowed, 1,000 users in turn.",
        f"Median [min..max] of interleaved rounds; {', '.join(field.versions)}.",
        "throttled-py may open 1,024 connections; with its default of 100 it fails at 512 tasks.",
    ]
    wanted = ", ".join(f"{target.bar:g} x" for target in TARGETS.values())
    report.tables.append(Table(f"Redis, asyncio (targets {wanted})", columns, rows, notes))
    return report


def _ratio(ours: Contender, peers: Sequence[Contender], figures: Figures) -> float:
    return figures[ours].median / max(figures[peer].median for peer in peers)

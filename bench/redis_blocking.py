"""Blocking calls, one thread, one server: decisions per second, against the fastest peer with the same algorithm.

A lone caller mostly waits for a core to wake up, if the server has another one. Therefore what is judged is the layout
with both on one core, where all that counts is work; the other is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from bench.measure import Effort, Spread, interleaved
from bench.redis_rig import Contender, Field, a_field, a_server, apart, described, pin, together
from bench.report import Figure, Report, Table, Target

FASTER = Target("blocking decisions/s on Redis's core, against the fastest peer with the same algorithm", bar=1.8)
ALGORITHMS = ("sliding_window", "fixed_window", "token_bucket", "gcra")
LAYOUTS = {"one core for both": together(), "a core each": apart()}

Figures: TypeAlias = Mapping[str, Mapping[Contender, Spread]]


def measure(effort: Effort) -> Report:
    figures = {}
    with a_server(together()) as server, a_field("blocking", server, ALGORITHMS) as field:
        for layout, cores in LAYOUTS.items():
            pin(server.pid, cores.server)
            runs = [contender.rate(1, effort.seconds, cores) for contender in field.all]
            figures[layout] = dict(zip(field.all, interleaved(runs, effort.rounds), strict=True))
        return _report(field, figures, described(server))


def _report(field: Field, figures: Figures, server: str) -> Report:
    report = Report()
    rows = []
    for ours in field.ours:
        peers = [peer for peer in field.peers if peer.algorithm == ours.algorithm]
        rows += [[each.name, *(str(of_layout[each]) for of_layout in figures.values())] for each in (ours, *peers)]
        judged, shown = (
            of_layout[ours].median / max(of_layout[peer].median for peer in peers) for of_layout in figures.values()
        )
        rows.append(["→ Penstock ÷ fastest peer", FASTER.verdict(judged), FASTER.write(shown)])
        report.figures.append(Figure(FASTER, ours.algorithm, judged))
    notes = [
        f"{server} over TCP; allowed, 1,000 users in turn. Across cores what counts is mostly how fast they wake up.",
        f"Median [min..max] of interleaved rounds; {', '.join(field.versions)}.",
    ]
    title = f"Redis, blocking, one thread (target {FASTER.bar:g} x on one core)"
    report.tables.append(Table(title, ["decisions/s", *figures], rows, notes))
    return report

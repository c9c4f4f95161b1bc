"""In process, one thread: processor time per decision, against the fastest peer with the same algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from bench.contenders import FIELDS, WHAT_PEERS_RETURN, Contender
from bench.keys import keys, shuffled, visits
from bench.measure import Effort, Run, Spread, cpu_ns, interleaved
from bench.report import Figure, Report, Table, Target

FASTER = Target("speed, against the fastest peer with the same algorithm", bar=3, goal=5)
AMPLE = 1_000_000
AMPLE_LOG = 10_000
FILL = 1_000
"""How often a hot key was admitted before; a log has so many entries when the measurement begins."""


class Path(NamedTuple):
    """One way through the code."""

    many: bool
    allowed: bool

    def __str__(self) -> str:
        return f"{'many keys' if self.many else 'one key'}, {'allowed' if self.allowed else 'denied'}"

    def limit(self, algorithm: str) -> int:
        if self.allowed:
            return AMPLE_LOG if algorithm == "rolling_window" else AMPLE
        return 1 if self.many else FILL


PATHS = tuple(Path(many, allowed) for many in (False, True) for allowed in (True, False))


def measure(effort: Effort) -> Report:
    report = Report()
    rows = []
    for algorithm in FIELDS:
        by_path = [_figures(algorithm, path, effort) for path in PATHS]
        names = list(by_path[0])
        rows += [[name, *(str(figures[name]) for figures in by_path)] for name in names]
        ratios = [_ratio(list(figures.values())) for figures in by_path]
        rows.append(["→ fastest peer ÷ Penstock", *map(FASTER.verdict, ratios)])
        report.figures += [
            Figure(FASTER, f"{algorithm}, {path}", ratio) for path, ratio in zip(PATHS, ratios, strict=True)
        ]
    columns = ["CPU ns per decision", *map(str, PATHS)]
    notes = [
        "Median [min..max] of interleaved rounds, loop included.",
        f"One key: admitted {FILL:,} times beforehand, so a log starts with {FILL:,} entries.",
        f"Many keys: {effort.many_keys:,}, each admitted once beforehand, visited in shuffled order.",
        WHAT_PEERS_RETURN,
    ]
    report.tables.append(Table("Speed in process, one thread (target 3 x, goal 5 x)", columns, rows, notes))
    return report


def _figures(algorithm: str, path: Path, effort: Effort) -> dict[str, Spread]:
    field = [make(path.limit(algorithm)) for make in FIELDS[algorithm]]
    if path.many:
        fill = keys(effort.many_keys)
        each_round = visits(shuffled(fill), effort.rounds, effort.calls * 2)
    else:
        each_round = _visits_to_one(algorithm, effort)
        fill = [key for key in dict.fromkeys(chain(*each_round)) for _ in range(FILL)]
    for contender in field:
        contender.visit(fill)
        contender.settle()
    spreads = interleaved([_run(contender, each_round, path) for contender in field], effort.rounds)
    return dict(zip((contender.name for contender in field), spreads, strict=True))


def _visits_to_one(algorithm: str, effort: Effort) -> list[list[str]]:
    """One key again and again; where there is a log, only until it has doubled, and then the next key."""
    often = FILL if algorithm == "rolling_window" else effort.calls
    count = max(effort.calls // often, 1)
    return [[key for key in keys(count, start=number * count) for _ in range(often)] for number in range(effort.rounds)]


def _run(contender: Contender, each_round: Sequence[Sequence[str]], path: Path) -> Run:
    def run(number: int) -> float:
        figure = cpu_ns(contender.visit, each_round[number])
        if contender.allows(each_round[number][0]) is not path.allowed:
            raise RuntimeError(f"{contender.name}: not '{path}' (a day's quota starts over at midnight UTC: try again)")
        contender.settle()
        return figure

    return run


def _ratio(field: Sequence[Spread]) -> float:
    ours, *peers = (spread.median for spread in field)
    return min(peers) / ours

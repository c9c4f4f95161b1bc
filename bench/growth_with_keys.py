"""Whether a decision becomes dearer with the number of keys.

It must not, except that counters which a processor's caches cannot hold mean trips to memory. What a trip costs shows
in the last row: a bare dict of tuples, read and written, with no limiter around it. All algorithms share one store, so
two of them will do: the default, and the one with the most state.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.contenders import Contender, penstock
from bench.keys import keys, shuffled, visits
from bench.measure import Effort, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target

FLAT = Target("cost with ten times as many keys, against 100,000", bar=2, at_least=False)
MEASURED = ("sliding_window", "rolling_window")
AMPLE = 10_000


def measure(effort: Effort) -> Report:
    report = Report()
    counts = [1, 1_000, effort.most_keys // 10, effort.most_keys]
    all_keys = keys(effort.most_keys)
    each_round = [visits(shuffled(all_keys[:count]), effort.rounds, effort.calls) for count in counts]
    rows = []
    for make in (*map(penstock, MEASURED), _bare_dict):
        field = [make(AMPLE) for _ in counts]
        for contender, count in zip(field, counts, strict=True):
            contender.visit(all_keys[:count])
        runs = [cpu_ns_of_each(contender.visit, order) for contender, order in zip(field, each_round, strict=True)]
        spreads = interleaved(runs, effort.rounds)
        name, ratio = field[0].name, spreads[-1].median / spreads[-2].median
        rows.append([name, *map(str, spreads), FLAT.write(ratio) if make is _bare_dict else FLAT.verdict(ratio)])
        if make is not _bare_dict:
            report.figures.append(Figure(FLAT, name, ratio))
    columns = ["CPU ns per decision", "1 key", *(f"{count:,} keys" for count in counts[1:]), "last ÷ last but one"]
    notes = [
        "Allowed; keys visited in shuffled order, the worst case for caches. A scan of all keys would show as 10 x."
    ]
    report.tables.append(Table("Growth with the number of keys", columns, rows, notes))
    return report


def _bare_dict(_: int) -> Contender:
    table: dict[str, tuple[int, int]] = {}

    def visit(some: Iterable[str]) -> None:
        for key in some:
            end, used = table.get(key) or (0, 0)
            table[key] = (end, used + 1)

    return Contender("(a bare dict of tuples)", visit, allows=lambda _: True)

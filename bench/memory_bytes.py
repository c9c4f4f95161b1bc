"""Resident bytes per key: what a key costs in memory, its own text included.

Each case runs in a fresh process, `python -m bench.memory_bytes algorithm place keys`, which prints the figure. Peers
take up to five times as long and are given a quarter of the keys, which fills a dict, growing in powers of two, to the
same share: with all keys their figures differed by less than 1 % when this was written.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.contenders import FIELDS
from bench.keys import key
from bench.measure import Effort
from bench.report import Figure, Report, Table, Target

SMALL = Target("resident bytes per key", bar=260, goal=180, unit="B", at_least=False)
LIMIT = 1_000
WARM_UP = 1_000
STATM = Path("/proc/self/statm")


class Case(NamedTuple):
    """Whose memory is measured: a contender by its place in its field."""

    algorithm: str
    place: int
    keys: int


def measure(effort: Effort) -> Report:
    if not STATM.exists():
        return Report(warnings=["resident bytes are not measured here (no /proc/self/statm)"])
    cases = [
        Case(algorithm, place, effort.most_keys if place == 0 else effort.most_keys // 4)
        for algorithm in FIELDS
        for place in range(len(FIELDS[algorithm]))
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # unlike time, memory does not mind company
        sizes = list(pool.map(_in_fresh_process, cases))
    report = Report()
    rows = []
    for case, size in zip(cases, sizes, strict=True):
        name = FIELDS[case.algorithm][case.place](LIMIT).name
        ours = case.place == 0
        rows.append([name, f"{case.keys:,}", SMALL.verdict(size) if ours else SMALL.write(size)])
        if ours:
            report.figures.append(Figure(SMALL, case.algorithm, size))
    columns = ["after one admission each", "keys", "bytes per key"]
    notes = [
        "Resident set after all keys less the one before; keys of 39 characters (96 B) included; one run per case."
    ]
    report.tables.append(Table("Memory in process (target 260 B per key, goal 180 B)", columns, rows, notes))
    return report


def _in_fresh_process(case: Case) -> float:
    command = [sys.executable, "-m", "bench.memory_bytes", *map(str, case)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _bytes_per_key(case: Case) -> float:
    contender = FIELDS[case.algorithm][case.place](LIMIT)
    contender.visit(key(number) for number in range(WARM_UP))
    contender.settle()
    before = _resident()
    contender.visit(key(number) for number in range(WARM_UP, WARM_UP + case.keys))
    contender.settle()
    return (_resident() - before) / case.keys


def _resident() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(_bytes_per_key(Case(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))

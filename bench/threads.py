"""Several threads at once: how much throughput is left, and whether every admission is counted exactly once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from threading import Barrier, Thread

from bench.contenders import FIELDS, Contender
from bench.keys import key, keys
from bench.machine import Watch
from bench.measure import Effort, Run, cpu_ns, interleaved
from bench.report import Figure, Report, Table, Target

THREADS = 8
KEYS_EACH = 64
KEPT = Target(f"share of one thread's throughput kept by {THREADS} threads", bar=70, unit="%")
EXACT = Target("miscounts and errors with threads on one key", bar=0, unit="", at_least=False)
AMPLE = 10_000
CALL_NS = 20_000
"""With this much time per call of the effort, all contenders are measured for equally long: 100 ms."""
LIMIT = 1_000


def measure(effort: Effort) -> Report:
    report = Report()
    _throughput(effort, report)
    _exactness(report)
    return report


def _throughput(effort: Effort, report: Report) -> None:
    watch = Watch()
    kept = {}
    rows = []
    for algorithm, makers in FIELDS.items():
        field = [make(AMPLE) for make in makers]
        runs = [_wall_ns(contender, number, effort) for contender in field for number in (1, THREADS)]
        best = [spread.low for spread in interleaved(runs, effort.rounds)]
        pairs = list(zip(best[::2], best[1::2], strict=True))
        kept[algorithm] = 100 * pairs[0][0] / pairs[0][1]
        rows += [
            [contender.name, f"{alone:.0f}", f"{together:.0f}", KEPT.write(100 * alone / together)]
            for contender, (alone, together) in zip(field, pairs, strict=True)
        ]
    if watch.warning():
        report.warnings.append("Not judged: the throughput of threads, because the machine was busy with other things.")
    else:
        report.figures += [Figure(KEPT, algorithm, value) for algorithm, value in kept.items()]
    columns = ["wall ns per decision", "1 thread", f"{THREADS} threads", "throughput kept"]
    notes = [
        "The best of interleaved rounds, because neighbours can only lengthen wall time.",
        f"Allowed, each thread on {KEYS_EACH} keys of its own.",
        "pyrate-limiter refuses unseen when another thread holds its lock, which makes it look faster.",
    ]
    report.tables.append(Table(f"Threads (target {KEPT.bar:.0f} %)", columns, rows, notes))


def _wall_ns(contender: Contender, threads: int, effort: Effort) -> Run:
    """Nanoseconds of wall time per decision. Each thread lives through many of the interpreter's switches (5 ms)."""
    shares = [keys(KEYS_EACH, start=number * KEYS_EACH) for number in range(THREADS)]
    everything = list(chain(*shares))
    contender.visit(everything)
    repeats = max(round(effort.calls * CALL_NS / cpu_ns(contender.visit, everything) / len(everything)), 1)
    contender.settle()
    tasks = [share * repeats for share in shares] if threads == THREADS else [everything * repeats]

    def run(_: int) -> float:
        seconds = _wall_seconds([partial(contender.visit, task) for task in tasks])
        contender.settle()
        return seconds * 1e9 / (len(everything) * repeats)

    return run


def _exactness(report: Report) -> None:
    rows = []
    for algorithm, makers in FIELDS.items():
        for place, make in enumerate(makers):
            contender = make(LIMIT)
            with _switching_eagerly(), _collecting_errors() as errors:
                admitted = _admitted(contender)
            rows.append([contender.name, f"{LIMIT:,}", f"{admitted:,}", f"{len(errors)}"])
            if place == 0:
                report.figures.append(Figure(EXACT, algorithm, abs(admitted - LIMIT) + len(errors)))
    columns = [f"{THREADS} threads on one key", "limit", "admitted", "errors"]
    notes = [f"Each thread asks {2 * LIMIT // THREADS} times, and the interpreter switches threads every 10 µs."]
    report.tables.append(Table("Every admission counted once", columns, rows, notes))


def _admitted(contender: Contender) -> int:
    hot = key(0)
    counts: list[int] = []

    def ask() -> None:
        counts.append(sum(contender.allows(hot) for _ in range(2 * LIMIT // THREADS)))

    _wall_seconds([ask] * THREADS)
    contender.settle()
    return sum(counts)


@contextmanager
def _switching_eagerly() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.000_01)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


@contextmanager
def _collecting_errors() -> Iterator[list[object]]:
    """Collect what goes wrong in threads, a contender's own included, instead of printing it."""
    errors: list[object] = []
    usual, sys.unraisablehook, threading.excepthook = sys.unraisablehook, errors.append, errors.append
    try:
        yield errors
    finally:
        sys.unraisablehook, threading.excepthook = usual, threading.__excepthook__


def _wall_seconds(tasks: Sequence[Callable[[], object]]) -> float:
    """How long all tasks take when all start at once, each in a thread.

    The threads take the times themselves: this one may have to wait for its turn while they are busy.
    """
    moments: list[float] = []

    def note_time() -> None:
        moments.append(time.perf_counter())

    start_line = Barrier(len(tasks), action=note_time)

    def wait_and_do(task: Callable[[], object]) -> None:
        start_line.wait()
        task()
        note_time()

    threads = [Thread(target=wait_and_do, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return moments[-1] - moments[0]

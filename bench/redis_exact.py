"""Several processes on one hot key of one server: whether exactly the limit is admitted."""

from __future__ import annotations

from contextlib import ExitStack

from bench.measure import Effort
from bench.redis_rig import a_server, apart, described, penstock
from bench.report import Figure, Report, Table, Target
from penstock.quota import RATES

PROCESSES = 4
TASKS = 64
LIMIT = 10_000
"""As much as a log may hold, so that all processes are at it for a while."""
ASKS = 5_000
"""Per process: twice the limit in all."""
YEAR = 365 * 86_400
"""So long a period that no unit comes back meanwhile."""
EXACT = Target(
    f"miscounts with {PROCESSES} processes × {TASKS} tasks on one key of Redis", bar=0, unit="", at_least=False
)


def measure(_: Effort) -> Report:
    report = Report()
    rows = []
    with ExitStack() as stack:
        server = stack.enter_context(a_server(apart()))
        workers = [stack.enter_context(penstock("asyncio", server, RATES, LIMIT, YEAR)) for _ in range(PROCESSES)]
        for number, algorithm in enumerate(RATES):
            order = {"kind": "admitted", "contender": number, "tasks": TASKS, "asks": ASKS, "key": "hot", "cores": ()}
            for worker in workers:
                worker.order(order)
            admitted = [int(worker.answer()) for worker in workers]
            rows.append([f"Penstock {algorithm}", f"{LIMIT:,}", f"{sum(admitted):,}", " + ".join(map(str, admitted))])
            report.figures.append(Figure(EXACT, algorithm, abs(sum(admitted) - LIMIT)))
        notes = [f"{described(server)}; each process asks {ASKS:,} times, all at once."]
    columns = ["one hot key", "limit", "admitted", "by process"]
    report.tables.append(Table(f"Redis, {PROCESSES} processes × {TASKS} tasks on one key", columns, rows, notes))
    return report

"""Many threads of one process and one server: decisions per second, and how many get none in time.

Near, and 2 ms away: through the rig's fault proxy. From a cold start, and warm. All have a deadline of 50 ms.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from bench.measure import Effort
from bench.redis_rig import PEERS_PYTHON, Cores, Worker, a_server, described
from bench.report import Figure, Report, Table, Target
from tests.rig.faults import FaultProxy, Flow

FASTER = Target("blocking decisions/s by 32 threads, Redis near, against the fastest peer with its pool", bar=3, goal=4)
LOST = Target("points more decisions lost than by redis-py's pool", bar=0, unit="points", at_least=False)
THREADS = (1, 8, 32, 128)
AWAY = 0.002
PRODUCTS = ("penstock", "limits", "redis-py")

Answers: TypeAlias = Mapping[tuple[str, str, str, int], list[dict[str, float]]]


def measure(effort: Effort) -> Report:
    answers: dict[tuple[str, str, str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(a_server(Cores()))
        proxy = stack.enter_context(FaultProxy(server.address))
        proxy.replies = Flow(latency=AWAY)
        urls = {"near": server.url, "2 ms away": f"redis://{proxy.address[0]}:{proxy.address[1]}"}
        pythons = {"limits": PEERS_PYTHON}
        workers = {
            product: stack.enter_context(
                Worker(pythons.get(product, Path(sys.executable)), "bench.redis_threads_worker", product, server.url)
            )
            for product in PRODUCTS
        }
        for _ in range(effort.rounds):
            for place, url in urls.items():
                for start in ("cold", "warm"):
                    for threads in THREADS:
                        for product, worker in workers.items():
                            order = {"threads": threads, "seconds": 5 * effort.seconds, "warm": start == "warm"}
                            worker.order(order | {"url": url})
                            answers.setdefault((place, start, product, threads), []).append(worker.answer())
        return _report(answers, list(urls), described(server))


def _report(answers: Answers, places: list[str], server: str) -> Report:
    report = Report()
    rows = []
    for place in places:
        for start in ("cold", "warm"):
            for product in PRODUCTS:
                cells = [_cell(answers[place, start, product, threads]) for threads in THREADS]
                rows.append([place, start, product, *cells])
            for threads in THREADS:
                more = _median(answers[place, start, "penstock", threads], "lost") - _median(
                    answers[place, start, "redis-py", threads], "lost"
                )
                report.figures.append(Figure(LOST, f"{threads} threads, {place}, {start}", more))
    ours = _median(answers["near", "warm", "penstock", 32], "rate")
    peer = max(_median(answers["near", "warm", product, 32], "rate") for product in PRODUCTS[1:])
    report.figures.append(Figure(FASTER, "32 threads, near, warm", ours / peer))
    notes = [
        f"{server}; decisions/s that Redis made, and the share that got none within 50 ms. Medians of rounds.",
        "limits has redis-py's pool as it comes; redis-py has a blocking pool of 32 and a script of three lines.",
    ]
    title = "Redis, blocking, many threads"
    columns = ["Redis", "start", "decisions/s, lost", *(f"{threads} threads" for threads in THREADS)]
    report.tables.append(Table(title, columns, rows, notes))
    return report


def _median(answers: list[dict[str, float]], what: str) -> float:
    return statistics.median(answer[what] for answer in answers)


def _cell(answers: list[dict[str, float]]) -> str:
    return f"{_median(answers, 'rate'):,.0f}, {_median(answers, 'lost'):.2f} %"

"""Penstock's own connection against Redis clients that carry the same batches: speed, CPU, and two promises.

The promises are counted: how often a request is charged whose reply is lost, and how long a frozen server holds a
caller that has 5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from bench.measure import Effort, Run, interleaved
from bench.redis_penstock import DEADLINE, SECRET
from bench.redis_rig import ROOT, Contender, Cores, Worker, a_server, apart, described
from bench.report import Report, Table
from penstock import Limiter
from tests.rig.faults import FaultProxy, Flow
from tests.rig.servers import Server

PYTHON = ROOT / ".venv-clients" / "bin" / "python"
TASKS = (1, 64, 512)
CARRIERS = ("penstock", "redis-py", "coredis", "valkey-glide")
PROMISING = ("penstock", "redis-py", "redis-py once", "coredis", "coredis once", "valkey-glide")
QUOTA = "1000000/day sliding_window"  # as `bench.redis_carriers`
TRIES = 6
MORE = 3
"""How many times the usual rounds: the client's CPU is small, and neighbours of the machine disturb it."""
HURRY = 0.005
PATIENT = 2.0
WARM = 100


def measure(effort: Effort) -> Report:
    if not PYTHON.exists():
        return Report(warnings=["Not measured: Redis clients (make bench ARGS=redis_clients makes their environment)."])
    report = Report()
    cores = apart()
    with a_server(cores) as server:
        report.tables.append(_speed(effort, server, cores))
        report.tables.append(_promises(server))
    return report


def _worker(client: str, url: str, deadline: float) -> Worker:
    return Worker(PYTHON, "bench.redis_carriers", client, url, str(deadline))


def _speed(effort: Effort, server: Server, cores: Cores) -> Table:
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(name, server.url, DEADLINE)) for name in CARRIERS]
        contenders = [worker.contenders[0] for worker in workers]
        cells: list[list[str]] = [[] for _ in contenders]
        for tasks in TASKS:
            spent: list[list[float]] = [[] for _ in contenders]
            runs = [
                _cost(each, tasks, effort.seconds, cores, into) for each, into in zip(contenders, spent, strict=True)
            ]
            rates = interleaved(runs, MORE * effort.rounds)
            for row, rate, cpu in zip(cells, rates, spent, strict=True):
                ratio = f"{rate.median / rates[0].median:.2f} x"
                row += [str(rate), ratio, f"{median(cpu):.1f} ({median(cpu) / median(spent[0]):.1f} x)"]
        versions = dict.fromkeys(text for worker in workers for text in worker.versions)
    columns = ["carrier of the same batches"]
    for tasks in TASKS:
        columns += [f"decisions/s, {tasks} task{'s' if tasks > 1 else ''}", "÷ Penstock", "client CPU µs"]
    notes = [
        f"{described(server)} over TCP on one core, the process that asks on another; all allowed.",
        f"Median [min..max] of interleaved rounds, one process per carrier; {', '.join(versions)}.",
        "Each sends by EVALSHA what Penstock's codec made of one turn of the event loop, at most 32 decisions a call.",
    ]
    rows = [[name, *row] for name, row in zip(CARRIERS, cells, strict=True)]
    return Table("Redis clients under Penstock's batches", columns, rows, notes)


def _cost(contender: Contender, tasks: int, seconds: float, cores: Cores, spent: list[float]) -> Run:
    order = {"kind": "cost", "contender": contender.number, "tasks": tasks, "seconds": seconds, "cores": cores.asker}

    def run(_: int) -> float:
        contender.worker.order(order)
        rate, cpu = contender.worker.answer()
        spent.append(cpu)
        return float(rate)

    return run


def _promises(server: Server) -> Table:
    rows = []
    for client in PROMISING:
        charges = _charges_of_lost_replies(client, server)
        held = sorted(1_000 * seconds for seconds in _held_by_a_frozen_server(client, server))
        times = ", ".join(f"{count} × in {charges.count(count)} of {TRIES}" for count in sorted(set(charges)))
        rows.append([client, times, f"{median(held):.0f} [{held[0]:.0f}..{held[-1]:.0f}]"])
    notes = [
        "Reply lost: a proxy drops the reply to one request, and resets the connection; counted on the server.",
        f"Frozen: SIGSTOP, then one call with a timeout of {HURRY * 1_000:.0f} ms on a warm connection.",
        f'Each {TRIES} times; median [min..max]. As shipped; "once": with retries off.',
    ]
    columns = ["client", "a request whose reply is lost is charged", "a frozen server holds the caller, ms"]
    return Table("Redis clients: two promises", columns, rows, notes)


def _charges_of_lost_replies(client: str, server: Server) -> list[int]:
    charges = []
    with (
        FaultProxy(server.address) as proxy,
        Limiter(f"{server.url}?secret={SECRET.replace(' ', '%20')}&deadline=5", layers=()) as observer,
        _worker(client, "redis://{}:{}".format(*proxy.address), PATIENT) as worker,
    ):
        for number in range(TRIES):
            _warm(worker)
            key = f"{client} {number}"
            lost = proxy.counts().replies.lost
            proxy.replies = Flow(lost=True)
            _order(worker, key)
            proxy.when(lambda counts, lost=lost: counts.replies.lost > lost)  # type: ignore[misc]
            proxy.replies = Flow()
            proxy.reset()
            worker.answer()
            charges.append(1_000_000 - observer.peek(key, QUOTA).remaining)
    return charges


def _held_by_a_frozen_server(client: str, server: Server) -> Sequence[float]:
    held = []
    with _worker(client, server.url, HURRY) as worker:
        for _ in range(TRIES):
            _warm(worker)
            server.freeze()
            try:
                _order(worker, "frozen")
                seconds, _allowed = worker.answer()
            finally:
                server.thaw()
            held.append(seconds)
    return held


def _warm(worker: Worker) -> None:
    """Ask until it is allowed: then a connection is open, and no breaker."""
    for _ in range(WARM):
        _order(worker, "warm")
        if worker.answer()[1]:
            return
    raise RuntimeError("no connection after many requests")


def _order(worker: Worker, key: str) -> None:
    worker.order({"kind": "ask", "contender": 0, "key": key, "cores": ()})

"""How much of what the server can do is left: our decisions per second as a share of redis-benchmark's.

redis-benchmark, written in C, repeats one prepared call: the script that decides, with the keys and arguments that the
store's own planner makes for 64 decisions. It cannot send NUL bytes, of which the arguments are full: so what it sends
is as long as they are, and a line before the script replaces it by what they are. All that Penstock does in Python
counts against it here.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Sequence

from bench.keys import keys
from bench.measure import Effort, Run, interleaved
from bench.redis_rig import AMPLE, DAY, Cores, a_server, apart, described, penstock, pin
from bench.report import Figure, Report, Table, Target
from penstock import Quota
from penstock.clock import SystemClock
from penstock.model import Acquire, Ask
from penstock.stores.redis.codec import Codec
from penstock.stores.redis.keys import Keys
from penstock.stores.redis.script import SCRIPT
from tests.rig.servers import HOST, Server

PROGRAM = "redis-benchmark"
BATCH = 64
TASKS = 512
CALLS_A_SECOND = 5_000
"""Roughly what redis-benchmark makes here; so that it is measured about as long as we are."""
SHARE = Target(f"share of {PROGRAM} with the same script and {BATCH} decisions a call, {TASKS} tasks", bar=40, unit="%")
ALGORITHMS = ("sliding_window", "fixed_window", "gcra")


def measure(effort: Effort) -> Report:
    if shutil.which(PROGRAM) is None:
        return Report(warnings=[f"Not measured: the share of {PROGRAM}, which is not installed (redis-tools has it)."])
    report = Report()
    rows = []
    cores = apart()
    with a_server(cores) as server, penstock("asyncio", server, ALGORITHMS) as worker:
        for ours in worker.contenders:
            runs = [ours.rate(TASKS, effort.seconds, cores), _benchmark(server, ours.algorithm, effort, cores)]
            mine, most = interleaved(runs, effort.rounds)
            share = 100 * mine.median / most.median
            rows.append([ours.name, str(mine), str(most), SHARE.verdict(share)])
            report.figures.append(Figure(SHARE, ours.algorithm, share))
        notes = [
            f"{described(server)} over TCP on one core, whoever asks on another; median [min..max].",
            f"{PROGRAM}: 50 connections, the same {BATCH} keys in every call. Penstock: one connection, 1,000 users.",
        ]
    columns = ["decisions/s", f"{TASKS} tasks", PROGRAM, "share"]
    report.tables.append(Table(f"Redis, share of {PROGRAM} (target {SHARE.bar:.0f} %)", columns, rows, notes))
    return report


def _benchmark(server: Server, algorithm: str, effort: Effort, cores: Cores) -> Run:
    """A run whose figure is decisions per second."""
    quota = Quota(AMPLE, DAY, algorithm)
    ops = [Acquire((Ask(key, quota),)) for key in keys(BATCH)]
    call = Codec(Keys(b"another")).encode(ops, SystemClock().time_ns() // 1_000)
    sha = server.ask("SCRIPT", "LOAD", _script_with(call.args)).decode()
    words = [sha, str(len(call.keys)), *(key.decode() for key in call.keys), *("x" * len(arg) for arg in call.args)]
    _see_that_it_decides(server, words)
    requests = max(round(CALLS_A_SECOND * effort.seconds), 100)
    command = [PROGRAM, "-h", HOST, "-p", str(server.port), "-n", str(requests), "--csv", "EVALSHA", *words]

    def run(_: int) -> float:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            pin(process.pid, cores.asker)
            printed = process.communicate()[0]
        rate = list(csv.reader(printed.splitlines()))[-1][1]
        return float(rate) * BATCH

    return run


def _script_with(arguments: Sequence[bytes]) -> bytes:
    first_line, _, rest = SCRIPT.text.partition(b"\n")
    literals = ["'{}'".format("".join(f"\\{byte:03}" for byte in argument)) for argument in arguments]
    return b"\n".join([first_line, b"local ARGV = { %s }" % ", ".join(literals).encode(), rest])


def _see_that_it_decides(server: Server, words: Sequence[str]) -> None:
    numbers = len(server.ask("EVALSHA", *words)) // 8
    if numbers != 2 + 8 * BATCH:
        raise RuntimeError(f"the script answered with {numbers} numbers: expected {2 + 8 * BATCH}")

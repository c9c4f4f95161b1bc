"""Bytes per user in a server: what its used_memory grows by, over many users with ids of 32 characters.

The script's clock is moved by hand here, so that counters hold what they do in the middle of their lives: every user
has spent a different number of units in this window and in the one before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from bench.keys import batches_of, keys
from bench.measure import Effort
from bench.redis_rig import described
from bench.report import Figure, Report, Table, Target
from penstock import Quota
from penstock.clock import ManualClock
from penstock.model import Acquire, Ask, Failed
from penstock.stores.redis.store import RedisStore
from penstock.testing.servers import Server, flavours

SMALL = Target("bytes per user in Redis, counters", bar=170, goal=150, unit="B", at_least=False)
SMALL_LOG = Target("bytes per user in Redis, rolling_window of 100 entries", bar=2_400, unit="B", at_least=False)
PERIOD = 60
LIMIT = 700
"""One that does not divide the period: buckets then have fractions to keep."""
ENTRIES = 100
LOG_SHARE = 20
"""One user in so many keeps a log."""
BATCH = 128
DEADLINE = 30.0

TWO_STRINGS = b"""
for number, id in ipairs(ARGV) do
  for window = 28333332, 28333333 do
    local key = id .. ':window:' .. window
    redis.call('INCRBY', key, number % 700 + 1)
    redis.call('EXPIRE', key, 3600)
  end
end
"""
SEEDS = (
    ("token bucket, two doubles", "seed 000", "16 B"),
    ("fixed window, two doubles", "seed 000", "16 B"),
    ("rolling window of 100, a double each", "seed 000", "800 B"),
    ("two counters at about 70 B per key", "seed 002", "140 B"),
    ("fixed window; token bucket; rolling window", "seed 003", "8 B; 12 B; 16 B"),
    ("state of a user", "seed 004", "1 KB"),
)


class Case(NamedTuple):
    """Something to fill a server with."""

    name: str
    users: int
    fill: Callable[[Server, Sequence[str]], None]
    target: Target | None


def measure(effort: Effort) -> Report:
    report = Report()
    measured = {}
    names = {}
    cases = _cases(effort)
    for flavour in flavours():
        with Server(flavour) as server:
            names[flavour] = described(server)
            measured[flavour] = [_bytes_per_user(server, case) for case in cases]
    rows = []
    for number, case in enumerate(cases):
        sizes = [measured[flavour][number] for flavour in names]
        target = case.target or SMALL
        rows.append([case.name, f"{case.users:,}", *map(target.verdict if case.target else target.write, sizes)])
        if case.target:
            figures = zip(names.values(), sizes, strict=True)
            report.figures += [Figure(case.target, f"{case.name}, {name}", size) for name, size in figures]
    columns = ["bytes per user", "users", *names.values()]
    notes = [
        "Growth of used_memory; ids of 39 characters, of which 32 tell users apart; one run per case.",
        f"Quotas of {LIMIT} per {PERIOD} s, used in this window and the one before; the log {ENTRIES} per {PERIOD} s.",
        "Two counters: apikey:<32 characters>:window:<number>, with expiry, as seed 002 has it.",
    ]
    report.tables.append(Table("Redis, memory (target 170 B per user, goal 150 B)", columns, rows, notes))
    report.tables.append(Table("What others reckon with", ["layout", "by", "bytes per user"], SEEDS))
    return report


def _cases(effort: Effort) -> list[Case]:
    many = effort.many_keys
    counters = ("sliding_window", "token_bucket", "gcra", "fixed_window")
    cases = [Case(f"Penstock {name}", many, _counters(Quota(LIMIT, PERIOD, name)), SMALL) for name in counters]
    log = Case(f"Penstock rolling_window, {ENTRIES} entries", many // LOG_SHARE, _fill_logs, SMALL_LOG)
    return [*cases, log, Case("two string counters", many, _fill_two_strings, None)]


def _bytes_per_user(server: Server, case: Case) -> float:
    server.ask("FLUSHALL", "SYNC")
    users = keys(case.users + 1)
    case.fill(server, users[:1])  # script and connection are not what is measured
    before = _used(server)
    case.fill(server, users[1:])
    return (_used(server) - before) / case.users


def _used(server: Server) -> int:
    """Its used_memory, when that has come to rest: tables are rehashed and clients forgotten little by little."""
    used = -1
    while used != (used := int(server.ask("INFO", "memory").partition(b"used_memory:")[2].split()[0])):
        time.sleep(0.25)
    return used


def _counters(quota: Quota) -> Callable[[Server, Sequence[str]], None]:
    def fill(server: Server, users: Sequence[str]) -> None:
        with _spending(server) as (clock, spend):
            for _ in range(2):
                spend(Acquire((Ask(user, quota, 1 + number % (LIMIT // 2)),)) for number, user in enumerate(users))
                clock.advance(PERIOD)

    return fill


def _fill_logs(server: Server, users: Sequence[str]) -> None:
    quota = Quota(ENTRIES, PERIOD, "rolling_window")
    with _spending(server) as (clock, spend):
        for _ in range(ENTRIES):
            spend(Acquire((Ask(user, quota),)) for user in users)
            clock.advance(PERIOD / ENTRIES / 2)


@contextmanager
def _spending(server: Server) -> Iterator[tuple[ManualClock, Callable[[Iterator[Acquire]], None]]]:
    clock = ManualClock(time.time())
    store = RedisStore(server.url, clock=clock, secret="for benchmarks", deadline=DEADLINE)

    def spend(asks: Iterator[Acquire]) -> None:
        for batch in batches_of(BATCH, list(asks)):
            for outcome in store.run(batch):
                if isinstance(outcome, Failed):
                    raise outcome.error
                if not outcome:
                    raise RuntimeError("denied, but what is admitted is measured")

    try:
        yield clock, spend
    finally:
        store.close()


def _fill_two_strings(server: Server, users: Sequence[str]) -> None:
    with server.talk() as conversation:
        for batch in batches_of(1_000, users):
            conversation.ask("EVAL", TWO_STRINGS, 0, *batch)

"""Bytes per user in a server: what its used_memory grows by, over many users with ids of 32 characters.

The script's clock is moved by hand here, so that counters hold what they do in the middle of their lives: users have
spent different numbers of units, for a sliding window in the window before as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from bench.keys import batches_of, keys
from bench.measure import Effort
from bench.redis_rig import described
from bench.report import Figure, Report, Table, Target
from penstock import Quota
from penstock.clock import ManualClock
from penstock.model import Acquire, Ask, Failed
from penstock.quota import DEFAULT_ALGORITHM
from penstock.stores.redis.store import RedisStore
from tests.rig.servers import Server, flavours

SMALL = Target("bytes per user in Redis, counters", bar=170, goal=150, unit="B", at_least=False)
SMALL_LOG = Target("bytes per user in Redis, rolling_window of 100 entries", bar=2_400, unit="B", at_least=False)
PERIOD = 60
LIMIT = 700
"""One that does not divide the period: buckets then have fractions to keep."""
ENTRIES = 100
LOG_SHARE = 100
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
ESTIMATES = (
    ("token bucket: two doubles", "a paper", "16 B"),
    ("fixed window: two doubles", "a paper", "16 B"),
    ("rolling window of 100: a double per entry", "a paper", "800 B"),
    ("fixed window; token bucket; rolling window", "a summary of that paper", "8 B; 12 B; 16 B"),
    ("two string counters: 70 B per key", "a design document", "140 B"),
    ("state of a user", "a case study", "1,024 B"),
)
"""What designs on Redis that Penstock started from reckon with."""


class Case(NamedTuple):
    """Something to fill a server with."""

    name: str
    users: int
    fill: Callable[[Server, Sequence[str]], None]
    target: Target | None


def measure(effort: Effort) -> Report:
    report = Report()
    cases = _cases(effort)
    with ThreadPoolExecutor() as pool:  # unlike time, memory does not mind company
        servers = list(pool.map(partial(_on_server, cases), flavours()))
    rows = []
    for number, case in enumerate(cases):
        sizes = {name: of_server[number] for name, of_server in servers}
        target = case.target or SMALL
        write = target.verdict if case.target else target.write
        rows.append([case.name, f"{case.users:,}", *map(write, sizes.values())])
        if case.target:
            report.figures += [Figure(target, f"{case.name}, {name}", size) for name, size in sizes.items()]
    columns = ["bytes per user", "users", *(name for name, _ in servers)]
    notes = [
        "Growth of used_memory; ids of 39 characters, of which 32 tell users apart; one run per case.",
        f"Quotas of {LIMIT} per {PERIOD} s, the log {ENTRIES}; the sliding window was used in two windows.",
        "Two counters: apikey:<32 characters>:window:<number>, with expiry, as many designs describe it.",
    ]
    report.tables.append(Table("Redis, memory (target 170 B per user, goal 150 B)", columns, rows, notes))
    report.tables.append(Table("Redis, memory as designs estimate it", ["layout", "by", "bytes per user"], ESTIMATES))
    return report


def _on_server(cases: Sequence[Case], flavour: str) -> tuple[str, list[float]]:
    with Server(flavour) as server:
        return described(server), [_bytes_per_user(server, case) for case in cases]


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
            for _ in range(2 if quota.algorithm == DEFAULT_ALGORITHM else 1):
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

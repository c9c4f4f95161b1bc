"""Rules: matching and building the operation, and the whole decision, against hits of `limits` in the same run.

Three rules match each request: one for everybody, one by address, one by API key at some endpoints. `limits` has no
rules; its three hits are of prepared items with prepared keys, as if somebody had matched and written them before.
"""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Thread
from typing import Any

from limits import RateLimitItemPerDay
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from bench.measure import Effort, Run, cpu_ns_of_each, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import Limiter
from penstock.enforcer import Enforcer
from penstock.rules.api_keys import KeyRecord, KeyTable, hash_key
from penstock.rules.model import RuleFile
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.stores.memory.store import MemoryStore

AMPLE = "4000000000/day fixed_window"
FEW, MANY, MOST = 10, 1_000, 10_000

FEW_RULES = Target(f"matching and building with {FEW} rules, against one limits hit", bar=1.0, at_least=False)
MANY_RULES = Target(f"matching and building with {MANY:,} rules, against one limits hit", bar=2.0, at_least=False)
CHEAPER = Target("a decision by three rules, against three limits hits", bar=1.3)
COMPILED = Target(f"reading and compiling {MOST:,} rules", bar=3_000, unit="ms", at_least=False)

Descriptor = dict[str, str]
Visit = Callable[[Iterable[Any]], None]


def measure(effort: Effort) -> Report:
    report = Report()
    runs = _runs(effort)
    spreads = dict(zip(runs, interleaved(list(runs.values()), effort.rounds), strict=True))
    hit = spreads["limits: one hit"].median
    rows = [[name, str(spread), f"{spread.median / hit:.2f} x"] for name, spread in spreads.items()]
    for target, name in ((FEW_RULES, f"match, {FEW} rules"), (MANY_RULES, f"match, {MANY:,} rules")):
        report.figures.append(Figure(target, "requests that look alike", spreads[name].median / hit))
    report.figures.append(
        Figure(
            MANY_RULES, "each path seen for the first time", spreads[f"match, {MANY:,} rules, new paths"].median / hit
        )
    )
    cheaper = spreads["limits: three hits"].median / spreads["Enforcer.check"].median
    report.figures.append(Figure(CHEAPER, "memory", cheaper))
    notes = [
        f"Three of the rules match. Of {MANY:,} rules, {MANY - 3:,} are for paths of their own and found by an index.",
        f"Three hits of limits ÷ Enforcer.check: {CHEAPER.verdict(cheaper)}.",
        "New paths: no request looks like an earlier one to the rules, so nothing remembered helps.",
    ]
    report.tables.append(Table("Rules", ["CPU ns per request", "median", "÷ one hit of limits"], rows, notes))
    report.tables += [_loading(report, effort), _directory(effort)]
    return report


def _runs(effort: Effort) -> dict[str, Run]:
    few, many = RuleSet(rule_file(FEW)), RuleSet(rule_file(MANY))
    alike = [[_descriptor(f"/v1/shops/{number % 8}/orders") for number in range(effort.calls)]] * effort.rounds
    fresh = [
        [_descriptor(f"/v1/shops/{turn * effort.calls + number}/orders") for number in range(effort.calls)]
        for turn in range(effort.rounds)
    ]
    limiter = Limiter(MemoryStore())
    told: list[object] = []
    keys = [["203.0.113.7"] * effort.calls] * effort.rounds
    return {
        "limits: one hit": cpu_ns_of_each(_hitting(1), keys),
        "limits: three hits": cpu_ns_of_each(_hitting(3), keys),
        f"match, {FEW} rules": cpu_ns_of_each(_matching(few), alike),
        f"match, {MANY:,} rules": cpu_ns_of_each(_matching(many), alike),
        f"match, {FEW} rules, new paths": cpu_ns_of_each(_matching(few), fresh),
        f"match, {MANY:,} rules, new paths": cpu_ns_of_each(_matching(many), fresh),
        "Enforcer.check": cpu_ns_of_each(_checking(Enforcer(few, limiter)), alike),
        f"Enforcer.check, {MANY:,} rules": cpu_ns_of_each(_checking(Enforcer(many, limiter)), alike),
        "Enforcer.check with a hook": cpu_ns_of_each(
            _checking(Enforcer(few, limiter, hook=lambda event: told.clear())), alike
        ),
    }


def rule_file(count: int) -> RuleFile:
    """So many rules, of which three match the requests here."""
    return RuleFile.model_validate({"rules": declared(count)})


def declared(count: int) -> list[dict[str, object]]:
    matching: list[dict[str, object]] = [
        {"id": "everybody", "key": [], "quota": AMPLE},
        {"id": "address", "key": "ip", "quota": AMPLE},
        {
            "id": "orders",
            "match": {"path": {"glob": "/v1/shops/*/orders"}, "method": ["GET", "POST"]},
            "key": "api_key | ip",
            "quota": AMPLE,
        },
    ]
    others: list[dict[str, object]] = [
        {
            "id": f"other-{number}",
            "match": {"path": {"prefix": f"/v1/resource-{number}/"}, "method": "POST"},
            "key": "api_key | ip",
            "quota": f"{number % 900 + 100}/minute",
        }
        for number in range(count - len(matching))
    ]
    return others + matching


def _descriptor(path: str) -> Descriptor:
    return {"path": path, "method": "GET", "api_key": "key-0123456789abcdef", "ip": "203.0.113.7"}


def _hitting(times: int) -> Visit:
    hit = FixedWindowRateLimiter(MemoryStorage()).hit
    item = RateLimitItemPerDay(4_000_000_000)
    names = ("everybody", "address", "orders")[:times]

    def visit(keys: Iterable[str]) -> None:
        for key in keys:
            for name in names:
                hit(item, name, key)

    return visit


def _matching(rules: RuleSet) -> Visit:
    match = rules.match

    def visit(descriptors: Iterable[Descriptor]) -> None:
        for descriptor in descriptors:
            match(descriptor, 0)

    return visit


def _checking(enforcer: Enforcer) -> Visit:
    check = enforcer.check

    def visit(descriptors: Iterable[Descriptor]) -> None:
        for descriptor in descriptors:
            check(descriptor)

    return visit


def _loading(report: Report, effort: Effort) -> Table:
    """What becomes of a large set: how long until it can be used, and what putting it in force costs requests."""
    count = MOST if effort.many_keys > MANY * 10 else MANY
    text = json.dumps({"rules": declared(count)})  # which is YAML
    start = time.perf_counter()
    file = parse(text)
    read = time.perf_counter()
    sets = [RuleSet(file)]
    compiled = time.perf_counter()
    report.figures.append(Figure(COMPILED, f"{count:,} rules", (compiled - start) * 1_000))
    sets.append(RuleSet(rule_file(count)))
    quiet, swapped = _worst(sets, effort, swap=False), _worst(sets, effort, swap=True)
    del file
    before = time.perf_counter()
    sets.clear()
    dropped = time.perf_counter() - before
    rows = [
        ["reading the file, ms", f"{(read - start) * 1_000:.0f}"],
        ["compiling, ms", f"{(compiled - read) * 1_000:.0f}"],
        ["slowest of the fastest 99.9 % of decisions, us", f"{quiet:.0f}"],
        ["the same while sets are put in force all the time, us", f"{swapped:.0f}"],
    ]
    rows.append(["letting go of two such sets, us", f"{dropped * 1_000_000:.0f}"])
    notes = ["One thread decides, another puts two sets in force in turn. Wall time, so neighbours are in it."]
    return Table(f"A set of {count:,} rules", ["", "figure"], rows, notes)


def _directory(effort: Effort) -> Table:
    """What a key costs in memory, and to find."""
    count, secret = effort.many_keys, b"0123456789abcdef"
    digests = [hash_key(f"key-{number}", secret) for number in range(count)]
    gc.collect()
    tracemalloc.start()
    table = KeyTable((digest, KeyRecord(f"customer-{at // 3}", "paid")) for at, digest in enumerate(digests))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    start = time.process_time_ns()
    for digest in digests:
        table.find(digest)
    took = time.process_time_ns() - start
    rows = [["bytes in memory per key", f"{size / count:.0f}"], ["CPU ns to find one", f"{took / count:.0f}"]]
    return Table(f"A directory of {count:,} keys", ["", "figure"], rows)


def _worst(sets: Sequence[RuleSet], effort: Effort, *, swap: bool) -> float:
    enforcer = Enforcer(sets[0], Limiter(MemoryStore()))
    done = Event()

    def swapping() -> None:
        while not done.wait(0.001):
            for rules in sets if swap else ():
                enforcer.rules = rules

    thread = Thread(target=swapping)
    thread.start()
    descriptor = _descriptor("/v1/shops/1/orders")
    took = []
    for _ in range(effort.calls * 4):
        start = time.perf_counter_ns()
        enforcer.check(descriptor)
        took.append(time.perf_counter_ns() - start)
    done.set()
    thread.join()
    took.sort()
    return took[int(len(took) * 0.999)] / 1_000

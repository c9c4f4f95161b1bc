"""`python -m bench [suite ...]`: measure speed and memory against the peers, and say which targets are met.

The exit code is 0 unless something crashed: a slow machine is no error. A suite is a module with `measure(effort) ->
Report`; to add one, list it in SUITES.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import (
    amending,
    calls,
    growth_with_keys,
    growth_with_limit,
    locks,
    memory_bytes,
    memory_speed,
    metrics,
    middleware,
    redis_async,
    redis_blocking,
    redis_clients,
    redis_exact,
    redis_memory,
    redis_share,
    redis_threads,
    redis_topologies,
    resilience,
    rules,
    service_envoy,
    service_grpc,
    service_http,
    shedding,
    threads,
    waiting,
)
from bench.machine import Watch, description
from bench.measure import FULL, QUICK, Effort
from bench.report import Report, Table, as_markdown, as_text, summary

SUITES: Mapping[str, Callable[[Effort], Report]] = {
    "memory_speed": memory_speed.measure,
    "calls": calls.measure,
    "amending": amending.measure,
    "waiting": waiting.measure,
    "rules": rules.measure,
    "middleware": middleware.measure,
    "shedding": shedding.measure,
    "metrics": metrics.measure,
    "locks": locks.measure,
    "threads": threads.measure,
    "growth_with_keys": growth_with_keys.measure,
    "growth_with_limit": growth_with_limit.measure,
    "memory_bytes": memory_bytes.measure,
    "redis_async": redis_async.measure,
    "redis_blocking": redis_blocking.measure,
    "redis_clients": redis_clients.measure,
    "redis_exact": redis_exact.measure,
    "redis_share": redis_share.measure,
    "redis_memory": redis_memory.measure,
    "redis_threads": redis_threads.measure,
    "redis_topologies": redis_topologies.measure,
    "resilience": resilience.measure,
    "service_envoy": service_envoy.measure,
    "service_grpc": service_grpc.measure,
    "service_http": service_http.measure,
}

BEGIN, END = "<!-- python -m bench -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure speed and memory against the peers.")
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"which to run: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean nothing")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--into", type=Path, metavar="FILE", help="renew FILE, say docs/results/performance.md")
    options = parser.parse_args()
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"unknown suite {name!r} (expected {', '.join(SUITES)})")

    logging.getLogger("penstock").setLevel(
        logging.ERROR
    )  # what a store says of its server would be said ten times over
    texts = _run(
        options.suites or list(SUITES),
        QUICK if options.quick else FULL,
        as_markdown if options.markdown or options.into else as_text,
    )
    if options.into:
        _replace(options.into, "\n\n".join(texts))
    else:
        for text in texts:
            print(f"{text}\n", flush=True)


def _run(names: Sequence[str], effort: Effort, render: Callable[[Table], str]) -> Iterator[str]:
    """The texts to show, one by one as they come; progress goes to stderr."""
    yield description()
    reports = []
    for name in names:
        watch, start = Watch(), time.monotonic()
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        report = SUITES[name](effort)
        print(f" {time.monotonic() - start:.0f} s", file=sys.stderr)
        yield from map(render, report.tables)
        yield from filter(None, [watch.warning()])
        reports.append(report)
    yield render(summary(reports))


def _replace(path: Path, text: str) -> None:
    """Put `text` between the two marks in a file."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: expected the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    main()

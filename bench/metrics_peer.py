"""prometheus_client with several processes, measured in a process of its own: it decides at import how it counts.

Run with PROMETHEUS_MULTIPROC_DIR; prints nanoseconds per count and milliseconds per scrape as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

from prometheus_client import CollectorRegistry, Counter, generate_latest, multiprocess

LABELS = ("rule", "algorithm", "source", "outcome", "reason")


def main(workers: int, rules: int, calls: int, rounds: int) -> None:
    decisions = Counter("decisions", "Requests decided.", LABELS)
    for _ in range(workers - 1):
        child = os.fork()
        if not child:
            _fill(decisions, rules)
            os._exit(0)
        os.waitpid(child, 0)
    _fill(decisions, rules)
    counting, scraping = [], []
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(calls):
            decisions.labels("api", "gcra", "store", "allowed", "").inc()
        counting.append((time.process_time_ns() - start) / calls)
        start = time.process_time_ns()
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        generate_latest(registry)
        scraping.append((time.process_time_ns() - start) / 1e6)
    print(json.dumps({"ns": sorted(counting)[rounds // 2], "ms": sorted(scraping)[rounds // 2]}))


def _fill(decisions: Counter, rules: int) -> None:
    for number in range(rules):
        decisions.labels(f"rule-{number}", "gcra", "store", "allowed", "").inc(number + 1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

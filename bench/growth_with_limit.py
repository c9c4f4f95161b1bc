"""Whether a decision becomes dearer with the limit. It must not; the exact log may grow with its logarithm."""

from __future__ import annotations

from bench.contenders import asking
from bench.keys import key, keys
from bench.measure import Effort, Run, cpu_ns, interleaved
from bench.report import Figure, Report, Table, Target
from penstock import Limiter, Quota
from penstock.quota import MAX_LOG, RATES

FLAT = Target("cost at the largest limit, against the smallest", bar=1.3, at_least=False)
YEAR = 365 * 86_400
"""So long a period that hardly a unit comes back while refusals are measured."""
LIMITS = (10, 1_000, 100_000, 10_000_000, 1_000_000_000)
LOG_LIMITS = (10, 100, 1_000, MAX_LOG)
LOGS = ("rolling_window",)


def measure(effort: Effort) -> Report:
    report = Report()
    counters = tuple(name for name in RATES if name not in LOGS)
    for algorithms, limits in ((counters, LIMITS), (LOGS, LOG_LIMITS)):
        rows = []
        for algorithm in algorithms:
            quotas = [Quota(limit, YEAR, algorithm) for limit in limits]
            for path, run in (("allowed", _allowed), ("denied", _denied)):
                spreads = interleaved([run(quota, effort) for quota in quotas], effort.rounds)
                ratio = spreads[-1].median / spreads[0].median
                rows.append([f"{algorithm}, {path}", *map(str, spreads), FLAT.verdict(ratio)])
                report.figures.append(Figure(FLAT, f"{algorithm}, {path}", ratio))
        columns = ["CPU ns per decision", *(f"limit {limit:,}" for limit in limits), "last ÷ first"]
        title = "Growth with the limit" + (": the exact log" if algorithms == LOGS else "")
        report.tables.append(Table(title, columns, rows))
    return report


def _allowed(quota: Quota, effort: Effort) -> Run:
    """The figure of keys that have used half their quota; each is asked at most half as often again."""
    limiter = Limiter()
    half = quota.limit // 2
    often = min(half, effort.calls)
    count = effort.calls // often
    visit = asking(limiter, quota)

    def run(number: int) -> float:
        some = keys(count, start=number * count)
        for each in some:
            _spend(limiter, each, quota, half)
        return cpu_ns(visit, [each for each in some for _ in range(often)])

    return run


def _denied(quota: Quota, effort: Effort) -> Run:
    limiter = Limiter()
    hot = key(0)
    visits = [hot] * effort.calls
    visit = asking(limiter, quota)
    _spend(limiter, hot, quota, quota.limit)

    def run(_: int) -> float:
        while limiter.acquire(hot, quota):  # what has come back since
            pass
        return cpu_ns(visit, visits)

    return run


def _spend(limiter: Limiter, key: str, quota: Quota, units: int) -> None:
    """Use `units` up; unit by unit where each leaves an entry in a log."""
    if quota.algorithm in LOGS:
        asking(limiter, quota)([key] * units)
    else:
        limiter.acquire(key, quota, cost=units)

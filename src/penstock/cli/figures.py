"""What happened between two looks at a service: rates and latencies, from the figures that its workers count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from penstock.observability import series
from penstock.observability.shared import add
from penstock.observability.tally import Snapshot

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Rule(NamedTuple):
    """How one rule decided, per second."""

    name: str
    allowed: float
    refused: float


class Figures(NamedTuple):
    """What is shown of a service. Rates are per second, times are milliseconds.

    `p50` and `p99` are of calls, as far as the buckets of the histogram tell; None if there were none.
    """

    requests: float
    allowed: float
    refused: float
    p50: float | None
    p99: float | None
    rules: tuple[Rule, ...]
    connections: int
    workers: int
    degraded: tuple[str, ...]


class Looks:
    """Remembers the last look, and tells what has happened since."""

    def __init__(self) -> None:
        self._before = Snapshot()
        self._at = 0.0

    def look(self, snapshots: Iterable[Snapshot], now: float) -> Figures:
        """What has happened since the last look, given everything that was counted until `now` (seconds)."""
        total, values = Snapshot(), list(snapshots)
        for snapshot in values:
            add(total, snapshot)
        seconds = max(now - self._at, 1e-3)
        before, self._before, self._at = self._before, total, now
        decisions = _rules(_grown(total, before, series.DECISIONS.name), seconds)
        calls = _buckets(total, before)
        return Figures(
            requests=sum(_grown(total, before, series.REQUESTS.name).values()) / seconds,
            allowed=sum(rule.allowed for rule in decisions),
            refused=sum(rule.refused for rule in decisions),
            p50=_quantile(calls, 0.50),
            p99=_quantile(calls, 0.99),
            rules=tuple(sorted(decisions, key=lambda rule: rule.allowed + rule.refused, reverse=True)),
            connections=round(_now(values, series.CONNECTIONS.name)),
            workers=round(_now(values, series.WORKERS.name)),
            degraded=_degraded(values, sum(_grown(total, before, series.DEGRADED.name).values()) / seconds),
        )


def labels_of(text: str) -> dict[str, str]:
    """The labels of a series, as it spells them."""
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LABEL.findall(text)}


def _grown(total: Snapshot, before: Snapshot, name: str) -> dict[str, float]:
    known = before.totals.get(name, {})
    grown = {labels: value - known.get(labels, 0) for labels, value in total.totals.get(name, {}).items()}
    return {labels: value for labels, value in grown.items() if value > 0}


def _rules(grown: dict[str, float], seconds: float) -> list[Rule]:
    outcomes: dict[str, dict[str, float]] = {}
    for text, value in grown.items():
        labels = labels_of(text)
        of_rule = outcomes.setdefault(labels["rule"], {})
        of_rule[labels["outcome"]] = of_rule.get(labels["outcome"], 0) + value
    return [
        Rule("no rule" if name == series.NONE else name, of.get("allowed", 0) / seconds, of.get("refused", 0) / seconds)
        for name, of in outcomes.items()
    ]


def _buckets(total: Snapshot, before: Snapshot) -> list[int]:
    """How many calls fell into each bucket, over all routes; the last is what lies beyond all bounds."""
    name = series.REQUEST_SECONDS.name
    counts = [0] * (len(series.LATENCIES) + 1)
    known = before.histograms.get(name, {})
    for labels, now in total.histograms.get(name, {}).items():
        was = known.get(labels, [0] * len(now))
        for position in range(len(counts)):
            counts[position] += max(now[position] - was[position], 0)
    return counts


def _quantile(counts: list[int], share: float) -> float | None:
    """The time within which so large a share was answered: within a bucket, calls are taken to be spread evenly."""
    sums = list(accumulate(counts))
    if not sums[-1]:
        return None
    wanted = share * sums[-1]
    position = next(at for at, reached in enumerate(sums) if reached >= wanted)
    bounds = (0, *series.LATENCIES)
    if position == len(series.LATENCIES):
        return bounds[-1] / 1_000
    low, high = bounds[position], bounds[position + 1]
    inside = (wanted - (sums[position] - counts[position])) / counts[position]
    return (low + (high - low) * inside) / 1_000


def _now(snapshots: Iterable[Snapshot], name: str) -> float:
    return sum(value for snapshot in snapshots for value in snapshot.now.get(name, {}).values())


def _degraded(snapshots: list[Snapshot], stood_in: float) -> tuple[str, ...]:
    why = []
    troubled = set()
    for snapshot in snapshots:
        for text in snapshot.now.get(series.BREAKERS.name, {}):
            labels = labels_of(text)
            if labels["state"] != "closed":
                troubled.add(f"store {labels['server']}: breaker {labels['state']}")
    why += sorted(troubled)
    if stood_in:
        why.append(f"{stood_in:.0f} answers/s without the store")
    stale = max([max(one.now.get(series.RULES_STALE.name, {"": 0.0}).values()) for one in snapshots], default=0.0)
    if stale > 5:
        why.append(f"the file of rules has not been usable for {stale:.0f} s")
    return tuple(why)

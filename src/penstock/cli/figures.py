"""What happened between two looks at a service: rates and latencies, from the figures that its workers count."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from penstock.observability import series
from penstock.observability.shared import add
from penstock.observability.tally import Snapshot

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RuleRates(NamedTuple):
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
    rules: tuple[RuleRates, ...]
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


def _rules(grown: dict[str, float], seconds: float) -> list[RuleRates]:
    outcomes: dict[str, dict[str, float]] = {}
    for text, value in grown.items():
        labels = labels_of(text)
        of_rule = outcomes.setdefault(labels["rule"], {})
        of_rule[labels["outcome"]] = of_rule.get(labels["outcome"], 0) + value
    return [
        RuleRates(
            "no rule" if name == series.NONE else name, of.get("allowed", 0) / seconds, of.get("refused", 0) / seconds
        )
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


# ---------------------------------------------------------------- frames


# What `penstock top` shows: one frame, made of two looks at a service's metrics. Pure.
#
# Rates are what was counted between the two looks; latencies are of the answers given in between, read off the buckets
# of histograms, so they are as fine as those.


Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = Mapping[str, Mapping[Labels, float]]

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$")
_PARSED_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

DECISIONS = "penstock_decisions_total"
SHADOWS = "penstock_shadow_refusals_total"
REQUEST_SECONDS = "penstock_request_duration_seconds_bucket"
STORE_SECONDS = "penstock_store_duration_seconds_bucket"


class Look(NamedTuple):
    """The metrics of a service at an instant, in seconds that never go back, and what it says of itself."""

    at: float
    samples: Samples
    status: str = ""
    degraded: tuple[str, ...] = ()


class Row(NamedTuple):
    """One rule; all but its name are per second."""

    rule: str
    decisions: float
    refused: float
    degraded: float
    would_refuse: float


class Latency(NamedTuple):
    """Seconds within which half, and 99 of 100, were answered; None if nothing was, or it is off the scale."""

    half: float | None
    most: float | None


class Frame(NamedTuple):
    """What is shown."""

    status: str
    degraded: tuple[str, ...]
    decisions: float
    refused: float
    degraded_answers: float
    requests: Latency
    store: Latency
    connections: float
    workers: float
    breakers: dict[str, int]
    version: str
    age: float
    rows: tuple[Row, ...]


def read(text: str) -> Samples:
    """The samples in what `/metrics` says."""
    samples: dict[str, dict[Labels, float]] = defaultdict(dict)
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = [(name, _unescaped(text)) for name, text in _PARSED_LABEL.findall(found[2] or "")]
        samples[found[1]][tuple(labels)] = value
    return dict(samples)


def frame(before: Look, after: Look) -> Frame:
    """What happened between two looks, and how things are at the second."""
    rates = _Rates(before, after)
    breakers: dict[str, int] = defaultdict(int)
    for labels, number in after.samples.get("penstock_breaker_workers", {}).items():
        breakers[dict(labels).get("state", "")] += int(number)
    versions = after.samples.get("penstock_rules_info", {})
    version = max(versions, key=lambda labels: versions[labels], default=())
    return Frame(
        after.status,
        after.degraded,
        rates.sum(DECISIONS),
        rates.sum(DECISIONS, lambda labels: labels.get("outcome") == "refused"),
        rates.sum(DECISIONS, _is_degraded),
        rates.latency(REQUEST_SECONDS),
        rates.latency(STORE_SECONDS),
        _gauge(after.samples, "penstock_connections"),
        _gauge(after.samples, "penstock_workers"),
        dict(breakers),
        dict(version).get("version", ""),
        max(after.samples.get("penstock_rules_age_seconds", {}).values(), default=0.0),
        rates.rows(),
    )


def _is_degraded(labels: Mapping[str, str]) -> bool:
    return labels.get("source") != "store"


class _Rates:
    """What was counted between two looks."""

    def __init__(self, before: Look, after: Look) -> None:
        self._before, self._after = before.samples, after.samples
        self._seconds = max(after.at - before.at, 1e-9)

    def _grown(self, name: str) -> dict[Labels, float]:
        """By how much; what is less than before was started anew."""
        before = self._before.get(name, {})
        grown = {}
        for labels, value in self._after.get(name, {}).items():
            was = before.get(labels, 0.0)
            grown[labels] = value - was if value >= was else value
        return grown

    def sum(self, name: str, counts: Callable[[Mapping[str, str]], bool] = lambda labels: True) -> float:
        return sum(value for labels, value in self._grown(name).items() if counts(dict(labels))) / self._seconds

    def rows(self) -> tuple[Row, ...]:
        """Every rule that has decided anything, the busiest first."""
        rows: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        for labels, value in self._grown(DECISIONS).items():
            named = dict(labels)
            row = rows[named.get("rule", "")]
            row[0] += value
            row[1] += value if named.get("outcome") == "refused" else 0
            row[2] += value if _is_degraded(named) else 0
        for labels, value in self._grown(SHADOWS).items():
            rows[dict(labels).get("rule", "")][3] += value
        made = [Row(rule, *(value / self._seconds for value in values)) for rule, values in rows.items()]
        return tuple(sorted(made, key=lambda row: (-row.decisions, row.rule)))

    def latency(self, name: str) -> Latency:
        buckets: dict[float, float] = defaultdict(float)
        for labels, value in self._grown(name).items():
            buckets[float(dict(labels).get("le", "inf"))] += value
        return Latency(quantile(buckets, 0.5), quantile(buckets, 0.99))


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value below which `share` of a cumulative histogram lies, by a straight line within its bucket."""
    total = buckets.get(float("inf"), 0.0)
    if total <= 0:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return None
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside else 1.0)
        lower, below = bound, buckets[bound]
    return None


def _gauge(samples: Samples, name: str) -> float:
    return sum(samples.get(name, {}).values())


def _unescaped(text: str) -> str:
    return re.sub(r"\\[n\"\\]", lambda found: _ESCAPES[found[0]], text)

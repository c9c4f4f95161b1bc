"""The figures of `penstock top` and of the live view of `penstock serve`: the change between two looks at the metrics.

Rates cover the time between the two looks. Latencies are quantiles of the answers in between, interpolated within the
buckets of the histograms. A quantile beyond the last bound is that bound, as in Prometheus.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from penstock.observability import exposition, series
from penstock.observability.tally import Snapshot

Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = Mapping[str, Mapping[Labels, float]]

STALE = 5.0
"""Seconds after which a rules file that cannot be confirmed counts as a degradation."""

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class Look(NamedTuple):
    """The metrics of a service at an instant (monotonic seconds), its status, and the causes of its degradation."""

    at: float
    samples: Samples
    status: str = ""
    degraded: tuple[str, ...] = ()


class Row(NamedTuple):
    """The rates of one rule, per second."""

    rule: str
    decisions: float
    refused: float
    degraded: float
    would_refuse: float


class Latency(NamedTuple):
    """Seconds within which half, and 99 of 100, were answered. None: there were no answers."""

    half: float | None
    most: float | None


class Frame(NamedTuple):
    """The figures shown. `decisions`, `refused`, `degraded_answers` and `calls` are per second, `age` is seconds."""

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
    calls: float


def read(text: str) -> Samples:
    """Parse the text of `/metrics`."""
    samples: dict[str, dict[Labels, float]] = defaultdict(dict)
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = [(name, _unescaped(text)) for name, text in _LABEL.findall(found[2] or "")]
        samples[found[1]][tuple(labels)] = value
    return dict(samples)


def look_at(snapshots: Sequence[Snapshot], now: float) -> Look:
    """Return a look at the figures that workers pool, without asking a service."""
    samples = read(exposition.text(snapshots).decode())
    open_breakers = {
        f"store {labels['server']}: breaker {labels['state']}"
        for labels in map(dict, samples.get(series.BREAKERS.name, {}))
        if labels["state"] != "closed"
    }
    stale = max(samples.get(series.RULES_STALE.name, {}).values(), default=0.0)
    rules = [f"the rules file has not been usable for {stale:.0f} s"] if stale > STALE else []
    return Look(now, samples, degraded=(*sorted(open_breakers), *rules))


def frame(before: Look, after: Look) -> Frame:
    """Return the rates between two looks, and the state at the second."""
    rates = _Rates(before, after)
    breakers: dict[str, int] = defaultdict(int)
    for labels, number in after.samples.get(series.BREAKERS.name, {}).items():
        breakers[dict(labels).get("state", "")] += int(number)
    versions = after.samples.get(series.RULES.name, {})
    version = max(versions, key=lambda labels: versions[labels], default=())
    return Frame(
        after.status,
        after.degraded,
        rates.sum(series.DECISIONS.name),
        rates.sum(series.DECISIONS.name, lambda labels: labels.get("outcome") == "refused"),
        rates.sum(series.DECISIONS.name, _is_degraded),
        rates.latency(series.REQUEST_SECONDS.name),
        rates.latency(series.STORE_SECONDS.name),
        _gauge(after.samples, series.CONNECTIONS.name),
        _gauge(after.samples, series.WORKERS.name),
        dict(breakers),
        dict(version).get("version", ""),
        max(after.samples.get(series.RULES_AGE.name, {}).values(), default=0.0),
        rates.rows(),
        rates.sum(series.REQUESTS.name),
    )


def _is_degraded(labels: Mapping[str, str]) -> bool:
    return labels.get("source") != "store"


class _Rates:
    """The rates between two looks."""

    def __init__(self, before: Look, after: Look) -> None:
        self._before, self._after = before.samples, after.samples
        self._seconds = max(after.at - before.at, 1e-9)

    def _grown(self, name: str) -> dict[Labels, float]:
        """Return the growth of each counter. A counter below its previous value has started again at 0."""
        before = self._before.get(name, {})
        grown = {}
        for labels, value in self._after.get(name, {}).items():
            was = before.get(labels, 0.0)
            grown[labels] = value - was if value >= was else value
        return grown

    def sum(self, name: str, counts: Callable[[Mapping[str, str]], bool] = lambda labels: True) -> float:
        return sum(value for labels, value in self._grown(name).items() if counts(dict(labels))) / self._seconds

    def rows(self) -> tuple[Row, ...]:
        """Return the rules that have decided since the start, the busiest first."""
        rows: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
        for labels, value in self._grown(series.DECISIONS.name).items():
            named = dict(labels)
            row = rows[named.get("rule", "")]
            row[0] += value
            row[1] += value if named.get("outcome") == "refused" else 0
            row[2] += value if _is_degraded(named) else 0
        for labels, value in self._grown(series.SHADOW.name).items():
            rows[dict(labels).get("rule", "")][3] += value
        made = [Row(rule, *(value / self._seconds for value in values)) for rule, values in rows.items()]
        return tuple(sorted(made, key=lambda row: (-row.decisions, row.rule)))

    def latency(self, name: str) -> Latency:
        buckets: dict[float, float] = defaultdict(float)
        for labels, value in self._grown(f"{name}_bucket").items():
            buckets[float(dict(labels).get("le", "inf"))] += value
        return Latency(quantile(buckets, 0.5), quantile(buckets, 0.99))


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the value below which `share` of a cumulative histogram lies, by linear interpolation."""
    total = buckets.get(float("inf"), 0.0)
    if total <= 0:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((wanted - below) / inside if inside else 1.0)
        lower, below = bound, buckets[bound]
    return None


def _gauge(samples: Samples, name: str) -> float:
    return sum(samples.get(name, {}).values())


def _unescaped(text: str) -> str:
    return re.sub(r"\\[n\"\\]", lambda found: _ESCAPES[found[0]], text)

"""Writes the figures of all workers as text for Prometheus, in steps, so that decisions need not wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, isnan
from typing import Any

from penstock.observability.series import ALL, Series
from penstock.observability.tally import Snapshot

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

STEP = 200
"""Lines that are written in one step: some hundred microseconds."""


def lines(snapshots: Sequence[Snapshot], *, openmetrics: bool = False) -> Iterator[list[str]]:
    """Yield the lines of all series in steps; a step may be empty."""
    for series in ALL:
        merge = _merge_histograms if series.kind == "histogram" else _merge
        merged: dict[str, Any] = {}
        for snapshot in snapshots:
            merge(series, snapshot, merged)
            if len(merged) > STEP:
                yield []
        written = _head(series, openmetrics=openmetrics) if merged else []
        write = _buckets if series.kind == "histogram" else _sample
        for labels, value in merged.items():
            written += write(series, labels, value)
            if len(written) >= STEP:
                yield written
                written = []
        if written:
            yield written
    if openmetrics:
        yield ["# EOF"]


def text(snapshots: Sequence[Snapshot], *, openmetrics: bool = False) -> bytes:
    """Return the whole text at once."""
    return joined(line for step in lines(snapshots, openmetrics=openmetrics) for line in step)


def joined(all_lines: Iterable[str]) -> bytes:
    """Return lines as the body of a response."""
    return ("\n".join(all_lines) + "\n").encode()


def _head(series: Series, *, openmetrics: bool) -> list[str]:
    name = series.name.removesuffix("_total") if openmetrics and series.kind == "counter" else series.name
    return [f"# HELP {name} {series.help}", f"# TYPE {name} {series.kind}"]


def _merge(series: Series, snapshot: Snapshot, merged: dict[str, float]) -> None:
    values = (snapshot.now if series.lives else snapshot.totals).get(series.name)
    if not values:
        return
    if not merged:
        merged.update(values)
        return
    known, add = merged.get, series.merge == "sum"
    for labels, value in values.items():
        before = known(labels)
        if before is not None:
            value = before + value if add else max(before, value)
        merged[labels] = value


def _merge_histograms(series: Series, snapshot: Snapshot, merged: dict[str, list[int]]) -> None:
    for labels, counts in snapshot.histograms.get(series.name, {}).items():
        before = merged.get(labels)
        merged[labels] = counts if before is None else [a + b for a, b in zip(before, counts, strict=True)]


def _sample(series: Series, labels: str, value: float) -> list[str]:
    return [f"{series.name}{labels} {_number(value)}"]


def _buckets(series: Series, labels: str, counted: list[int]) -> list[str]:
    *counts, total = counted
    bounds = [repr(bound / series.unit) for bound in series.bounds] + ["+Inf"]
    seen, inner, written = 0, labels[1:-1] + "," if labels else "", []
    for bound, count in zip(bounds, counts, strict=True):
        seen += count
        written.append(f'{series.name}_bucket{{{inner}le="{bound}"}} {seen}')
    return [
        *written,
        f"{series.name}_sum{labels} {_number(total / series.unit)}",
        f"{series.name}_count{labels} {seen}",
    ]


def _number(value: float) -> str:
    if isfinite(value):
        return repr(int(value)) if value == int(value) else repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"

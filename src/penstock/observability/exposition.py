"""From the figures of all workers to the text that Prometheus reads; in steps, so that no decision waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, isnan

from penstock.observability.series import ALL, Series
from penstock.observability.tally import Snapshot

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

STEP = 200
"""Lines that are written before others have their turn: some hundred microseconds."""


def lines(snapshots: Sequence[Snapshot], *, openmetrics: bool = False) -> Iterator[list[str]]:
    """The lines of all series, some at a time."""
    for series in ALL:
        written: list[str] = []
        for line in _samples(series, snapshots):
            if not written:
                written += _head(series, openmetrics=openmetrics)
            written.append(line)
            if len(written) % STEP == 0:
                yield written[-STEP:]
        if len(written) % STEP:
            yield written[-(len(written) % STEP) :]
    if openmetrics:
        yield ["# EOF"]


def text(snapshots: Sequence[Snapshot], *, openmetrics: bool = False) -> bytes:
    """All of it at once."""
    return joined(line for step in lines(snapshots, openmetrics=openmetrics) for line in step)


def joined(all_lines: Iterable[str]) -> bytes:
    return ("\n".join(all_lines) + "\n").encode()


def _head(series: Series, *, openmetrics: bool) -> list[str]:
    name = series.name.removesuffix("_total") if openmetrics and series.kind == "counter" else series.name
    return [f"# HELP {name} {series.help}", f"# TYPE {name} {series.kind}"]


def _samples(series: Series, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    if series.kind == "histogram":
        yield from _buckets(series, snapshots)
        return
    merged: dict[str, float] = {}
    for snapshot in snapshots:
        for labels, value in (snapshot.now if series.lives else snapshot.totals).get(series.name, {}).items():
            before = merged.get(labels)
            if before is None:
                merged[labels] = value
            else:
                merged[labels] = before + value if series.merge == "sum" else max(before, value)
    for labels, value in merged.items():
        yield f"{series.name}{labels} {_number(value)}"


def _buckets(series: Series, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    merged: dict[str, list[int]] = {}
    for snapshot in snapshots:
        for labels, counts in snapshot.histograms.get(series.name, {}).items():
            before = merged.get(labels)
            merged[labels] = counts if before is None else [a + b for a, b in zip(before, counts, strict=True)]
    bounds = [repr(bound / series.unit) for bound in series.bounds] + ["+Inf"]
    for labels, (*counts, total) in merged.items():
        seen, inner = 0, labels[1:-1] + "," if labels else ""
        for bound, count in zip(bounds, counts, strict=True):
            seen += count
            yield f'{series.name}_bucket{{{inner}le="{bound}"}} {seen}'
        yield f"{series.name}_sum{labels} {_number(total / series.unit)}"
        yield f"{series.name}_count{labels} {seen}"


def _number(value: float) -> str:
    if isfinite(value):
        return repr(int(value)) if value == int(value) else repr(value)
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"

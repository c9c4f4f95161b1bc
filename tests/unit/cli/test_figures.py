"""The figures of `penstock top` and of the live view, from two looks at the metrics."""

from __future__ import annotations

import pytest
from rich.console import Console

from penstock.cli.figures import Frame, Latency, Look, Row, frame, look_at, quantile, read
from penstock.cli.top import rendered
from penstock.cli.view import drawn
from penstock.observability import series
from penstock.observability.tally import Snapshot

BEFORE = """
# HELP penstock_decisions_total Requests decided.
# TYPE penstock_decisions_total counter
penstock_decisions_total{rule="api",algorithm="gcra",source="store",outcome="allowed",reason=""} 100
penstock_decisions_total{rule="gone",algorithm="gcra",source="store",outcome="allowed",reason=""} 50
penstock_request_duration_seconds_bucket{route="/v1/check",le="0.001"} 10
penstock_request_duration_seconds_bucket{route="/v1/check",le="0.002"} 10
penstock_request_duration_seconds_bucket{route="/v1/check",le="+Inf"} 10
"""
AFTER = """
penstock_decisions_total{rule="api",algorithm="gcra",source="store",outcome="allowed",reason=""} 160
penstock_decisions_total{rule="api",algorithm="gcra",source="store",outcome="refused",reason="rate"} 20
penstock_decisions_total{rule="gone",algorithm="gcra",source="store",outcome="allowed",reason=""} 4
penstock_decisions_total{rule="a \\"b\\" \\\\ c",algorithm="gcra",source="local",outcome="allowed",reason=""} 10
penstock_decisions_total{rule="-",algorithm="-",source="store",outcome="allowed",reason=""} 2
penstock_shadow_refusals_total{rule="api"} 8
penstock_request_duration_seconds_bucket{route="/v1/check",le="0.001"} 60
penstock_request_duration_seconds_bucket{route="/v1/check",le="0.002"} 110
penstock_request_duration_seconds_bucket{route="/v1/check",le="+Inf"} 110
penstock_breaker_workers{server="db:6379",state="closed"} 3
penstock_breaker_workers{server="db:6379",state="open"} 1
penstock_rules_info{version="old"} 1
penstock_rules_info{version="new"} 3
penstock_rules_age_seconds 7300
penstock_connections 12
penstock_workers 4
nonsense
penstock_connections{x="1"} nothing
"""


def _frame() -> Look:
    return Look(12.0, read(AFTER), "degraded", ("store: 1 of 1 servers not asked",))


def test_rates_count_what_happened_between_two_looks() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert (shown.decisions, shown.refused, shown.degraded_answers) == (48, 10, 5)
    assert [(row.rule, row.decisions, row.refused) for row in shown.rows] == [
        ("api", 40, 10),
        ('a "b" \\ c', 5, 0),
        ("gone", 2, 0),  # it was restarted, and counts from 0
        ("-", 1, 0),
    ]
    assert (shown.rows[0].would_refuse, shown.rows[1].degraded) == (4, 5)


def test_latencies_come_from_the_buckets_between_two_looks() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert shown.requests.half == 0.001
    assert shown.requests.most is not None
    assert 0.0019 < shown.requests.most < 0.002
    assert (shown.store.half, shown.store.most) == (None, None)


def test_gauges_come_from_the_second_look() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert (shown.connections, shown.workers, shown.breakers) == (12, 4, {"closed": 3, "open": 1})
    assert (shown.version, shown.age, shown.status) == ("new", 7300, "degraded")


def test_a_quantile_lies_in_its_bucket() -> None:
    buckets = {1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}
    assert (quantile(buckets, 0.25), quantile(buckets, 0.5), quantile(buckets, 0.75)) == (0.5, 1.0, 1.5)
    assert quantile({1.0: 0.0, float("inf"): 4.0}, 0.5) == 1.0, "beyond the last bound, it is that bound"
    assert quantile({}, 0.5) is None


def test_top_shows_all_figures_of_a_frame() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(rendered(frame(Look(10.0, read(BEFORE)), _frame()), "db:8080"))
        text = console.export_text()
    assert "penstock db:8080  degraded  workers 4  connections 12" in text
    assert "rules new, in force for 2.03 h" in text
    assert "48 decisions/s  10 refused/s  5.0 degraded/s" in text
    assert "p50 1.00 ms, p99 1.98 ms" in text
    assert "breakers 3 closed, 1 open" in text
    assert "degraded: store: 1 of 1 servers not asked" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["api", "40", "10", "25.0", "%", "0", "4.0"] in rows
    assert ["no", "rule", "1.0", "0", "0.0", "%", "0", "0"] in rows


def test_top_shows_a_service_without_metrics() -> None:
    shown = frame(Look(1.0, {}), Look(2.0, {}))
    assert (shown.decisions, shown.rows, shown.version) == (0, (), "")
    assert rendered(shown)


def _snapshot(allowed: int, refused: int, calls: list[int], **now: dict[str, float]) -> Snapshot:
    decisions = {
        series.DECISIONS.labelled('a "b"', "gcra", "store", "allowed", ""): allowed,
        series.DECISIONS.labelled("-", "-", "store", "refused", "shed"): refused,
    }
    totals = {
        series.DECISIONS.name: {labels: float(value) for labels, value in decisions.items()},
        series.REQUESTS.name: {series.REQUESTS.labelled("/v1/check", "200"): float(allowed + refused)},
    }
    counts = [*calls, *[0] * (len(series.LATENCIES) + 2 - len(calls))]
    histograms = {series.REQUEST_SECONDS.name: {series.REQUEST_SECONDS.labelled("/v1/check"): counts}}
    return Snapshot("1", totals, {getattr(series, name).name: values for name, values in now.items()}, histograms)


def test_figures_of_a_service_are_the_sum_of_its_workers() -> None:
    before = look_at([_snapshot(100, 50, [10, 10]), _snapshot(1, 1, [0])], now=10.0)
    shown = frame(before, look_at([_snapshot(300, 60, [10, 110]), _snapshot(1, 1, [0])], now=12.0))
    assert (shown.calls, shown.decisions, shown.refused) == (105.0, 105.0, 5.0)
    assert [row[:3] for row in shown.rows] == [('a "b"', 100.0, 0.0), ("-", 5.0, 5.0)]
    assert shown.requests.half == pytest.approx(75e-6), "all in the bucket from 50 to 100 microseconds"
    assert shown.requests.most == pytest.approx(99.5e-6)


def test_idle_service_has_no_rates_and_no_latencies() -> None:
    snapshot = _snapshot(5, 5, [3])
    shown = frame(look_at([snapshot], now=1.0), look_at([snapshot], now=2.0))
    assert (shown.calls, shown.decisions, shown.requests, shown.degraded) == (0.0, 0.0, Latency(None, None), ())
    assert len(_view(shown)) == 1, "a rule without decisions has no line"


def test_latency_beyond_every_bucket_is_the_last_bound() -> None:
    beyond = [0] * len(series.LATENCIES) + [7]
    assert frame(Look(0.0, {}), look_at([_snapshot(0, 0, beyond)], now=1.0)).requests.most == 1.0


def test_view_names_open_breakers_and_a_stale_rules_file() -> None:
    snapshot = _snapshot(
        *(0, 0, [0]),
        BREAKERS={series.BREAKERS.labelled("db:6379", "open"): 1, series.BREAKERS.labelled("db:6380", "closed"): 1},
        RULES_STALE={"": 12.0},
        CONNECTIONS={"": 3},
        WORKERS={"": 1},
    )
    shown = frame(Look(0.0, {}), look_at([snapshot, snapshot], now=1.0))
    assert shown.degraded == ("store db:6379: breaker open", "the rules file has not been usable for 12 s")
    assert (shown.connections, shown.workers) == (6, 2)


def _view(shown: Frame) -> list[str]:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(drawn(shown))
    return capture.get().splitlines()


def test_view_shows_the_busiest_rules_and_counts_the_others() -> None:
    rows = tuple(Row(f"[red]{number}", 101.0 - number, 1.0, 0.0, 0.0) for number in range(10))
    empty = frame(Look(0.0, {}), Look(1.0, {}))
    shown = empty._replace(
        calls=1234.0, decisions=965.0, refused=10.0, requests=Latency(0.00025, None), rows=rows,
        connections=3, workers=2, degraded=("store: gone",), degraded_answers=4.2,
    )  # fmt: skip
    first, *rest = _view(shown)
    assert first.startswith("1,234 requests/s   955 allowed/s   10 refused/s   p50 0.25 ms   p99 -   3 connections   2")
    assert [line.rstrip() for line in rest[:2]] == ["degraded: store: gone", "degraded: 4 answers/s without the store"]
    assert rest[3].split() == ["[red]0", "100", "1"]
    assert rest[-1].strip() == "and 2 more"

"""What `penstock top` makes of two looks at a service's metrics."""

from __future__ import annotations

from rich.console import Console

from penstock.cli.figures import Look, frame, quantile, read
from penstock.cli.top import rendered

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


def test_rates_are_what_was_counted_between_two_looks() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert (shown.decisions, shown.refused, shown.degraded_answers) == (48, 10, 5)
    assert [(row.rule, row.decisions, row.refused) for row in shown.rows] == [
        ("api", 40, 10),
        ('a "b" \\ c', 5, 0),
        ("gone", 2, 0),  # it was started anew, and counts from 0
        ("-", 1, 0),
    ]
    assert (shown.rows[0].would_refuse, shown.rows[1].degraded) == (4, 5)


def test_latencies_are_read_off_the_buckets_between_two_looks() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert shown.requests.half == 0.001
    assert shown.requests.most is not None
    assert 0.0019 < shown.requests.most < 0.002
    assert (shown.store.half, shown.store.most) == (None, None)


def test_what_is_so_now_is_read_off_the_second_look() -> None:
    shown = frame(Look(10.0, read(BEFORE)), _frame())
    assert (shown.connections, shown.workers, shown.breakers) == (12, 4, {"closed": 3, "open": 1})
    assert (shown.version, shown.age, shown.status) == ("new", 7300, "degraded")


def test_a_quantile_lies_in_its_bucket() -> None:
    buckets = {1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}
    assert (quantile(buckets, 0.25), quantile(buckets, 0.5), quantile(buckets, 0.75)) == (0.5, 1.0, 1.5)
    assert quantile({1.0: 0.0, float("inf"): 4.0}, 0.5) is None  # off the scale
    assert quantile({}, 0.5) is None


def test_a_frame_is_shown_in_words() -> None:
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


def test_a_silent_service_is_shown_too() -> None:
    shown = frame(Look(1.0, {}), Look(2.0, {}))
    assert (shown.decisions, shown.rows, shown.version) == (0, (), "")
    assert rendered(shown)

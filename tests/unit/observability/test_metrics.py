"""What is counted, under which names, and that nothing that clients send can make it grow."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Limiter, ManualClock
from penstock.events import (
    BreakerChanged,
    Decided,
    Degraded,
    LayerFailed,
    LimitScaled,
    RulesLoaded,
    RulesRefused,
    Shedding,
    SignalFailed,
)
from penstock.model import Verdict
from penstock.observability import exposition, series
from penstock.observability import metrics as module
from penstock.observability.metrics import MAX_ROUTES, MAX_RULES, Metrics
from penstock.observability.shared import prepare
from penstock.observability.tally import Bounded
from penstock.service.metrics_page import MetricsPage
from penstock.stores.memory.store import MemoryStore
from tests.unit.observability.support import Samples, Scrape, enforcer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Iterator[Metrics]:
    metrics = Metrics(clock=clock)
    yield metrics
    metrics.close()


def test_decisions_are_counted_by_rule_algorithm_source_and_outcome(metrics: Metrics, clock: ManualClock) -> None:
    rules = enforcer(
        clock,
        {"id": "api", "match": {"path": "/v1"}, "quota": "2/minute gcra"},
        {"id": "trial", "match": {"path": "/v1"}, "quota": "1/minute", "mode": "shadow"},
        {"id": "bad", "action": "deny", "match": {"path": "/bad"}},
    )
    for path in ("/v1", "/v1", "/v1", "/bad", "/free"):
        metrics.decided([rules.check({"path": path})], 120)
    seen = Samples(metrics.text())
    name = "penstock_decisions_total"
    gcra = {"rule": "api", "algorithm": "gcra", "source": "store"}
    assert seen.of(name, **gcra, outcome="allowed", reason="") == 2
    assert seen.of(name, **gcra, outcome="refused", reason="rate") == 1
    assert seen.of(name, rule="bad", algorithm="-", source="store", outcome="refused", reason="blocked") == 1
    assert seen.of(name, rule="-", algorithm="-", source="store", outcome="allowed", reason="") == 1
    assert seen.total(name) == 5
    assert seen.of("penstock_shadow_refusals_total", rule="trial") == 2
    assert seen.of("penstock_store_duration_seconds_count") == 5
    assert seen.of("penstock_store_duration_seconds_sum") == pytest.approx(600e-6)
    assert seen.of("penstock_store_duration_seconds_bucket", le="0.0001") == 0
    assert seen.of("penstock_store_duration_seconds_bucket", le="0.00025") == 5


def test_the_hook_of_an_enforcer_counts_alike(metrics: Metrics, clock: ManualClock) -> None:
    """Observed by a service or told by a hook: the same figures."""
    told = Metrics(clock=clock)
    rules: tuple[dict[str, Any], ...] = (
        {"id": "api", "match": {"path": "/v1"}, "quota": "2/minute gcra min_interval 1s"},
        {"id": "trial", "match": {"path": "/v1"}, "quota": "1/minute", "mode": "shadow"},
        {"id": "bad", "action": "deny", "match": {"path": "/bad"}},
    )
    observed = enforcer(clock, *rules)
    for path in ("/v1", "/v1", "/v1", "/bad", "/free"):
        ruling = observed.check({"path": path})
        metrics.decided([ruling], 0)
        told(ruling.event())
    for name in ("penstock_decisions_total", "penstock_shadow_refusals_total"):
        mine, its = (
            {where: value for where, value in Samples(one.text()).values.items() if where[0] == name}
            for one in (metrics, told)
        )
        assert mine == its
        assert mine
    told.close()


def test_requests_without_rules_are_counted_by_their_algorithm(metrics: Metrics, clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    verdicts: list[Verdict] = [limiter.acquire(f"k{n}", "1/minute token_bucket") for n in range(3)]
    metrics.decided(verdicts, 10)
    seen = Samples(metrics.text())
    assert seen.total("penstock_decisions_total", rule="-", algorithm="token_bucket") == 3
    assert seen.of("penstock_batch_decisions_bucket", le="2.0") == 0
    assert seen.of("penstock_batch_decisions_bucket", le="4.0") == 1
    assert seen.of("penstock_batch_decisions_sum") == 3


def test_the_source_of_degraded_answers_is_counted(metrics: Metrics, clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    verdict = limiter.acquire("k", "1/minute")
    refused = limiter.acquire("k", "1/minute")
    metrics.decided([Verdict((*verdict[:6], None, "open")), Verdict((*refused[:6], None, "closed"))], 10)
    seen = Samples(metrics.text())
    assert seen.total("penstock_decisions_total", source="open", outcome="allowed") == 1
    assert seen.total("penstock_decisions_total", source="closed", outcome="refused", reason="degraded") == 1


def test_a_batch_without_the_store_adds_no_store_time(metrics: Metrics) -> None:
    metrics.decided([], 0)
    assert Samples(metrics.text()).of("penstock_store_duration_seconds_count") == 0


def test_answers_are_counted_by_route_and_status(metrics: Metrics) -> None:
    metrics.answered("check", [200, 200, 429], 900)
    metrics.answered("check", [200], 3_000)
    seen = Samples(metrics.text())
    assert seen.of("penstock_requests_total", route="check", status="200") == 3
    assert seen.of("penstock_requests_total", route="check", status="429") == 1
    assert seen.of("penstock_request_duration_seconds_bucket", route="check", le="0.001") == 3
    assert seen.of("penstock_request_duration_seconds_count", route="check") == 4
    assert seen.of("penstock_request_duration_seconds_sum", route="check") == pytest.approx(5.7e-3)


def test_events_are_counted(metrics: Metrics) -> None:
    for event in (
        BreakerChanged("redis:6379", "closed", "open", "5 failures"),
        Degraded("local", 7, "gone"),
        Degraded("local", 2, "gone"),
        LayerFailed("driver", "KeyError"),
        LimitScaled("10/second", "5/second"),
        RulesLoaded("r.yaml", "v1"),
        RulesRefused("r.yaml", "v2", 1, "bad"),
        SignalFailed("cpu", "OSError"),
        Shedding(0, 10, 1.25, "cpu"),
        object(),
    ):
        metrics(event)
    seen = Samples(metrics.text())
    assert seen.of("penstock_breaker_changes_total", server="redis:6379", state="open") == 1
    assert seen.of("penstock_degraded_answers_total", source="local") == 9
    assert seen.of("penstock_faults_total", what="driver") == 1
    assert seen.of("penstock_limit_scalings_total") == 1
    assert seen.of("penstock_rules_loads_total", result="loaded") == 1
    assert seen.of("penstock_rules_loads_total", result="refused") == 1
    assert seen.of("penstock_signal_failures_total", signal="cpu") == 1
    assert seen.of("penstock_shedding_level") == 10
    assert seen.of("penstock_shedding_pressure_ratio") == 1.25
    assert seen.of("penstock_shedding_changes_total", direction="up") == 1


@pytest.mark.parametrize(("pressure", "text"), [(float("inf"), b"+Inf"), (float("nan"), b"NaN"), (0.5, b"0.5")])
def test_any_number_can_be_written(metrics: Metrics, pressure: float, text: bytes) -> None:
    metrics(Shedding(0, 30, pressure, "cpu"))
    assert b"penstock_shedding_pressure_ratio " + text + b"\n" in metrics.text()


class Store:
    def breakers(self) -> dict[str, str]:
        return {"a:1": "open", "b:2": "closed"}


class Source:
    version = "abc123"

    def age(self, now: int | None = None) -> float:
        return 90.5

    def stale(self, now: int | None = None) -> float:
        return 2.0


def test_watched_sources_are_read_when_figures_are_written(metrics: Metrics) -> None:
    connections = [3]
    metrics.watch(store=Store(), rules=Source(), connections=lambda: connections[0])
    connections[0] = 5
    seen = Samples(metrics.text())
    assert seen.of("penstock_breaker_workers", server="a:1", state="open") == 1
    assert seen.of("penstock_breaker_workers", server="b:2", state="closed") == 1
    assert seen.of("penstock_rules_info", version="abc123") == 1
    assert seen.of("penstock_rules_age_seconds") == 90.5
    assert seen.of("penstock_rules_unconfirmed_seconds") == 2
    assert seen.of("penstock_connections") == 5
    assert seen.of("penstock_workers") == 1
    assert (seen.of("penstock_process_resident_memory_bytes", worker="0") or 0) > 1_000_000
    assert (seen.of("penstock_process_open_fds", worker="0") or 0) > 2
    assert (seen.of("penstock_process_cpu_seconds_total", worker="0") or 0) > 0


def test_rules_without_end_make_a_bounded_number_of_series(metrics: Metrics) -> None:
    for n in range(3 * MAX_RULES):
        metrics(Decided(f"rule-{n}", "allowed", "", (), 1, "store", "v", "gcra"))
    seen = Samples(metrics.text())
    assert len(seen.labels("penstock_decisions_total", "rule")) == MAX_RULES + 1  # and other
    assert seen.total("penstock_decisions_total", rule="other") == 2 * MAX_RULES


def test_counts_without_labels_are_bounded(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Callers may send quotas of their own, each another one."""
    monkeypatch.setattr(module, "MAX_PENDING", 50)
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    for n in range(1, 400):
        metrics.decided([limiter.acquire("k", f"{n}/minute")], 5)
        assert len(metrics._pending) <= 51
    assert Samples(metrics.text()).total("penstock_decisions_total") == 399


def test_routes_beyond_the_bound_are_counted_together(metrics: Metrics) -> None:
    for n in range(MAX_ROUTES + 50):
        metrics.answered(f"route {n}", [200, 404], 5)
    seen = Samples(metrics.text())
    assert len(seen.labels("penstock_requests_total", "route")) == MAX_ROUTES + 1
    assert seen.of("penstock_requests_total", route="other", status="404") == 50
    assert seen.of("penstock_request_duration_seconds_count", route="other") == 100


def test_a_label_may_hold_anything(metrics: Metrics) -> None:
    metrics(LayerFailed('a "quoted" \\ back\nslash', "X"))
    assert Samples(metrics.text()).of("penstock_faults_total", what='a "quoted" \\ back\nslash') == 1


def test_texts_beyond_the_bound_are_other() -> None:
    bounded = Bounded(2)
    assert [bounded.of(text) for text in ("a", "b", "c", "a", "x" * 500)] == ["a", "b", "other", "a", "other"]


def test_no_label_can_come_from_a_client() -> None:
    """The list itself: a label that could hold a key would have to be added here first."""
    allowed = {
        *("rule", "algorithm", "source", "outcome", "reason", "route", "status", "server", "state"),
        *("what", "version", "result", "direction", "signal", "worker", "scope"),
    }
    assert {label for one in series.ALL for label in one.labels} <= allowed


def test_metric_names_follow_the_conventions() -> None:
    for one in series.ALL:
        assert one.name.startswith("penstock_")
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert one.help.endswith(".")
    assert len(series.BY_NAME) == len(series.ALL)


# ---------------------------------------------------------------- scraping


async def scraped(metrics: Metrics, *calls: Scrape) -> None:
    MetricsPage(metrics).handle(list(calls))
    await asyncio.gather(*[call.done.wait() for call in calls])


async def test_a_scrape_is_answered_in_the_form_it_asks_for(metrics: Metrics) -> None:
    metrics.answered("check", [200], 900)
    plain, modern = Scrape(), Scrape(headers=[(b"accept", b"application/openmetrics-text;version=1.0.0,*/*;q=0.1")])
    await scraped(metrics, plain, modern)
    assert plain.type.startswith(b"text/plain; version=0.0.4")
    assert modern.type.startswith(b"application/openmetrics-text")
    assert modern.answer_body.endswith(b"# EOF\n")
    for seen in (Samples(plain.answer_body), Samples(modern.answer_body, openmetrics=True)):
        assert seen.of("penstock_requests_total", route="check", status="200") == 1
        assert seen.of("penstock_request_duration_seconds_count", route="check") == 1


async def test_only_get_and_head_are_allowed(metrics: Metrics) -> None:
    post, head = Scrape(b"POST"), Scrape(b"HEAD")
    await scraped(metrics, post, head)
    assert (post.status, head.status) == (405, 200)


async def test_other_callbacks_run_while_a_scrape_is_written(metrics: Metrics) -> None:
    for n in range(3_000):
        metrics(Decided(f"rule-{n % 900}", "allowed", "", (), 1, "store", "v", f"a{n}"))
    call, turns = Scrape(), 0
    MetricsPage(metrics).handle([call])
    while not call.status:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 10
    assert Samples(call.answer_body).total("penstock_decisions_total") == 3_000


async def test_writes_do_not_pile_up_on_a_slow_disk(tmp_path: Path) -> None:
    """Nor does it keep anybody from deciding, or the last figures from being written."""
    metrics, go_on = Metrics(prepare(tmp_path), "0"), threading.Event()
    metrics._files.submit(go_on.wait)
    metrics._tick()
    waiting = metrics._files._work_queue.qsize()
    for _ in range(5):
        metrics.answered("check", [200], 5)
        metrics._tick()
    assert metrics._files._work_queue.qsize() == waiting
    go_on.set()
    metrics.close()
    another = Metrics(tmp_path, "1")
    assert Samples(another.text()).total("penstock_requests_total") == 5
    another.close()


async def test_figures_that_cannot_be_written_are_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics(prepare(tmp_path / "gone"), "0")
    shutil.rmtree(tmp_path / "gone")
    metrics._tick()
    call = Scrape()
    await scraped(metrics, call)
    metrics.close()
    assert call.status == 500
    assert "could not be written: No such file" in caplog.text


async def test_a_scrape_that_fails_leaves_the_next_one_alone(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Iterator[list[str]]:
        yield ["half"]
        raise ValueError

    first, second = Scrape(), Scrape()
    with monkeypatch.context() as patched:
        patched.setattr(exposition, "lines", broken)
        await scraped(metrics, first)
    await scraped(metrics, second)
    assert (first.status, second.status) == (500, 200)

"""`/metrics` of a real service: two workers on Redis, asked over HTTP, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.rig.processes import wait_until
from tests.rig.servers import Server
from tests.service.serving import PATIENT, Serving
from tests.unit.observability.support import Samples

KEYS = [f"198.51.100.{n}" for n in range(8)]


def scrape(service: Serving) -> Samples:
    with service.client(verify=False) as client:  # another connection each time, so that another worker may answer
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert not [key for key in KEYS if key.encode() in answer.content]
    return Samples(answer.content)


def ask(service: Serving) -> None:
    for key in KEYS:
        with service.client(verify=False) as client:
            assert client.post("/v1/check", json={"descriptor": {"path": "/", "ip": key}}).status_code == 200


def counted(service: Serving) -> float:
    return scrape(service).total("penstock_decisions_total", rule="api", outcome="allowed", source="store")


def test_any_worker_answers_for_both_and_for_the_one_that_was_killed() -> None:
    with Server() as redis, Serving("--store", redis.url, "--workers", "2", *PATIENT) as service:
        service.wait_for("is ready", 2)
        ask(service)
        wait_until(lambda: counted(service) == 8, "all decisions to be counted", pause=0.05)
        place = f"127.0.0.1:{redis.port}"
        wait_until(lambda: scrape(service).of("penstock_redis_up", server=place) == 1, "Redis to be asked", pause=0.05)
        seen = scrape(service)
        assert seen.of("penstock_workers") == 2
        assert seen.total("penstock_requests_total", status="200") >= 8
        assert (seen.of("penstock_store_duration_seconds_count") or 0) > 0
        assert len(seen.labels("penstock_rules_info", "version")) == 1
        assert seen.total("penstock_breaker_workers", server=place, state="closed") >= 1
        assert len(seen.labels("penstock_process_resident_memory_bytes", "worker")) == 2

        os.kill(service.workers[0], signal.SIGKILL)
        service.wait_for("is ready", 3)
        wait_until(lambda: scrape(service).of("penstock_workers") == 2, "a successor", pause=0.05)
        assert counted(service) == 8, "what the killed one had counted is kept"
        ask(service)
        wait_until(lambda: counted(service) == 16, "the successor's decisions as well", pause=0.05)


def test_traces_follow_the_caller() -> None:
    """Printed by the console exporter, when the service ends."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    with Serving(OTEL_TRACES_EXPORTER="console") as service:
        with service.client(verify=False) as client:
            for flags in ("00", "01"):
                headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-{flags}"}
                assert client.post("/v1/check", json={"descriptor": {"ip": KEYS[0]}}, headers=headers).is_success
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
        assert service.said.count(f"0x{trace}") == 1
        assert '"name": "POST /v1/check"' in service.said
        assert KEYS[0] not in service.said


def test_service_without_traces_does_not_import_opentelemetry() -> None:
    code = "import sys, penstock.service.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_accuracy_of_a_limit_is_told() -> None:
    """An exact algorithm, so nothing is over; and alone on its counters, so it may say what is under."""
    rules = "rules:\n  - {id: exact, key: ip, quota: 3/second rolling_window}\n"
    with Serving("--accuracy-share", "1", rules=rules) as service, service.client(verify=False) as client:

        def judged() -> bool:
            for _ in range(5):
                assert client.post("/v1/check", json={"descriptor": {"ip": KEYS[0]}}).is_success
            return (scrape(service).of("penstock_accuracy_refused_units_total", rule="exact", scope="all") or 0) > 5

        wait_until(judged, "decisions to be judged", pause=0.2)
        seen = scrape(service)
    assert (seen.of("penstock_accuracy_admitted_units_total", rule="exact", scope="all") or 0) > 5
    assert seen.of("penstock_accuracy_over_units_total", rule="exact", scope="all") == 0
    assert seen.of("penstock_accuracy_under_units_total", rule="exact", scope="all") == 0
    assert seen.of("penstock_accuracy_keys") == 1

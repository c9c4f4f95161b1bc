"""A real Envoy asks our service: what clients get, and what happens when the service is gone, frozen, or back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.rig.processes import wait_until
from tests.service.envoy_rig import PATIENT, Rig, fetch, rigged


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with rigged(timeout=PATIENT) as rig:
        yield rig


def test_the_documented_envoy_tells_limits_and_refuses(rig: Rig) -> None:
    first = rig.envoy.ask("tell")
    assert first.status == 200
    assert first.headers["x-ratelimit-limit"] == "3, 3;w=3600"
    assert first.headers["x-ratelimit-remaining"] == "2"
    assert 0 < int(first.headers["x-ratelimit-reset"]) <= 3_600
    assert rig.envoy.statuses(3, "tell") == [200, 200, 429]
    arrived = len(rig.application.calls)
    refused = rig.envoy.ask("tell")
    assert refused.status == 429
    assert len(rig.application.calls) == arrived
    assert refused.headers["x-envoy-ratelimited"] == "true"
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert 0 < int(refused.headers["retry-after"]) <= 3_600


def test_hits_are_counted_by_limit(rig: Rig) -> None:
    assert rig.envoy.statuses(4, "measured") == [200, 200, 200, 429]
    metrics = fetch(rig.service.port, "/metrics").body.decode()
    counted = re.findall(
        r'^penstock_envoy_hits_total{rule="edge.api_key",outcome="(\w+)"} (\d+)', metrics, re.MULTILINE
    )
    hits = {outcome: int(count) for outcome, count in counted}
    assert hits["within_limit"] >= 3
    assert hits["over_limit"] >= 1
    assert hits["total_hits"] == hits["within_limit"] + hits["over_limit"]
    assert 'penstock_requests_total{route="ShouldRateLimit",status="0"}' in metrics


def test_others_are_not_limited(rig: Rig) -> None:
    assert rig.envoy.statuses(5) == [200] * 5  # no descriptor
    assert rig.envoy.statuses(5, "vip") == [200] * 5  # listed without a limit
    assert rig.envoy.ask("vip").headers.get("x-ratelimit-limit") is None


def test_a_frozen_service_is_passed_by_and_limits_again_when_it_goes_on(rig: Rig) -> None:
    assert rig.envoy.statuses(4, "frozen") == [200, 200, 200, 429]
    passed = rig.envoy.stat("failure_mode_allowed")
    rig.service.place.freeze()
    assert rig.envoy.statuses(3, "frozen") == [200, 200, 200]
    assert rig.envoy.stat("failure_mode_allowed") == passed + 3
    rig.service.place.thaw()
    wait_until(lambda: rig.envoy.ask("frozen").status == 429, "limits to hold again")


def test_a_killed_service_is_passed_by_and_limits_again_when_it_is_back(rig: Rig) -> None:
    assert rig.envoy.statuses(4, "killed") == [200, 200, 200, 429]
    rig.service.place.kill()
    assert rig.envoy.statuses(3, "killed") == [200, 200, 200]
    rig.service.start()
    wait_until(lambda: rig.envoy.ask("killed").status == 429, "limits to hold again")


def test_a_new_configuration_is_followed(rig: Rig) -> None:
    assert rig.envoy.statuses(4, "grown") == [200, 200, 200, 429]
    folder = rig.service.folder / "edge.yaml"
    folder.write_text(folder.read_text().replace("requests_per_unit: 3}", "requests_per_unit: 4}"))
    wait_until(lambda: rig.envoy.ask("grown").status == 200, "the larger limit", 0.1)
    assert rig.envoy.statuses(1, "grown") == [429]

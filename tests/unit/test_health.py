"""`/livez` and `/readyz`, and what they give away."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.clock import SECOND, ManualClock
from penstock.rules.ruleset import RuleSet
from penstock.rules.source import RuleSource
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.health import Health
from penstock.service.wire.calls import Call, Head, Header, Peer


class Asked(Call):
    """A call without a wire."""

    def __init__(self, method: bytes, path: bytes) -> None:
        self.method, self.path, self.query = method, path, b""
        self.headers: Sequence[Header] = ()
        self.body, self.peer, self.expires = b"", Peer(), None
        self.status, self.answered = 0, b""

    @property
    def gone(self) -> bool:
        return False

    def answer(self, head: Head, body: bytes = b"", extra: Sequence[Header] = ()) -> None:
        self.status, self.answered = head.status, body


def _ask(health: Health, path: str, method: str = "GET") -> tuple[int, dict[str, object]]:
    call = Asked(method.encode(), path.encode())
    health.handle([call])
    return call.status, json.loads(call.answered)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rules(tmp_path: Path, clock: ManualClock) -> RuleSource[RuleSet]:
    file = tmp_path / "penstock.yaml"
    file.write_text("rules:\n  - {id: api, key: ip, quota: 100/minute}\n", encoding="utf-8")
    return RuleSource(file, RuleSet, clock=clock)


def test_a_process_that_answers_is_live_and_ready(rules: RuleSource[RuleSet]) -> None:
    health = Health(rules, lambda: {"10.0.0.1:6379": "closed"})
    assert _ask(health, "/livez") == (200, {"status": "live"})
    status, told = _ask(health, "/readyz")
    assert (status, told["status"], told["degraded"]) == (200, "ready", [])
    assert told["rules"] == {"version": rules.version, "age": 0.0, "stale": 0.0}


def test_service_without_its_store_is_ready_and_degraded() -> None:
    health = Health(None, lambda: {"10.0.0.1:6379": "open", "10.0.0.2:6379": "closed", "10.0.0.3:6379": "half-open"})
    status, told = _ask(health, "/readyz")
    assert (status, told["status"]) == (200, "degraded")
    assert told["degraded"] == ["store: 2 of 3 servers not asked, because they failed"]
    assert "10.0.0" not in json.dumps(told)


def test_refused_rules_degrade_and_are_not_quoted(rules: RuleSource[RuleSet], clock: ManualClock) -> None:
    health = Health(rules)
    rules.path.write_text("rules:\n  - {id: api, key: ip, quota: hush}\n", encoding="utf-8")
    clock.advance(5)
    rules.reload()
    status, told = _ask(health, "/readyz")
    assert (status, told["status"]) == (200, "degraded")
    assert told["degraded"] == ["rules: the file was refused (1 fault)"]
    assert told["rules"] == {"version": rules.version, "age": 5.0, "stale": 5.0}
    assert "hush" not in json.dumps(told)


def test_rules_that_are_no_longer_followed_degrade(rules: RuleSource[RuleSet], clock: ManualClock) -> None:
    health = Health(rules)
    clock.advance(61)
    assert health.state().degraded == ("rules: the file is not followed any more",)
    rules.look(clock.micros)
    assert health.state().degraded == ()
    assert clock.micros > 61 * SECOND


def test_envoy_configuration_is_reported_beside_the_rules(rules: RuleSource[RuleSet], tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    file = folder / "edge.yaml"
    file.write_text("domain: edge\n", encoding="utf-8")
    config = ConfigSource(folder, clock=ManualClock())
    health = Health(rules, envoy_config=config)
    assert _ask(health, "/readyz")[1]["envoy_config"] == {"version": config.version, "age": 0.0, "stale": 0.0}
    file.write_text("domain: hush\nlimits: 3\n", encoding="utf-8")
    config.reload()
    _, told = _ask(health, "/readyz")
    assert told["degraded"] == ["envoy_config: the file was refused (1 fault)"]
    assert "hush" not in json.dumps(told)


def test_draining_service_is_not_ready() -> None:
    health = Health()
    health.draining = True
    status, told = _ask(health, "/readyz")
    assert (status, told["status"]) == (503, "draining")
    assert _ask(health, "/livez")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("HEAD", "/readyz", 200), ("POST", "/readyz", 405), ("GET", "/", 404)]
)
def test_health_accepts_get_and_head_only(method: str, path: str, status: int) -> None:
    assert _ask(Health(), path, method)[0] == status

"""The service as other clients than Envoy see it: grpcio's, and whoever speaks HTTP."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.enforcer import Enforcer
from penstock.engine.protocols import Unobserved
from penstock.limiter import Limiter
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.service.decisions import Decider
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.envoy.protocol import HealthCheckRequest, HealthCheckResponse, RateLimitResponse
from penstock.service.envoy.service import by_rules, configured
from penstock.service.grpc import Grpc
from penstock.service.routes import Routes
from tests.rig.processes import DEADLINE, wait_until
from tests.service.envoy_rig import Service, fetch
from tests.service.harness import Running, serving
from tests.unit.envoy.support import OK, OVER, request

CONFIG = "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2, name: two}}]\n"
RULES = """
rules:
  - {id: per-key, match: {domain: edge}, key: k, quota: 2/day, response: {message: Too many.}}
  - {id: odd, match: {domain: odd}, key: k, quota: 5/7 minutes}
  - {id: quiet, match: {domain: quiet}, key: k, quota: 1/hour, response: {headers: hidden}}
  - {id: exempt, match: {domain: exempt}, action: allow}
  - {id: banned, match: {domain: banned}, action: deny}
"""


class State:
    """Whether the service is ready."""

    ready = True


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def service(tmp_path: Path, state: State) -> Iterator[Running]:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    parts = configured(ConfigSource(tmp_path), Limiter().engine, ready=lambda: state.ready)
    with serving(Routes(parts.handlers, {}, Grpc(parts.methods))) as running:
        yield running


@pytest.fixture
def ruled() -> Iterator[Running]:
    decider = Decider(Enforcer(RuleSet(parse(RULES)), Limiter()), Unobserved())
    parts = by_rules(decider, ready=lambda: True)
    with serving(Routes(parts.handlers, {}, Grpc(parts.methods))) as running:
        yield running


def call(running: Running, path: str, data: bytes, answer: Any) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        return channel.unary_unary(path, response_deserializer=answer.FromString)(data, timeout=30)


def limited(running: Running, domain: str, *descriptors: Any) -> Any:
    path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    return call(running, path, request(domain, *descriptors), RateLimitResponse)


def test_grpcio_gets_decisions(service: Running) -> None:
    assert [limited(service, "edge", {"k": "v"}).overall_code for _ in range(3)] == [OK, OK, OVER]


def test_grpcio_gets_the_status_of_what_means_nothing(service: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        limited(service, "")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "domain: empty (expected the domain of a configuration)"


@pytest.mark.parametrize("name", ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"])
def test_health_is_told(service: Running, state: State, name: str) -> None:
    asked = HealthCheckRequest(service=name).SerializeToString()
    assert call(service, "/grpc.health.v1.Health/Check", asked, HealthCheckResponse).status == 1
    state.ready = False
    assert call(service, "/grpc.health.v1.Health/Check", asked, HealthCheckResponse).status == 2


def test_who_watches_health_is_told_that_the_service_drains_and_keeps_it_from_nothing() -> None:
    service = Service(CONFIG, environment={"PENSTOCK_DRAIN_SECONDS": "3600"})
    try:
        with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            path = "/grpc.health.v1.Health/Watch"
            watch = channel.unary_stream(path, response_deserializer=HealthCheckResponse.FromString)
            told = watch(HealthCheckRequest().SerializeToString(), timeout=DEADLINE)
            assert next(told).status == 1
            os.kill(service.place.pid, signal.SIGTERM)
            assert next(told).status == 2
            with pytest.raises(grpc.RpcError) as caught:
                next(told)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            wait_until(lambda: not service.place.running, "the service to end")
    finally:
        service.place.close()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (HealthCheckRequest(service="other").SerializeToString(), grpc.StatusCode.NOT_FOUND),
        (b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_health_of_something_else_is_not_found(service: Running, data: bytes, code: object) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(service, "/grpc.health.v1.Health/Check", data, HealthCheckResponse)
    assert caught.value.code() is code


def test_the_health_page(service: Running, state: State) -> None:
    healthy = fetch(service.port, "/healthcheck")
    assert (healthy.status, healthy.body) == (200, b"OK")
    state.ready = False
    assert fetch(service.port, "/healthcheck").status == 500


def test_json_asks_the_same(service: Running) -> None:
    asked = b'{"domain": "edge", "descriptors": [{"entries": [{"key": "k", "value": "json"}]}]}'
    answers = [fetch(service.port, "/json", body=asked) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[0].headers["content-type"] == "application/json"
    first, _, refused = [json.loads(answer.body) for answer in answers]
    assert first["overallCode"] == "OK"
    (status,) = first["statuses"]
    assert status["currentLimit"] == {"requestsPerUnit": 2, "unit": "DAY", "name": "two"}
    assert status["limitRemaining"] == 1
    assert status["durationUntilReset"].endswith("s")
    assert refused["overallCode"] == "OVER_LIMIT"
    assert int(answers[2].headers["retry-after"]) > 0


def test_json_knows_hits_and_limits_of_the_request(service: Running) -> None:
    asked = {
        "domain": "edge",
        "hitsAddend": 3,
        "descriptors": [
            {"entries": [{"key": "k", "value": "a"}], "hitsAddend": "1"},
            {"entries": [{"key": "k", "value": "b"}], "limit": {"requestsPerUnit": 9, "unit": "HOUR"}},
        ],
    }
    said = json.loads(fetch(service.port, "/json", body=json.dumps(asked).encode()).body)
    assert [status["limitRemaining"] for status in said["statuses"]] == [1, 6]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"domain": 3}', b'{"domian": "edge"}', b'{"domain": "edge"}', b"\xff\xfe", b"[" * 100_000],
)
def test_json_that_means_nothing_is_400(service: Running, body: bytes) -> None:
    assert fetch(service.port, "/json", body=body).status == 400


def test_json_is_posted(service: Running) -> None:
    assert fetch(service.port, "/json").status == 405


def test_own_rules_limit_what_envoy_describes(ruled: Running) -> None:
    answers = [limited(ruled, "edge", {"k": "v"}) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OVER]
    (status,) = answers[0].statuses
    limit = status.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name, status.limit_remaining) == (2, 4, "per-key", 1)
    refused = answers[2]
    assert refused.raw_body == b"Too many."
    assert refused.statuses[0].limit_remaining == 0
    assert refused.response_headers_to_add[0].key == "retry-after"
    assert limited(ruled, "edge", {"k": "w"}, {"k": "v"}).overall_code == OVER


def test_own_rules_of_every_kind_are_told_as_far_as_the_protocol_can(ruled: Running) -> None:
    odd = limited(ruled, "odd", {"k": "v"}).statuses[0].current_limit
    assert (odd.requests_per_unit, odd.unit) == (5, 0)
    quiet = [limited(ruled, "quiet", {"k": "v"}) for _ in range(2)]
    assert [answer.overall_code for answer in quiet] == [OK, OVER]
    assert not any(answer.statuses[0].HasField("current_limit") for answer in quiet)
    assert limited(ruled, "exempt", {"k": "v"}).statuses[0].limit_remaining == 2**32 - 1
    assert limited(ruled, "banned", {"k": "v"}).overall_code == OVER
    assert limited(ruled, "other", {"k": "v"}).overall_code == OK


def test_own_rules_take_hits(ruled: Running) -> None:
    assert limited(ruled, "edge", ({"k": "v"}, 2)).overall_code == OK
    assert limited(ruled, "edge", ({"k": "v"}, 0)).overall_code == OVER
    for more in (3, 2**64 - 1):  # than the rule ever admits
        assert limited(ruled, "edge", ({"k": "w"}, more)).overall_code == OVER
    assert limited(ruled, "edge", ({"k": "w"}, 0)).statuses[0].limit_remaining == 2


def test_own_rules_refuse_what_means_nothing(ruled: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        limited(ruled, "edge")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_where_tokens_are_set_nothing_but_health_is_open_and_variables_are_honoured() -> None:
    token = "a-token-for-envoy-of-this-test"
    names = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_LIMIT_HEADER": "X-Limit"}
    service = Service(CONFIG, environment={"PENSTOCK_TOKENS": token, **names})
    try:
        assert fetch(service.port, "/healthcheck").status == 200
        assert not (service.place.folder / "penstock.yaml").exists()  # Envoy's limits need no rules of ours
        asked = b'{"domain": "edge", "descriptors": [{"entries": [{"key": "k", "value": "x"}]}]}'
        assert fetch(service.port, "/json", body=asked).status == 401
        allowed = fetch(service.port, "/json", {"authorization": f"Bearer {token}"}, asked)
        assert (allowed.status, allowed.headers["x-limit"], allowed.headers["ratelimit-remaining"]) == (200, "2", "1")
        path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        with grpc.insecure_channel(f"127.0.0.1:{service.port}") as channel:
            ask = channel.unary_unary(path, response_deserializer=RateLimitResponse.FromString)
            with pytest.raises(grpc.RpcError) as caught:
                ask(request("edge", {"k": "y"}), timeout=30)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            known = ask(request("edge", {"k": "y"}), timeout=30, metadata=[("authorization", f"Bearer {token}")])
            assert known.overall_code == OK
    finally:
        service.place.close()


def test_a_configuration_that_was_refused_is_seen_where_rules_are_in_force_too() -> None:
    service = Service(CONFIG)
    try:
        assert json.loads(fetch(service.port, "/readyz").body)["status"] == "ready"
        service.place.stop()
        (service.place.folder / "penstock.yaml").write_text(RULES, encoding="utf-8")
        service.start()
        service.configure("domain: edge\nlimits: 3\n")
        os.kill(service.place.pid, signal.SIGHUP)
        told: dict[str, Any] = {}

        def degraded() -> bool:
            told.update(json.loads(fetch(service.port, "/readyz").body))
            return bool(told["status"] == "degraded")

        wait_until(degraded, "the fault to be told")
        assert told["degraded"] == ["envoy_config: the file was refused (1 fault)"]
    finally:
        service.place.close()

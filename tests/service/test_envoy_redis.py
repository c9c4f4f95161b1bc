"""A real Envoy, our service and a real Redis: limits shared exactly, and answers of our own when Redis is gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.rig.processes import wait_until
from tests.rig.servers import Server
from tests.service.envoy_rig import CONFIG, Envoy, Service, rigged
from tests.service.harness import Echo, serving


@pytest.fixture
def redis() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_two_envoys_and_two_services_share_one_limit_exactly(redis: Server) -> None:
    application = Echo()
    with ExitStack() as stack:
        port = stack.enter_context(serving(application)).port
        services = [Service(store=redis.url, budget_ms=30_000) for _ in range(2)]
        for service in services:
            stack.callback(service.place.close)
        envoys = [Envoy(service.port, port, "60s") for service in services]
        for proxy in envoys:
            stack.callback(proxy.place.close)
        for proxy in envoys:  # until the services have found their Redis, each counts for itself
            wait_until(lambda asked=proxy: _is_counted(asked, redis), "the service to count in Redis")  # type: ignore[misc]
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda at: envoys[at % 2].ask("many").status, range(120)))
        assert sum(proxy.stat("failure_mode_allowed") for proxy in envoys) == 0
    assert (statuses.count(200), statuses.count(429)) == (40, 80)


def _is_counted(proxy: Envoy, redis: Server) -> bool:
    before = redis.ask("DBSIZE")
    proxy.ask(f"warm-{before}-{proxy.port}")
    return bool(redis.ask("DBSIZE") > before)


def test_without_redis_the_service_itself_says_what_happens_before_envoy_gives_up(redis: Server) -> None:
    with rigged(CONFIG, redis.url) as rig:
        wait_until(lambda: _is_counted(rig.envoy, redis), "the service to count in Redis")
        redis.kill()
        wait_until(lambda: rig.envoy.ask("closed").status == 429, "a refusal of our own")
        undecided = rig.envoy.stat("failure_mode_allowed")
        statuses = rig.envoy.statuses(20, "closed") + rig.envoy.statuses(20, "lonely")
        undecided = rig.envoy.stat("failure_mode_allowed") - undecided  # because the machine stood still, if any
        assert undecided < 10
        assert statuses[:20].count(429) >= 20 - undecided  # closed
        assert 17 - undecided <= statuses[20:].count(429) < 20  # local: all of the limit of 3, as the only host
        redis.start()
        wait_until(lambda: rig.envoy.ask("closed").status == 200, "Redis to be asked again", 0.05)

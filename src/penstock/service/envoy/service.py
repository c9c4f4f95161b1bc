"""The parts of Envoy's rate limit service.

parts = configured(source, limiter.engine, ready=lambda: True)    # or by_rules(decider, ready=...)
Grpc(parts.methods)                                               # ShouldRateLimit and health
Routes(exact={**parts.handlers, ...}, ...)                        # /json and /healthcheck
Server(..., openers=parts.openers)                                # streams of health
parts.source.start()                                              # follows its folder
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.clock import Micros
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.protocols import Observer
from penstock.service.decisions import BUDGET, Decider
from penstock.service.envoy.by_config import ShouldRateLimit
from penstock.service.envoy.by_rules import ByRules
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.envoy.health import HealthCheck, HealthWatch
from penstock.service.envoy.json_api import HEALTHCHECK, JSON_PATH, HealthPage, JsonMethod
from penstock.service.envoy.plans import Conduct
from penstock.service.envoy.protocol import HEALTH_WATCH
from penstock.service.envoy.stats import Counts
from penstock.service.grpc import Method
from penstock.service.wire.calls import Handler, Openers


class Parts(NamedTuple):
    """The parts of Envoy's rate limit service.

    - `methods`: of gRPC; for `Grpc`.
    - `handlers`: by path; for `Routes`.
    - `watch`: the streams of health; its `tell` is to be called when health changes.
    - `counts`: hits by limit, for metrics; None where Penstock's own rules are in force.
    """

    methods: tuple[Method, ...]
    handlers: Mapping[bytes, Handler]
    watch: HealthWatch
    counts: Counts | None = None

    @property
    def openers(self) -> Openers:
        """Bidirectional streaming calls; for `Server`."""
        return {HEALTH_WATCH: self.watch.open}

    @property
    def services(self) -> tuple[bytes, ...]:
        """The prefixes of all methods of its services, unknown ones included."""
        return tuple(method.path[: method.path.rindex(b"/") + 1] for method in self.methods)


def configured(
    source: ConfigSource,
    engine: Engine | AsyncEngine,
    *,
    ready: Callable[[], bool],
    conduct: Conduct = Conduct(),  # noqa: B008
    observer: Observer | None = None,
    budget: Micros = BUDGET,
) -> Parts:
    """Return the service by a configuration of envoyproxy/ratelimit."""
    options = source.options
    conduct = conduct._replace(algorithm=options.algorithm, count_denied=options.count_denied)
    method = ShouldRateLimit(source, engine, conduct, observer=observer, budget=budget)
    return Parts((method, HealthCheck(ready)), _handlers(method, ready), HealthWatch(ready), method.counts)


def by_rules(decider: Decider, *, ready: Callable[[], bool]) -> Parts:
    """Return the service by Penstock's own rules."""
    method = ByRules(decider)
    return Parts((method, HealthCheck(ready)), _handlers(method, ready), HealthWatch(ready))


def _handlers(method: ShouldRateLimit | ByRules, ready: Callable[[], bool]) -> Mapping[bytes, Handler]:
    return {JSON_PATH: JsonMethod(method.handle), HEALTHCHECK: HealthPage(ready)}

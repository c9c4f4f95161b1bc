"""Metrics: an observer of the service, and a hook of everything below it.

    prepare(directory)                                    # once, in the supervisor: penstock.observability.shared
    metrics = Metrics(directory, worker="0")              # in each worker
    sampler = Sampler(secret, complete=False)             # optional: penstock.observability.accuracy
    hook = Hooks(metrics, EventLog())                     # of limiter, rules, shedder, key directory
    observer = Observers(metrics, sampler, DenialLog(secret))
    limiter = AsyncLimiter(url, hook=hook)
    rules = RuleSource(path, RuleSet, hook=hook)
    decider = Decider(enforcer, observer)
    metrics.watch(store=limiter.store, rules=rules, sampler=sampler, connections=lambda: server.connections)
    metrics.start()                                       # on the running loop
    ...
    metrics.close()                                       # writes the last figures

The `Enforcer` of a service gets no hook, because its events would count decisions that the observer has counted.
Without a service, the hook of an `Enforcer` counts decisions, and `metrics.text()` is the answer to a scrape.

A scrape of any worker returns the figures of all, because each writes its own to the directory once a second; those of
the others may be a second old. The counts of a dead worker are kept, except for its last second if it was killed.
Without a directory a worker returns its own figures.

**Cost.** Half a microsecond per decision (`python -m bench metrics`). `decided` adds to a dict by rule and quota, and
labels are made only when figures are written. A thread reads and writes the files, so no decision waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.model import Verdict
from penstock.observability import exposition, series, tally
from penstock.observability.accuracy import Sampler
from penstock.observability.event_counts import EventCounts
from penstock.observability.redis_info import RedisWatch
from penstock.observability.series import NONE
from penstock.observability.shared import Shared
from penstock.observability.tally import Bounded, Histogram, Snapshot, Tally, Values
from penstock.quota import Quota
from penstock.rules.compiled import CompiledRule
from penstock.rules.ruling import BLOCKED, SHED, UNLIMITED, Ruling, reason_for

FLUSH = 1.0
"""Seconds between two writes of the figures."""

MAX_RULES = 1_000
MAX_ROUTES = 100
"""How many rules and routes have labels of their own; the others are counted as `other`."""

MAX_PENDING = 4_096
"""Combinations of rule, quota and outcome that are counted before labels are made of them."""

log = logging.getLogger("penstock.observability")

_Seen: TypeAlias = tuple[CompiledRule | None, Quota, bool, str]
"""What decisions are counted by: the rule, the quota, whether it was admitted, the source."""


_Route: TypeAlias = tuple[Histogram, dict[int, int]]
"""The response times of a route, and the number of responses by status."""


class Rules(Protocol):
    """The source of the rules; a `RuleSource`."""

    @property
    def version(self) -> str: ...
    def age(self, now: Micros | None = None) -> float: ...
    def stale(self, now: Micros | None = None) -> float: ...


class Metrics:
    """The figures of one worker, and the text of all.

    - `directory`: shared by the workers of a service; None if there is only one process.
    - `worker`: tells workers apart that run at the same time, such as "0" to "3". A restarted worker takes the name of
      the one it replaces.
    """

    def __init__(self, directory: Path | None = None, worker: str = "0", *, clock: Clock | None = None) -> None:
        self.worker = worker
        self._clock = clock or SystemClock()
        self._started = self._now()
        self._tally = Tally()
        self._shared = None if directory is None else Shared(directory, worker)
        self._rule_labels, self._routes = Bounded(MAX_RULES), Bounded(MAX_ROUTES)
        self._events = EventCounts(self._tally, self._rule_labels)
        self._pending: dict[_Seen, list[int]] = {}
        self._shadows: dict[str, int] = {}
        self._batches = self._tally.histogram(series.BATCH)
        self._store_times = self._tally.histogram(series.STORE_SECONDS)
        self._answers: dict[str, _Route] = {}
        self._store: Any = None
        self._rules: Rules | None = None
        self._connections: Callable[[], int] | None = None
        self._sampler: Sampler | None = None
        self._hits: Callable[[], Iterable[tuple[str, str, int]]] | None = None
        self._redis: RedisWatch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._files = ThreadPoolExecutor(1, "penstock-metrics")  # one thread, so that writes stay in order
        self._writing: Future[None] | None = None

    # As an observer

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        """Count decisions. Written for speed: no calls and one lookup per verdict."""
        pending = self._pending
        known = pending.get
        for verdict in verdicts:
            rule, quota = None, verdict[3]
            if verdict.__class__ is Ruling:
                course, _, owners = verdict.plan
                several = verdict[5]
                if not owners or quota is SHED:
                    rule = course.decided_by
                else:
                    rule = owners[0]
                    if several:  # the rule whose decision the verdict repeats
                        key = verdict[2]
                        for decision, owner in zip(several, owners, strict=False):
                            if decision[3] is quota and decision[2] is key:
                                rule = owner
                                break
                if course.has_shadows:
                    for shadow in verdict.would_refuse:
                        self._shadows[shadow] = self._shadows.get(shadow, 0) + 1
            seen = (rule, quota, verdict[0][0], verdict[7] if len(verdict) > 7 else "store")
            count = known(seen)
            if count is None:
                pending[seen] = [1]
            else:
                count[0] += 1
        if len(pending) > MAX_PENDING:
            self._fold()
        self._batches.observe(len(verdicts))
        if took:  # some batches need no store
            self._store_times.observe(took)

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None:
        known = self._answers.get(route)
        if known is None:
            known = self._new_route(route)
        times, counts = known
        for status in statuses:
            counts[status] = counts.get(status, 0) + 1
        times.observe(took, len(statuses))

    def _new_route(self, route: str) -> _Route:
        label = self._routes.of(route)
        if label not in self._answers:
            labels = series.REQUEST_SECONDS.labelled(label)
            self._answers[label] = self._tally.histogram(series.REQUEST_SECONDS, labels), {}
        return self._answers[label]

    # As a hook

    def __call__(self, event: Any, /) -> None:
        self._events.count(event)

    # Sources of gauges

    def watch(
        self,
        *,
        store: Any = None,
        rules: Rules | None = None,
        connections: Callable[[], int] | None = None,
        sampler: Sampler | None = None,
        hits: Callable[[], Iterable[tuple[str, str, int]]] | None = None,
    ) -> None:
        """Read these whenever figures are written.

        - `store`: its breakers, and the figures of its servers if it has any.
        - `rules`: the source of the rules; `connections`: how many are open; `sampler`: the sampler of accuracy.
        - `hits`: hits of Envoy's limits, by limit and outcome.
        """
        self._hits = hits or self._hits
        self._store = store if store is not None else self._store
        self._rules = rules if rules is not None else self._rules
        self._connections = connections or self._connections
        self._sampler = sampler or self._sampler

    def start(self) -> None:
        """Start writing the figures every second, on the running loop."""
        if hasattr(self._store, "inspect"):
            self._redis = RedisWatch(self._store, self._leads)
            self._redis.start()
        self._timer = asyncio.get_running_loop().call_later(0, self._tick)

    def close(self) -> None:
        """Write the last figures, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._redis is not None:
            self._redis.stop()
        if self._shared is not None:
            self._files.submit(self._write, self.snapshot())
            self._files.submit(self._shared.close)
        self._files.shutdown()

    def _leads(self) -> bool:
        return self._shared is None or self._shared.lead()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FLUSH, self._tick)
        if self._writing is not None and not self._writing.done():
            return  # the disk is slow: skip this write, because the next one includes its figures
        snapshot = self.snapshot()
        if self._shared is not None or self._sampler is not None:
            self._writing = self._files.submit(self._exchange, snapshot)

    # Figures

    def snapshot(self) -> Snapshot:
        """Return the counts and gauges of this worker. Call it on the event loop, if there is one."""
        self._fold()
        snapshot = self._tally.snapshot(self.worker, self._values())
        if self._hits is not None:
            hits = {series.ENVOY_HITS.labelled(limit, outcome): count for limit, outcome, count in self._hits()}
            snapshot.totals[series.ENVOY_HITS.name] = {labels: float(count) for labels, count in hits.items()}
        if self._sampler is not None:
            snapshot.totals |= self._sampler.totals()
            snapshot.now |= self._sampler.now()
            snapshot.sampled = self._sampler.publish()
        return snapshot

    def text(self, *, openmetrics: bool = False) -> bytes:
        """Return the answer to a scrape. It blocks, so it is not for event loops."""
        return exposition.text(self._of_all_workers(self.snapshot()), openmetrics=openmetrics)

    def collect(self) -> Future[list[Snapshot]]:
        """Return the figures of all workers, in the future: files are read on a thread."""
        return self._files.submit(self._of_all_workers, self.snapshot())

    def _fold(self) -> None:
        """Turn counts by object into counts by label, which also releases rules that are no longer in force."""
        pending, self._pending = self._pending, {}
        for (rule, quota, allowed, source), (count,) in pending.items():
            labels = series.DECISIONS.labelled(
                NONE if rule is None else self._rule_labels.of(rule.id),
                NONE if quota is SHED or quota is BLOCKED or quota is UNLIMITED else quota.algorithm,
                source,
                "allowed" if allowed else "refused",
                "" if allowed else reason_for(quota, source),
            )
            self._tally.add(series.DECISIONS, labels, count)
        for route, (_, counts) in self._answers.items():
            for status, count in counts.items():
                self._tally.add(series.REQUESTS, series.REQUESTS.labelled(route, str(status)), count)
            counts.clear()
        shadows, self._shadows = self._shadows, {}
        for rule_id, count in shadows.items():
            self._tally.add(series.SHADOW, series.SHADOW.labelled(self._rule_labels.of(rule_id)), count)

    def _values(self) -> Values:
        values: Values = {series.WORKERS.name: {"": 1}}

        def put(of: series.Series, value: float, *labels: str) -> None:
            values.setdefault(of.name, {})[of.labelled(*labels)] = value

        put(series.STARTED, self._started / SECOND, self.worker)
        if self._connections is not None:
            put(series.CONNECTIONS, self._connections())
        if self._rules is not None:
            now = self._now()
            put(series.RULES, 1, self._rules.version)
            put(series.RULES_AGE, self._rules.age(now))
            put(series.RULES_STALE, self._rules.stale(now))
        if hasattr(self._store, "breakers"):
            for place, state in self._store.breakers().items():
                put(series.BREAKERS, 1, self._events.servers.of(place), state)
        return values | self._events.now() | (self._redis.values if self._redis is not None else {})

    def _now(self) -> Micros:
        return self._clock.time_ns() // 1_000

    # Files, in a thread of their own

    def _write(self, snapshot: Snapshot) -> None:
        for of, value in tally.figures().items():  # in this thread, because counting ten thousand files is slow
            snapshot.now[of.name] = {of.labelled(self.worker): value}
        try:
            if self._shared is not None:
                self._shared.write(snapshot)
        except OSError as error:  # decisions go on while the disk is full
            log.warning("the figures of worker %s could not be written: %s", self.worker, error.strerror)

    def _exchange(self, snapshot: Snapshot) -> None:
        """Write the figures, and pass the samples of the other workers to the sampler."""
        self._write(snapshot)
        try:
            if self._sampler is not None and self._leads():
                others = [other.sampled for other in self._others() if other.sampled]
                self._sampler.hear([snapshot.sampled, *others])
        except Exception as error:  # a failure here must not affect decisions
            log.warning("the accuracy of limits could not be evaluated: %s", type(error).__name__)

    def _of_all_workers(self, snapshot: Snapshot) -> list[Snapshot]:
        self._write(snapshot)
        return [*self._others(), snapshot]

    def _others(self) -> list[Snapshot]:
        return [] if self._shared is None else self._shared.read()

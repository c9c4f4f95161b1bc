"""The accuracy sampler: measures exactly, for a sample of keys, how far decisions deviate from the limit.

An approximate algorithm, an outage, a failover or a fault may admit more than a quota allows, or less. For sampled keys
every admission is logged, and each decision is compared with the units admitted in (t − period, t].

- **over**: units that were admitted although the span was full.
- **under**: units that were refused although they would have fitted.

Both are measured against an exact rolling window, whatever the algorithm. A `fixed_window`, for instance, admits more
around its edges by design, and *over* says how much. Sampled are `fixed_window`, `sliding_window` and `rolling_window`
without penalty and `count denied`; buckets and calendar periods make other promises.

**Limits of the figures.** *Over* is certain: those units were admitted. *Under* is certain only if nothing is missing
from the log. So it is counted for a key only after its log has been complete for a whole period, and only if the
sampler sees all requests to the limits (`complete`): one process, or the workers of one host. On one of several hosts
that share a store, `scope` is `host`, *over* is a lower bound, and *under* is not exported. Refunded units and requests
that were repeated by id cannot be seen here, and count as admitted.

**Workers.** Keys are sampled by a hash that is the same in all workers, so all log the same keys. Each worker publishes
its decisions on them with its figures. The worker that leads merges them in order of the store's time, some seconds
later, and evaluates them.

    Observed    in each worker: collects decisions on sampled keys; an `Observer`
    Judge       evaluates decisions in order of time; pure
    Sampler     both, wired to `Metrics`
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from penstock.clock import SECOND, Micros
from penstock.model import NOT_CHARGED, Decision, Key, Verdict
from penstock.observability import series
from penstock.observability.series import NONE
from penstock.observability.tally import Bounded, Values
from penstock.quota import Quota
from penstock.rules.ruling import Ruling

MEASURED = ("fixed_window", "sliding_window", "rolling_window")

SHARE = 256
"""One key in so many is sampled."""

MAX_KEYS = 256
"""How many keys are logged at once; the one that was idle for longest makes room."""

MAX_ENTRIES = 10_000
"""How many admissions of one key are logged. Beyond that the log has a gap, and *under* is not counted."""

MAX_ENTRIES_IN_ALL = 100_000
"""How many admissions of all keys are logged, some 10 MB; the key that was idle for longest makes room."""

MAX_SEEN = 5_000
"""How many decisions a worker publishes. More are missed, and then *under* is not counted for a period."""

SETTLED: Micros = 3 * SECOND
"""How long evaluation waits for workers that have yet to publish."""

KEPT: Micros = 5 * SECOND
"""How long decisions stay published."""


class Seen(NamedTuple):
    """One decision on a sampled key.

    `counter` is a keyed hash, because keys do not leave the process.
    """

    at: Micros
    counter: int
    rule: str
    limit: int
    period: Micros
    cost: int
    admitted: bool


class Published(msgspec.Struct, array_like=True):
    """The recent decisions of one worker, of which `seen[0]` is number `first`, and how many it has missed."""

    worker: str
    first: int
    missed: int
    seen: list[Seen]


class Account(msgspec.Struct):
    """Units of one rule: admitted, of these over; refused while the log was complete, of these under."""

    admitted: int = 0
    over: int = 0
    refused: int = 0
    under: int = 0

    @property
    def over_ratio(self) -> float:
        return self.over / self.admitted if self.admitted else 0.0

    @property
    def under_ratio(self) -> float:
        return self.under / self.refused if self.refused else 0.0


class _Log:
    """The admissions of one counter within the last period."""

    __slots__ = ("entries", "gapless_since", "used")

    def __init__(self, now: Micros) -> None:
        self.entries: deque[tuple[Micros, int]] = deque()
        self.used = 0
        self.gapless_since = now

    def forget(self, until: Micros) -> None:
        """Drop admissions at `until` or before, because spans are (t − period, t]."""
        while self.entries and self.entries[0][0] <= until:
            self.used -= self.entries.popleft()[1]

    def add(self, at: Micros, cost: int) -> None:
        self.entries.append((at, cost))
        self.used += cost
        if len(self.entries) > MAX_ENTRIES:
            self.used -= self.entries.popleft()[1]
            self.gapless_since = at


class Judge:
    """Compares decisions, in order of time, with an exact log."""

    def __init__(self, *, complete: bool, max_keys: int = MAX_KEYS, max_rules: int = 1_000) -> None:
        self.complete = complete
        self.accounts: dict[str, Account] = {}
        self._max_keys = max_keys
        self._rules = Bounded(max_rules)
        self._gapless_since: Micros = 0
        self._entries = 0
        self._logs: dict[int, _Log] = {}  # the one that was idle for longest comes first

    @property
    def keys(self) -> int:
        return len(self._logs)

    def gap(self, now: Micros) -> None:
        """Mark a gap that affects every sampled key."""
        self._gapless_since = now
        for log in self._logs.values():
            log.gapless_since = now

    def see(self, seen: Seen) -> None:
        at, counter, rule, limit, period, cost, admitted = seen
        log = self._logs.pop(counter, None) or self._new_log(at)
        self._logs[counter] = log
        before = len(log.entries)
        log.forget(at - period)
        account = self.accounts.setdefault(self._rules.of(rule), Account())
        if admitted:
            account.admitted += cost
            account.over += min(cost, max(log.used + cost - limit, 0))
            log.add(at, cost)
        elif self.complete and at - log.gapless_since >= period:
            account.refused += cost
            account.under += cost if log.used + cost <= limit else 0
        self._entries += len(log.entries) - before
        while self._entries > MAX_ENTRIES_IN_ALL:
            self._make_way()

    def _new_log(self, now: Micros) -> _Log:
        if len(self._logs) >= self._max_keys:
            self._make_way()
        return _Log(max(now, self._gapless_since))

    def _make_way(self) -> None:
        idle = self._logs.pop(next(iter(self._logs)))
        self._entries -= len(idle.entries)


class Observed:
    """An observer that collects recent decisions on sampled keys."""

    def __init__(self, secret: bytes, share: int = SHARE, most: int = MAX_SEEN) -> None:
        self._secret, self._bar, self._most = secret[:64], 2**32 // share, most
        self.first = self.missed = 0
        self.seen: deque[Seen] = deque()

    def decided(self, verdicts: Sequence[Verdict], took: Micros) -> None:
        bar, crc32 = self._bar, zlib.crc32
        for verdict in verdicts:
            several = verdict[5]
            if not several:
                key = verdict[2]
                if crc32((key if key.__class__ is str else "\0".join(key)).encode()) < bar:
                    self._note(verdict, verdict, 0)
                continue
            position = -1
            for _, _, key, _, _, advisory in several:
                position += 1
                if not advisory and crc32((key if key.__class__ is str else "\0".join(key)).encode()) < bar:
                    self._note(verdict, several[position], position)

    def answered(self, route: str, statuses: Sequence[int], took: Micros) -> None: ...

    def forget(self, before: Micros) -> None:
        """Drop decisions made earlier."""
        while self.seen and self.seen[0].at < before:
            self.seen.popleft()
            self.first += 1

    def _note(self, verdict: Verdict, decision: Decision, position: int) -> None:
        quota = decision.quota
        if not is_measured(quota):
            return
        if len(self.seen) >= self._most:
            self.forget(decision.at_us - KEPT)  # while it is full, `publish` drops nothing: it goes by the newest
            if len(self.seen) >= self._most:
                self.missed += 1
                return
        admitted = verdict.allowed and (decision.mark != NOT_CHARGED or verdict.degraded)
        if not admitted and (verdict.allowed or decision.allowed):
            return  # a peek, or a refusal by another quota
        rule = NONE
        if verdict.__class__ is Ruling and verdict.plan.owners:
            rule = verdict.plan.owners[position].id
        self.seen.append(
            Seen(
                decision.at_us,
                counter_of(decision.key, quota, self._secret),
                rule,
                quota.limit,
                quota.period_us,
                decision.cost,
                admitted,
            )
        )


def is_measured(quota: Quota) -> bool:
    """Whether decisions on a quota can be compared with a rolling window."""
    return quota.algorithm in MEASURED and quota.penalty_us is None and not quota.count_denied


def counter_of(key: Key, quota: Quota, secret: bytes) -> int:
    """Return a number for a counter: 63 bits of a keyed hash."""
    parts = (key,) if isinstance(key, str) else key
    text = repr((parts, quota.algorithm, quota.period_us, quota.name)).encode()
    return int.from_bytes(blake2b(text, digest_size=8, key=secret).digest()) >> 1


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Published).decode


def _order(seen: Seen) -> tuple[Micros, bool]:
    """Return the sort key: time, and admissions before refusals.

    The order of one instant is unknown across workers, and this order calls no refusal of that instant needless.
    """
    return seen.at, not seen.admitted


def _after(published: Published, until: Micros) -> Published:
    """Return the decisions made after `until`."""
    kept = [seen for seen in published.seen if seen.at > until]
    return Published(published.worker, published.first + len(published.seen) - len(kept), published.missed, kept)


class Sampler:
    """Observes in every worker, and evaluates in the one that leads.

    Pass it to `Metrics.watch`, and to the service as one of its observers.

    - `secret`: the key of the hash of counters; the same in all workers.
    - `complete`: whether all requests to these limits come through the workers of this service on this host.
    - `share`: one key in so many is sampled.
    """

    def __init__(self, secret: bytes, *, complete: bool, share: int = SHARE) -> None:
        self._name = os.urandom(8).hex()
        self.observed = Observed(secret, share)
        self.decided, self.answered = self.observed.decided, self.observed.answered
        self.judge = Judge(complete=complete)
        self._heard: dict[str, tuple[int, int]] = {}  # by worker: number of the next decision, and how many were missed
        self._waiting: list[Seen] = []
        self._newest: Micros = 0
        self._judged_until: Micros | None = None

    def publish(self) -> bytes:
        """Return the recent decisions, encoded for the other workers. Call it in the thread that observes."""
        observed = self.observed
        if observed.seen:
            observed.forget(observed.seen[-1].at - KEPT)  # in the store's time, which may differ from ours
        return _encode(Published(self._name, observed.first, observed.missed, list(observed.seen)))

    def hear(self, published: Iterable[bytes]) -> None:
        """Take in what all workers have published, and evaluate what has settled. For the worker that leads."""
        all_published = [_decode(one) for one in published]
        self._newest = max([self._newest, *[one.seen[-1].at for one in all_published if one.seen]])
        if self._judged_until is None:  # older decisions were evaluated by the previous leader
            self._judged_until = self._newest - SETTLED
            all_published = [_after(one, self._judged_until) for one in all_published]
        heard = {one.worker: (one.first + len(one.seen), one.missed) for one in all_published}
        news = [seen for one in all_published for seen in self._news(one)]
        if self._is_gap(all_published, heard) or any(seen.at <= self._judged_until for seen in news):
            self.judge.gap(self._newest)
        self._heard = heard
        self._waiting += [seen for seen in news if seen.at > self._judged_until]
        self._judge(self._newest - SETTLED)

    def _news(self, published: Published) -> list[Seen]:
        after, _ = self._heard.get(published.worker, (published.first, 0))
        return published.seen[max(after - published.first, 0) :]

    def _is_gap(self, published: Sequence[Published], heard: dict[str, tuple[int, int]]) -> bool:
        """Whether decisions are missing: some were dropped, or a worker came or went, perhaps with unpublished ones."""
        before = self._heard
        if heard.keys() != before.keys():
            return True
        return any(one.first > before[one.worker][0] or one.missed > before[one.worker][1] for one in published)

    def _judge(self, until: Micros) -> None:
        self._waiting.sort(key=_order)
        settled = [seen for seen in self._waiting if seen.at <= until]
        self._waiting = self._waiting[len(settled) :]
        for seen in settled:
            self.judge.see(seen)
        self._judged_until = max(self._judged_until or 0, until)

    def totals(self) -> Values:
        """Return the units by rule, as series."""
        scope = "all" if self.judge.complete else "host"
        values: Values = {}
        for rule, account in list(self.judge.accounts.items()):
            units = {series.SAMPLED: account.admitted, series.OVER: account.over}
            if self.judge.complete:
                units |= {series.REFUSED: account.refused, series.UNDER: account.under}
            for of, value in units.items():
                values.setdefault(of.name, {})[of.labelled(rule, scope)] = value
        return values

    def now(self) -> Values:
        return {series.SAMPLED_KEYS.name: {"": self.judge.keys}}

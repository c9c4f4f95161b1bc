"""The accuracy sampler: how far what was admitted is from what the limit says, for a sample of keys, measured exactly.

An approximate algorithm, an outage, a failover or a fault may admit more than a quota says, or less. For some keys
every admission is logged, and each decision is held against the truth: the units admitted in (t − period, t].

- **over**: units that were admitted although the span was full.
- **under**: units that were refused although they would have fitted.

Both are measured against an exact rolling window, whatever the algorithm: a `fixed_window` goes over at its edges by
design, and this says by how much. Looked at are `fixed_window`, `sliding_window` and `rolling_window` without penalty
and `count denied`; a bucket or a calendar period promises something else.

**What the figures can know.** *Over* is evidence: those units were admitted, whoever else was. *Under* can only be told
if nothing is missing from the log. So it is counted for a key only once its log has been complete for a whole period,
and only where the sampler sees everybody who shares the limits (`complete`): one process, or the workers of one host.
On one of several hosts that share a store, `scope` is `host`, over is a lower bound, and under is not exported at all.
Units that were given back, and requests that were repeated by id, are not known here: they count as admitted.

**Workers.** Keys are chosen by a hash that is the same everywhere, so all workers log the same ones. Each publishes
what it saw with its figures. The worker that leads puts all together in order of the store's time, some seconds later,
and judges.

    Observed    in each worker: picks decisions on sampled keys; an `Observer`
    Judge       where it is judged: pure, in order of time
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
"""One key in so many is looked at."""

MAX_KEYS = 256
"""How many keys are logged at once; those that were quiet for longest make way."""

MAX_ENTRIES = 10_000
"""How many admissions are logged of one key. A busier one is not looked at, because its log would have gaps."""

MAX_ENTRIES_IN_ALL = 100_000
"""How many are logged of all keys together, some 10 MB; again those that were quiet for longest make way."""

MAX_SEEN = 5_000
"""Decisions of one worker that stay published. If there are more, some are missed, and then under is not counted."""

SETTLED: Micros = 3 * SECOND
"""How long judging waits for workers that have yet to publish."""

KEPT: Micros = 5 * SECOND
"""How long what was seen stays published."""


class Seen(NamedTuple):
    """One decision on a sampled key: when, on which counter of which rule, what the limit is, and what came of it.

    `counter` is a keyed hash, because identities do not leave the process.
    """

    at: Micros
    counter: int
    rule: str
    limit: int
    period: Micros
    cost: int
    admitted: bool


class Published(msgspec.Struct, array_like=True):
    """What one worker has seen lately: decision number `first`, and those after it; and how many it has missed."""

    worker: str
    first: int
    missed: int
    seen: list[Seen]


class Account(msgspec.Struct):
    """Units of one rule: admitted, and how many of them over; refused with full knowledge, and how many under."""

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
    """The admissions of one counter, as far as they count."""

    __slots__ = ("entries", "gapless_since", "used")

    def __init__(self, now: Micros) -> None:
        self.entries: deque[tuple[Micros, int]] = deque()
        self.used = 0
        self.gapless_since = now

    def forget(self, until: Micros) -> None:
        """What was admitted at `until` or before no longer counts: windows are (t − period, t]."""
        while self.entries and self.entries[0][0] <= until:
            self.used -= self.entries.popleft()[1]

    def add(self, at: Micros, cost: int) -> None:
        self.entries.append((at, cost))
        self.used += cost
        if len(self.entries) > MAX_ENTRIES:
            self.used -= self.entries.popleft()[1]
            self.gapless_since = at


class Judge:
    """Holds decisions, told in order of time, against an exact log."""

    def __init__(self, *, complete: bool, max_keys: int = MAX_KEYS, max_rules: int = 1_000) -> None:
        self.complete = complete
        self.accounts: dict[str, Account] = {}
        self._max_keys = max_keys
        self._rules = Bounded(max_rules)
        self._gapless_since: Micros = 0
        self._entries = 0
        self._logs: dict[int, _Log] = {}  # the one that was quiet for longest comes first

    @property
    def keys(self) -> int:
        return len(self._logs)

    def gap(self, now: Micros) -> None:
        """Something was missed, nobody knows of whom."""
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
        quiet = self._logs.pop(next(iter(self._logs)))
        self._entries -= len(quiet.entries)


class Observed:
    """An observer that keeps the decisions on sampled keys, for a while."""

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
        """Drop what was seen earlier."""
        while self.seen and self.seen[0].at < before:
            self.seen.popleft()
            self.first += 1

    def _note(self, verdict: Verdict, decision: Decision, position: int) -> None:
        quota = decision.quota
        if not is_measured(quota):
            return
        if len(self.seen) >= self._most:
            self.forget(decision.at_us - KEPT)  # `publish` goes by the newest, and while it is full there is none
            if len(self.seen) >= self._most:
                self.missed += 1
                return
        admitted = verdict.allowed and (decision.mark != NOT_CHARGED or verdict.degraded)
        if not admitted and (verdict.allowed or decision.allowed):
            return  # peeked at, or refused by another quota
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
    return quota.algorithm in MEASURED and quota.penalty_us is None and not quota.count_denied


def counter_of(key: Key, quota: Quota, secret: bytes) -> int:
    """A number for a counter: 63 bits of a keyed hash."""
    parts = (key,) if isinstance(key, str) else key
    text = repr((parts, quota.algorithm, quota.period_us, quota.name)).encode()
    return int.from_bytes(blake2b(text, digest_size=8, key=secret).digest()) >> 1


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Published).decode


def _order(seen: Seen) -> tuple[Micros, bool]:
    """By time; and of one instant, admissions first: nobody knows their order across workers, so no refusal of that
    instant is held to have been needless.
    """
    return seen.at, not seen.admitted


def _without(told: Published, until: Micros) -> Published:
    """What was seen later."""
    kept = [seen for seen in told.seen if seen.at > until]
    return Published(told.worker, told.first + len(told.seen) - len(kept), told.missed, kept)


class Sampler:
    """Observes in every worker, and judges in the one that leads. Give it to `Metrics.watch`, and to the service as one
    of its observers.

    - `secret`: what counters are hashed with; the same in all workers.
    - `complete`: whether everybody who shares these limits is a worker of this service on this host.
    - `share`: one key in so many is looked at.
    """

    def __init__(self, secret: bytes, *, complete: bool, share: int = SHARE) -> None:
        self._name = os.urandom(8).hex()
        self.observed = Observed(secret, share)
        self.decided, self.answered = self.observed.decided, self.observed.answered
        self.judge = Judge(complete=complete)
        self._heard: dict[str, tuple[int, int]] = {}  # the next decision's number, and how many were missed, by worker
        self._waiting: list[Seen] = []
        self._newest: Micros = 0
        self._judged_until: Micros | None = None

    def publish(self) -> bytes:
        """What the others are to know. On the thread that observes."""
        observed = self.observed
        if observed.seen:
            observed.forget(observed.seen[-1].at - KEPT)  # by the store's clock, which may not be ours
        return _encode(Published(self._name, observed.first, observed.missed, list(observed.seen)))

    def hear(self, published: Iterable[bytes]) -> None:
        """Take note of what everybody has published, and judge what has settled. For the worker that leads."""
        told = [_decode(one) for one in published]
        self._newest = max([self._newest, *[one.seen[-1].at for one in told if one.seen]])
        if self._judged_until is None:  # what is older was judged by whoever led before
            self._judged_until = self._newest - SETTLED
            told = [_without(one, self._judged_until) for one in told]
        heard = {one.worker: (one.first + len(one.seen), one.missed) for one in told}
        news = [seen for one in told for seen in self._news(one)]
        if self._is_gap(told, heard) or any(seen.at <= self._judged_until for seen in news):
            self.judge.gap(self._newest)
        self._heard = heard
        self._waiting += [seen for seen in news if seen.at > self._judged_until]
        self._judge(self._newest - SETTLED)

    def _news(self, told: Published) -> list[Seen]:
        after, _ = self._heard.get(told.worker, (told.first, 0))
        return told.seen[max(after - told.first, 0) :]

    def _is_gap(self, told: Sequence[Published], heard: dict[str, tuple[int, int]]) -> bool:
        """Whether something was missed, or somebody came or went, perhaps with what nobody has heard."""
        if heard.keys() != self._heard.keys():
            return True
        return any(one.first > self._heard[one.worker][0] or one.missed > self._heard[one.worker][1] for one in told)

    def _judge(self, until: Micros) -> None:
        self._waiting.sort(key=_order)
        settled = [seen for seen in self._waiting if seen.at <= until]
        self._waiting = self._waiting[len(settled) :]
        for seen in settled:
            self.judge.see(seen)
        self._judged_until = max(self._judged_until or 0, until)

    def totals(self) -> Values:
        """Units by rule, as series."""
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

"""The fallback: answers when the store cannot.

    local    each host enforces its share of the limit: the limit divided by the live hosts, but at least a tenth of it.
             Its counters start empty; keys that the deny cache knows as refused stay refused. So all hosts together
             admit at most one more budget per key and outage, and a unit per host for rounding. The admissions are
             reported to the store when it is back.
    open     all requests pass: for limits that protect less than a refusal would cost.
    closed   all requests are refused: logins, payments. `Verdict.source` tells this apart from "over the limit".
    raise    the caller gets a `StoreError`.

The behaviour is that of the request, or else that of the layer. Every such answer has its `Verdict.source`, is counted
(`answered`) and reported to the hook (`Degraded`). A refund, settlement or release that failed is repeated later, if
it cannot take effect twice.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter, deque
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

from penstock.clock import SECOND, Micros
from penstock.engine.fail_modes import admitted, left_alone, marked, refused
from penstock.engine.protocols import Declined, Due, Entered, Local
from penstock.errors import InvalidOption, InvalidQuota, shown
from penstock.events import Degraded, Hook, nobody, tell
from penstock.layers.deny_cache import DenyCache
from penstock.layers.hosts import Hosts
from penstock.layers.reports import Admissions
from penstock.model import (
    Acquire,
    Amend,
    Amended,
    Ask,
    Decision,
    Failed,
    Grant,
    Key,
    OnFailure,
    Op,
    Outcome,
    Receipt,
    Reset,
    Verdict,
    new,
    own_mark,
)
from penstock.quota import Quota
from penstock.stores.memory.store import MemoryStore, check_max_keys

BEHAVIOURS: tuple[OnFailure, ...] = ("local", "open", "closed", "raise")
FLOOR = 0.1
"""The least share of a limit that a host enforces."""

DEFAULT_MAX_KEYS = 100_000
MAX_LATER = 10_000
"""How many amendments are kept to be repeated later."""

AT_ONCE = 64
"""How many counters are reported to the store in one batch."""

LOOK_AFTER: Micros = SECOND
"""How long to wait before a failed report to the store is repeated."""

LOG_EVERY: Micros = 10 * SECOND
MAX_SHARES = 4_096
ALL_ACQUIRE = frozenset([Acquire])

log = logging.getLogger("penstock.fallback")


class _Local(NamedTuple):
    """The token of a batch: its operations, and the answers to those that were not passed on, by position."""

    ops: Sequence[Op]
    answers: dict[int, Outcome]


class _Own(NamedTuple):
    """The token of the layer's own work: how many announcements, then the repeated amendments and the reports."""

    announced: int
    later: list[Amend]
    told: list[Amend]


class _At:
    """The clock of the local store; the layer sets it."""

    micros: Micros = 0

    def time_ns(self) -> int:
        return self.micros * 1_000

    wait: Any = None
    wait_async: Any = None


class Fallback:
    """The layer.

    - `behaviour`: the behaviour for requests that do not name one.
    - `hosts`: how many hosts share the limits; None counts them in the store.
    - `max_keys`: how many counters are kept while the store is gone; at least 4,096.
    - `known`: the deny cache above this layer, which knows refused keys.
    """

    def __init__(
        self,
        behaviour: OnFailure = "local",
        *,
        hosts: int | None = None,
        max_keys: int = DEFAULT_MAX_KEYS,
        known: DenyCache | None = None,
        hook: Hook = nobody,
    ) -> None:
        self.behaviour = check_behaviour(behaviour)
        if hosts is not None and (isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1):
            raise InvalidOption(f"hosts {shown(hosts)}: expected a whole number, at least 1, or None to count them")
        self._clock = _At()
        self._max_keys = check_max_keys(max_keys)
        self._local: MemoryStore | None = None  # made when it is first needed
        self._known, self._hook = known, hook
        self._begin(hosts)
        self._shares: dict[Quota, Quota] = {}
        self._shares_for: int | None = 0  # the number of hosts for which they were made
        self.answered: Counter[str] = Counter()  # by source
        self._tell_at: Micros = 0
        self._logged_at = -LOG_EVERY
        self._unlogged = 0
        _alive.add(self)

    def _begin(self, hosts: int | None) -> None:
        """Set what a forked child must not inherit: it is another host, and the parent reports its own admissions."""
        self._lock = Lock()  # protects what is kept for later; never held during a wait
        self.hosts = Hosts(hosts)
        self.unreported = Admissions(self._max_keys)
        self._later: deque[Amend] = deque(maxlen=MAX_LATER)

    # On the way down and up

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        """Return `below`: decisions in this process do not fail."""
        return below

    ignores_admissions = True

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        if ops.__class__ is Declined or ALL_ACQUIRE.issuperset(map(type, ops)):  # as nearly always
            return new(Entered, (ops, ops))
        answers: dict[int, Outcome] = {}
        for number, op in enumerate(ops):
            if op.__class__ is Amend:
                if op.receipt.source != "store":
                    answers[number] = self._amend_here(op, now)
            elif op.__class__ is Reset:
                self._reset_here(op, now)
        if not answers:
            return Entered(ops, ops)
        return Entered([op for number, op in enumerate(ops) if number not in answers], _Local(ops, answers))

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        if token.__class__ is _Own:
            return self._heard(token, outcomes, now)
        if token.__class__ is _Local:
            rest, answers = iter(outcomes), token.answers
            outcomes = [answers[number] if number in answers else next(rest) for number in range(len(token.ops))]
            token = token.ops
        if Failed in map(type, outcomes):
            return self._stand_in(token, outcomes, now)
        return outcomes if outcomes.__class__ is list else list(outcomes)

    def _stand_in(self, ops: Sequence[Op], outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        answered: list[Outcome] = []
        sources: dict[str, int] = {}
        why = ""
        for op, outcome in zip(ops, outcomes, strict=True):
            if isinstance(outcome, Failed):
                instead = self._instead(op, outcome, now)
                if isinstance(instead, Verdict):
                    sources[instead.source] = sources.get(instead.source, 0) + 1
                    why = str(outcome.error)
                answered.append(instead)
            else:
                answered.append(outcome)
        for source, number in sources.items():
            self.answered[source] += number
            tell(self._hook, Degraded(source, number, why))
        if sources:
            self.warn(sum(sources.values()), why, now)
        return answered

    def _instead(self, op: Op, failed: Failed, now: Micros) -> Outcome:
        """Return the outcome in place of a failure; the failure itself if there is none."""
        if isinstance(op, Amend):
            if self.behaviour == "raise":
                return failed
            if _is_repeatable(op, failed):
                self._later.append(op)
            return left_alone(op)
        if isinstance(op, Reset | Grant):  # only the store can do these
            return failed
        behaviour = op.on_failure or self.behaviour
        if behaviour == "local":
            return self._decide_here(op, failed, now)
        if behaviour == "open":
            return admitted(op, now)
        return refused(op, now) if behaviour == "closed" else failed

    def warn(self, number: int, why: str, now: Micros) -> None:
        """Log that so many requests were answered without the store, at most once in `LOG_EVERY`."""
        with self._lock:
            self._unlogged += number
            if abs(now - self._logged_at) < LOG_EVERY:  # another thread's later call may have been faster
                return
            number, self._logged_at, self._unlogged = self._unlogged, now, 0
        log.warning("%d requests were answered without the store: %s", number, why)

    # Deciding here

    def _decide_here(self, op: Acquire, failed: Failed, now: Micros) -> Verdict:
        if self._known is not None and not op.dry:
            known = self._known.refused(op.asks, now)
            if known is not None:
                return marked(known, "local")
        asks = tuple([Ask(ask.key, self.share(ask.quota), ask.cost, ask.advisory) for ask in op.asks])
        if any([ask.cost > ask.quota.capacity and not ask.advisory for ask in asks]):  # noqa: C419
            return refused(op, now, "local")  # more than the share of this host, or of any other
        (verdict,) = self._run_here(Acquire(asks, op.dry, op.id), now)
        assert isinstance(verdict, Verdict)  # noqa: S101  memory does not fail
        verdict = _as_asked(verdict, asks, op.asks)
        if verdict and not op.dry and failed.charged == "no":  # otherwise the store has most likely charged it
            with self._lock:
                for decision in verdict.decisions:
                    self.unreported.add(decision.key, decision.quota, decision.cost, now)
        return verdict

    def _amend_here(self, op: Amend, now: Micros) -> Amended:
        """Amend a charge that the store does not have."""
        receipt = op.receipt
        if receipt.source != "local":
            return left_alone(op)
        charges = tuple([charge._replace(quota=self.share(charge.quota)) for charge in receipt.charges])
        (amended,) = self._run_here(Amend(Receipt(charges, receipt.record), op.verb, op.units), now)
        assert isinstance(amended, Amended)  # noqa: S101
        with self._lock:
            for charge, back in zip(receipt.charges, amended.each, strict=True):
                if back > 0 and op.verb != "renew":
                    self.unreported.take_back(charge.key, charge.quota, back)
                elif back < 0:
                    self.unreported.add(charge.key, charge.quota, -back, now)
        return amended

    def _reset_here(self, op: Reset, now: Micros) -> None:
        if self._local is None:
            return
        self._run_here(Reset(op.key, self.share(op.quota)), now)
        with self._lock:
            self.unreported.forget(op.key, op.quota)

    def _run_here(self, op: Op, now: Micros) -> list[Outcome]:
        self._clock.micros = now
        with self._lock:
            local = self._local = self._local or MemoryStore(max_keys=self._max_keys, clock=self._clock)
        return local.run([op])

    def share(self, quota: Quota) -> Quota:
        """Return the share of `quota` that this host enforces."""
        number = self.hosts.number
        if number != self._shares_for or len(self._shares) >= MAX_SHARES:
            self._shares, self._shares_for = {}, number
        share = self._shares.get(quota)
        if share is None:
            share = self._shares[quota] = share_of(quota, number)
        return share

    # The layer's own work

    @property
    def pending(self) -> bool:
        """Whether the store still has to receive something."""
        return bool(self._later or len(self.unreported))

    def due(self, now: Micros) -> Due:
        """Return the operations that announce this host, repeat failed amendments and report admissions."""
        with self._lock:
            announced = self.hosts.announce(now)
            later: list[Amend] = []
            told: list[Amend] = []
            if not 0 < self._tell_at - now <= LOOK_AFTER:
                later = [self._later.popleft() for _ in range(min(len(self._later), AT_ONCE))]
                told = self.unreported.tell(AT_ONCE)
            more = bool(told and len(self.unreported)) or bool(later and self._later)
        ops = [*announced, *later, *[_at_the_stores_time(op, self.hosts.offset) for op in told]]
        return Due(ops, _Own(len(announced), later, told), now if more else now + LOOK_AFTER)

    def _heard(self, own: _Own, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        with self._lock:
            self.hosts.heard(outcomes[: own.announced], now)
            rest = iter(outcomes[own.announced :])
            for op, outcome in zip(own.later, rest, strict=False):
                if isinstance(outcome, Failed):
                    self._tell_at = now + LOOK_AFTER
                    if _is_repeatable(op, outcome):
                        self._later.append(op)
            for op, outcome in zip(own.told, rest, strict=True):
                if isinstance(outcome, Failed):
                    self._tell_at = now + LOOK_AFTER
                    if outcome.charged == "no":
                        self.unreported.put_back(op)
                    else:
                        self.unreported.drop(op)
        return list(outcomes)


_alive: WeakSet[Fallback] = WeakSet()


def _after_fork_in_child() -> None:
    for layer in list(_alive):
        layer._begin(layer.hosts.fixed)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def check_behaviour(behaviour: OnFailure) -> OnFailure:
    if behaviour not in BEHAVIOURS:
        raise InvalidOption(f"on_failure {shown(behaviour)}: expected one of {', '.join(BEHAVIOURS)}")
    return behaviour


def share_of(quota: Quota, hosts: int | None) -> Quota:
    """Return the share of one of `hosts` hosts; the least share if their number is not known."""

    def part(units: int) -> int:
        return max(units // hosts if hosts else 0, math.ceil(units * FLOOR), 1)

    try:
        return quota.resized(part)
    except InvalidQuota:  # at so low a rate, the burst would take too long to refill
        return quota


def _is_repeatable(op: Amend, failed: Failed) -> bool:
    """Return whether a failed amendment can be repeated and still take effect once."""
    if op.verb in ("release", "settle"):
        return True
    return op.verb == "refund" and (op.receipt.record is not None or failed.charged == "no")


def _as_asked(verdict: Verdict, asks: tuple[Ask, ...], asked: tuple[Ask, ...]) -> Verdict:
    """Return a local verdict with the quotas of the request in place of their shares."""
    whole: dict[tuple[Key, Quota], Quota] = {
        (ask.key, ask.quota): theirs.quota for ask, theirs in zip(asks, asked, strict=True)
    }
    answer, at, key, quota, cost, several = verdict[:6]
    decisions = tuple([Decision((*d[:3], whole[d[2], d[3]], *d[4:])) for d in several])
    return marked(new(Verdict, (answer, at, key, whole[key, quota], cost, decisions, *verdict[6:7])), "local")


def _at_the_stores_time(op: Amend, offset: Micros) -> Amend:
    """Return a report with its instants converted to the store's clock."""
    charges = tuple([charge._replace(mark=own_mark(charge.mark) + offset) for charge in op.receipt.charges])
    return op._replace(receipt=op.receipt._replace(charges=charges))

"""What callers saw of a limiter, and the proof that it kept its promises, over real time.

Each call is noted with the instants at which it was made and answered. The charge happened somewhere in between, or,
where no answer came, perhaps never. From that follows what is certain, and only what is certain is held against the
limiter: a violation reported here is one *wherever* the charges were made. What is not known is counted both ways:
`at_least` against promises of "no more than", `at_most` against those of "no less than".

    history = CallHistory(node="worker 1")
    invoked = history.now()
    verdict = limiter.acquire("alice", quota)
    history.note("alice", invoked, outcome_of(verdict))
    ...
    history.check(quota)

Histories of several processes on one machine can be merged: they share the machine's clock.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from penstock.clock import Clock, Micros, SystemClock
from penstock.model import Failed, Key, Verdict
from penstock.quota import CONCURRENCY, Quota
from penstock.testing.spans import Span, Stretch, bounds, fullest

CallOutcome: TypeAlias = Literal["admitted", "refused", "failed", "unknown"]
"""`failed`: no answer, and certainly not charged; `unknown`: no answer, and perhaps charged, now or later."""


def outcome_of(result: Verdict | Failed) -> CallOutcome:
    """How a history calls what a store returned."""
    if isinstance(result, Failed):
        return "failed" if result.charged == "no" else "unknown"
    return "admitted" if result.allowed else "refused"


class ObservedCall(NamedTuple):
    """One call and how it ended.

    - `given_back`: units that were refunded, or may have been.
    - `until`: for a hold, the instant at which its release was asked for. A hold that is renewed is noted as one call
      `until` the renewal was asked for, and the renewal as another.
    """

    key: Key
    node: str
    invoked: Micros
    returned: Micros
    outcome: CallOutcome
    cost: int = 1
    given_back: int = 0
    until: Micros | None = None

    @property
    def at_least(self) -> int:
        """Units that were charged and stayed so, for certain."""
        return self.cost - self.given_back if self.outcome == "admitted" else 0

    @property
    def at_most(self) -> int:
        """Units that were charged, perhaps, for a while at least."""
        return self.cost if self.outcome in ("admitted", "unknown") else 0


class CallHistory:
    """Calls in the order in which they ended. Noting one takes a few microseconds, and any thread may do it."""

    def __init__(self, calls: Iterable[ObservedCall] = (), *, node: str = "", clock: Clock | None = None) -> None:
        self.calls = list(calls)
        self.node = node
        self._time_ns = (clock or SystemClock()).time_ns

    def now(self) -> Micros:
        return self._time_ns() // 1_000

    def note(
        self,
        key: Key,
        invoked: Micros,
        outcome: CallOutcome,
        *,
        cost: int = 1,
        given_back: int = 0,
        returned: Micros | None = None,
        until: Micros | None = None,
    ) -> None:
        """A call that was made at `invoked`, and answered at `returned` or just now."""
        ended = max(invoked, self.now() if returned is None else returned)
        self.calls.append(ObservedCall(key, self.node, invoked, ended, outcome, cost, given_back, until))

    # ---------------------------------------------------------------- over processes

    def write(self, path: Path) -> None:
        """Keep the calls as lines of JSON, after those that are there already."""
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(call) + "\n" for call in self.calls)

    @classmethod
    def read(cls, *paths: Path) -> CallHistory:
        """All calls of some files, as one history."""
        lines = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
        return cls(ObservedCall(key if isinstance(key, str) else tuple(key), *rest) for key, *rest in lines)

    @classmethod
    def merged(cls, *histories: CallHistory) -> CallHistory:
        """All calls of some histories, as one."""
        return cls(call for history in histories for call in history.calls)

    # ---------------------------------------------------------------- what is certain

    def by_key(self) -> dict[Key, list[ObservedCall]]:
        keys: dict[Key, list[ObservedCall]] = {}
        for call in self.calls:
            keys.setdefault(call.key, []).append(call)
        return keys

    def worst(self, quota: Quota) -> Mapping[Key, Span]:
        """For each key the span that exceeds what `quota` promises by most, or comes closest to it.

        For `concurrency`, it is the instant at which most places were held.
        """
        spans = {key: _worst_span(calls, quota) for key, calls in self.by_key().items()}
        return {key: span for key, span in spans.items() if span is not None}

    def check(self, quota: Quota, *, extra: int = 0) -> None:
        """Raise AssertionError if more was admitted, for certain, than `quota` promises, and `extra` units beside it.

        `extra` is for faults whose price is stated, such as one budget per failover that loses writes.
        """
        for key, span in self.worst(quota).items():
            if span.excess > extra:
                raise AssertionError(
                    f"{quota} for {key!r}: at least {span.units} units admitted from {span.start} to {span.end} µs, "
                    f"where at most {span.allowed}{f' + {extra}' if extra else ''} are promised"
                )

    def check_total(self, quota: Quota) -> None:
        """Raise AssertionError unless each key was admitted exactly the limit, as far as is known.

        For a key that asked for more than its limit, in a period that did not end meanwhile: make it a long one.
        """
        for key, calls in self.by_key().items():
            least, most = sum(call.at_least for call in calls), sum(call.at_most for call in calls)
            if not least <= quota.limit <= most:
                raise AssertionError(
                    f"{quota} for {key!r}: {least} to {most} units admitted, expected exactly {quota.limit}"
                )

    def check_refusals(self, quota: Quota) -> None:
        """Raise AssertionError if a call was refused although there was room for it, for certain.

        There was if all that may have been charged in the quota's horizon left enough. Not for holds, whose ends are
        not known that well, nor for quotas that refuse for other reasons (`penalty`, `count denied`).
        """
        if quota.algorithm == CONCURRENCY or quota.penalty_us or quota.count_denied:
            raise ValueError(f"{quota}: refuses for more reasons than what was admitted")
        for key, calls in self.by_key().items():
            _check_refusals(key, calls, quota)


def _worst_span(calls: Sequence[ObservedCall], quota: Quota) -> Span | None:
    if quota.algorithm == CONCURRENCY:
        return _most_held(calls, quota)
    stretches = [Stretch(call.invoked, call.returned, call.at_least) for call in calls if call.at_least > 0]
    spans = [span for bound in bounds(quota) if (span := fullest(stretches, bound))]
    return max(spans, key=lambda span: span.excess, default=None)


def _most_held(calls: Sequence[ObservedCall], quota: Quota) -> Span | None:
    """A hold is there for certain from its answer until its release is asked for, or its ttl may have run out."""
    changes: list[tuple[Micros, int]] = []
    for call in calls:
        expiry = call.invoked + quota.period_us
        end = expiry if call.until is None else min(call.until, expiry)
        if call.at_least and call.returned < end:
            changes += [(call.returned, 1), (end, -1)]
    changes.sort()  # at one instant, ends before beginnings
    live = accumulate(change for _, change in changes)
    spans = (Span(at, at, held, quota.limit) for (at, _), held in zip(changes, live, strict=True))
    return max(spans, key=lambda span: span.units, default=None)


def _check_refusals(key: Key, calls: Sequence[ObservedCall], quota: Quota) -> None:
    charged = [call for call in calls if call.at_most]
    begun = _Sums((call.invoked, call.at_most) for call in charged)
    # What has no answer may be carried out at any time, so it never counts as over.
    over = _Sums((call.returned, call.at_most) for call in charged if call.outcome == "admitted")
    for call in calls:
        if call.outcome == "refused":
            used = begun.up_to(call.returned) - over.up_to(call.invoked - quota.horizon_us)
            if used + call.cost <= quota.capacity:
                raise AssertionError(
                    f"{quota} for {key!r}: a cost of {call.cost} was refused from {call.invoked} to {call.returned} "
                    f"µs, although at most {used} of {quota.capacity} units were used"
                )


class _Sums:
    """Units at instants; how many up to a given one."""

    def __init__(self, units: Iterable[tuple[Micros, int]]) -> None:
        ordered = sorted(units)
        self._instants = [at for at, _ in ordered]
        self._sums = [0, *accumulate(count for _, count in ordered)]

    def up_to(self, instant: Micros) -> int:
        return self._sums[bisect_right(self._instants, instant)]

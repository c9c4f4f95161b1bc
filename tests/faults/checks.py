"""The promises that hold during every fault. A check yields what is wrong in a trial.

Times are reported, not asserted, except for deadlines of many seconds: machines stand still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.clock import SECOND, Micros
from penstock.quota import Quota
from penstock.testing.history import CallHistory, ObservedCall
from tests.faults.load import WIDE, Answer, kind_of, quota_of
from tests.faults.node import PATIENCE


@dataclass
class Trial:
    """The record of one fault: the answers from before it until after the recovery.

    - `budgets`: the allowed over-admission of a key, in multiples of its limit.
    - `began`, `ended`: when the store failed, and when it was back.
    - `used`: the final counts of the wide counters in the store.
    - `steady`: whether the fleet enforced limits again by itself within the time allowed.
    - `broken`: what the fault itself found wrong.
    """

    fault: str
    topology: str
    hosts: int
    budgets: int = 1
    began: Micros = 0
    ended: Micros = 0
    answers: list[Answer] = field(default_factory=list)
    sent: int = 0
    not_sent: int = 0
    hung: int = 0
    faults: list[str] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    steady: bool = True
    broken: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def during(self) -> list[Answer]:
        """Since it began."""
        return [answer for answer in self.answers if answer.returned >= self.began]

    @property
    def longest(self) -> Micros:
        return max((answer.took for answer in self.during), default=0)

    def slowest(self, share: float) -> Micros:
        """The quantile of the answers' times."""
        times = sorted(answer.took for answer in self.during)
        return times[min(int(len(times) * share), len(times) - 1)] if times else 0

    @property
    def recovery(self) -> Micros:
        """Seconds from the store's recovery to the last answer without it, of limiters with frequent calls: rare
        calls would add the time between two of them.
        """
        often = [answer for answer in self.answers if answer.behaviour == "local" and answer.returned > self.ended]
        late = [answer.returned for answer in often if answer.degraded or answer.error]
        return max(late, default=self.ended) - self.ended

    @property
    def counted(self) -> int:
        """Units of the wide counters that were admitted and should be counted."""
        return sum(answer.allowed for answer in self.answers if answer.key in self.used and answer.behaviour == "local")

    @property
    def lost(self) -> int:
        """Those of them that the store has not counted."""
        admitted = Counter(a.key for a in self.answers if a.allowed and a.behaviour == "local")
        return sum(max(admitted[key] - used, 0) for key, used in self.used.items())

    @property
    def worst(self) -> tuple[int, int]:
        """Units above the limit, and the limit, of the counter with the highest over-admission."""
        excesses = [(_excess(calls, quota_of(key)), quota_of(key).limit) for key, calls in _histories(self).items()]
        return max(excesses, key=lambda each: each[0] / each[1], default=(0, 1))


def _histories(trial: Trial) -> dict[str, list[ObservedCall]]:
    """Units admitted per counter, by the store or in its place, of the limiters that enforce limits."""
    calls: dict[str, list[ObservedCall]] = {}
    for node, behaviour, key, invoked, returned, allowed, _, error in trial.answers:
        if behaviour == "local" and not error:
            call = ObservedCall(key, node, invoked, returned, "admitted" if allowed else "refused")
            calls.setdefault(key, []).append(call)
    return calls


def _excess(calls: list[ObservedCall], quota: Quota) -> int:
    worst = CallHistory(calls).worst(quota)
    return max((span.excess for span in worst.values() if span.units), default=0)


# ---------------------------------------------------------------- the checks


def every_call_is_answered(trial: Trial) -> Iterable[str]:
    """Every call is answered."""
    if trial.hung:
        yield f"{trial.hung} calls had no answer after {PATIENCE:g} s"
    if trial.longest > PATIENCE * SECOND:
        yield f"an answer took {trial.longest / SECOND:.1f} s"


def no_errors(trial: Trial) -> Iterable[str]:
    """Failures of the store raise no errors for callers, and no internal errors occur."""
    errors = Counter(answer.error for answer in trial.answers if answer.error)
    for error, number in errors.items():
        yield f"{number} calls raised {error}"
    for fault in trial.faults:
        yield f"a fault of our own: {fault}"


def answers_fit(trial: Trial) -> Iterable[str]:
    """A limiter without its store follows `on_failure`: `open` always admits, `closed` never does."""
    for answer in trial.answers:
        if answer.degraded and answer.source != answer.behaviour:
            yield f"a limiter told to be {answer.behaviour} answered by {answer.source}"
            return
    if any(answer.allowed for answer in trial.answers if answer.source == "closed"):
        yield "closed, and admitted all the same"
    if any(not answer.allowed for answer in trial.answers if answer.source == "open"):
        yield "open, and refused all the same"


def admits_within_bound(trial: Trial) -> Iterable[str]:
    """Over-admission stays within the budgets of the fault, plus a unit per host for rounding."""
    for key, calls in _histories(trial).items():
        quota = quota_of(key)
        bound = quota.resized(lambda units: units * (1 + trial.budgets) + trial.hosts)
        excess = _excess(calls, bound)
        if kind_of(key) != WIDE and excess > 0:
            yield f"{quota}: {excess} more than {trial.budgets} budgets on top and {trial.hosts} units"


def enforces_again(trial: Trial) -> Iterable[str]:
    """Every node uses the store again by itself, and refuses exhausted counters."""
    if not trial.steady:
        yield "not answered by the store again"
        return
    refusing = {a.node for a in trial.answers if not a.allowed and not a.degraded and a.returned > trial.ended}
    if len(refusing) < trial.hosts:
        yield f"only {len(refusing)} of {trial.hosts} hosts refused anything in the end"


def story_holds(trial: Trial) -> Iterable[str]:
    yield from trial.broken


CHECKS: Sequence[Callable[[Trial], Iterable[str]]] = (
    every_call_is_answered,
    no_errors,
    answers_fit,
    admits_within_bound,
    enforces_again,
    story_holds,
)


def wrong(trial: Trial) -> list[str]:
    """Return all violations, with the name of the check."""
    return [f"{check.__name__}: {finding}" for check in CHECKS for finding in check(trial)]

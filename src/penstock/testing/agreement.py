"""A store and the oracle side by side: every operation goes to both, and every field of every outcome must agree.

Beside that, all that was admitted is kept as history, so that each algorithm's promise can be checked on it in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.clock import ManualClock, Micros
from penstock.model import Acquire, Amend, Amended, Ask, Charge, Decision, Key, Op, Outcome, Receipt, Verdict
from penstock.quota import MIN_INTERVAL, Identity, Quota
from penstock.stores.base import Store
from penstock.testing.oracle import Expected, Oracle
from penstock.testing.oracle_counters import Entry
from penstock.testing.promises import Admission, History


@dataclass(eq=False, slots=True)
class Held:
    """A receipt of the store, and what the oracle and the history know it as."""

    receipt: Receipt
    asks: tuple[Ask, ...]
    entries: tuple[Entry, ...]
    admissions: tuple[Admission, ...]


@dataclass
class SideBySide:
    """Runs operations on `store` and compares; `held` are the receipts that nobody has refunded yet."""

    store: Store
    clock: ManualClock
    oracle: Oracle = field(default_factory=Oracle)
    held: list[Held] = field(default_factory=list)
    _histories: dict[tuple[Key, Identity], History] = field(default_factory=dict)

    @property
    def now(self) -> Micros:
        return self.clock.micros

    def run(self, *ops: Op) -> list[Outcome]:
        """One batch, in order and at one instant."""
        outcomes = self.store.run(ops)
        assert len(outcomes) == len(ops), f"{len(ops)} operations, {len(outcomes)} outcomes"
        for op, outcome in zip(ops, outcomes, strict=True):
            self._compare(op, outcome)
        return outcomes

    def acquire(self, *asks: Ask, dry: bool = False) -> Verdict:
        """One request."""
        (verdict,) = self.run(Acquire(asks, dry))
        assert isinstance(verdict, Verdict)
        return verdict

    def check_promises(self) -> None:
        """Every algorithm's promise, over every span of what was admitted since this was last checked."""
        for history in self._histories.values():
            history.check()
        self._histories.clear()

    def forget_receipts(self, key: Key, quota: Quota) -> None:
        """Drop receipts that name a counter; after a reset nothing of them is charged any more."""
        self.held = [h for h in self.held if all((a.key, a.quota.identity) != (key, quota.identity) for a in h.asks)]

    def _compare(self, op: Op, outcome: Outcome) -> None:
        if isinstance(op, Acquire):
            expected = self.oracle.acquire(op.asks, self.now, dry=op.dry)
            assert isinstance(outcome, Verdict), f"{op}: expected a verdict, got {outcome!r}"
            compare_verdict(outcome, op.asks, expected, self.now)
            self._hold(outcome, op.asks, expected)
        elif isinstance(op, Amend):
            self._compare_refund(op, outcome)
        else:
            self.oracle.reset(op.key, op.quota)
            self._histories.pop((op.key, op.quota.identity), None)
            self.forget_receipts(op.key, op.quota)
            assert outcome == Amended(), f"{op}: got {outcome!r}"

    def _hold(self, verdict: Verdict, asks: Sequence[Ask], expected: Sequence[Expected]) -> None:
        charged = [(ask, e.charged) for ask, e in zip(asks, expected, strict=True) if e.charged is not None]
        charges = verdict.receipt.charges if verdict.receipt else ()
        named = [Charge(ask.key, ask.quota, ask.cost, 0) for ask, _ in charged]
        assert [c._replace(mark=0) for c in charges] == named, f"receipt: expected {named}, got {charges}"
        if verdict.receipt is None:
            return
        self.held.append(
            Held(
                verdict.receipt,
                tuple(ask for ask, _ in charged),
                tuple(entry for _, entry in charged),
                tuple(self._history(ask).admit(ask.quota, ask.cost, self.now) for ask, _ in charged),
            )
        )

    def _history(self, ask: Ask) -> History:
        return self._histories.setdefault((ask.key, ask.quota.identity), History(ask.quota))

    def _compare_refund(self, op: Amend, outcome: Outcome) -> None:
        held = next(h for h in self.held if h.receipt is op.receipt)
        self.held.remove(held)
        cost = max(ask.cost for ask in held.asks)
        units = cost if op.units is None else op.units
        # A counter that charges 1 whatever the cost stays charged until the whole request is given back.
        portions = [(0 if ask.quota.flat and units < cost else min(ask.cost, units)) for ask in held.asks]
        expected = self.oracle.refund(list(zip(held.asks, held.entries, portions, strict=True)), self.now)
        assert outcome == Amended(expected), f"{op}: expected {Amended(expected)}, got {outcome!r}"
        for admission, back in zip(held.admissions, expected, strict=True):
            admission.units -= back


def compare_verdict(verdict: Verdict, asks: Sequence[Ask], expected: Sequence[Expected], now: Micros) -> None:
    """Raise AssertionError unless the verdict and all its decisions are what they must be."""
    decisions = verdict.decisions
    assert len(decisions) == len(asks), f"{len(asks)} asks, {len(decisions)} decisions"
    for decision, ask, right in zip(decisions, asks, expected, strict=True):
        _compare_decision(decision, ask, right, now)
    refused = [e for e, ask in zip(expected, asks, strict=True) if not e.allowed and not ask.advisory]
    assert verdict.allowed == bool(verdict) == (not refused), f"{verdict!r}: {len(refused)} enforced asks refuse"
    assert verdict.retry_after_us == max((e.retry_after_us for e in refused), default=0), f"{verdict!r}: retry_after"
    assert verdict.delay_us == 0
    _check_tightest(verdict)


def _compare_decision(decision: Decision, ask: Ask, right: Expected, now: Micros) -> None:
    got = Expected(
        decision.allowed,
        decision.remaining,
        decision.retry_after_us,
        decision.reset_after_us,
        decision.more_after_us,
        None,
    )
    assert got == right._replace(charged=None), (
        f"{ask.quota} of cost {ask.cost} at {now} (window {divmod(now, ask.quota.period_us)}):\n"
        + "\n".join(
            f"  {name}: expected {must}, got {is_}"
            for name, must, is_ in zip(Expected._fields, right, got, strict=True)
            if must != is_ and name != "charged"
        )
    )
    named = decision.key, decision.quota, decision.cost, decision.advisory, decision.at_us, decision.delay_us
    assert named == (*ask, now, 0), f"decision on {(*ask, now, 0)} names {named}"


def _check_tightest(verdict: Verdict) -> None:
    """The verdict speaks for the refused ask that waits longest, else for the one with the smallest share left.

    An interval speaks only where it refused or stands alone: after an admission it never has anything left.
    """
    enforced = [d for d in verdict.decisions if not d.advisory] or list(verdict.decisions)
    refused = [d for d in enforced if not d.allowed and not d.advisory]
    if refused:
        tightest = [d for d in refused if d.retry_after_us == verdict.retry_after_us]
    else:
        budgets = [d for d in enforced if d.quota.algorithm != MIN_INTERVAL] or enforced
        least = min(d.remaining / d.quota.capacity for d in budgets)
        tightest = [d for d in budgets if d.remaining / d.quota.capacity == least]
    told = verdict.key, verdict.quota, verdict.cost, verdict.remaining, verdict.reset_after_us, verdict.more_after_us
    assert any(told == (d.key, d.quota, d.cost, d.remaining, d.reset_after_us, d.more_after_us) for d in tightest), (
        f"{verdict!r} does not speak for its tightest ask"
    )

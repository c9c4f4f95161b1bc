"""A store and the oracle side by side: every operation goes to both, and every field of every outcome must agree.

Beside that, all that was admitted is kept as history, so that each algorithm's promise can be checked on it in the end.
Marks and the names of records are the store's own business, and never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from penstock.clock import ManualClock, Micros
from penstock.engine.protocols import Store
from penstock.model import Acquire, Amend, Amended, Ask, Charge, Decision, Grant, Key, Op, Outcome, Receipt, Verdict
from penstock.quota import CONCURRENCY, MIN_INTERVAL, Identity, Quota
from penstock.testing.oracle import Answered, Charged, Expected, Oracle
from penstock.testing.promises import AdmittedUnits, History


@dataclass(eq=False, slots=True)
class Held:
    """A receipt of the store, and what the oracle and the history know it as."""

    receipt: Receipt
    charged: Charged
    admissions: tuple[AdmittedUnits, ...]

    @property
    def has_place(self) -> bool:
        return any(ask.quota.algorithm == CONCURRENCY for ask in self.charged.asks)


@dataclass
class SideBySide:
    """Runs operations on `store` and compares; `held` are the receipts that can still be amended."""

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

    def acquire(self, *asks: Ask, dry: bool = False, id: bytes | None = None) -> Verdict:
        """One request."""
        (verdict,) = self.run(Acquire(asks, dry, id))
        assert isinstance(verdict, Verdict)
        return verdict

    def check_promises(self) -> None:
        """Every algorithm's promise, over every span of what was admitted since this was last checked."""
        for history in self._histories.values():
            history.check()
        self._histories.clear()

    def forget_receipts(self, key: Key, quota: Quota) -> None:
        """Drop receipts that name a counter; after a reset nothing of them is charged any more."""
        name = key, quota.identity
        self.held = [h for h in self.held if all((a.key, a.quota.identity) != name for a in h.charged.asks)]

    def _compare(self, op: Op, outcome: Outcome) -> None:
        if isinstance(op, Acquire):
            answered = self.oracle.acquire(op.asks, self.now, dry=op.dry, id=op.id)
            assert isinstance(outcome, Verdict), f"{op}: expected a verdict, got {outcome!r}"
            compare_verdict(outcome, op.asks, answered.expected, answered.at)
            self._hold(outcome, answered)
        elif isinstance(op, Grant):
            answered = self.oracle.grant(op, self.now)
            assert isinstance(outcome, Verdict), f"{op}: expected a verdict, got {outcome!r}"
            asked = answered.charged.asks or (Ask(op.key, op.quota, op.least),)
            compare_verdict(outcome, asked, answered.expected, answered.at)
            self._hold(outcome, answered)
        elif isinstance(op, Amend):
            self._compare_amended(op, outcome)
        else:
            self.oracle.reset(op.key, op.quota)
            self._histories.pop((op.key, op.quota.identity), None)
            self.forget_receipts(op.key, op.quota)
            assert outcome == Amended(), f"{op}: got {outcome!r}"

    def _hold(self, verdict: Verdict, answered: Answered) -> None:
        asks = answered.charged.asks
        charges = verdict.receipt.charges if verdict.receipt else ()
        named = [Charge(ask.key, ask.quota, ask.cost, 0) for ask in asks]
        assert [c._replace(mark=0) for c in charges] == named, f"receipt: expected {named}, got {charges}"
        if verdict.receipt is None:
            return
        if answered.again:
            admissions = next(h.admissions for h in self.held if h.charged is answered.charged)
        else:
            charged = [e for e in answered.expected if e.charged is not None]
            admissions = tuple(
                self._history(ask).admit(ask.quota, ask.cost, self.now + e.delay_us)
                for ask, e in zip(asks, charged, strict=True)
            )
        self.held.append(Held(verdict.receipt, answered.charged, admissions))

    def _history(self, ask: Ask) -> History:
        return self._histories.setdefault((ask.key, ask.quota.identity), History(ask.quota))

    def _compare_amended(self, op: Amend, outcome: Outcome) -> None:
        if op.verb == "report":  # admitted elsewhere: no promise of this store is about it
            reported = Amended(self.oracle.report(op.receipt.charges, self.now))
            assert outcome == reported, f"{op.verb} {op}: expected {reported}, got {outcome!r}"
            return
        held = next(h for h in self.held if h.receipt is op.receipt)
        if op.verb == "refund" and not held.charged.has_id:
            self.held.remove(held)  # without a record, a second refund would go unnoticed
        expected = self._amended(op, held.charged)
        assert outcome == Amended(expected), f"{op.verb} {op}: expected {Amended(expected)}, got {outcome!r}"
        for ask, admission, back in zip(held.charged.asks, held.admissions, expected, strict=True):
            if op.verb != "renew":
                admission.give_back(max(back, 0), self.now)
            elif back:
                admission.until = self.now + ask.quota.period_us

    def _amended(self, op: Amend, charged: Charged) -> tuple[int, ...]:
        if op.verb == "refund":
            return self.oracle.refund(charged, op.units, self.now)
        if op.verb == "settle":
            return self.oracle.settle(charged, cast("int", op.units), self.now)
        return (self.oracle.release if op.verb == "release" else self.oracle.renew)(charged, self.now)


def compare_verdict(verdict: Verdict, asks: Sequence[Ask], expected: Sequence[Expected], at: Micros) -> None:
    """Raise AssertionError unless the verdict and all its decisions are what they must be."""
    decisions = verdict.decisions
    assert len(decisions) == len(asks), f"{len(asks)} asks, {len(decisions)} decisions"
    for decision, ask, right in zip(decisions, asks, expected, strict=True):
        _compare_decision(decision, ask, right, at)
    enforced = [e for e, ask in zip(expected, asks, strict=True) if not ask.advisory]
    refused = [e for e in enforced if not e.allowed]
    assert verdict.allowed == bool(verdict) == (not refused), f"{verdict!r}: {len(refused)} enforced asks refuse"
    assert verdict.retry_after_us == max((e.retry_after_us for e in refused), default=0), f"{verdict!r}: retry_after"
    delay = 0 if refused else max(e.delay_us for e in enforced or expected)
    assert verdict.delay_us == delay, f"{verdict!r}: expected a delay of {delay}, got {verdict.delay_us}"
    _check_tightest(verdict)


def _compare_decision(decision: Decision, ask: Ask, right: Expected, at: Micros) -> None:
    got = Expected(*decision.answer[:6])
    assert got == right._replace(charged=None), (
        f"{ask.quota} of cost {ask.cost} at {at} (window {divmod(at, ask.quota.period_us)}):\n"
        + "\n".join(
            f"  {name}: expected {must}, got {is_}"
            for name, must, is_ in zip(Expected._fields, right, got, strict=True)
            if must != is_ and name != "charged"
        )
    )
    named = decision.key, decision.quota, decision.cost, decision.advisory, decision.at_us
    assert named == (*ask, at), f"decision on {(*ask, at)} names {named}"


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

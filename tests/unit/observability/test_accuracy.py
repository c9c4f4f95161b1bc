"""The accuracy sampler tells what it knows: over is evidence, under needs a log without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock import Limiter, ManualClock, Quota
from penstock.clock import SECOND, Micros
from penstock.model import Key, Verdict
from penstock.observability import accuracy
from penstock.observability.accuracy import Account, Judge, Observed, Sampler, Seen, counter_of, is_measured
from penstock.observability.metrics import Metrics
from penstock.observability.shared import prepare
from penstock.stores.memory.store import MemoryStore
from tests.unit.observability.support import Samples, enforcer

MINUTE: Micros = 60 * SECOND
T: Micros = 1_700_000_000 * SECOND
SECRET = b"of-the-test"


def seen(at: Micros, *, admitted: bool = True, cost: int = 1, counter: int = 1, limit: int = 2) -> Seen:
    return Seen(T + at, counter, "api", limit, MINUTE, cost, admitted)


def judged(*all_seen: Seen, complete: bool = True) -> Account:
    judge = Judge(complete=complete)
    for one in all_seen:
        judge.see(one)
    return judge.accounts["api"]


# ---------------------------------------------------------------- judging


def test_decisions_within_the_limit_are_neither_over_nor_under() -> None:
    account = judged(seen(0), seen(1), seen(2, admitted=False), seen(MINUTE + 1), seen(MINUTE + 2))
    assert (account.admitted, account.over, account.under) == (4, 0, 0)


def test_units_beyond_the_limit_are_over() -> None:
    assert judged(seen(0), seen(1), seen(2), seen(3)).over == 2
    assert judged(seen(0, cost=2, limit=4), seen(1, cost=3, limit=4)).over == 1
    assert judged(seen(0, cost=5, limit=4)).over_ratio == pytest.approx(0.2)


def test_a_window_ends_at_its_end() -> None:
    """(t − period, t]: what was admitted exactly a period ago no longer counts."""
    assert judged(seen(0), seen(1), seen(MINUTE)).over == 0
    assert judged(seen(0), seen(1), seen(MINUTE - 1)).over == 1


def test_a_refusal_that_was_not_needed_is_under() -> None:
    account = judged(seen(0), seen(2 * MINUTE, admitted=False), seen(2 * MINUTE + 1, admitted=False, cost=3, limit=2))
    assert (account.refused, account.under) == (4, 1)
    assert account.under_ratio == 0.25


def test_no_refusal_counts_as_under_before_a_key_was_sampled_for_a_period() -> None:
    """Earlier use of the key is unknown."""
    account = judged(seen(0, admitted=False), seen(MINUTE - 1, admitted=False))
    assert (account.refused, account.under) == (0, 0)
    assert judged(seen(0, admitted=False), seen(MINUTE, admitted=False)).under == 1


def test_after_a_gap_under_has_to_wait_again() -> None:
    judge = Judge(complete=True)
    judge.see(seen(0))
    judge.gap(T + 2 * MINUTE)
    judge.see(seen(2 * MINUTE + 5, admitted=False))
    assert judge.accounts["api"].under == 0
    judge.see(seen(3 * MINUTE + 5, admitted=False))
    assert judge.accounts["api"].under == 1


def test_one_of_several_hosts_never_counts_under() -> None:
    account = judged(seen(0), seen(2 * MINUTE, admitted=False), complete=False)
    assert (account.refused, account.under) == (0, 0)


def test_keys_and_logs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MAX_ENTRIES", 10)
    judge = Judge(complete=True, max_keys=3)
    for counter in range(100):
        judge.see(seen(counter, counter=counter))
    assert judge.keys == 3
    for at in range(1_000):
        judge.see(seen(100 + at, counter=99, limit=5_000))
    assert len(judge._logs[99].entries) == 10
    judge.see(seen(1_100 + MINUTE - 200, counter=99, limit=5_000, admitted=False))
    assert judge.accounts["api"].under == 0  # it has gaps, and knows it


# ---------------------------------------------------------------- seeing


def everything() -> Observed:
    return Observed(SECRET, share=1)


def test_a_sample_is_the_same_everywhere_and_as_large_as_it_should_be() -> None:
    clock = ManualClock()
    verdict = Limiter(MemoryStore(clock=clock), clock=clock).acquire("k", "5/minute")
    texts: list[Key] = [f"user-{n}" for n in range(50_000)]
    tuples: list[Key] = [("rule", f"ip={n}") for n in range(50_000)]
    for keys, first in ((texts, 12), (tuples, 22)):
        observed = Observed(SECRET, share=64)
        observed.decided([Verdict((*verdict[:2], key, *verdict[3:])) for key in keys], 0)
        assert 600 < len(observed.seen) < 1_000  # 781 expected
        assert observed.seen[0].counter == counter_of(keys[first], verdict.quota, SECRET)


def test_each_decision_is_seen_by_its_own_rule() -> None:
    clock, observed = ManualClock(), everything()
    rules = enforcer(
        clock,
        {"id": "wide", "match": {"path": "/v1"}, "quota": "5/minute"},
        {"id": "narrow", "match": {"path": "/v1"}, "quota": "1/minute rolling_window"},
        {"id": "bucket", "match": {"path": "/v1"}, "quota": "9/minute gcra"},
        {"id": "trial", "match": {"path": "/v1"}, "quota": "1/hour", "mode": "shadow"},
    )
    for _ in range(2):
        observed.decided([rules.check({"path": "/v1", "ip": "192.0.2.7"})], 0)
    assert [(one.rule, one.admitted, one.limit) for one in observed.seen] == [
        ("wide", True, 5),
        ("narrow", True, 1),
        ("narrow", False, 1),  # wide did not refuse, and was not charged
    ]
    assert "192.0.2.7" not in repr(observed.seen)


def test_peeks_and_requests_without_counters_are_not_sampled() -> None:
    clock, observed = ManualClock(), everything()
    rules = enforcer(clock, {"id": "bad", "action": "deny", "match": {"path": "/bad"}})
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    observed.decided([rules.check({"path": "/bad"}), rules.check({"path": "/"}), limiter.peek("k", "5/minute")], 0)
    assert not observed.seen


def test_requests_admitted_while_the_store_was_gone_count_as_admitted() -> None:
    clock, observed = ManualClock(), everything()
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    free = limiter.peek("k", "5/minute")
    observed.decided([Verdict((*free[:6], None, "open"))], 0)
    assert [one.admitted for one in observed.seen] == [True]


def test_quotas_with_other_promises_are_not_sampled() -> None:
    texts = ("5/minute", "5/minute fixed_window", "5/minute gcra", "5/minute penalty 1m", "5/minute count denied")
    assert [is_measured(Quota.parse(text)) for text in texts] == [True, True, False, False, False]


# ---------------------------------------------------------------- together


def told(sampler: Sampler, quota: str, admit: Sequence[bool], clock: ManualClock, key: str = "k") -> None:
    """Decisions of a limiter that does as it is told: the others only look at its answers."""
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    for yes in admit:
        verdict = limiter.acquire(f"{key}", quota)
        answer = (yes, *verdict[0][1:6], 7 if yes else -1)
        sampler.decided([Verdict((answer, *verdict[1:]))], 0)


def both(*samplers: Sampler) -> list[bytes]:
    return [sampler.publish() for sampler in samplers]


def test_workers_are_judged_together() -> None:
    """Two workers that each admit the whole limit: neither could see it alone."""
    clock = ManualClock()
    first, second = (Sampler(SECRET, complete=True, share=1) for _ in range(2))
    first.hear(both(first, second))
    told(first, "2/minute", [True, True], clock)
    clock.advance(1)
    told(second, "2/minute", [True, True], clock)
    first.hear(both(first, second))
    assert first.judge.accounts == {}  # it has not settled yet
    clock.advance(4)
    told(second, "2/minute", [False], clock, key="other")
    first.hear(both(first, second))
    assert (first.judge.accounts["-"].admitted, first.judge.accounts["-"].over) == (4, 2)
    first.hear(both(first, second))
    assert first.judge.accounts["-"].admitted == 4  # nothing is heard twice


def test_a_new_leader_does_not_evaluate_decisions_again() -> None:
    clock = ManualClock()
    worker, successor = (Sampler(SECRET, complete=True, share=1) for _ in range(2))
    told(worker, "2/minute", [True] * 4, clock)
    clock.advance(3.5)
    told(worker, "2/minute", [True], clock)
    successor.hear(both(worker, successor))
    clock.advance(3.5)
    told(worker, "2/minute", [True], clock)
    successor.hear(both(worker, successor))
    assert successor.judge.accounts["-"].admitted == 1


def test_missed_decisions_are_a_gap() -> None:
    """After decisions were missed, it is unknown for a period whether a refusal was needed."""
    clock = ManualClock()
    worker = Sampler(SECRET, complete=True, share=1)
    worker.observed._most = 3
    worker.hear(both(worker))
    for wait, admit in ((70, [True]), (70, [True] * 9), (10, [False]), (70, [False]), (10, [True])):
        clock.advance(wait)
        told(worker, "20/minute", admit, clock)
        worker.hear(both(worker))
    account = worker.judge.accounts["-"]
    assert (account.admitted, account.refused, account.under) == (4, 1, 1)


def test_the_figures_are_exported_by_scope() -> None:
    for complete, scope in ((True, "all"), (False, "host")):
        clock = ManualClock()
        sampler = Sampler(SECRET, complete=complete, share=1)
        metrics = Metrics(clock=clock)
        metrics.watch(sampler=sampler)
        told(sampler, "2/minute", [True] * 5, clock)
        clock.advance(5)
        told(sampler, "2/minute", [True], clock)
        sampler._judged_until = 0
        sampler.hear([sampler.publish()])
        text = Samples(metrics.text())
        assert text.of("penstock_accuracy_admitted_units_total", rule="-", scope=scope) == 5
        assert text.of("penstock_accuracy_over_units_total", rule="-", scope=scope) == 3
        assert (text.of("penstock_accuracy_under_units_total", rule="-", scope=scope) is None) is not complete
        assert text.of("penstock_accuracy_keys") == 1
        metrics.close()


def test_workers_hear_each_other_through_the_directory(tmp_path: Path) -> None:
    """Each admits no more than the limit, and together they admit twice as much."""
    clock, directory = ManualClock(), prepare(tmp_path)
    workers = [Metrics(directory, name, clock=clock) for name in "01"]
    samplers = [Sampler(SECRET, complete=True, share=1) for _ in workers]
    for metrics, sampler in zip(workers, samplers, strict=True):
        metrics.watch(sampler=sampler)
        metrics._exchange(metrics.snapshot())
    for wait in (5, 5, 5):
        clock.advance(wait)
        for metrics, sampler in zip(workers, samplers, strict=True):
            told(sampler, "2/second", [True, True], clock)
            metrics._exchange(metrics.snapshot())
    for _ in range(2):  # once to judge, and once to write what came of it
        workers[0]._exchange(workers[0].snapshot())
    text = Samples(workers[1].text())
    assert text.of("penstock_accuracy_admitted_units_total", rule="-", scope="all") == 8
    assert text.of("penstock_accuracy_over_units_total", rule="-", scope="all") == 4
    for metrics in workers:
        metrics.close()


class Leaky:
    """A limiter that forgets: one admission in ten is not counted. The negative control."""

    def __init__(self, limit: int) -> None:
        self.limit, self.asked, self.log = limit, 0, list[Micros]()

    def acquire(self, now: Micros) -> bool:
        self.asked += 1
        self.log = [at for at in self.log if at > now - MINUTE]
        if len(self.log) >= self.limit:
            return False
        if self.asked % 10:
            self.log.append(now)
        return True


def test_a_limiter_that_forgets_counts_is_detected() -> None:
    limiter, judge = Leaky(50), Judge(complete=True)
    for step in range(1_000):
        now = step * SECOND // 4
        judge.see(seen(now, admitted=limiter.acquire(T + now), limit=50))
    assert judge.accounts["api"].over_ratio > 0.05
    assert judge.accounts["api"].under == 0


# ---------------------------------------------------------------- bounds


def test_the_sampler_continues_after_a_flood_on_a_sampled_key() -> None:
    """What is published is bounded. Once that was full of one moment's decisions, nothing ever made room again."""
    clock = ManualClock()
    limiter = Limiter(MemoryStore(clock=clock), clock=clock)
    sampler = Sampler(SECRET, complete=True, share=1)
    for _ in range(accuracy.MAX_SEEN + 10):
        sampler.decided([limiter.acquire("alice", "2/second")], 1)
    sampler.hear([sampler.publish()])
    assert sampler.observed.missed == 10
    for _ in range(3):
        clock.advance(10)
        sampler.decided([limiter.acquire("alice", "2/second")], 1)
        sampler.hear([sampler.publish()])
    assert sampler.observed.missed == 10
    assert sampler.judge.accounts["-"].admitted >= 2 + 2, "the flood, and all but the last after it"


def test_the_logs_of_all_keys_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MAX_ENTRIES_IN_ALL", 10)
    judge = Judge(complete=True)
    for counter, times in ((1, 5), (2, 6)):
        for at in range(times):
            judge.see(seen(at, counter=counter, limit=100))
    assert judge.keys == 1, "the quiet one made way"
    judge.see(seen(7, counter=2, limit=6))
    assert judge.accounts["api"].over == 1, "the log of the other is whole"

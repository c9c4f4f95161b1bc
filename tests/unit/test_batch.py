"""Batches of operations: groups by deadline, errors, and what an observer hears."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock import Limiter, ManualClock
from penstock.engine import batch as module
from penstock.engine.batch import INTERNAL_FAILURE, Batch, Gather, time_left
from penstock.engine.protocols import Done, Unobserved
from penstock.errors import InvalidRequest
from penstock.model import Failed, Op, Outcome, Verdict


class RecordingEngine:
    """Runs operations at once, over memory, and keeps what it was handed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.limiter = Limiter(clock=ManualClock())
        self.sent: list[tuple[int, int | None]] = []
        self._error = error

    def submit(self, ops: Sequence[Op], deadline: int | None, done: Done) -> None:
        self.sent.append((len(ops), deadline))
        done(self._error or self.limiter.engine.run(ops))

    def op(self, key: str) -> Op:
        return self.limiter.operations.acquire(key, "2/minute")


def batch_on(engine: RecordingEngine, observer: Any = None) -> Batch:
    return Batch(engine, observer or Unobserved())  # type: ignore[arg-type]


def test_operations_of_one_deadline_are_sent_together_and_outcomes_go_to_their_callers() -> None:
    engine = RecordingEngine()
    batch = batch_on(engine)
    outcomes: dict[str, list[bool]] = {}

    def add(name: str, deadline: int, number: int) -> None:
        batch.add([engine.op(name)] * number, deadline, lambda got: outcomes.update({name: [*map(bool, got)]}))

    add("a", 3_000, 3)
    add("b", 1_000, 1)
    add("c", 3_000, 2)
    batch.run()
    assert engine.sent == [(5, 3_000), (1, 1_000)]
    assert outcomes == {"a": [True, True, False], "b": [True], "c": [True, True]}


def test_exception_of_the_engine_is_a_failure_of_each_operation() -> None:
    engine = RecordingEngine(error=InvalidRequest("alice"))
    batch, outcomes = batch_on(engine), list[Outcome]()
    batch.add([engine.op("a")] * 2, 1_000, outcomes.extend)
    batch.add([engine.op("b")], 1_000, outcomes.extend)
    batch.run()
    assert [type(outcome) for outcome in outcomes] == [Failed] * 3
    assert "alice" not in str(outcomes)


def test_error_of_the_observer_costs_no_caller_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Unobserved):
        def decided(self, verdicts: Sequence[Verdict], took: int) -> None:
            raise ZeroDivisionError

    engine = RecordingEngine()
    batch = batch_on(engine, Broken())
    answered: list[Outcome] = []

    def then(outcomes: Sequence[Outcome]) -> None:
        answered.extend(outcomes)
        batch.decided.extend(outcome for outcome in outcomes if isinstance(outcome, Verdict))

    batch.decided.append(engine.limiter.acquire("a", "2/minute"))
    for deadline in (1_000, 2_000):
        batch.add([engine.op("b")], deadline, then)
    batch.run()
    assert len(answered) == 2
    assert caplog.text.count("an internal error while reporting: ZeroDivisionError") == 3


def test_error_of_one_callback_is_told_to_it_and_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = RecordingEngine()
    batch = batch_on(engine)
    got: list[Sequence[Outcome]] = []

    def broken(outcomes: Sequence[Outcome]) -> None:
        got.append(outcomes)
        raise RuntimeError

    batch.add([engine.op("a")], 1_000, broken)
    batch.add([engine.op("b")], 1_000, got.append)
    batch.run()
    assert [type(outcomes[0]) for outcomes in got] == [Verdict, Failed, Verdict]
    assert got[1][0] is INTERNAL_FAILURE
    assert "RuntimeError" in caplog.text


def test_observer_hears_of_a_group_once_and_of_an_empty_batch_never() -> None:
    class Observer:
        def __init__(self) -> None:
            self.heard: list[tuple[str, int]] = []

        def decided(self, verdicts: Sequence[Verdict], took: int) -> None:
            self.heard.append(("decided", len(verdicts)))

        def answered(self, route: str, statuses: Sequence[int], took: int) -> None:
            self.heard.append((route, len(statuses)))

    engine, observer = RecordingEngine(), Observer()
    batch_on(engine, observer).run()
    assert observer.heard == []
    batch = batch_on(engine, observer)

    def answer(outcomes: Sequence[Any]) -> None:
        batch.decided.extend(outcomes)
        batch.statuses["check"].append(200)

    for key in "abc":
        batch.add([engine.op(key)], 1_000, answer)
    batch.run()
    assert observer.heard == [("decided", 3), ("check", 3)]


def test_gather_hands_over_results_in_order_with_the_last() -> None:
    done: list[list[Any]] = []
    gather = Gather(3, lambda results: done.append([*results]))
    gather.put(2, "c")
    gather.put(0, "a")
    assert done == []
    gather.put(1, "b")
    assert done == [["a", "b", "c"]]
    gather.put(1, "again")
    assert done[1:] == [["a", "again", "c"]]


def test_gather_of_nothing_is_done_at_once() -> None:
    done: list[list[Any]] = []
    Gather(0, done.append)
    assert done == [[]]


def test_time_left_is_the_budget_or_what_the_caller_waits_in_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "monotonic", lambda: 100.0)
    assert time_left(3_000, None) == 3_000
    assert time_left(3_000, 100.1) == 3_000
    assert time_left(20_000, 100.0105) == 9_000
    assert time_left(20_000, 99.0) == 1_000

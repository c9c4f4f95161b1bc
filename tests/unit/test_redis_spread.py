"""Operations over partitions: each partition here is a memory store of its own, so nothing but the spreading is new."""

from collections.abc import Sequence

import pytest

from penstock.clock import SECOND, ManualClock
from penstock.errors import StoreError
from penstock.model import Acquire, Amend, Amended, Ask, Charge, Failed, Key, Op, Outcome, Receipt, Reset, Verdict
from penstock.quota import Quota
from penstock.stores.memory.store import MemoryStore
from penstock.stores.redis.codec import Part
from penstock.stores.redis.scatter import MAX_OPS, Groups, Undivided, one_partition, spread

RATE = Quota.parse("3/minute fixed_window")
DOWN = Failed(StoreError("down", transient=True), "no")
LOST = Failed(StoreError("lost", transient=True), "unknown")


class ByFirstLetter:
    """The partition of a key is its first letter; a record names the store's own, behind the letter."""

    def of_counter(self, key: Key, quota: Quota) -> int:
        return ord(key[0])

    def of_record(self, record: str) -> int:
        return ord(record[0])


class Partitioned:
    """A store of many partitions. What is in `answers` is answered instead of asking a partition."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stores: dict[int, MemoryStore] = {}
        self.answers: dict[str, Failed] = {}
        self.steps: list[Groups] = []

    def run(self, *ops: Op) -> list[Outcome]:
        spreading = spread(ops, ByFirstLetter())
        try:
            step = next(spreading)
            while True:
                self.steps.append(step)
                step = spreading.send([self._ask(partition, group) for partition, group in step])
        except StopIteration as end:
            outcomes: list[Outcome] = end.value
            return outcomes

    def _ask(self, partition: int, ops: Sequence[Part | Op]) -> list[Outcome]:
        if chr(partition) in self.answers:
            return [self.answers[chr(partition)]] * len(ops)
        store = self.stores.setdefault(partition, MemoryStore(clock=self.clock))
        plain = [Acquire(op.asks, id=op.id) if isinstance(op, Part) else _without_letter(op) for op in ops]
        return [_with_letter(outcome, chr(partition)) for outcome in store.run(plain)]

    def left(self, key: str, quota: Quota = RATE) -> int:
        (verdict,) = self.run(Acquire((Ask(key, quota, 0),), dry=True))
        assert isinstance(verdict, Verdict)
        return verdict.remaining


def _without_letter(op: Op) -> Op:
    if isinstance(op, Amend) and op.receipt.record is not None:
        return op._replace(receipt=op.receipt._replace(record=op.receipt.record[1:]))
    return op


def _with_letter(outcome: Outcome, letter: str) -> Outcome:
    if isinstance(outcome, Verdict) and len(outcome) > 6:
        return Verdict((*outcome[:6], letter + str(outcome[6])))
    return outcome


def request(*keys: str, quota: Quota = RATE, cost: int = 1, id: bytes | None = None) -> Acquire:
    return Acquire(tuple(Ask(key, quota, cost) for key in keys), id=id)


@pytest.fixture
def store() -> Partitioned:
    return Partitioned()


def test_operations_of_one_partition_go_there_as_they_are(store: Partitioned) -> None:
    ops: list[Op] = [request("ann"), request("bob"), request("amy"), Reset("bob", RATE)]
    assert len(store.run(*ops)) == 4
    (groups,) = store.steps
    assert dict(groups) == {ord("a"): [ops[0], ops[2]], ord("b"): [ops[1], ops[3]]}


def test_a_request_that_spans_partitions_is_charged_in_all_of_them_at_once(store: Partitioned) -> None:
    (verdict,) = store.run(request("ann", "bob", "amy"))
    assert isinstance(verdict, Verdict)
    assert [decision.key for decision in verdict.decisions] == ["ann", "bob", "amy"]
    assert verdict
    assert len(store.steps) == 1
    assert [store.left(key) for key in ("ann", "bob", "amy")] == [2, 2, 2]


def test_where_one_refuses_the_others_are_given_back(store: Partitioned) -> None:
    store.run(*[request("bob")] * 3)
    (verdict,) = store.run(request("ann", "bob"))
    assert isinstance(verdict, Verdict)
    assert not verdict
    assert verdict.receipt is None
    assert [(decision.allowed, decision.remaining) for decision in verdict.decisions] == [(True, 3), (False, 0)]
    ((_, undone),) = store.steps[-1]
    assert [type(op) for op in undone] == [Amend, Acquire], "a refund, and a peek"
    assert store.left("ann") == 3


@pytest.mark.parametrize(("failure", "charged"), [(DOWN, "no"), (LOST, "unknown")])
def test_where_one_fails_the_others_are_given_back(store: Partitioned, failure: Failed, charged: str) -> None:
    store.answers["b"] = failure
    (outcome,) = store.run(request("ann", "bob"))
    assert outcome == (failure.error, charged)
    assert store.left("ann") == 3


def test_a_refusal_stands_whatever_else_failed(store: Partitioned) -> None:
    store.run(*[request("bob")] * 3)
    store.answers["c"] = DOWN
    (verdict,) = store.run(request("ann", "bob", "cat"))
    assert isinstance(verdict, Verdict)
    assert (verdict.key, bool(verdict)) == ("bob", False)
    assert [decision.allowed for decision in verdict.decisions] == [True, False, False]
    assert store.left("ann") == 3


def test_one_partition_that_fails_fails_its_own_operations_alone(store: Partitioned) -> None:
    store.answers["b"] = DOWN
    one, two, three = store.run(request("ann"), request("bob"), request("cat"))
    assert one
    assert two == DOWN
    assert three


def test_what_was_charged_and_cannot_be_given_back_has_no_receipt(store: Partitioned) -> None:
    spreading = spread([request("ann", "bob")], ByFirstLetter())
    next(spreading)
    full = MemoryStore(clock=store.clock)
    spreading.send([store._ask(ord("a"), [request("ann")]), full.run([request("bob")] * 4)[-1:]])
    with pytest.raises(StopIteration) as end:
        spreading.send([[DOWN, DOWN]])
    (verdict,) = end.value.value
    assert not verdict
    assert verdict.receipt is None


def test_a_dry_run_that_spans_partitions_gives_nothing_back(store: Partitioned) -> None:
    store.run(*[request("bob")] * 3)
    store.steps.clear()
    (verdict,) = store.run(request("ann", "bob")._replace(dry=True))
    assert isinstance(verdict, Verdict)
    assert [decision.allowed for decision in verdict.decisions] == [True, False]
    assert len(store.steps) == 1


def test_a_refund_finds_its_way_to_all_partitions(store: Partitioned) -> None:
    (verdict,) = store.run(request("ann", "bob", cost=2))
    assert isinstance(verdict, Verdict)
    assert verdict.receipt is not None
    assert store.run(Amend(verdict.receipt, "refund", 1)) == [Amended((1, 1))]
    assert [store.left(key) for key in ("ann", "bob")] == [2, 2]


def test_flat_counters_stay_charged_until_the_last_unit_comes_back(store: Partitioned) -> None:
    """Although in a partition of their own they do not see what the request cost."""
    place = Quota.parse("3 concurrent ttl 1m")
    (verdict,) = store.run(Acquire((Ask("ann", RATE, 2), Ask("bob", place, 1))))
    assert isinstance(verdict, Verdict)
    assert verdict.receipt is not None
    store.run(Amend(verdict.receipt, "refund", 1))
    assert (store.left("ann"), store.left("bob", place)) == (2, 2)
    store.run(Amend(verdict.receipt, "refund"))
    assert store.left("bob", place) == 3


def test_a_report_goes_to_the_partitions_of_its_charges(store: Partitioned) -> None:
    now = store.clock.micros
    charges = [Charge(key, RATE, cost, now) for key, cost in (("ann", 1), ("bob", 2), ("ann", 1))]
    late = Charge("bob", RATE, 1, now - 61 * SECOND)
    assert store.run(Amend(Receipt((*charges, late)), "report")) == [Amended((-1, -2, -1, 0))]
    assert [store.left(key) for key in ("ann", "bob")] == [1, 1]


def test_a_request_with_an_id_has_a_record_in_each_partition(store: Partitioned) -> None:
    first, again = store.run(request("ann", "bob", id=b"1"), request("ann", "bob", id=b"1"))
    assert isinstance(first, Verdict)
    assert again == first
    assert first.receipt is not None
    assert first.receipt.record is not None
    assert [record[0] for record in first.receipt.record.split()] == ["a", "b"]
    assert store.run(Amend(first.receipt, "settle", 3)) == [Amended((-2, -2))]
    assert store.run(Amend(first.receipt, "settle", 1)) == [Amended((0, 0))]
    assert [store.left(key) for key in ("ann", "bob")] == [0, 0]


def test_a_request_with_an_id_that_is_undone_leaves_no_record(store: Partitioned) -> None:
    store.run(*[request("bob")] * 3)
    assert not store.run(request("ann", "bob", id=b"1"))[0]
    store.run(Reset("bob", RATE))
    assert store.run(request("ann", "bob", id=b"1"))[0]
    assert [store.left(key) for key in ("ann", "bob")] == [2, 2]


def test_an_advisory_ask_that_did_not_fit_has_a_record_that_ends_with_the_others(store: Partitioned) -> None:
    shadow = Ask("bob", RATE, 2, advisory=True)
    store.run(Acquire((shadow._replace(advisory=False),)))
    op = Acquire((Ask("ann", RATE, 2), shadow), id=b"1")
    (first,) = store.run(op)
    assert isinstance(first, Verdict)
    assert first.receipt is not None
    assert len(first.receipt.charges) == 1
    store.run(Amend(first.receipt, "refund"), Reset("bob", RATE))
    (second,) = store.run(op)
    assert isinstance(second, Verdict)
    assert second.decisions[1].allowed


def test_a_dry_run_waits_until_the_charges_are_undone(store: Partitioned) -> None:
    store.run(*[request("bob")] * 3)
    refused, peeked = store.run(request("ann", "bob"), Acquire((Ask("ann", RATE, 0),), dry=True))
    assert not refused
    assert isinstance(peeked, Verdict)
    assert peeked.remaining == 3


def test_others_that_charge_do_not_wait(store: Partitioned) -> None:
    store.run(request("ann", "bob"), request("ann"), request("bob", "ann"))
    assert len(store.steps) == 1


def test_a_long_batch_is_asked_in_portions_and_ends_where_one_fails(store: Partitioned) -> None:
    ops: list[Op] = [*[request("ann")] * (MAX_OPS + 1), request("bob")]
    assert len(store.run(*ops)) == MAX_OPS + 2
    assert [len(group) for step in store.steps for _, group in step] == [MAX_OPS, 1, 1]
    store.answers["a"] = LOST
    *_, last, bob = store.run(*ops)
    assert isinstance(last, Failed)
    assert (str(last.error), last.charged) == (
        "redis at the same partition: an earlier part of the batch was not answered",
        "no",
    )
    assert bob


def test_nothing_asked_is_nothing_answered(store: Partitioned) -> None:
    assert store.run() == []


def test_the_one_partition_of_many_operations_is_found() -> None:
    assert one_partition([request("ann"), request("amy", "ada")], ByFirstLetter()) == ord("a")
    assert one_partition([request("ann"), request("bob")], ByFirstLetter()) is None
    assert one_partition([request("ann")] * (MAX_OPS + 1), ByFirstLetter()) is None
    assert one_partition([], ByFirstLetter()) is None
    receipt = Receipt((), "a#record@1 b#record@2")
    assert one_partition([Amend(receipt, "refund")], ByFirstLetter()) is None
    assert one_partition([Amend(receipt, "refund"), request("ann", "bob")], Undivided()) == 0

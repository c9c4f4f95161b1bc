"""Deciding in batches: who waits for whom, and how long the store may take."""

import asyncio
from functools import partial
from typing import Any, NamedTuple

import pytest

from penstock import AsyncLimiter
from penstock.clock import monotonic
from penstock.enforcer import AsyncEnforcer
from penstock.engine.batch import Batch
from penstock.engine.protocols import Unobserved
from penstock.errors import InvalidCost, InvalidOption, PenstockError, StoreError
from penstock.events import Decided
from penstock.model import Failed
from penstock.rules.api_keys import AsyncKeyDirectory
from penstock.rules.parser import parse
from penstock.rules.ruleset import RuleSet
from penstock.rules.ruling import Ruling
from penstock.service.decisions import Decider, Result
from tests.unit.service.desk import RULES, Desk

ALICE = {"path": "/orders/1", "user": "alice"}


@pytest.fixture(params=[False, True], ids=["in this process", "shared"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(shared=request.param)


class Asked(NamedTuple):
    descriptor: dict[str, str]
    cost: int = 1
    id: str | None = None
    dry: bool = False


def begin(decider: Decider, *asked: Asked, expires: float | None = None) -> dict[int, Result]:
    """Check requests in one batch, and run it. The results come in by position, some when the store has answered."""
    batch = Batch(decider.engine, decider.observer)
    results: dict[int, Result] = {}
    for position, (descriptor, cost, id, dry) in enumerate(asked):
        then = partial(results.__setitem__, position)
        try:
            known = decider.check(batch, descriptor, cost, id, dry=dry, expires=expires, then=then)
        except PenstockError as error:
            then(error)
        else:
            if known is not None:
                then(known)
    batch.run()
    return results


def in_order(results: dict[int, Result], number: int) -> list[Result]:
    assert len(results) == number
    return [results[position] for position in range(number)]


def decide(desk: Desk, *asked: Asked) -> list[Result]:
    results = begin(desk.decider, *asked)
    desk.held.go()
    return in_order(results, len(asked))


def test_requests_are_decided_in_order_and_each_fails_alone(desk: Desk) -> None:
    first, wrong, peeked, blocked = decide(
        desk,
        Asked(ALICE, 2),
        Asked(ALICE, 0),
        Asked(ALICE, dry=True),
        Asked({"path": "/banned"}),
    )
    assert isinstance(first, Ruling)
    assert isinstance(peeked, Ruling)
    assert isinstance(blocked, Ruling)
    assert isinstance(wrong, InvalidCost)
    assert (first.remaining, peeked.remaining, blocked.reason) == (1, 1, "blocked")
    told = [verdict for decided in desk.observer.decisions for verdict in decided]
    assert {id(verdict) for verdict in told} == {id(first), id(blocked)}


def test_an_id_is_remembered(desk: Desk) -> None:
    first, again, other = decide(desk, Asked(ALICE, 1, "x"), Asked(ALICE, 1, "x"), Asked(ALICE))
    assert isinstance(first, Ruling)
    assert isinstance(again, Ruling)
    assert isinstance(other, Ruling)
    assert (first.remaining, again.remaining, other.remaining) == (2, 2, 1)


def test_an_empty_batch_runs_nothing() -> None:
    desk = Desk(shared=True)
    Batch(desk.decider.engine, desk.decider.observer).run()
    assert desk.held.waiting == []


def test_failure_of_the_store_is_an_error_of_its_request_alone() -> None:
    desk = Desk(shared=True)
    results = begin(desk.decider, Asked(ALICE), Asked({"path": "/banned"}))
    desk.held.go([Failed(StoreError("gone", transient=True), "no")])
    failed, blocked = in_order(results, 2)
    assert isinstance(failed, PenstockError)
    assert isinstance(blocked, Ruling)


def test_deadline_is_that_of_the_rule_or_the_budget_and_ends_before_the_caller_gives_up() -> None:
    rules = RULES + "  - {id: slow, match: {path: /slow}, key: user, quota: 1/s, deadline: 20ms}\n"
    desk = Desk(rules, shared=True)

    def deadline(path: str, left: float | None) -> int | None:
        expires = None if left is None else monotonic() + left
        begin(desk.decider, Asked({"path": path, "user": "a"}), expires=expires)
        ((_, deadline, _),) = desk.held.waiting
        desk.held.go()
        return deadline

    assert deadline("/orders/1", None) == 3_000
    assert deadline("/slow", None) == 20_000
    assert deadline("/orders/1", 60) == 3_000
    assert 1_000 <= (deadline("/slow", 0.010) or 0) <= 9_000
    assert deadline("/orders/1", -1) == 1_000


def test_short_deadline_of_one_caller_does_not_shorten_those_of_others() -> None:
    desk = Desk(shared=True)
    batch = Batch(desk.decider.engine, desk.decider.observer)
    results: list[Any] = []
    for expires in (None, monotonic() - 1, None):
        desk.decider.check(batch, ALICE, expires=expires, then=results.append)
    batch.run()
    assert sorted((deadline or 0, len(ops)) for ops, deadline, _ in desk.held.waiting) == [(1_000, 1), (3_000, 2)]
    desk.held.go()
    assert len(results) == 3


def test_error_while_answering_one_request_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(shared=True)
    batch = Batch(desk.decider.engine, desk.decider.observer)
    results: list[Any] = []

    def broken(result: object) -> None:
        if isinstance(result, Ruling):
            raise RuntimeError(ALICE["user"])
        results.append(result)

    desk.decider.check(batch, ALICE, then=broken)
    desk.decider.check(batch, ALICE, then=results.append)
    batch.run()
    desk.held.go()
    failed, ruling = results
    assert isinstance(failed, StoreError)
    assert isinstance(ruling, Ruling)
    assert "alice" not in caplog.text
    assert "RuntimeError" in caplog.text


def test_hooks_hear_of_decisions_and_not_of_peeks(desk: Desk) -> None:
    events: list[object] = []
    desk.decider.enforcer._hook = events.append
    decide(desk, Asked(ALICE), Asked(ALICE, dry=True), Asked({"path": "/banned"}))
    assert sorted(event.rule for event in events if isinstance(event, Decided)) == ["banned", "orders"]


class Counting:
    """A shedder that counts what it let in, and lets in so many."""

    def __init__(self, most: int) -> None:
        self.inside, self.most, self.retry_after = 0, most, 2.0
        self.priorities: list[str] = []

    def admit(self, priority: str) -> Any:
        self.priorities.append(priority)
        if self.inside >= self.most:
            return Refused()
        self.inside += 1
        return self

    def end(self) -> None:
        self.inside -= 1


class Refused:
    retry_after = 2.0

    def __bool__(self) -> bool:
        return False


def test_a_shedder_counts_requests_until_they_are_answered(desk: Desk) -> None:
    shedder = Counting(1)
    desk.decider.enforcer._shedder = shedder
    first, second = decide(desk, Asked(ALICE), Asked(ALICE))
    assert isinstance(first, Ruling)
    assert isinstance(second, Ruling)
    assert first.allowed
    assert second.reason == ("shed" if desk.decider.engine is not desk.limiter.engine else "")
    assert shedder.inside == 0


def test_asynchronous_directory_is_refused() -> None:
    async def nobody(_: bytes) -> None:
        return None

    limiter = AsyncLimiter()
    directory = AsyncKeyDirectory(nobody, b"0123456789abcdef")
    enforcer = AsyncEnforcer(RuleSet(parse(RULES)), limiter, directory=directory)
    with pytest.raises(InvalidOption, match=r"^directory: expected a KeyDirectory"):
        Decider(enforcer, Unobserved())


async def test_exception_of_the_store_is_an_error_of_each_request() -> None:
    class Broken:
        async def run(self, *_: object) -> Any:
            raise RuntimeError("alice")

        async def close(self) -> None: ...

    limiter = AsyncLimiter(Broken(), layers=[])
    decider = Decider(AsyncEnforcer(RuleSet(parse(RULES)), limiter), Unobserved())
    results = begin(decider, Asked(ALICE), Asked(ALICE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first, second = in_order(results, 2)
    assert isinstance(first, StoreError)
    assert isinstance(second, StoreError)
    assert "alice" not in str(first)

"""The two steps of an enforcer without I/O: what goes to the store, and the ruling that comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter
from penstock.enforcer import AsyncEnforcer, Enforcer, Pending
from penstock.errors import InvalidCost, InvalidOption, InvalidRequest, StoreError
from penstock.model import Failed
from penstock.rules.api_keys import AsyncKeyDirectory, KeyRecord
from penstock.rules.ruling import Ruling
from tests.unit.rules.support import rule_set
from tests.unit.support import Passing

ALICE = {"user": "alice"}
RULE: dict[str, Any] = {"id": "api", "key": "user", "quota": "2/minute"}
FAILED = Failed(StoreError("gone", transient=True), "no")


class Place:
    """A shedder that admits everything, and the place it gives."""

    def __init__(self) -> None:
        self.inside = 0

    def admit(self, priority: str, /) -> Place:
        self.inside += 1
        return self

    def end(self) -> None:
        self.inside -= 1


def elsewhere(*rules: dict[str, Any], **options: Any) -> Enforcer:
    """Return an enforcer whose counters are behind a layer, as those of a shared store are."""
    return Enforcer(rule_set(*(rules or (RULE,))), Limiter(layers=[Passing()]), **options)


def run(enforcer: Enforcer, pending: Ruling | Pending) -> Ruling:
    assert isinstance(pending, Pending)
    (outcome,) = enforcer.limiter.engine.run([pending.op], pending.deadline)
    return enforcer.finish(pending, outcome)


def test_request_in_this_process_is_ruled_on_at_once() -> None:
    enforcer = Enforcer(rule_set(RULE), Limiter())
    for begun in (enforcer.begin(ALICE), enforcer.begin(ALICE, id="x"), enforcer.begin(ALICE, dry=True)):
        assert isinstance(begun, Ruling)
    assert [bool(enforcer.begin(ALICE)), enforcer.check(ALICE).rule] == [False, "api"]


def test_request_of_a_store_elsewhere_is_finished_by_its_outcome() -> None:
    enforcer = elsewhere(RULE | {"deadline": "20ms"})
    pending = enforcer.begin(ALICE, 2)
    assert isinstance(pending, Pending)
    assert (pending.deadline, [ask.cost for ask in pending.op.asks]) == (20_000, [2])
    ruling = run(enforcer, pending)
    assert (ruling.allowed, ruling.rules, ruling.remaining) == (True, ("api",), 0)
    assert not run(enforcer, enforcer.begin(ALICE))


def test_request_that_no_counter_limits_needs_no_store() -> None:
    enforcer = elsewhere({"id": "bad", "action": "deny", "match": {"user": "mallory"}})
    for descriptor, allowed in (({"user": "mallory"}, False), (ALICE, True)):
        begun = enforcer.begin(descriptor)
        assert isinstance(begun, Ruling)
        assert begun.allowed is allowed


def test_hook_hears_once_of_a_finished_request_and_never_of_a_dry_one() -> None:
    heard: list[object] = []
    enforcer = elsewhere(hook=heard.append)
    run(enforcer, enforcer.begin(ALICE, dry=True))
    assert heard == []
    run(enforcer, enforcer.begin(ALICE))
    assert len(heard) == 1


def test_place_of_the_shedder_ends_with_the_failure_of_the_store() -> None:
    shedder = Place()
    enforcer = elsewhere(shedder=shedder)
    pending = enforcer.begin(ALICE)
    assert isinstance(pending, Pending)
    assert shedder.inside == 1
    with pytest.raises(StoreError):
        enforcer.finish(pending, FAILED)
    assert shedder.inside == 0
    ruling = run(enforcer, enforcer.begin(ALICE))
    assert shedder.inside == 1
    ruling.end()
    assert shedder.inside == 0


def test_invalid_id_takes_no_place_of_the_shedder() -> None:
    shedder = Place()
    with pytest.raises(InvalidRequest):
        elsewhere(shedder=shedder).begin(ALICE, id="")
    assert shedder.inside == 0


def test_invalid_request_of_a_batch_charges_none() -> None:
    enforcer = Enforcer(rule_set(RULE), Limiter())
    with pytest.raises(InvalidCost):
        enforcer.check_many([ALICE, (ALICE, 0)])
    assert enforcer.check(ALICE).remaining == 1


async def test_asynchronous_directory_is_asked_by_describe() -> None:
    asked: list[bytes] = []

    async def owner(digest: bytes) -> KeyRecord:
        asked.append(digest)
        return KeyRecord("alice", "", "active")

    directory = AsyncKeyDirectory(owner, b"0123456789abcdef")
    enforcer = AsyncEnforcer(rule_set(RULE | {"key": "owner"}), AsyncLimiter(), directory=directory)
    descriptor = {"api_key": "k", "owner": "mallory"}
    described = await enforcer.describe(descriptor)
    assert described["owner"] == "alice"
    assert await enforcer.describe(described) is described
    enforcer.begin(described)
    assert len(asked) == 1
    with pytest.raises(InvalidOption, match=r"^directory: has to be awaited"):
        enforcer.begin(descriptor)

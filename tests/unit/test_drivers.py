"""Both drivers, with the layers a chain can have: one that counts, one that answers, one with work of its own."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, StoreError
from penstock.clock import Micros
from penstock.engine.engine import AsyncEngine, Engine
from penstock.engine.protocols import Done, Gone, Local
from penstock.events import LayerFailed
from penstock.layers import DenyCache, Due, Entered, Layer
from penstock.model import Acquire, Amend, Amended, Ask, Failed, Key, Op, Outcome, Reset, Verdict
from penstock.stores import AsyncMemoryStore, MemoryStore
from tests.unit.support import Passing, finish

QUOTA = Quota(3, 60)


def ask(key: str, cost: int = 1) -> Acquire:
    return Acquire((Ask(key, QUOTA, cost),))


class Recorder:
    """A layer or store that writes down what it sees, in a list shared by all."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self.seen = seen

    def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
        return None

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        self.seen.append((self.name, "down", len(ops), now))
        return Entered(ops, token=f"token of {self.name}")

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        self.seen.append((self.name, "up", len(outcomes), now, token))
        return list(outcomes)

    def due(self, now: Micros) -> Due:
        return Due()


class Banned(Passing):
    """Answers whatever is about a banned key itself, and passes on the rest."""

    REFUSAL: Outcome = Failed(StoreError("banned", transient=False), "no")

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        banned = [isinstance(op, Acquire) and op.asks[0].key in self.keys for op in ops]
        return Entered([op for op, is_banned in zip(ops, banned, strict=True) if not is_banned], banned)

    def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        below = iter(outcomes)
        return [self.REFUSAL if is_banned else next(below) for is_banned in token]


class Doubling(Passing):
    """Changes what it passes on: everything costs twice as much."""

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        return Entered([Acquire((Ask(op.asks[0].key, QUOTA, 2),)) if isinstance(op, Acquire) else op for op in ops])


class Housekeeping(Recorder):
    """Has operations of its own until they are done."""

    def __init__(self, name: str, seen: list[Any], ops: Sequence[Op], next_at: Micros | None) -> None:
        super().__init__(name, seen)
        self.own = Due(ops, token="own", next_at=next_at)

    def due(self, now: Micros) -> Due:
        self.seen.append((self.name, "due", now))
        return self.own


class Running(Protocol):
    def run(self, ops: Sequence[Op]) -> list[Outcome]: ...
    def run_due(self) -> Micros | None: ...


class FinishedDriver:
    """An AsyncEngine, each call of which is run to its end at once."""

    def __init__(self, driver: AsyncEngine) -> None:
        self.driver = driver

    def run(self, ops: Sequence[Op]) -> list[Outcome]:
        return finish(self.driver.run(ops))

    def run_due(self) -> Micros | None:
        return finish(self.driver.run_due())


class Watched(MemoryStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.batches: list[list[Op]] = []

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.batches.append(list(ops))
        return super().run(ops, deadline)


Start = Callable[..., Running]


@pytest.fixture
def store(clock: ManualClock) -> Watched:
    return Watched(clock)


@pytest.fixture(params=["blocking", "asyncio"])
def start(request: pytest.FixtureRequest, store: Watched, clock: ManualClock) -> Start:
    """Starts a driver over the store with the layers given."""

    def start(*layers: Layer) -> Running:
        if request.param == "blocking":
            return Engine(store, layers, clock)
        return FinishedDriver(AsyncEngine(AsyncMemoryStore(store), layers, clock))

    return start


def verdicts(outcomes: Sequence[Outcome]) -> list[bool]:
    return [outcome.allowed for outcome in outcomes if isinstance(outcome, Verdict)]


def test_without_layers_the_store_sees_the_batch_as_it_is(start: Start, store: Watched) -> None:
    ops: list[Op] = [ask("alice", 3), ask("alice"), Reset("alice", QUOTA), ask("alice")]
    outcomes = start().run(ops)
    assert store.batches == [ops]
    assert [type(outcome) for outcome in outcomes] == [Verdict, Verdict, Amended, Verdict]
    assert verdicts(outcomes) == [True, False, True]


def test_layers_are_passed_downwards_in_order_and_upwards_in_reverse(start: Start, clock: ManualClock) -> None:
    seen: list[Any] = []
    start(Recorder("first", seen), Recorder("second", seen)).run([ask("alice"), ask("bob")])
    now = clock.micros
    assert seen == [
        ("first", "down", 2, now),
        ("second", "down", 2, now),
        ("second", "up", 2, now, "token of second"),
        ("first", "up", 2, now, "token of first"),
    ]


def test_the_way_up_sees_the_time_that_has_passed(store: Watched, clock: ManualClock) -> None:
    seen: list[Any] = []

    class Slow(MemoryStore):
        def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
            clock.advance(2)
            return super().run(ops, deadline)

    Engine(Slow(clock=clock), [Recorder("only", seen)], clock).run([ask("alice")])
    (_, _, _, down), (_, _, _, up, _) = seen
    assert up - down == 2_000_000


def test_a_layer_may_answer_some_operations_itself(start: Start, store: Watched) -> None:
    outcomes = start(Banned("mallory")).run([ask("alice"), ask("mallory"), ask("bob")])
    assert store.batches == [[ask("alice"), ask("bob")]]
    assert [outcome is Banned.REFUSAL for outcome in outcomes] == [False, True, False]


def test_a_store_is_not_bothered_when_the_layers_answer_all(start: Start, store: Watched) -> None:
    assert start(Banned("mallory")).run([ask("mallory")] * 2) == [Banned.REFUSAL] * 2
    assert store.batches == []


def test_an_empty_batch_has_no_outcomes(start: Start, store: Watched) -> None:
    assert start(Passing()).run([]) == []
    assert store.batches == []


def test_a_layer_may_change_what_it_passes_on(start: Start, store: Watched) -> None:
    assert verdicts(start(Banned("mallory"), Doubling()).run([ask("alice"), ask("alice")])) == [True, False]
    assert store.batches == [[ask("alice", 2), ask("alice", 2)]]


def test_a_layer_below_does_not_see_what_was_answered_above(start: Start) -> None:
    seen: list[Any] = []
    start(Banned("mallory"), Recorder("below", seen)).run([ask("mallory"), ask("alice")])
    assert [entry[2] for entry in seen] == [1, 1]


def test_nothing_is_due_without_layers(start: Start, store: Watched) -> None:
    assert start().run_due() is None
    assert start(Passing()).run_due() is None
    assert store.batches == []


def test_due_work_passes_only_the_layers_below_and_comes_back_to_its_layer(
    start: Start, store: Watched, clock: ManualClock
) -> None:
    seen: list[Any] = []
    now = clock.micros
    layers = (
        Recorder("above", seen),
        Housekeeping("keeper", seen, [ask("alice")], next_at=now + 5),
        Recorder("below", seen),
    )
    assert start(*layers).run_due() == now + 5
    assert store.batches == [[ask("alice")]]
    assert seen == [
        ("keeper", "due", now),
        ("below", "down", 1, now),
        ("below", "up", 1, now, "token of below"),
        ("keeper", "up", 1, now, "own"),
    ]


@pytest.mark.parametrize(
    ("instants", "earliest"), [((None, None), None), ((7, None), 7), ((None, 7), 7), ((9, 7), 7), ((7, 9), 7)]
)
def test_the_next_instant_is_the_earliest_of_all_layers(
    start: Start, store: Watched, instants: tuple[int | None, ...], earliest: int | None
) -> None:
    layers = [Housekeeping("keeper", [], [], next_at) for next_at in instants]
    assert start(*layers).run_due() == earliest
    assert store.batches == []


def test_the_work_of_every_layer_is_done(start: Start, store: Watched) -> None:
    seen: list[Any] = []
    start(Housekeeping("one", seen, [ask("a")], None), Housekeeping("two", seen, [ask("b"), ask("c")], None)).run_due()
    assert store.batches == [[ask("a")], [ask("b"), ask("c")]]
    assert [(entry[0], entry[2]) for entry in seen if entry[1] == "up" and entry[4] == "own"] == [
        ("one", 1),
        ("two", 2),
    ]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_a_limiter_sends_all_its_calls_through_its_layers(
    kind: type[Limiter | AsyncLimiter], clock: ManualClock
) -> None:
    seen: list[Any] = []
    limiter = kind(clock=clock, layers=[Recorder("only", seen)])
    calls: list[Any] = [
        limiter.acquire("alice", QUOTA),
        limiter.acquire_many([("alice", QUOTA), ("bob", QUOTA)]),
        limiter.peek("alice", QUOTA),
        limiter.reset("alice", QUOTA),
    ]
    if kind is AsyncLimiter:
        calls = [finish(call) for call in calls]
    assert [entry[2] for entry in seen if entry[1] == "down"] == [1, 2, 1, 1]
    assert {entry[3] for entry in seen} == {clock.micros}


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_what_a_layer_fails_is_raised(kind: type[Limiter | AsyncLimiter], clock: ManualClock) -> None:
    limiter = kind(clock=clock, layers=[Banned("mallory")])

    def acquire(key: str) -> object:
        call: Any = limiter.acquire(key, QUOTA)
        return finish(call) if kind is AsyncLimiter else call

    assert acquire("alice")
    with pytest.raises(StoreError, match=r"^banned$"):
        acquire("mallory")


def test_layers_and_store_share_the_stores_clock(clock: ManualClock) -> None:
    seen: list[Any] = []
    Limiter(MemoryStore(clock=clock), layers=[Recorder("only", seen)]).acquire("alice", QUOTA)
    assert {entry[3] for entry in seen} == {clock.micros}


SECRET = "a secret identity"


class Broken(Passing):
    """A layer with a fault, on the way down or up, or when it is asked what is due."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _maybe(self, where: str) -> None:
        if self.where == where:
            raise ZeroDivisionError(SECRET)

    def enter(self, ops: Sequence[Op], now: Micros) -> Entered:
        self._maybe("down")
        return super().enter(ops, now)

    def leave(self, token: object, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
        self._maybe("up")
        return super().leave(token, outcomes, now)

    def due(self, now: Micros) -> Due:
        self._maybe("due")
        return super().due(now)


class BrokenStore(MemoryStore):
    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        raise ZeroDivisionError


FAULTS: dict[str, Callable[[], tuple[MemoryStore, list[Layer]]]] = {
    "on the way down": lambda: (MemoryStore(), [Broken("down")]),
    "on the way up": lambda: (MemoryStore(), [Broken("up")]),
    "in the store": lambda: (BrokenStore(), [Passing()]),
}


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("on_failure", "own", "source"),
    [("local", None, "open"), ("open", None, "open"), ("closed", None, "closed"), ("open", "closed", "closed")],
)
def test_a_fault_of_our_own_is_answered_and_told_and_never_raised(
    kind: str, fault: str, on_failure: Any, own: Any, source: str
) -> None:
    store, layers = FAULTS[fault]()
    told: list[Any] = []
    running: Running
    if kind == "blocking":
        running = Engine(store, layers, ManualClock(), on_failure, told.append)
    else:
        running = FinishedDriver(AsyncEngine(AsyncMemoryStore(store), layers, ManualClock(), on_failure, told.append))
    receipt = Verdict(((True, 9, 0, 0, 0, 0, 5), 1, "alice", QUOTA, 1, ())).receipt
    assert receipt is not None
    decided, amended, reset = running.run(
        [ask("alice")._replace(on_failure=own), Amend(receipt, "refund"), Reset("alice", QUOTA)]
    )
    assert isinstance(decided, Verdict)
    assert decided.source == source
    assert amended == Amended((0,))
    assert isinstance(reset, Failed)
    assert told == [LayerFailed("driver", "ZeroDivisionError")]


def test_a_fault_is_raised_where_that_is_wanted() -> None:
    with pytest.raises(ZeroDivisionError):
        Engine(MemoryStore(), [Broken("down")], ManualClock(), "raise").run([ask("alice")])


def test_a_fault_in_what_is_due_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    driver = Engine(MemoryStore(clock=clock), [Broken("due")], clock, "local")
    for _ in range(3):
        assert driver.run([ask("alice")])[0]
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text


def test_layer_whose_own_work_fails_keeps_no_other_layer_from_its_own(store: Watched, clock: ManualClock) -> None:
    seen: list[Any] = []
    once = due_once(seen)
    engine = Engine(store, [once, Broken("due")], clock, "local")
    engine.run_due()
    assert store.batches == [[ask("its own")]]
    assert seen[-1] == ("only", "up", 1, clock.micros, "own")


def test_layer_that_cannot_tell_whether_it_is_pending_ends_no_ticks(store: Watched, clock: ManualClock) -> None:
    class Unsure(Passing):
        @property
        def pending(self) -> bool:
            raise ZeroDivisionError

    class Sure(Passing):
        pending = True

    told: list[Any] = []
    assert Engine(store, [Unsure(), Sure()], clock, "local", told.append).tick() is not None
    assert Engine(store, [Unsure()], clock, "local", told.append).tick() is None
    assert told == [LayerFailed("driver", "ZeroDivisionError")] * 2


def due_once(seen: list[Any], done: threading.Event | None = None) -> Layer:
    class Once(Housekeeping):
        def due(self, now: Micros) -> Due:
            due = super().due(now)
            self.own = Due()
            return due

        def leave(self, token: Any, outcomes: Sequence[Outcome], now: Micros) -> list[Outcome]:
            if token == "own" and done is not None:
                done.set()
            return super().leave(token, outcomes, now)

    return Once("only", seen, [ask("its own")], None)


def test_whoever_comes_by_has_a_thread_do_what_is_due(store: Watched, clock: ManualClock) -> None:
    done = threading.Event()
    driver = Engine(store, [due_once([], done)], clock)
    driver.run([ask("alice")])
    assert done.wait(30)
    driver.run([ask("alice")])
    keys = [op.asks[0].key for batch in store.batches for op in batch if isinstance(op, Acquire)]
    assert sorted(map(str, keys)) == ["alice", "alice", "its own"]


async def test_whoever_comes_by_has_a_task_do_what_is_due(store: Watched, clock: ManualClock) -> None:
    driver = AsyncEngine(AsyncMemoryStore(store), [due_once([])], clock)
    await driver.run([ask("alice")])
    await asyncio.gather(*driver._tasks)
    assert len(store.batches) == 2


class Submitting:
    """An asyncio store that has `submit` and answers when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.sent: list[tuple[Sequence[Op], Done]] = []

    def submit(self, ops: Sequence[Op], deadline: Micros | None, done: Done, gone: Gone | None = None) -> None:
        self.sent.append((ops, done))

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        raise AssertionError("a store with submit is not asked by run")

    async def close(self) -> None: ...

    def answer(self) -> None:
        for ops, done in self.sent:
            done(self.inner.run(ops))
        self.sent.clear()


async def test_outcomes_of_a_cancelled_caller_come_back_to_the_layers(clock: ManualClock) -> None:
    seen: list[Any] = []
    store = Submitting(clock)
    engine = AsyncEngine(store, [Recorder("only", seen)], clock)
    caller = asyncio.ensure_future(engine.run([ask("alice"), ask("bob")]))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    store.answer()
    assert [entry[1:3] for entry in seen] == [("down", 2), ("up", 2)] * 2, "first the requests, then their refunds"


async def test_submitted_operations_pass_the_layers_and_cost_no_task(clock: ManualClock) -> None:
    seen: list[Any] = []
    store = Submitting(clock)
    engine = AsyncEngine(store, [Banned("mallory"), Recorder("below", seen)], clock)
    told: list[Any] = []
    engine.submit([ask("mallory"), ask("alice")], None, told.append)
    assert len(asyncio.all_tasks()) == 1
    store.answer()
    ((banned, allowed),) = told
    assert banned is Banned.REFUSAL
    assert allowed
    assert [entry[2] for entry in seen] == [1, 1]


async def test_an_error_of_a_submitted_batch_is_handed_over(clock: ManualClock) -> None:
    store = Submitting(clock)
    engine = AsyncEngine(store, [Passing()], clock)
    told: list[Any] = []
    engine.submit([ask("alice")], None, told.append)
    ((_, done),) = store.sent
    done(ZeroDivisionError())
    assert [type(error) for error in told] == [ZeroDivisionError]


async def test_a_store_with_run_alone_is_submitted_to_by_a_task(store: Watched, clock: ManualClock) -> None:
    engine = AsyncEngine(AsyncMemoryStore(store), [Passing()], clock)
    told: list[Any] = []
    engine.submit([ask("alice")], None, told.append)
    await asyncio.gather(*engine._tasks)
    assert [verdicts(outcomes) for outcomes in told] == [[True]]


def test_a_blocking_engine_submits_before_it_returns(store: Watched, clock: ManualClock) -> None:
    told: list[Any] = []
    Engine(store, [Passing()], clock).submit([ask("alice")], None, told.append)
    Engine(BrokenStore(), [Passing()], clock).submit([ask("alice")], None, told.append)
    assert verdicts(told[0]) == [True]
    assert isinstance(told[1], ZeroDivisionError)


def test_a_deny_cache_asks_what_is_below_it_where_it_has_no_refusal(store: Watched, clock: ManualClock) -> None:
    cache, asked = DenyCache(), list[Key]()

    def below(key: Key, cost: int, now: Micros) -> Verdict | None:
        asked.append(key)
        return None

    local = cache.bind((QUOTA,), below)
    assert local is not None
    assert local("alice", 1, clock.micros) is None
    engine = Engine(store, [cache], clock)
    engine.run([ask("alice", 3), ask("alice")])
    refused = local("alice", 1, clock.micros)
    assert refused is not None
    assert not refused
    assert asked == ["alice"]
    places = Quota.parse_all("2 concurrent ttl 1m")
    assert cache.bind(places, below) is below
    assert cache.bind((QUOTA, *places), None) is None

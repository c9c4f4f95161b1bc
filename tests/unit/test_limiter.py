"""Limiter and AsyncLimiter have the same methods: what holds for both is tested here on every way to the store."""

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, RateLimited, Receipt, StoreError, Verdict
from penstock.clock import Micros
from penstock.engine.operations import MAX_REMEMBERED
from penstock.errors import InvalidCost, InvalidKey, InvalidOption, InvalidQuota
from penstock.model import Amended, Failed, Key, Op, Outcome
from penstock.quota import RATES
from penstock.stores import AsyncMemoryStore, MemoryStore
from tests.unit.support import KINDS, Calls, Finished

# ---------------------------------------------------------------- acquire


@pytest.mark.parametrize("algorithm", RATES)
def test_exactly_the_limit_is_admitted(calls: Calls, algorithm: str) -> None:
    quota = Quota(3, 60, algorithm)
    assert [calls.acquire("alice", quota).allowed for _ in range(5)] == [True, True, True, False, False]


def test_a_verdict_tells_all_that_headers_need(calls: Calls) -> None:
    quota = Quota(2, 60, "fixed_window")
    first, _, third = (calls.acquire("alice", quota) for _ in range(3))
    assert (first.limit, first.remaining, first.reset_after, first.retry_after) == (2, 1, 60, 0)
    assert (third.limit, third.remaining, third.reset_after, third.retry_after) == (2, 0, 60, 60)


@pytest.mark.parametrize("algorithm", RATES)
def test_who_waits_retry_after_gets_in(calls: Calls, clock: ManualClock, algorithm: str) -> None:
    quota = Quota(3, 60, algorithm)
    for _ in range(3):
        calls.acquire("alice", quota)
    clock.advance(calls.acquire("alice", quota).retry_after)
    assert calls.acquire("alice", quota)


def test_cost_is_charged(calls: Calls) -> None:
    assert calls.acquire("alice", "10/minute", cost=7).remaining == 3
    assert not calls.acquire("alice", "10/minute", cost=4)
    assert calls.acquire("alice", "10/minute", cost=3).remaining == 0


def test_a_refusal_charges_nothing(calls: Calls) -> None:
    calls.acquire("alice", "10/minute", cost=7)
    calls.acquire("alice", "10/minute", cost=4)
    assert calls.peek("alice", "10/minute", cost=0).remaining == 3


@pytest.mark.parametrize("spelling", [["10/minute", "12/hour"], ("10/minute", "12/hour"), "10/minute; 12/hour"])
def test_all_quotas_are_charged_or_none(calls: Calls, spelling: Any) -> None:
    assert calls.acquire("alice", spelling, cost=10)
    refused = calls.acquire("alice", spelling, cost=1)
    assert [decision.allowed for decision in refused.decisions] == [False, True]
    assert refused.quota is Quota(10, 60)
    assert calls.peek("alice", "12/hour", cost=0).remaining == 2


def test_texts_and_quotas_mix(calls: Calls) -> None:
    verdict = calls.acquire("alice", ["10/second", Quota(20, 60), "30/hour; 40/day"])
    assert [decision.limit for decision in verdict.decisions] == [10, 20, 30, 40]


def test_every_spelling_of_a_quota_shares_the_counter(calls: Calls) -> None:
    for spelling in ("5/minute", "5 PER minute", Quota(5, 60), ["5/minute"], ("5/minute",)):
        calls.acquire("alice", spelling)
    assert not calls.acquire("alice", "5/minute")


def test_a_changed_limit_keeps_what_was_used(calls: Calls) -> None:
    calls.acquire("alice", "10/minute", cost=6)
    assert calls.acquire("alice", "20/minute").remaining == 13
    assert not calls.acquire("alice", "5/minute")


KEYS: list[Key] = [
    "a",
    "b",
    "a/b",
    ("a", "b"),
    ("a", "b", "c"),
    ("ab", "c"),
    ("a", "bc"),
    ("1:a", "b"),
    ("a1:b", "c"),
    "1:a1:b",
    "+:1:a",
    "0:a",
    ("a:", "b"),
    ("a", ":b"),
    "é",
    "e\u0301",
    "A",
    " a",
]


def test_keys_never_run_together(calls: Calls) -> None:
    assert [calls.acquire(key, "1/minute").allowed for key in KEYS] == [True] * len(KEYS)
    assert [calls.acquire(key, "1/minute").allowed for key in KEYS] == [False] * len(KEYS)


@pytest.mark.parametrize("quota", ["1/minute", ["1/minute", "1/hour"]])
def test_a_tuple_of_one_text_is_the_text(calls: Calls, quota: Any) -> None:
    assert calls.acquire(("alice",), quota)
    assert not calls.acquire("alice", quota)
    assert not calls.acquire(("alice",), quota)


def test_a_verdict_names_the_key_in_its_one_form(calls: Calls) -> None:
    assert calls.acquire(("alice",), "10/minute").key == "alice"
    assert calls.acquire(("alice", "x"), "10/minute").key == ("alice", "x")


def test_names_keep_equal_quotas_apart(calls: Calls) -> None:
    assert calls.acquire("alice", "1/minute name a")
    assert calls.acquire("alice", "1/minute name b")
    assert not calls.acquire("alice", "1/minute name a")


def test_min_interval_spaces_requests_out_and_counts_each_as_one(calls: Calls, clock: ManualClock) -> None:
    quota = "10/second min_interval 250ms"
    assert calls.acquire("alice", quota, cost=4)
    refused = calls.acquire("alice", quota, cost=4)
    assert (refused.allowed, refused.retry_after, str(refused.quota)) == (False, 0.25, "min_interval 250ms")
    clock.advance(0.25)
    assert calls.acquire("alice", quota, cost=4)


def test_min_interval_can_stand_alone(calls: Calls, clock: ManualClock) -> None:
    assert calls.acquire("alice", "min_interval 1s", cost=1_000)
    assert calls.acquire("alice", "min_interval 1s").retry_after == 1
    clock.advance(1)
    assert calls.acquire("alice", "min_interval 1s")


def test_a_penalty_shuts_out_who_was_refused(calls: Calls, clock: ManualClock) -> None:
    quota = "1/second penalty 15m"
    calls.acquire("alice", quota)
    assert calls.acquire("alice", quota).retry_after == 900
    clock.advance(899)
    assert calls.acquire("alice", quota).retry_after == 1
    clock.advance(1)
    assert calls.acquire("alice", quota)


def test_count_denied_keeps_waiting_who_keeps_asking(calls: Calls, clock: ManualClock) -> None:
    quota = "1/minute rolling_window count denied"
    calls.acquire("alice", quota)
    for _ in range(5):
        clock.advance(30)
        assert calls.acquire("alice", quota).retry_after == 60


# ---------------------------------------------------------------- acquire_many


def test_a_batch_is_decided_in_order_each_request_for_itself(calls: Calls) -> None:
    quota = Quota(2, 60)
    verdicts = calls.acquire_many(
        [("alice", quota), ("bob", quota, 2), ("alice", quota), ("alice", quota), ("bob", quota)]
    )
    assert [(verdict.key, verdict.allowed) for verdict in verdicts] == [
        ("alice", True),
        ("bob", True),
        ("alice", True),
        ("alice", False),
        ("bob", False),
    ]


def test_an_empty_batch_has_no_verdicts(calls: Calls) -> None:
    assert calls.acquire_many([]) == []


def test_a_batch_may_mix_every_kind_of_request(calls: Calls) -> None:
    batch: list[Any] = [
        ("alice", "10/minute"),
        (("a", "b"), ["10/minute", "20/hour"], 3),
        ("é", "2/second min_interval 250ms"),
        ("alice", Quota(10, 60)),
    ]
    assert [verdict.remaining for verdict in calls.acquire_many(batch)] == [9, 7, 1, 8]


def test_a_batch_says_what_single_calls_would(clock: ManualClock) -> None:
    batched, single = Limiter(clock=clock), Limiter(clock=clock)
    requests: list[Any] = [(f"key {number % 7}", "3/minute") for number in range(40)]
    assert batched.acquire_many(requests) == [single.acquire(*request) for request in requests]


# ---------------------------------------------------------------- peek, reset, refund


@pytest.mark.parametrize("algorithm", RATES)
@pytest.mark.parametrize("used", [0, 2, 3])
def test_peek_answers_as_acquire_would_and_changes_nothing(calls: Calls, algorithm: str, used: int) -> None:
    quota = Quota(3, 60, algorithm)
    if used:
        calls.acquire("alice", quota, cost=used)
    peeks = [calls.peek("alice", quota) for _ in range(5)]
    assert len(set(peeks)) == 1
    verdict = calls.acquire("alice", quota)
    assert (peeks[0].allowed, peeks[0].retry_after) == (verdict.allowed, verdict.retry_after)
    assert peeks[0].remaining == 3 - used


def test_peek_with_cost_nought_tells_how_things_stand(calls: Calls) -> None:
    calls.acquire("alice", "10/minute", cost=10)
    verdict = calls.peek("alice", "10/minute", cost=0)
    assert (verdict.allowed, verdict.remaining, verdict.receipt) == (True, 0, None)


def test_peek_looks_at_all_quotas(calls: Calls) -> None:
    calls.acquire("alice", "10/minute", cost=10)
    verdict = calls.peek("alice", ["10/minute", "20/hour"])
    assert [(decision.allowed, decision.remaining) for decision in verdict.decisions] == [(False, 0), (True, 20)]


@pytest.mark.parametrize("quota", ["3/minute", ["3/minute", "3/hour gcra"], "3/minute min_interval 1s"])
def test_reset_forgets_what_was_used(calls: Calls, quota: Any) -> None:
    calls.acquire("alice", quota, cost=3)
    calls.acquire("bob", quota, cost=3)
    calls.reset("alice", quota)
    assert calls.peek("alice", quota, cost=3)
    assert not calls.peek("bob", quota)


def test_resetting_what_nobody_used_is_harmless(calls: Calls) -> None:
    calls.reset(("no", "body"), "10/minute")


@pytest.mark.parametrize("algorithm", RATES)
def test_a_refund_gives_back_all_or_some(calls: Calls, algorithm: str) -> None:
    quota = Quota(10, 60, algorithm)
    verdict = calls.acquire("alice", quota, cost=6)
    assert calls.refund(verdict, units=1) == Amended((1,))
    assert calls.peek("alice", quota, cost=0).remaining == 5
    assert calls.refund(verdict, units=5).units == 5
    assert calls.peek("alice", quota, cost=0).remaining == 10


def test_a_refund_works_by_receipt_as_well(calls: Calls) -> None:
    receipt = calls.acquire(("alice", "x"), "10/minute", cost=6).receipt
    assert isinstance(receipt, Receipt)
    assert calls.refund(receipt).units == 6
    assert calls.peek(("alice", "x"), "10/minute", cost=0).remaining == 10


def test_a_refund_reaches_every_counter_of_the_request(calls: Calls) -> None:
    quota = ["10/second min_interval 1ms", "100/hour gcra"]
    verdict = calls.acquire("alice", quota, cost=4)
    assert calls.refund(verdict, units=3) == Amended((3, 0, 3))
    assert not calls.peek("alice", quota)  # the spacing stays until all is given back
    again = calls.acquire("bob", quota, cost=4)
    assert calls.refund(again) == Amended((4, 1, 4))
    assert calls.peek("bob", quota, cost=10)


def test_what_is_no_longer_charged_does_not_come_back(calls: Calls, clock: ManualClock) -> None:
    verdict = calls.acquire("alice", "10/minute fixed_window", cost=6)
    clock.advance(60)
    calls.acquire("alice", "10/minute fixed_window", cost=6)
    assert calls.refund(verdict).units == 0
    assert calls.peek("alice", "10/minute fixed_window", cost=0).remaining == 4


# ---------------------------------------------------------------- fast path and general path


def history(limiter: Calls, clock: ManualClock, seed: int) -> list[Verdict]:
    """Verdicts of a generated sequence of calls, the same for every limiter."""
    chance = random.Random(seed)
    kinds = product(RATES, (None, 0.4), (False, True))
    quotas: list[Any] = [Quota(5, 1, kind, penalty=penalty, count_denied=counted) for kind, penalty, counted in kinds]
    quotas += [str(quota) for quota in quotas]
    quotas += [[Quota(3, 1), "20/minute"], "4/second min_interval 100ms", "min_interval 50ms", "10/second burst 12"]
    keys: list[Key] = ["a", "b", ("a", "b"), ("c", "d", "e"), "é"]
    verdicts: list[Verdict] = []
    for _ in range(1_500):
        quota, key, cost = chance.choice(quotas), chance.choice(keys), chance.choice([1, 1, 1, 2, 3])
        match chance.randrange(10):
            case 0:
                verdicts.append(limiter.peek(key, quota, chance.choice([0, cost])))
            case 1 if charged := [verdict for verdict in verdicts[-5:] if verdict.receipt]:
                limiter.refund(chance.choice(charged))
            case 2:
                limiter.reset(key, quota)
            case 3:
                verdicts += limiter.acquire_many([(key, quota, cost), ("a", "3/second"), (key, quota)])
            case 4:
                verdicts += limiter.acquire_many([("a", "3/second"), ("b", "3/second")])
            case 5:
                clock.advance(chance.choice([0.01, 0.3, 1.7]))
            case _:
                verdicts.append(limiter.acquire(key, quota, cost))
    return verdicts


@pytest.mark.untraced
@pytest.mark.parametrize("seed", range(5))
def test_every_way_to_the_store_gives_the_same_verdicts(seed: int) -> None:
    clocks = {kind: ManualClock() for kind in KINDS}
    first, *others = (history(KINDS[kind](clocks[kind]), clocks[kind], seed) for kind in KINDS)
    assert {bool(verdict) for verdict in first} == {True, False}
    for other in others:
        assert other == first
        assert [verdict.decisions for verdict in other] == [verdict.decisions for verdict in first]


# ---------------------------------------------------------------- texts are read once


def test_a_text_is_read_once(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse_all = Quota.parse_all

    def counting(text: str) -> tuple[Quota, ...]:
        read.append(text)
        return parse_all(text)

    monkeypatch.setattr(Quota, "parse_all", counting)
    for _ in range(10):
        calls.acquire("alice", "10/minute")
        calls.acquire("alice", ["10/minute", "20/hour"])
        calls.acquire("alice", ("10/minute", "20/hour"))
        calls.acquire_many([("alice", "10/minute")])
        calls.peek("alice", "10/minute")
        calls.reset("alice", "10/minute")
    assert read == ["10/minute", "10/minute", "20/hour"]


@pytest.mark.untraced
def test_texts_without_end_do_not_fill_the_memory(calls: Calls) -> None:
    for limit in range(1, MAX_REMEMBERED + 100):
        calls.acquire("alice", f"{limit}/hour")
    limiter: Any = calls.limiter if isinstance(calls, Finished) else calls
    assert len(limiter.operations.bound) <= MAX_REMEMBERED
    assert calls.peek("alice", "1000000/hour", cost=0).remaining < 1_000_000


# ---------------------------------------------------------------- stores, clocks, closing


class Scripted:
    """A store that does what a store must and no more: it counts calls and answers from a script."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.ops: list[Op] = []
        self.closed = 0

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.ops += ops
        return [self.outcomes.pop(0) for _ in ops]

    def close(self) -> None:
        self.closed += 1


class AsyncScripted:
    def __init__(self, store: Scripted) -> None:
        self.store = store

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        return self.store.run(ops, deadline)

    async def close(self) -> None:
        self.store.close()


def scripted(kind: type[Limiter | AsyncLimiter], *outcomes: Outcome) -> tuple[Scripted, Calls]:
    store = Scripted(*outcomes)
    if kind is Limiter:
        return store, Limiter(store, layers=())
    return store, Finished(AsyncLimiter(AsyncScripted(store), layers=()))


both = pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
YES = Verdict(((True, 9, 0, 0, 0, 0, 5), 1, "alice", Quota(10, 60), 1, ()))


@both
def test_a_store_needs_no_more_than_run_and_close(kind: type[Limiter]) -> None:
    store, limiter = scripted(kind, YES, YES, YES, Amended((1,)), Amended())
    verdict = limiter.acquire("alice", "10/minute")
    assert verdict is YES
    assert limiter.acquire_many([("alice", "10/minute")]) == [YES]
    assert limiter.peek("alice", "10/minute") is YES
    assert limiter.refund(verdict) == Amended((1,))
    limiter.reset("alice", "10/minute")
    assert [type(op).__name__ for op in store.ops] == ["Acquire", "Acquire", "Acquire", "Amend", "Reset"]


@both
@pytest.mark.parametrize("charged", ["no", "unknown"])
def test_what_the_store_could_not_answer_is_raised(kind: type[Limiter], charged: Any) -> None:
    error = StoreError("the store is gone", transient=True)
    _, limiter = scripted(kind, *[Failed(error, charged)] * 5)
    for call in (
        lambda: limiter.acquire("alice", "10/minute"),
        lambda: limiter.acquire_many([("alice", "10/minute")]),
        lambda: limiter.peek("alice", "10/minute"),
        lambda: limiter.refund(YES),
        lambda: limiter.reset("alice", "10/minute"),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value is not error, "everybody gets an error of his own"
        raised = caught.value
        assert (str(raised), raised.transient, raised.charged) == ("the store is gone", True, charged)


@both
def test_a_store_of_ones_own_stays_open(kind: type[Limiter]) -> None:
    store, limiter = scripted(kind)
    limiter.close()
    assert store.closed == 0


def test_a_store_that_the_limiter_opened_is_closed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[MemoryStore] = []
    monkeypatch.setattr(MemoryStore, "close", lambda store: closed.append(store))
    Limiter().close()
    asyncio.run(AsyncLimiter().close())
    assert len(closed) == 2


@pytest.mark.parametrize(
    "call", ["acquire", "several", "acquire_many", "empty batch", "peek", "reset", "refund", "fresh"]
)
def test_a_closed_limiter_answers_nothing(calls: Calls, call: str) -> None:
    verdict = calls.acquire("alice", "10/minute")
    calls.close()
    attempts: dict[str, Callable[[], object]] = {
        "acquire": lambda: calls.acquire("alice", "10/minute"),
        "several": lambda: calls.acquire("alice", ["10/minute", "20/hour"]),
        "acquire_many": lambda: calls.acquire_many([("alice", "10/minute")]),
        "empty batch": lambda: calls.acquire_many([]),
        "peek": lambda: calls.peek("alice", "10/minute"),
        "reset": lambda: calls.reset("alice", "10/minute"),
        "refund": lambda: calls.refund(verdict),
        "fresh": lambda: calls.acquire("alice", "11/minute"),
    }
    with pytest.raises(StoreError, match=r"^the limiter is closed$") as caught:
        attempts[call]()
    assert not caught.value.transient


def test_closing_twice_is_harmless(calls: Calls) -> None:
    calls.close()
    calls.close()


def test_a_limiter_is_a_context_manager() -> None:
    with Limiter() as limiter:
        assert limiter.acquire("alice", "10/minute")
    with pytest.raises(StoreError):
        limiter.acquire("alice", "10/minute")


def test_a_context_manager_lets_errors_through() -> None:
    with pytest.raises(KeyError), Limiter():
        raise KeyError


def test_both_limiters_can_share_one_store(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    blocking, waiting = Limiter(store), Finished(AsyncLimiter(AsyncMemoryStore(store)))
    assert [limiter.acquire("alice", "3/minute").remaining for limiter in (blocking, waiting, blocking)] == [2, 1, 0]
    assert not waiting.acquire("alice", "3/minute")
    waiting.reset("alice", "3/minute")
    assert blocking.acquire("alice", "3/minute").remaining == 2


def test_limiters_of_their_own_share_nothing() -> None:
    first, second = Limiter(), Limiter()
    first.acquire("alice", "1/hour")
    assert second.acquire("alice", "1/hour")


def test_the_stores_clock_is_the_limiters(clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    assert limiter.acquire("alice", "1/minute").at_us == limiter.peek("alice", "1/minute").at_us == clock.micros


def test_a_limiter_cannot_have_another_clock_than_its_store(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    text = r"^clock: the store has a clock of its own \(expected none, or the same one\)$"
    with pytest.raises(InvalidOption, match=text):
        Limiter(store, clock=ManualClock())
    with pytest.raises(InvalidOption, match=text):
        AsyncLimiter(AsyncMemoryStore(store), clock=ManualClock())
    assert Limiter(store, clock=clock).acquire("alice", "1/minute")


def test_a_clock_is_whatever_has_time_ns() -> None:
    class Sundial:
        def time_ns(self) -> int:
            return 12 * 3_600 * 10**9

    sundial: Any = Sundial()  # whoever waits needs wait, too
    assert Limiter(clock=sundial).acquire("alice", "1/minute").at_us == 12 * 3_600 * 10**6


def test_time_is_the_wall_clocks_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.clock import SystemClock

    monkeypatch.setattr(SystemClock, "time_ns", staticmethod(lambda: 5_000))
    assert Limiter().acquire("alice", "1/minute").at_us == 5


# ---------------------------------------------------------------- the decorator


def test_a_limited_function_raises_when_refused(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)

    @limiter.limit("2/minute")
    def greet(name: str, *, mark: str = "!") -> str:
        """Say hello."""
        return f"hello {name}{mark}"

    assert (greet("alice"), greet("bob", mark="?")) == ("hello alice!", "hello bob?")
    with pytest.raises(RateLimited) as caught:
        greet("carol")
    assert caught.value.verdict.quota is Quota(2, 60)
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    clock.advance(caught.value.verdict.retry_after)
    assert greet("carol") == "hello carol!"


def test_a_refused_function_does_not_run() -> None:
    ran: list[int] = []
    limited = Limiter().limit("1/hour")(ran.append)
    limited(1)
    with pytest.raises(RateLimited):
        limited(2)
    assert ran == [1]


def test_a_key_may_follow_from_the_arguments() -> None:
    limiter = Limiter()

    @limiter.limit("1/hour", key=lambda user, *_: user)
    def act(user: str, what: str) -> str:
        return f"{user} {what}s"

    assert (act("alice", "sing"), act("bob", "dance")) == ("alice sings", "bob dances")
    with pytest.raises(RateLimited):
        act("alice", "dance")


def test_a_key_may_be_fixed_or_have_parts() -> None:
    limiter = Limiter()
    one = limiter.limit("1/hour", key="shared", name="jobs")(lambda: 1)
    two = limiter.limit("1/hour", key=("shared", "x"), name="jobs")(lambda: 2)
    assert (one(), two()) == (1, 2)
    with pytest.raises(RateLimited):
        two()


def test_each_function_has_counters_of_its_own_unless_they_share_a_name() -> None:
    limiter = Limiter()

    def first() -> int:
        return 1

    def second() -> int:
        return 2

    limiter.limit("1/hour")(first)()
    assert limiter.limit("1/hour")(second)() == 2
    limiter.limit("1/hour", name="both")(first)()
    with pytest.raises(RateLimited):
        limiter.limit("1/hour", name="both")(second)()


def test_counters_of_functions_are_apart_from_callers_keys() -> None:
    limiter = Limiter()
    limiter.acquire("alice", "1/hour")
    assert limiter.limit("1/hour", key="alice", name="jobs")(lambda: 1)() == 1


def test_a_cost_may_follow_from_the_arguments() -> None:
    limiter = Limiter()

    @limiter.limit("10/hour", cost=lambda items: len(items))
    def send(items: list[int]) -> int:
        return sum(items)

    assert send([1, 2, 3, 4, 5, 6]) == 21
    with pytest.raises(RateLimited):
        send([1, 2, 3, 4, 5])
    assert send([1, 2, 3, 4]) == 10


def test_a_cost_may_be_fixed() -> None:
    limited = Limiter().limit("10/hour", cost=6)(lambda: "done")
    limited()
    with pytest.raises(RateLimited):
        limited()


def test_methods_can_be_limited() -> None:
    limiter = Limiter()

    class Account:
        def __init__(self, owner: str) -> None:
            self.owner = owner

        @limiter.limit("1/hour", key=lambda self: self.owner)
        def close(self) -> str:
            return f"{self.owner} closed"

        @staticmethod
        @limiter.limit("1/hour")
        def ping() -> str:
            return "pong"

        @classmethod
        @limiter.limit("1/hour")
        def kind(cls) -> str:
            return cls.__name__

    assert (Account("alice").close(), Account("bob").close()) == ("alice closed", "bob closed")
    with pytest.raises(RateLimited):
        Account("alice").close()
    assert (Account.ping(), Account.kind()) == ("pong", "Account")
    for call in (Account.ping, Account.kind):
        with pytest.raises(RateLimited):
            call()


async def test_a_limiter_limits_coroutine_functions_as_well() -> None:
    limiter = Limiter()

    @limiter.limit("1/hour", key=lambda user: user)
    async def greet(user: str) -> str:
        await asyncio.sleep(0)
        return f"hello {user}"

    assert inspect.iscoroutinefunction(greet)
    assert await greet("alice") == "hello alice"
    waiting = greet("alice")
    with pytest.raises(RateLimited):
        await waiting


def test_several_quotas_limit_a_function() -> None:
    limited = Limiter().limit(["5/second", "2/hour"])(lambda: 1)
    assert limited() + limited() == 2
    with pytest.raises(RateLimited) as caught:
        limited()
    assert caught.value.verdict.quota is Quota(2, 3600)


def test_a_bad_quota_fails_where_it_is_written() -> None:
    with pytest.raises(InvalidQuota):
        Limiter().limit("5/fortnight")


@pytest.mark.parametrize("quota", [[], ()])
def test_a_decorator_without_quotas_fails_where_it_is_written(quota: Any) -> None:
    with pytest.raises(ValueError, match=r"^a request without quotas: expected at least one$"):
        Limiter().limit(quota)


def test_a_callable_object_can_be_limited() -> None:
    class Greeter:
        def __call__(self) -> str:
            return "hello"

    assert Limiter().limit("1/hour")(Greeter())() == "hello"


def test_partials_of_different_functions_have_counters_of_their_own() -> None:
    limiter = Limiter()
    assert limiter.limit("1/hour")(partial(len, "ab"))() == 2
    assert limiter.limit("1/hour")(partial(partial(max, 1), 2))() == 2
    with pytest.raises(RateLimited):
        limiter.limit("1/hour")(partial(len, "abc"))()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"key": lambda: ""}, InvalidKey, "key part 1: expected text that is not empty"),
        ({"key": lambda: 5}, InvalidKey, "key part 1: expected text, not int"),
        ({"key": b"x"}, InvalidKey, "key part 1: expected text, not bytes"),
        ({"cost": lambda: 0}, InvalidCost, "cost 0: expected 1 to 9007199254740991"),
        ({"cost": 2}, InvalidCost, "cost 2: 1/hour admits at most 1 at once, however long one waits"),
    ],
)
def test_a_bad_key_or_cost_of_a_call_is_refused_before_it_runs(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    ran: list[int] = []

    def work() -> None:
        ran.append(1)

    limited = Limiter().limit("1/hour", **options)(work)
    with pytest.raises(kind) as caught:
        limited()
    assert (str(caught.value), ran) == (text, [])

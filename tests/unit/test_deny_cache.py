"""The deny cache: what it answers itself, and what it leaves to the store."""

from collections.abc import Sequence

import pytest

from penstock import Limiter
from penstock.clock import SECOND, ManualClock, Micros
from penstock.engine.engine import Engine
from penstock.engine.protocols import Local
from penstock.errors import InvalidOption
from penstock.layers.deny_cache import DenyCache
from penstock.model import Acquire, Amend, Ask, Op, Outcome, Reset, Verdict
from penstock.quota import Quota
from penstock.stores.memory.store import MemoryStore
from tests.unit.support import Passing

QUOTA = Quota.parse("2/minute fixed_window")


class Counting(MemoryStore):
    asked = 0

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        self.asked += len(ops)
        return super().run(ops, deadline)


class Cached:
    """A store behind a deny cache."""

    def __init__(self, max_keys: int = 100) -> None:
        self.clock = ManualClock()
        self.store = Counting(clock=self.clock)
        self.layer = DenyCache(max_keys)
        self.driver = Engine(self.store, [self.layer], self.clock)

    def ask(self, key: str = "ann", quota: Quota = QUOTA, cost: int = 1) -> Verdict:
        return self.run(Acquire((Ask(key, quota, cost),)))

    def run(self, op: Op) -> Verdict:
        (outcome,) = self.driver.run([op])
        return outcome  # type: ignore[return-value]

    def is_asked(self, op: Op) -> bool:
        """Whether the store hears of it."""
        before = self.store.asked
        self.driver.run([op])
        return self.store.asked > before


@pytest.fixture
def cached() -> Cached:
    cached = Cached()
    while cached.ask():
        pass
    return cached


def ask(key: str = "ann", quota: Quota = QUOTA, cost: int = 1) -> Acquire:
    return Acquire((Ask(key, quota, cost),))


def test_a_refusal_is_repeated_for_a_second_and_counts_down(cached: Cached) -> None:
    first = cached.ask()
    before = cached.store.asked
    cached.clock.advance(0.999)
    again = cached.ask()
    assert cached.store.asked == before
    assert not again
    assert (again.retry_after_us, again.at_us) == (first.retry_after_us - 999_000, first.at_us + 999_000)
    cached.clock.advance(0.001)
    assert cached.is_asked(ask())


def test_a_refusal_is_repeated_no_longer_than_it_holds() -> None:
    cached = Cached()
    quota = Quota.parse("10/second gcra burst 1")
    assert cached.ask(quota=quota)
    assert not cached.ask(quota=quota)
    cached.clock.advance(0.099999)
    assert not cached.ask(quota=quota)
    cached.clock.advance(0.000001)
    assert cached.ask(quota=quota)


def test_only_the_same_or_dearer_is_refused_unasked() -> None:
    cached = Cached()
    quota = Quota.parse("5/minute fixed_window")
    cached.ask(quota=quota, cost=3)
    assert not cached.ask(quota=quota, cost=4)
    assert not cached.is_asked(ask(quota=quota, cost=4))
    assert not cached.is_asked(ask(quota=quota, cost=5))
    assert cached.is_asked(ask(quota=quota, cost=2))


def test_another_key_or_limit_is_another_matter(cached: Cached) -> None:
    assert cached.ask("bob")
    assert cached.ask(quota=Quota.parse("3/minute fixed_window"))


def test_a_request_of_several_asks_is_repeated_as_a_whole(cached: Cached) -> None:
    op = Acquire((Ask("bob", QUOTA), Ask("ann", QUOTA, 2)))
    first = cached.run(op)
    cached.clock.advance(0.5)
    assert not cached.is_asked(op)
    again = cached.run(op)
    assert again.key == "ann"
    assert [(d.key, d.allowed, d.cost) for d in again.decisions] == [("bob", True, 1), ("ann", False, 2)]
    assert again.retry_after_us == first.retry_after_us - SECOND // 2
    assert cached.is_asked(Acquire((Ask("ann", QUOTA, 2), Ask("bob", QUOTA))))  # not the same


@pytest.mark.parametrize("text", ["1/minute count denied", "1 concurrent ttl 1m"])
def test_refusals_that_do_something_or_may_end_any_time_are_not_repeated(text: str) -> None:
    cached = Cached()
    quota = Quota.parse(text)
    assert cached.ask(quota=quota)
    assert not cached.ask(quota=quota)
    assert cached.is_asked(ask(quota=quota))


def test_requests_with_an_id_and_dry_runs_are_left_to_the_store(cached: Cached) -> None:
    assert cached.is_asked(ask()._replace(id=b"1"))
    assert cached.is_asked(ask()._replace(dry=True))


def test_refusal_of_several_quotas_is_repeated_below_a_layer_that_declines_them() -> None:
    class Declining(Passing):
        def bind(self, quotas: tuple[Quota, ...], below: Local | None) -> Local | None:
            return lambda key, cost, now: None if below is None else below(key, cost, now)

    store = Counting(clock=ManualClock())
    limiter = Limiter(store, layers=[Declining(), DenyCache()])
    for quota in ("1/hour", ["1/hour name a", "5/hour name b"]):
        assert limiter.acquire("ann", quota)
        assert not limiter.acquire("ann", quota)
        asked = store.asked
        assert not limiter.acquire("ann", quota)
        assert store.asked == asked


def test_what_this_process_resets_or_gives_back_is_forgotten_at_once() -> None:
    cached = Cached()
    charged = cached.ask()
    while cached.ask():
        pass
    assert charged.receipt is not None
    cached.run(Amend(charged.receipt, "refund"))
    assert cached.ask()
    assert not cached.ask()
    cached.run(Reset("ann", QUOTA))
    assert cached.ask()


def test_what_was_asked_before_a_reset_is_not_remembered_after_it(cached: Cached) -> None:
    """Two threads: one is refused, the other resets, and the refusal comes home last."""
    layer, now = cached.layer, cached.clock.micros
    cached.clock.advance(1)
    entered = layer.enter([ask()], now + SECOND)
    refusals = cached.store.run(entered.ops)
    cached.run(Reset("ann", QUOTA))
    layer.leave(entered.token, refusals, now + SECOND)
    assert cached.ask()


def test_a_batch_is_answered_in_order_whoever_answers(cached: Cached) -> None:
    outcomes = cached.driver.run([ask("bob"), ask(), ask("cat"), ask(), ask("bob")])
    assert [(o.key, bool(o)) for o in outcomes if isinstance(o, Verdict)] == [
        ("bob", True),
        ("ann", False),
        ("cat", True),
        ("ann", False),
        ("bob", True),
    ]


def test_memory_is_bounded_however_many_are_refused() -> None:
    cached = Cached(max_keys=10)
    for number in range(100):
        while cached.ask(str(number)):
            pass
    assert len(cached.layer._young) + len(cached.layer._old) <= 10
    assert not cached.is_asked(ask("99"))


def test_a_clock_that_was_set_back_repeats_nothing(cached: Cached) -> None:
    cached.clock.micros -= 10 * SECOND
    assert cached.is_asked(ask())


def test_it_has_no_work_of_its_own(cached: Cached) -> None:
    assert cached.driver.run_due() is None


@pytest.mark.parametrize("max_keys", [1, 0, True, 2.5, "many"])
def test_nonsense_is_refused(max_keys: object) -> None:
    with pytest.raises(InvalidOption) as caught:
        DenyCache(max_keys)  # type: ignore[arg-type]
    assert str(caught.value) == f"max_keys {max_keys!r}: expected a whole number, at least 2"

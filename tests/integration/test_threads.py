"""Eight threads on the same counters: not one unit too many, not one lost, no deadlock."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from penstock import Limiter, ManualClock, Quota
from penstock.model import Acquire, Ask, Verdict
from penstock.quota import RATES
from penstock.stores import MemoryStore
from tests.integration.support import in_threads

THREADS = 8
EACH = 1_500
LIMIT = 5_000

every_algorithm = pytest.mark.parametrize("algorithm", RATES)


def admitted(acquire: Callable[[], object]) -> int:
    """How many of many calls from all threads at once are admitted: the check of exactness."""
    return sum(in_threads(lambda _: sum(bool(acquire()) for _ in range(EACH)), THREADS))


class CheckThenIncrement:
    """What everybody writes first: it looks, and then it counts."""

    def __init__(self) -> None:
        self.used = 0

    def acquire(self) -> bool:
        used = self.read()
        if used >= LIMIT:
            return False
        self.write(used + 1)
        return True

    def read(self) -> int:
        return self.used

    def write(self, used: int) -> None:
        self.used = used


def test_the_check_of_exactness_catches_a_limiter_that_is_not() -> None:
    """A negative control: without it, the tests below might pass because threads never meet."""
    assert any(admitted(CheckThenIncrement().acquire) > LIMIT for _ in range(20))


@every_algorithm
def test_exactly_the_limit_is_admitted(algorithm: str) -> None:
    limiter = Limiter(clock=ManualClock())
    quota = Quota(LIMIT, 3600, algorithm)
    assert admitted(lambda: limiter.acquire("alice", quota)) == LIMIT
    assert limiter.peek("alice", quota, cost=0).remaining == 0


@pytest.mark.parametrize("text", ["5000/hour; 6000/day gcra", "5000/hour penalty 1m", "5000/hour count denied"])
def test_exactly_the_limit_is_admitted_whatever_the_quota_says(text: str) -> None:
    limiter = Limiter(clock=ManualClock())
    assert admitted(lambda: limiter.acquire("alice", text)) == LIMIT


def test_exactly_one_is_admitted_per_min_interval() -> None:
    limiter = Limiter(clock=ManualClock())
    assert admitted(lambda: limiter.acquire("alice", "5000/hour min_interval 1ms")) == 1


@every_algorithm
def test_batches_admit_exactly_the_limit(algorithm: str) -> None:
    limiter = Limiter(clock=ManualClock())
    quota = Quota(LIMIT, 3600, algorithm)

    def work(_: int) -> int:
        return sum(sum(map(bool, limiter.acquire_many([("alice", quota)] * 10))) for _ in range(EACH // 10))

    assert sum(in_threads(work, THREADS)) == LIMIT


@every_algorithm
def test_costs_and_refunds_balance_to_the_unit(algorithm: str) -> None:
    """At rest: units charged and not given back, plus units left, are the limit. And never more than the limit."""
    limiter = Limiter(clock=ManualClock())
    quota = Quota(200, 3600, algorithm)

    def work(number: int) -> int:
        chance = random.Random(number)
        kept = 0
        charged: list[Verdict] = []
        for _ in range(EACH // 2):
            if charged and chance.random() < 0.45:
                verdict = charged.pop(chance.randrange(len(charged)))
                units = chance.randint(1, verdict.cost)
                assert limiter.refund(verdict, units).units == units
                kept -= units
            else:
                verdict = limiter.acquire("alice", quota, cost=chance.randint(1, 5))
                if verdict:
                    kept += verdict.cost
                    charged.append(verdict)
        return kept

    kept = sum(in_threads(work, THREADS))
    assert 0 <= kept <= 200
    assert limiter.peek("alice", quota, cost=0).remaining == 200 - kept


@every_algorithm
def test_new_keys_and_resets_from_all_threads_lose_nothing(algorithm: str) -> None:
    """Every thread is the first to touch some keys that the others touch at the same moment."""
    limiter = Limiter(MemoryStore(clock=ManualClock()))
    quota = Quota(3, 3600, algorithm)

    def work(number: int) -> int:
        keys = [f"key {key}" for key in range(1_000)]
        random.Random(number).shuffle(keys)
        return sum(limiter.acquire(key, quota).allowed for key in keys)

    assert sum(in_threads(work, THREADS)) == 3_000


def test_quotas_met_for_the_first_time_by_all_threads_are_one_counter() -> None:
    limiter = Limiter(clock=ManualClock())

    def work(_: int) -> int:
        return sum(limiter.acquire("alice", f"1/{period} seconds").allowed for period in range(1_000, 1_300))

    assert sum(in_threads(work, THREADS)) == 300


def test_requests_over_overlapping_keys_are_all_or_nothing_and_never_deadlock() -> None:
    """Each thread names keys in an order of its own; a key is charged once per admitted request that names it."""
    store = MemoryStore(clock=ManualClock())
    limiter = Limiter(store)
    quotas = Quota(500, 3600), Quota(450, 86_400, "token_bucket")
    keys = [f"key {number}" for number in range(12)]

    def work(number: int) -> Counter[str]:
        chance = random.Random(number)
        charged: Counter[str] = Counter()
        for _ in range(EACH // 3):
            chosen = chance.sample(keys, chance.randint(2, 6))
            asks = [Ask(key, quota) for key in chosen for quota in quotas]
            chance.shuffle(asks)
            (verdict,) = store.run([Acquire(tuple(asks))])
            if verdict:
                charged.update(chosen)
        return charged

    charged = sum(in_threads(work, THREADS), Counter[str]())
    for key in keys:
        assert limiter.peek(key, quotas[0], cost=0).remaining == 500 - charged[key]
        assert limiter.peek(key, quotas[1], cost=0).remaining == 450 - charged[key]
    assert max(charged.values()) == 450


def test_a_flood_from_all_threads_keeps_the_bound_and_the_offender() -> None:
    store = MemoryStore(max_keys=4_096, clock=ManualClock())
    limiter = Limiter(store)
    limiter.acquire("offender", "10/hour", cost=10)

    def work(number: int) -> int:
        fresh = sum(limiter.acquire(f"flood {number} {key}", "10/hour").allowed for key in range(3_000))
        return fresh + limiter.acquire("offender", "10/hour").allowed

    assert sum(in_threads(work, THREADS)) == THREADS * 3_000
    assert store.counters <= 4_096


def test_quotas_that_say_the_same_are_one_object_in_all_threads() -> None:
    made = in_threads(lambda _: [Quota(limit, 77.7) for limit in range(1, 500)], THREADS)
    assert all(a is b for quotas in made for a, b in zip(quotas, made[0], strict=True))

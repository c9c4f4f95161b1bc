"""A request with an id is charged once, however often it is asked."""

import pickle
import random

import pytest

from penstock import Amended, AsyncLimiter, Limiter, ManualClock, Quota, Receipt, Verdict
from penstock.engine.operations import Id, QuotaLike
from penstock.errors import InvalidRequest
from penstock.model import Key, Outcome
from penstock.stores import MemoryStore
from tests.unit.support import Passing

RATE = "100/minute"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def left(limiter: Limiter, quota: str = RATE, key: str = "alice") -> int:
    return limiter.peek(key, quota, cost=0).remaining


@pytest.mark.parametrize(
    "quota",
    [
        "100/minute fixed_window",
        "100/minute",
        "100/minute rolling_window",
        "100/minute token_bucket",
        "100/minute gcra",
        "100/minute queue 99",
        "100/day calendar UTC",
        "100 concurrent",
    ],
)
def test_a_repeated_request_gets_the_same_answer_and_is_charged_once(
    limiter: Limiter, clock: ManualClock, quota: str
) -> None:
    first = limiter.acquire("alice", quota, cost=3, id="a")
    clock.micros += 5
    limiter.acquire("alice", quota)
    remaining = left(limiter, quota)
    for _ in range(3):
        clock.micros += 5
        assert limiter.acquire("alice", quota, cost=3, id="a") == first
    assert left(limiter, quota) == remaining


def test_a_repeated_request_of_several_quotas_is_charged_once(limiter: Limiter) -> None:
    quotas = ["100/minute min_interval 1s", "1000/hour", "3 concurrent"]
    first = limiter.acquire("alice", quotas, cost=10, id="a")
    again = limiter.acquire("alice", quotas, cost=10, id="a")
    assert again == first
    assert again.receipt == first.receipt
    assert [d.remaining for d in limiter.peek("alice", quotas, cost=0).decisions] == [90, 0, 990, 2]


def test_an_admission_stays_one_even_when_the_limit_has_been_reached_since(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=50, id="a")
    limiter.acquire("alice", RATE, cost=50)
    assert limiter.acquire("alice", RATE, cost=50, id="a")
    assert not limiter.acquire("alice", RATE, cost=50, id="b")


def test_requests_without_an_id_are_charged_each_time(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=10, id="a")
    limiter.acquire("alice", RATE, cost=10)
    limiter.acquire("alice", RATE, cost=10)
    assert left(limiter) == 70


def test_ids_are_told_apart(limiter: Limiter) -> None:
    for request_id in ("a", "b", "ab", "a:b", "#", b"\x00", b"\x00\x00", "ä"):
        assert limiter.acquire("alice", RATE, cost=10, id=request_id)
    assert left(limiter) == 20


@pytest.mark.parametrize(("text", "raw"), [("a", b"a"), ("ä", b"\xc3\xa4"), ("x" * 255, b"x" * 255)])
def test_text_is_the_same_id_as_its_bytes(limiter: Limiter, text: str, raw: bytes) -> None:
    first = limiter.acquire("alice", RATE, id=text)
    assert limiter.acquire("alice", RATE, id=raw) == first
    assert left(limiter) == 99


def test_an_id_means_nothing_to_another_key(limiter: Limiter) -> None:
    for key in ("alice", "bob", ("alice", "bob"), ("alicebob",)):
        assert limiter.acquire(key, RATE, cost=60, id="a").remaining == 40


def test_a_key_cannot_be_written_so_that_it_meets_the_record_of_another(limiter: Limiter) -> None:
    """Whatever the store joins to name a record: keys are the clients' own words, and ids often are too."""
    pairs = [[RATE, "1000/hour"], [RATE, "1000/hour", "9 concurrent"]]
    for quotas in pairs:
        limiter.acquire("x", quotas, id="1")
        limiter.acquire(("x", "y"), quotas, id="1")
    for number in ("0", "1", "2", "0+", "1+", "2+"):
        for other in ("0", "1", "2", "0+", "1+", "2+"):
            for key in (f"x:{number}:x", f"x:{number}:x:{other}:x", f"1:x1:y:{number}:1:x1:y"):
                assert limiter.acquire(key, RATE, id="1").key == key
                assert limiter.acquire(key, pairs[0], id="1").key == key


def test_an_id_means_nothing_to_another_quota(limiter: Limiter) -> None:
    for quota in (RATE, "100/hour", "100/minute gcra", "100/minute name other", "100 concurrent", "100/day calendar"):
        assert limiter.acquire("alice", quota, id="a").remaining == 99


def test_an_id_means_nothing_to_more_quotas_than_it_was_admitted_to(limiter: Limiter) -> None:
    limiter.acquire("alice", RATE, cost=10, id="a")
    both = limiter.acquire("alice", [RATE, "15/hour"], cost=10, id="a")
    assert len(both.decisions) == 2
    assert left(limiter, "15/hour") == 5


def test_an_id_survives_a_change_of_the_limit(limiter: Limiter) -> None:
    limiter.acquire("alice", "100/minute", cost=10, id="a")
    assert limiter.acquire("alice", "50/minute", cost=10, id="a")
    assert left(limiter, "50/minute") == 40


def test_an_id_means_nothing_to_another_limiter(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", RATE, id="a")
    other = Limiter(clock=clock)
    other.acquire("alice", RATE, id="a")
    assert left(other) == 99


# Refusals


def test_a_refused_request_leaves_no_record_and_may_be_asked_again(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    limiter.acquire("alice", RATE, cost=100)
    before = store.counters
    refused = limiter.acquire("alice", RATE, id="a")
    assert not refused
    assert refused.receipt is None
    assert store.counters == before
    clock.advance(refused.retry_after)
    assert limiter.acquire("alice", RATE, id="a")
    assert limiter.acquire("alice", RATE, id="a")
    assert store.counters == before + 1


def test_a_request_refused_by_one_of_several_quotas_leaves_no_record(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    limiter = Limiter(store)
    limiter.acquire("alice", ["1/minute", "9/hour"])
    before = store.counters
    assert not limiter.acquire("alice", ["9/hour", "1/minute"], id="a")
    assert store.counters == before
    clock.advance(120)
    assert limiter.acquire("alice", ["9/hour", "1/minute"], id="a")
    assert left(limiter, "9/hour") == 7


# Records


def test_a_record_lasts_at_least_a_minute_and_as_long_as_the_charge_may_count(
    limiter: Limiter, clock: ManualClock
) -> None:
    limiter.acquire("alice", "10/second fixed_window", id="a")
    clock.advance(59)
    assert limiter.acquire("alice", "10/second fixed_window", id="a").at_us < clock.micros
    limiter.acquire("alice", "10/hour fixed_window", id="a")
    clock.micros += 3_600_000_000 - 1
    assert limiter.acquire("alice", "10/hour fixed_window", id="a").at_us < clock.micros


@pytest.mark.parametrize(
    ("quota", "lasts"),
    [
        ("10/second fixed_window", 60),
        ("10/hour fixed_window", 3_600),
        ("10/hour", 7_200),
        ("10/hour burst 40", 14_400),
        ("10/hour gcra", 3_600),
        ("10/hour queue 19", 7_200),
        ("10/hour rolling_window", 3_600),
        ("10/day calendar UTC", 2 * 86_400),
    ],
)
def test_records_expire(limiter: Limiter, clock: ManualClock, quota: str, lasts: float) -> None:
    first = limiter.acquire("alice", quota, id="a")
    clock.advance(lasts)
    clock.micros -= 1
    assert limiter.acquire("alice", quota, id="a") == first
    clock.micros += 1
    assert limiter.acquire("alice", quota, id="a").at_us == clock.micros


def test_expired_records_can_neither_be_settled_nor_refunded(limiter: Limiter, clock: ManualClock) -> None:
    verdict = limiter.acquire("alice", RATE, cost=10, id="a")
    clock.advance(120)
    limiter.acquire("alice", RATE, cost=50)
    assert limiter.refund(verdict).units == limiter.settle(verdict, 0).units == 0
    assert left(limiter) == 50


def test_a_refunded_request_may_be_charged_again_under_its_id(limiter: Limiter, clock: ManualClock) -> None:
    first = limiter.acquire("alice", RATE, cost=10, id="a")
    limiter.refund(first)
    clock.micros += 1
    second = limiter.acquire("alice", RATE, cost=10, id="a")
    assert left(limiter) == 90
    assert limiter.refund(first).units == 0  # the old receipt does not reach the new charge
    assert limiter.settle(first, 0).units == 0
    assert left(limiter) == 90
    assert limiter.refund(second).units == 10


def test_an_old_receipt_does_not_reach_a_new_charge_of_the_same_microsecond(limiter: Limiter) -> None:
    first = limiter.acquire("alice", RATE, cost=10, id="a")
    limiter.refund(first)
    limiter.acquire("alice", RATE, cost=10, id="a")
    assert limiter.refund(first).units == 0
    assert left(limiter) == 90


def test_a_reset_lets_the_id_be_charged_again(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", "1 concurrent", id="a")
    limiter.reset("alice", "1 concurrent")
    assert limiter.acquire("alice", "1 concurrent")
    assert not limiter.acquire("alice", "1 concurrent", id="a")


@pytest.mark.untraced  # a flood runs the same lines again and again
def test_records_count_against_max_keys(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=4_096, clock=clock)
    limiter = Limiter(store)
    for number in range(10_000):
        limiter.acquire("alice", "1000000/hour", id=f"{number}")
    assert store.counters <= 4_096


def test_expired_records_make_way(clock: ManualClock) -> None:
    store = MemoryStore(max_keys=100_000, clock=clock)
    limiter = Limiter(store)
    for number in range(1_000):
        limiter.acquire(f"{number}", RATE, id="a")
    assert store.counters == 2_000
    clock.advance(600)
    for number in range(1_000, 4_000):
        limiter.acquire(f"{number}", RATE)
    assert store.counters < 4_000


def test_one_busy_key_may_have_many_requests_to_settle(limiter: Limiter) -> None:
    """A store with room for a million keeps five thousand, even if all of them belong to one key."""
    verdicts = [limiter.acquire("alice", "1000000/hour", cost=2, id=f"{number}") for number in range(5_000)]
    assert sum(limiter.settle(verdict, 1).units for verdict in verdicts) == 5_000
    assert left(limiter, "1000000/hour") == 1_000_000 - 5_000


@pytest.mark.untraced  # a flood runs the same lines again and again
def test_a_flood_of_ids_displaces_itself_and_nobody_at_the_limit(clock: ManualClock) -> None:
    limiter = Limiter(MemoryStore(max_keys=4_096, clock=clock))
    for number in range(50):
        limiter.acquire(f"refused {number}", "1/hour")
    for number in range(10_000):
        limiter.acquire(f"flood {number}", "1000000/hour", id="a")
    assert sum(bool(limiter.peek(f"refused {number}", "1/hour")) for number in range(50)) == 0


# Bad input


@pytest.mark.parametrize(
    ("request_id", "text"),
    [
        ("", "id of 0 bytes: expected 1 to 255"),
        (b"", "id of 0 bytes: expected 1 to 255"),
        ("x" * 256, "id of 256 bytes: expected 1 to 255"),
        ("ä" * 128, "id of 256 bytes: expected 1 to 255"),
        (b"x" * 1_000, "id of 1000 bytes: expected 1 to 255"),
        (7, "id: expected text or bytes, not int"),
        (True, "id: expected text or bytes, not bool"),
        (bytearray(b"a"), "id: expected text or bytes, not bytearray"),
        (("a",), "id: expected text or bytes, not tuple"),
        ("ok\ud800", "id: lone surrogate at index 2 (expected text that UTF-8 can carry)"),
    ],
)
@pytest.mark.parametrize("verb", ["acquire", "wait", "hold", "reserve"])
def test_bad_ids_are_errors_and_charge_nothing(limiter: Limiter, verb: str, request_id: object, text: str) -> None:
    quota = [RATE, "3 concurrent"]
    with pytest.raises(InvalidRequest) as caught:
        getattr(limiter, verb)("alice", quota, 1, id=request_id)
    assert str(caught.value) == text
    assert [d.remaining for d in limiter.peek("alice", quota, cost=0).decisions] == [100, 3]


async def test_ids_work_for_asyncio_alike(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    first = await limiter.acquire("alice", RATE, cost=10, id="a")
    assert await limiter.acquire("alice", RATE, cost=10, id=b"a") == first
    assert await limiter.wait("alice", RATE, cost=10, id="a") == first
    assert (await limiter.reserve("alice", RATE, cost=10, id="a")).verdict == first
    assert (await limiter.settle(first, 4)).units == 6
    assert (await limiter.settle(first, 4)).units == 0
    assert (await limiter.peek("alice", RATE, cost=0)).remaining == 96
    with pytest.raises(InvalidRequest) as caught:
        await limiter.acquire("alice", RATE, id="")
    assert str(caught.value) == "id of 0 bytes: expected 1 to 255"


# ---------------------------------------------------------------- the short way and the long one


def history(limiter: Limiter, clock: ManualClock, seed: int) -> list[object]:
    """What a generated sequence of requests with ids and of amendments is answered, marks of places left out."""
    chance = random.Random(seed)
    texts = ["5/second fixed_window", "5/second", "5/second rolling_window", "5/second gcra", "5/second queue 4"]
    texts += ["5/day calendar UTC", "5 concurrent ttl 2s", "5/second penalty 400ms", "5/second gcra count denied"]
    texts += ["min_interval 50ms", "7/second gcra burst 5"]
    quotas: list[QuotaLike] = [*texts, *map(Quota.parse, texts[:8]), ["5/second", "20/minute"]]
    keys: list[Key] = ["a", "b", ("a", "b"), ("b",), "é"]
    ids: list[Id] = ["x", "y", b"z"]
    verdicts: list[Verdict] = []
    said: list[object] = []
    for _ in range(1_500):
        quota, key, cost = chance.choice(quotas), chance.choice(keys), chance.choice([1, 2, 3])
        charged = [verdict for verdict in verdicts[-6:] if verdict.receipt]
        match chance.randrange(9):
            case 0 | 1 if charged:
                said.append(limiter.settle(chance.choice(charged), chance.choice([0, 1, 2, 3, 9])))
            case 2 if charged:
                said.append(limiter.settle(chance.choice(charged).receipt or charged[0], cost))
            case 3 if charged:
                said.append(limiter.refund(chance.choice(charged), chance.choice([None, 1])))
            case 4:
                clock.advance(chance.choice([0.01, 0.3, 1.7, 70]))
            case 5:
                limiter.reset(key, quota)
            case _:
                verdicts.append(limiter.acquire(key, quota, cost, id=chance.choice(ids)))
                said.append([(*decision.answer[:6], *decision[1:]) for decision in verdicts[-1].decisions])
    return said


@pytest.mark.parametrize("seed", range(5))
def test_every_way_to_the_store_treats_requests_with_an_id_alike(seed: int) -> None:
    clocks = [ManualClock(1_700_000_040) for _ in range(2)]
    short = history(Limiter(clock=clocks[0]), clocks[0], seed)
    long = history(Limiter(clock=clocks[1], layers=[Passing()]), clocks[1], seed)
    assert short == long


def test_requests_with_an_id_are_decided_without_operations(monkeypatch: pytest.MonkeyPatch, limiter: Limiter) -> None:
    def long_way(*_: object) -> list[Outcome]:
        raise AssertionError("the long way")

    monkeypatch.setattr(MemoryStore, "run", long_way)
    limiter.reserve("alice", RATE, cost=5).settle(4)
    limiter.acquire("alice", [RATE], id="a")
    limiter.acquire("alice", [RATE, "1000/hour"], id="a")
    with pytest.raises(AssertionError, match="the long way"):
        limiter.peek("alice", RATE)


@pytest.mark.parametrize("record", ["", "no such record", "no such record@1", "no such record@x"])
def test_what_another_store_remembers_cannot_be_amended(limiter: Limiter, record: str) -> None:
    verdict = limiter.acquire("alice", RATE, cost=5, id="a")
    foreign = Verdict((*verdict[:6], record))
    assert limiter.settle(foreign, 1) == Amended((0,))
    assert limiter.settle(Receipt(verdict.receipt.charges if verdict.receipt else (), record), 1) == Amended((0,))
    assert left(limiter) == 95


def test_a_copy_of_a_verdict_is_as_good_as_the_verdict(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", RATE, cost=5, id="a")
    copy = pickle.loads(pickle.dumps(verdict))
    assert limiter.settle(copy, 1) == Amended((4,))
    assert limiter.settle(verdict, 1) == Amended((0,))
    assert left(limiter) == 99


def test_the_name_of_a_record_does_not_show_the_key(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", RATE, id="a")
    assert "alice" not in repr(verdict[6])


def test_a_place_in_a_queue_that_was_partly_given_back_is_not_touched_by_settling(limiter: Limiter) -> None:
    """Somebody else's place may end where it ended."""
    verdict = limiter.acquire("alice", "1/second queue 9", cost=3, id="a")
    assert limiter.refund(verdict, 1) == Amended((1,))
    limiter.acquire("alice", "1/second queue 9")
    assert limiter.settle(verdict, 0) == Amended((0,))


@pytest.mark.parametrize(("quota", "more"), [("100/minute gcra", 0), ("100/minute", 2)])
def test_what_settling_put_on_top_of_a_bucket_stays_charged(limiter: Limiter, quota: str, more: int) -> None:
    verdict = limiter.acquire("alice", quota, cost=2, id="a")
    assert limiter.settle(verdict, 7) == Amended((-5,))
    assert limiter.refund(verdict, 2) == Amended((2,))
    assert limiter.refund(verdict, 2) == Amended((more,))

"""Places that are held: taken, renewed, released, lost, and never given to two at once."""

import asyncio
import gc
import threading
from collections.abc import Sequence

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, Quota, RateLimited, Receipt, StoreError, Verdict
from penstock.clock import Micros
from penstock.errors import InvalidCost, InvalidQuota, InvalidReceipt, InvalidRequest
from penstock.model import Amend, Failed, Op, Outcome
from penstock.stores import MemoryStore

TTL = 30.0
ONE = "1 concurrent ttl 30s"
THREE = "3 concurrent ttl 30s"
PATIENCE = 10.0  # real seconds, for what a background thread does in milliseconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_040)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock=clock)


def places_left(limiter: Limiter, key: str = "alice", quota: str = ONE) -> int:
    return limiter.peek(key, quota, cost=0).remaining


# Texts


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("5 concurrent", "5 concurrent ttl 1m"),
        ("5 concurrent ttl 30s", "5 concurrent ttl 30s"),
        ("5 CONCURRENT TTL 1500 ms", "5 concurrent ttl 1500ms"),
        ("10000 concurrent ttl 3650d", "10000 concurrent ttl 3650d"),
        ("1 concurrent ttl 1us", "1 concurrent ttl 1us"),
        ("5 concurrent penalty 10s ttl 30s name exports", "5 concurrent ttl 30s penalty 10s name exports"),
        ("5 concurrent min_interval 1s", "5 concurrent ttl 1m min_interval 1s"),
    ],
)
def test_places_read_and_are_written_back(text: str, written: str) -> None:
    quota = Quota.parse(text)
    assert (quota.algorithm, quota.flat, quota.calendar) == ("concurrency", True, None)
    assert str(quota) == written
    assert Quota.parse(written) is quota


def test_places_can_be_made_from_numbers() -> None:
    assert Quota(5, 30, "concurrency") is Quota.parse("5 concurrent ttl 30s")
    assert Quota.parse("5 concurrent").period == 60


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("0 concurrent", "limit 0: expected 1 to 10000"),
        (
            "10001 concurrent",
            "limit 10001: expected 1 to 10000; sliding_window, token_bucket and gcra keep no log",
        ),
        ("5 concurrent ttl 0s", "ttl of 0 microseconds: expected 1 microsecond to 3650 days"),
        ("5 concurrent ttl 3651d", "ttl of 315446400000000 microseconds: expected 1 microsecond to 3650 days"),
        ("5 concurrent ttl", 'quota "5 concurrent ttl": ends too early (expected a duration, as in "250ms")'),
        (
            "5 concurrent ttl soon",
            'quota "5 concurrent ttl soon": unexpected \'soon\' at column 18 (expected a duration, as in "250ms")',
        ),
        (
            "5 concurrent ttl 30",
            (
                'quota "5 concurrent ttl 30": ends too early '
                "(expected microsecond, millisecond, second, minute, hour, day, week)"
            ),
        ),
        (
            "5 concurrent ttl 1 month",
            (
                "quota \"5 concurrent ttl 1 month\": no fixed length: 'month' at column 20 "
                '(expected "30 days", or "month calendar UTC")'
            ),
        ),
        (
            "5 concurrent ttl 1s ttl 2s",
            (
                "quota \"5 concurrent ttl 1s ttl 2s\": repeated 'ttl' at column 21 "
                "(expected each option, and one algorithm, at most once)"
            ),
        ),
        (
            "5 concurrent gcra",
            (
                "quota \"5 concurrent gcra\": unexpected 'gcra' at column 14 "
                "(expected no algorithm: this kind of quota implies one)"
            ),
        ),
        ("5 concurrent burst 2", "burst 2: concurrency has no burst (expected token_bucket or gcra)"),
        ("5 concurrent queue 2", "queue 2: concurrency has no queue (expected leaky_bucket)"),
        ("5 concurrent count denied", "count denied: a refused place cannot be held (expected a rate)"),
        ("5/minute ttl 3s", 'ttl: only concurrency limits have one (expected e.g. "5 concurrent ttl 30s")'),
        ("5 at once", 'quota "5 at once": unexpected \'at\' at column 3 (expected "/", "per" or "concurrent")'),
    ],
)
def test_what_is_wrong_with_a_text_is_said_exactly(text: str, error: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        Quota.parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), "30", True, None])
def test_wrong_ttls_are_refused_as_numbers_too(ttl: float) -> None:
    with pytest.raises(InvalidQuota):
        Quota(5, ttl, "concurrency")


# Taking and giving back


def test_only_so_many_hold_a_place(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", THREE) for _ in range(4)]
    assert [(bool(v), v.remaining) for v in verdicts] == [(True, 2), (True, 1), (True, 0), (False, 0)]
    assert limiter.acquire("bob", THREE)


def test_a_released_place_is_free_at_once(limiter: Limiter) -> None:
    hold = limiter.hold("alice", ONE)
    assert not limiter.hold("alice", ONE)
    hold.release()
    assert limiter.hold("alice", ONE)


def test_release_says_how_many_places_came_back(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", ONE)
    assert limiter.release(verdict).each == (1,)
    assert limiter.release(verdict).each == (0,)


def test_a_receipt_releases_as_well_as_its_verdict(limiter: Limiter) -> None:
    receipt = limiter.acquire("alice", ONE).receipt
    assert receipt is not None
    assert limiter.renew(receipt)
    assert limiter.release(receipt).units == 1


def test_leaving_the_block_releases(limiter: Limiter) -> None:
    with limiter.hold("alice", ONE) as hold:
        assert hold
        assert hold.verdict.allowed
        assert places_left(limiter) == 0
    assert places_left(limiter) == 1


def test_an_exception_releases_and_is_let_through(limiter: Limiter) -> None:
    with pytest.raises(KeyError, match="boom"), limiter.hold("alice", ONE):
        raise KeyError("boom")
    assert places_left(limiter) == 1


def test_a_refused_hold_is_false_and_raises_when_entered(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", ONE)
    clock.advance(10)
    refused = limiter.hold("alice", ONE)
    assert not refused
    assert not refused.renew()
    refused.release()  # there is nothing to give back, and nothing is taken from others
    with pytest.raises(RateLimited) as caught, refused:
        raise AssertionError("the block ran")
    assert str(caught.value) == "refused by 1 concurrent ttl 30s: retry after 20.000 s"
    assert caught.value.verdict is refused.verdict
    assert places_left(limiter) == 0


def test_a_hold_prints_without_its_key(limiter: Limiter) -> None:
    hold = limiter.hold("alice", ONE)
    assert repr(hold) == "<Hold <Verdict 1 concurrent ttl 30s: allowed, 0 left>>"


def test_a_place_costs_one_whatever_the_request_costs(limiter: Limiter) -> None:
    assert limiter.hold("alice", THREE, cost=1_000)
    assert places_left(limiter, quota=THREE) == 2


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, None])
def test_a_place_still_needs_a_whole_cost(limiter: Limiter, cost: int) -> None:
    with pytest.raises(InvalidCost):
        limiter.hold("alice", ONE, cost)


def test_a_reset_frees_all_places(limiter: Limiter) -> None:
    limiter.acquire("alice", ONE)
    limiter.reset("alice", ONE)
    assert limiter.acquire("alice", ONE)


def test_many_places_of_one_instant_are_told_apart(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", "100 concurrent") for _ in range(100)]
    assert [limiter.release(verdict).units for verdict in verdicts] == [1] * 100
    assert [limiter.release(verdict).units for verdict in verdicts] == [0] * 100


# Expiry


def test_a_crashed_holder_frees_its_place_at_the_exact_microsecond(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", ONE)
    clock.micros += 30_000_000 - 1
    refused = limiter.acquire("alice", ONE)
    assert (refused.allowed, refused.retry_after_us) == (False, 1)
    clock.micros += 1
    assert limiter.acquire("alice", ONE)


def test_a_refusal_tells_when_the_next_place_expires(limiter: Limiter, clock: ManualClock) -> None:
    for until_next in (30, 25, 20):
        verdict = limiter.acquire("alice", THREE)
        assert (verdict.reset_after, verdict.more_after) == (until_next, until_next)
        clock.advance(5)
    refused = limiter.acquire("alice", THREE)
    assert (refused.retry_after, refused.reset_after, refused.more_after, refused.delay) == (15, 15, 15, 0)


def test_a_free_counter_promises_nothing(limiter: Limiter) -> None:
    untouched = limiter.peek("alice", THREE)
    assert (untouched.allowed, untouched.remaining, untouched.reset_after, untouched.more_after) == (True, 3, 0, 0)


def test_a_late_release_is_a_no_op(limiter: Limiter, clock: ManualClock) -> None:
    late = limiter.hold("alice", ONE)
    clock.advance(TTL)
    assert limiter.acquire("alice", ONE)
    late.release()
    assert not limiter.acquire("alice", ONE)


def test_a_repeated_release_is_a_no_op(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE)
    hold.release()
    clock.micros += 1
    assert limiter.acquire("alice", ONE)
    hold.release()
    assert not limiter.acquire("alice", ONE)


def test_a_repeated_release_is_a_no_op_within_one_microsecond(limiter: Limiter) -> None:
    hold = limiter.hold("alice", ONE)
    hold.release()
    assert limiter.acquire("alice", ONE)
    hold.release()
    assert not limiter.acquire("alice", ONE)


def test_a_repeated_release_never_meets_a_place_taken_a_microsecond_later(limiter: Limiter, clock: ManualClock) -> None:
    two = "2 concurrent ttl 30s"
    limiter.acquire("alice", two)
    second = limiter.acquire("alice", two)  # in the same microsecond as the first
    limiter.release(second)
    clock.micros += 1
    assert limiter.acquire("alice", two)
    assert limiter.release(second).units == 0
    assert not limiter.acquire("alice", two)


@pytest.mark.parametrize("gap", [0, 1, 1_000_000])
def test_a_place_whose_state_was_lost_never_frees_what_others_took_since(
    limiter: Limiter, clock: ManualClock, gap: Micros
) -> None:
    lost = [limiter.acquire("alice", THREE) for _ in range(3)]
    limiter.reset("alice", THREE)
    clock.micros += gap
    for _ in range(3):
        assert limiter.acquire("alice", THREE)
    assert [limiter.release(verdict).units for verdict in lost] == [0, 0, 0]
    assert not any(limiter.renew(verdict) for verdict in lost)
    assert not limiter.acquire("alice", THREE)


@pytest.mark.parametrize("step", [-3_600.0, -TTL, -1.0])
def test_a_place_from_before_a_clock_step_never_frees_what_others_took_since(
    limiter: Limiter, clock: ManualClock, step: float
) -> None:
    start = clock.micros / 1_000_000
    clock.set(start + step)
    early = limiter.acquire("alice", ONE)
    limiter.release(early)
    clock.set(start)
    clock.set(start + step)  # the same microsecond comes a second time
    assert limiter.acquire("alice", ONE)
    assert limiter.release(early).units == 0
    assert not limiter.acquire("alice", ONE)


# Renewal


def test_renewal_holds_on_for_another_ttl(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE)
    for _ in range(5):
        clock.micros += 30_000_000 - 1
        assert hold.renew()
    clock.micros += 30_000_000 - 1
    assert not limiter.acquire("alice", ONE)
    clock.micros += 1
    assert limiter.acquire("alice", ONE)


def test_what_has_expired_cannot_be_renewed(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE)
    clock.advance(TTL)
    assert not hold.renew()
    assert limiter.acquire("alice", ONE)
    assert not hold.renew()


def test_what_was_released_cannot_be_renewed(limiter: Limiter) -> None:
    hold = limiter.hold("alice", ONE)
    hold.release()
    assert not hold.renew()
    assert places_left(limiter) == 1


def test_renewing_one_place_does_not_renew_another(limiter: Limiter, clock: ManualClock) -> None:
    two = "2 concurrent ttl 30s"
    kept, left = limiter.hold("alice", two), limiter.hold("alice", two)
    clock.advance(20)
    assert kept.renew()
    clock.advance(10)
    assert not left.renew()
    assert kept.renew()
    assert places_left(limiter, quota=two) == 1


# Changed quotas


def test_a_changed_ttl_keeps_the_holders_with_their_own(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", "2 concurrent ttl 30s")
    limiter.acquire("alice", "2 concurrent ttl 10s")
    assert not limiter.acquire("alice", "2 concurrent ttl 1s")
    clock.advance(10)
    assert places_left(limiter, quota="2 concurrent ttl 10s") == 1
    clock.advance(20)
    assert places_left(limiter, quota="2 concurrent ttl 10s") == 2


def test_a_shorter_ttl_does_not_cut_the_holds_of_others_short(limiter: Limiter, clock: ManualClock) -> None:
    long = limiter.acquire("alice", "2 concurrent ttl 1h")
    limiter.release(limiter.acquire("alice", "2 concurrent ttl 1s"))
    clock.advance(3_599)
    assert limiter.renew(long)


def test_a_raised_limit_keeps_the_holders(limiter: Limiter) -> None:
    limiter.acquire("alice", ONE)
    assert limiter.acquire("alice", THREE).remaining == 1


def test_a_lowered_limit_keeps_the_holders_and_admits_nobody_until_enough_have_left(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", THREE) for _ in range(3)]
    refused = limiter.acquire("alice", ONE)
    assert (refused.allowed, refused.remaining) == (False, 0)
    for verdict in verdicts[:2]:
        limiter.release(verdict)
        assert not limiter.acquire("alice", ONE)
    limiter.release(verdicts[2])
    assert limiter.acquire("alice", ONE)


def test_after_a_lowered_limit_the_time_to_retry_still_suffices(limiter: Limiter, clock: ManualClock) -> None:
    for _ in range(5):
        limiter.acquire("alice", "5 concurrent ttl 30s")
        clock.advance(1)
    refused = limiter.acquire("alice", THREE)
    assert not refused
    clock.advance(refused.retry_after)
    assert limiter.acquire("alice", THREE)


# Clock steps


def test_time_going_back_admits_no_more(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", ONE)
    clock.set(clock.micros / 1_000_000 - 3_600)
    refused = limiter.acquire("alice", ONE)
    assert (refused.allowed, refused.retry_after) == (False, 30)


def test_after_a_clock_step_back_nobody_is_refused_for_more_than_one_ttl(limiter: Limiter, clock: ManualClock) -> None:
    limiter.acquire("alice", ONE)
    clock.set(clock.micros / 1_000_000 - 3_600)
    refused = limiter.acquire("alice", ONE)
    clock.advance(refused.retry_after)
    assert limiter.acquire("alice", ONE)


def test_after_renewals_too_a_clock_step_back_refuses_nobody_for_more_than_one_ttl(
    limiter: Limiter, clock: ManualClock
) -> None:
    hold = limiter.hold("alice", ONE)
    for _ in range(10):
        clock.advance(20)
        assert hold.renew()
    clock.set(clock.micros / 1_000_000 - 100)
    refused = limiter.acquire("alice", ONE)
    assert (refused.allowed, refused.retry_after) == (False, 30)


def test_a_holder_can_renew_over_a_clock_step(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE)
    clock.set(clock.micros / 1_000_000 - 3_600)
    assert hold.renew()
    clock.micros += 30_000_000 - 1
    assert not limiter.acquire("alice", ONE)
    clock.micros += 1
    assert limiter.acquire("alice", ONE)


# Beside rates


def test_places_and_rates_are_charged_together_or_not_at_all(limiter: Limiter) -> None:
    both = f"{THREE}; 2/minute"
    assert [bool(limiter.acquire("alice", both)) for _ in range(3)] == [True, True, False]
    assert places_left(limiter, quota=THREE) == 1  # the rate refused, so no place was taken
    tight = f"{ONE}; 9/hour"
    assert [bool(limiter.acquire("bob", tight)) for _ in range(2)] == [True, False]
    assert limiter.peek("bob", "9/hour", cost=0).remaining == 8  # no place was left, so nothing was charged


def test_releasing_leaves_the_rate_charged(limiter: Limiter) -> None:
    with limiter.hold("alice", [THREE, "10/minute"], cost=4) as hold:
        assert [decision.cost for decision in hold.verdict.decisions] == [1, 4]
    assert places_left(limiter, quota=THREE) == 3
    assert limiter.peek("alice", "10/minute", cost=0).remaining == 6


def test_a_refund_gives_back_the_place_and_the_units(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", [THREE, "10/minute"], cost=4)
    assert limiter.refund(verdict).each == (1, 4)
    assert places_left(limiter, quota=THREE) == 3
    assert limiter.peek("alice", "10/minute", cost=0).remaining == 10


def test_a_partial_refund_keeps_the_place(limiter: Limiter) -> None:
    verdict = limiter.acquire("alice", [THREE, "10/minute"], cost=4)
    assert limiter.refund(verdict, units=3).each == (0, 3)
    assert places_left(limiter, quota=THREE) == 2


def test_two_kinds_of_places_are_held_and_renewed_together(limiter: Limiter, clock: ManualClock) -> None:
    both = ["2 concurrent ttl 10s name user", "5 concurrent ttl 60s name tenant"]
    with limiter.hold("alice", both) as hold:
        clock.advance(9)
        assert hold.renew()
        clock.advance(9)
        assert [d.remaining for d in limiter.peek("alice", both, cost=0).decisions] == [1, 4]
    assert [d.remaining for d in limiter.peek("alice", both, cost=0).decisions] == [2, 5]


def test_a_hold_that_lost_one_of_its_places_is_not_renewed(limiter: Limiter, clock: ManualClock) -> None:
    both = ["1 concurrent ttl 10s name user", "1 concurrent ttl 60s name tenant"]
    hold = limiter.hold("alice", both)
    clock.advance(10)
    assert limiter.acquire("alice", both[0])
    assert not hold.renew()


def test_a_min_interval_beside_places_stays_charged_after_the_release(limiter: Limiter, clock: ManualClock) -> None:
    quota = "2 concurrent ttl 30s min_interval 1s"
    with limiter.hold("alice", quota):
        pass
    refused = limiter.hold("alice", quota)
    assert (bool(refused), refused.verdict.retry_after) == (False, 1)
    clock.advance(1)
    assert limiter.hold("alice", quota)


def test_a_penalty_shuts_a_key_out_once_it_found_no_place(limiter: Limiter, clock: ManualClock) -> None:
    quota = "1 concurrent ttl 30s penalty 10s"
    hold = limiter.hold("alice", quota)
    assert hold.renew()
    assert limiter.acquire("alice", quota).retry_after == 30
    assert hold.renew()
    hold.release()
    clock.micros += 10_000_000 - 1
    assert limiter.acquire("alice", quota).retry_after_us == 1
    clock.micros += 1
    assert limiter.acquire("alice", quota)


def test_both_counters_survive_when_the_store_makes_room_between_them(clock: ManualClock) -> None:
    """A newcomer among the counters of a request must not bring back an older state of another one."""
    store = MemoryStore(clock=clock)
    limiter = Limiter(store, layers=())
    places, rate = Quota.parse("9 concurrent ttl 1h"), Quota.parse("9/hour")
    limiter.acquire("warm", [rate, places])

    neighbours = (key for key in map(str, range(10_000_000)) if store._stripes.of(key).number == 7)
    key = next(neighbours)
    limiter.acquire(key, places)
    for _ in range(20):
        limiter.acquire(next(neighbours), places)
    clock.advance(61)  # the young generation is old enough to turn
    assert limiter.acquire(key, [rate, places]).decisions[1].remaining == 7
    for _ in range(40):
        limiter.acquire(next(neighbours), places)
    assert limiter.peek(key, places, cost=0).remaining == 7


# Bad input


@pytest.mark.parametrize("quota", ["10/minute", ["10/minute", "100/hour"], "1/minute min_interval 1s"])
def test_what_has_no_places_cannot_be_held(limiter: Limiter, quota: str | list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        limiter.hold("alice", quota)
    assert str(caught.value) == 'hold: no quota has places to hold (expected one such as "5 concurrent ttl 30s")'
    assert limiter.peek("alice", "10/minute", cost=0).remaining == 10


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_request_without_a_place_cannot_be_released_or_renewed(limiter: Limiter, verb: str) -> None:
    verdict = limiter.acquire("alice", "10/minute")
    with pytest.raises(InvalidReceipt) as caught:
        getattr(limiter, verb)(verdict)
    assert str(caught.value) == f"{verb} of a request that holds no place (expected one with a concurrency quota)"


@pytest.mark.parametrize("verb", ["release", "renew"])
def test_a_refused_verdict_cannot_be_released_or_renewed(limiter: Limiter, verb: str) -> None:
    limiter.acquire("alice", ONE)
    with pytest.raises(InvalidReceipt) as caught:
        getattr(limiter, verb)(limiter.acquire("alice", ONE))
    assert str(caught.value) == f"{verb} of a verdict that charged nothing (expected one that was allowed)"


@pytest.mark.parametrize("verb", ["release", "renew"])
@pytest.mark.parametrize(("thing", "kind"), [(None, "NoneType"), ("alice", "str"), ((), "tuple"), (7, "int")])
def test_foreign_things_cannot_be_released_or_renewed(limiter: Limiter, verb: str, thing: object, kind: str) -> None:
    with pytest.raises(InvalidReceipt) as caught:
        getattr(limiter, verb)(thing)
    assert str(caught.value) == f"{verb} of {kind}: expected a verdict or its receipt"


@pytest.mark.parametrize("verb", ["release", "renew", "refund", "settle"])
def test_a_hold_itself_is_no_receipt(limiter: Limiter, verb: str) -> None:
    hold = limiter.hold("alice", ONE)
    arguments = (hold, 1) if verb == "settle" else (hold,)
    with pytest.raises(InvalidReceipt) as caught:
        getattr(limiter, verb)(*arguments)
    assert str(caught.value) == f"{verb} of Hold: expected a verdict or its receipt"


def test_the_place_of_another_limiter_frees_nothing_here(limiter: Limiter, clock: ManualClock) -> None:
    foreign = Limiter(clock=clock)
    foreign.acquire("alice", ONE)
    theirs = foreign.acquire("bob", ONE)
    assert limiter.release(theirs).units == 0
    assert not limiter.renew(theirs)


def test_a_closed_limiter_holds_nothing() -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.close()
    with pytest.raises(StoreError, match=r"^the limiter is closed$"):
        limiter.hold("alice", ONE)


# With an id made by the caller


def test_a_lost_answer_is_asked_again_by_its_id_and_released(limiter: Limiter) -> None:
    limiter.acquire("alice", ONE, id="request 7")  # the answer got lost on the way
    again = limiter.hold("alice", ONE, id="request 7")
    assert again
    again.release()
    assert places_left(limiter) == 1


def test_an_id_holds_one_place_however_often_it_asks(limiter: Limiter) -> None:
    verdicts = [limiter.acquire("alice", THREE, id="a") for _ in range(5)]
    assert all(verdict == verdicts[0] for verdict in verdicts)
    assert places_left(limiter, quota=THREE) == 2


def test_a_release_by_id_works_once(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE, id="a")
    hold.release()
    clock.micros += 1
    assert limiter.acquire("alice", ONE)
    hold.release()
    assert not limiter.acquire("alice", ONE)


def test_a_released_id_may_take_a_place_again(limiter: Limiter, clock: ManualClock) -> None:
    limiter.hold("alice", ONE, id="a").release()
    clock.advance(1)
    again = limiter.hold("alice", ONE, id="a")
    assert again
    assert places_left(limiter) == 0
    again.release()
    assert places_left(limiter) == 1


def test_a_repeated_release_does_not_touch_a_later_hold_with_the_same_id(limiter: Limiter, clock: ManualClock) -> None:
    first = limiter.hold("alice", ONE, id="a")
    first.release()
    clock.advance(1)
    second = limiter.hold("alice", ONE, id="a")
    first.release()
    assert places_left(limiter) == 0
    assert second.renew()
    second.release()
    assert places_left(limiter) == 1


def test_an_id_whose_place_expired_does_not_pass_for_a_holder(limiter: Limiter, clock: ManualClock) -> None:
    quota = "1 concurrent ttl 1s"
    assert limiter.acquire("alice", quota, id="crashed")
    clock.advance(1)
    assert limiter.acquire("alice", quota)  # somebody else has the only place now
    assert not limiter.acquire("alice", quota, id="crashed")


def test_a_renewed_hold_is_remembered_by_its_id_as_long_as_it_is_held(limiter: Limiter, clock: ManualClock) -> None:
    hold = limiter.hold("alice", ONE, id="a")
    for _ in range(20):
        clock.advance(TTL - 1)
        assert hold.renew()
    assert limiter.acquire("alice", ONE, id="a") == hold.verdict
    hold.release()
    assert places_left(limiter) == 1


def test_what_was_refused_may_be_asked_again_with_its_id(limiter: Limiter) -> None:
    first = limiter.hold("alice", ONE)
    assert not limiter.hold("alice", ONE, id="a")
    first.release()
    assert limiter.hold("alice", ONE, id="a")


# Renewed in the background. The keeper lives in real time, the places by the store's clock, so nothing here is fixed:
# the test lets the store's time pass only when it has seen a renewal.


class WatchedStore:
    """A memory store that tells of each renewal, and fails as many of them as it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.renewals = threading.Semaphore(0)
        self.failures = 0

    def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        renewal = isinstance(ops[0], Amend) and ops[0].verb == "renew"
        if renewal and self.failures:
            self.failures -= 1
            return [Failed(StoreError("the store is away", transient=True), "no")]
        outcomes = self.inner.run(ops, deadline)
        if renewal:
            self.renewals.release()
        return outcomes

    def close(self) -> None:
        self.inner.close()

    def saw_renewal(self) -> bool:
        """Whether a renewal that began after this call is seen to end."""
        while self.renewals.acquire(blocking=False):
            pass
        return self.renewals.acquire(timeout=PATIENCE) and self.renewals.acquire(timeout=PATIENCE)


class WatchedAsyncStore:
    """The same for asyncio."""

    def __init__(self, clock: ManualClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.renewal = asyncio.Event()
        self.failures = 0

    async def run(self, ops: Sequence[Op], deadline: Micros | None = None) -> list[Outcome]:
        renewal = isinstance(ops[0], Amend) and ops[0].verb == "renew"
        if renewal and self.failures:
            self.failures -= 1
            return [Failed(StoreError("the store is away", transient=True), "no")]
        outcomes = self.inner.run(ops, deadline)
        if renewal:
            self.renewal.set()
        return outcomes

    async def close(self) -> None:
        self.inner.close()

    async def saw_renewal(self) -> bool:
        self.renewal.clear()
        return await asyncio.wait_for(self.renewal.wait(), PATIENCE)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-renew"]


@pytest.fixture(autouse=True)
def nobody_keeps_what_another_test_held() -> None:
    for keeper in keepers():  # told to end, but perhaps not there yet
        keeper.join(PATIENCE)


SHORT = "1 concurrent ttl 15ms"


def test_a_background_thread_renews_and_ends_with_the_hold(clock: ManualClock) -> None:
    store = WatchedStore(clock)
    limiter = Limiter(store, clock=clock, layers=())
    with limiter.hold("alice", SHORT, renew=True):
        (keeper,) = keepers()
        assert keeper.daemon
        for _ in range(6):  # four ttls and a half
            assert store.saw_renewal()
            clock.advance(0.011)
            assert not limiter.acquire("alice", SHORT)
    keeper.join(PATIENCE)
    assert not keeper.is_alive()
    assert limiter.acquire("alice", SHORT)


def test_a_release_ends_the_keeper_at_once_and_loses_nothing(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    with limiter.hold("alice", "1 concurrent ttl 1h", renew=True) as hold:  # the next renewal is 20 minutes away
        (keeper,) = keepers()
    keeper.join(PATIENCE)
    assert not keeper.is_alive()
    assert not hold.lost


def test_without_the_option_nobody_renews(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    with limiter.hold("alice", SHORT):
        assert keepers() == []


def test_a_refused_hold_is_not_renewed(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    limiter.acquire("alice", SHORT)
    assert not limiter.hold("alice", SHORT, renew=True)
    assert keepers() == []


def test_the_keeper_gives_up_once_the_place_is_lost(clock: ManualClock) -> None:
    store = WatchedStore(clock)
    limiter = Limiter(store, clock=clock, layers=())
    hold = limiter.hold("alice", SHORT, renew=True)
    (keeper,) = keepers()
    assert store.saw_renewal()
    limiter.reset("alice", SHORT)
    keeper.join(PATIENCE)
    assert not keeper.is_alive()
    assert hold.lost
    hold.release()


def test_the_keeper_ends_when_nobody_has_the_hold_any_more(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    hold = limiter.hold("alice", SHORT, renew=True)
    assert not hold.lost
    (keeper,) = keepers()
    del hold
    gc.collect()
    keeper.join(PATIENCE)
    assert not keeper.is_alive()
    clock.advance(0.015)
    assert limiter.acquire("alice", SHORT)


def test_a_failed_renewal_is_tried_again(clock: ManualClock) -> None:
    store = WatchedStore(clock)
    limiter = Limiter(store, clock=clock, layers=())
    store.failures = 2
    with limiter.hold("alice", SHORT, renew=True):
        assert store.saw_renewal()
    assert store.failures == 0


def test_the_keeper_ends_when_the_block_fails(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    hold = limiter.hold("alice", SHORT, renew=True)
    (keeper,) = keepers()
    with pytest.raises(KeyError), hold:
        raise KeyError
    keeper.join(PATIENCE)
    assert not keeper.is_alive()


def other_tasks() -> set["asyncio.Task[object]"]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_background_task_renews_and_ends_with_the_hold(clock: ManualClock) -> None:
    store = WatchedAsyncStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    async with limiter.hold("alice", SHORT, renew=True):
        (keeper,) = other_tasks()
        for _ in range(6):
            assert await store.saw_renewal()
            clock.advance(0.011)
            assert not await limiter.acquire("alice", SHORT)
    await asyncio.wait([keeper], timeout=PATIENCE)
    assert keeper.done()
    assert await limiter.acquire("alice", SHORT)


async def test_a_release_ends_the_task_at_once_and_loses_nothing(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    async with limiter.hold("alice", "1 concurrent ttl 1h", renew=True) as hold:
        (keeper,) = other_tasks()
    await asyncio.wait([keeper], timeout=PATIENCE)
    assert keeper.done()
    assert not hold.lost


async def test_a_failed_renewal_is_tried_again_by_the_task(clock: ManualClock) -> None:
    store = WatchedAsyncStore(clock)
    limiter = AsyncLimiter(store, clock=clock, layers=())
    store.failures = 2
    async with limiter.hold("alice", SHORT, renew=True):
        assert await store.saw_renewal()
    assert store.failures == 0


async def test_the_task_gives_up_once_the_place_is_lost(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    hold = await limiter.hold("alice", SHORT, renew=True)
    (keeper,) = other_tasks()
    await limiter.reset("alice", SHORT)
    await asyncio.wait([keeper], timeout=PATIENCE)
    assert keeper.done()
    assert hold.lost
    await hold.release()


async def test_the_task_ends_when_nobody_has_the_hold_any_more(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    hold = await limiter.hold("alice", SHORT, renew=True)
    assert not hold.lost
    (keeper,) = other_tasks()
    del hold
    gc.collect()
    await asyncio.wait([keeper], timeout=PATIENCE)
    assert keeper.done()


# asyncio


async def test_a_hold_may_be_awaited(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    hold = await limiter.hold("alice", ONE)
    assert hold
    assert repr(hold) == "<AsyncHold <Verdict 1 concurrent ttl 30s: allowed, 0 left>>"
    assert not await limiter.hold("alice", ONE)
    assert await hold.renew()
    await hold.release()
    assert not await hold.renew()
    await hold.release()
    assert await limiter.hold("alice", ONE)


async def test_an_awaited_hold_may_be_entered(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    hold = await limiter.hold("alice", ONE)
    async with hold as entered:
        assert entered is hold
    assert await limiter.acquire("alice", ONE)


async def test_a_hold_may_be_entered_at_once(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    async with limiter.hold("alice", ONE) as hold:
        assert hold.verdict.allowed
        with pytest.raises(RateLimited):
            async with limiter.hold("alice", ONE):
                raise AssertionError("the block ran")
    assert await limiter.acquire("alice", ONE)


async def test_an_exception_or_a_cancellation_releases(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    with pytest.raises(KeyError):
        async with limiter.hold("alice", ONE):
            raise KeyError

    async def hold_for_ever() -> None:
        async with limiter.hold("alice", ONE):
            await asyncio.Event().wait()

    task = asyncio.create_task(hold_for_ever())
    await asyncio.sleep(0)
    assert not await limiter.peek("alice", ONE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await limiter.acquire("alice", ONE)


async def test_a_refused_hold_in_hand_raises_when_entered(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    await limiter.acquire("alice", ONE)
    refused = await limiter.hold("alice", ONE)
    assert not refused
    assert not await refused.renew()
    await refused.release()
    with pytest.raises(RateLimited):
        async with refused:
            raise AssertionError("the block ran")
    assert not await limiter.peek("alice", ONE)


async def test_bad_holds_fail_for_asyncio_alike(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    with pytest.raises(InvalidRequest) as caught:
        await limiter.hold("alice", "10/minute")
    assert str(caught.value) == 'hold: no quota has places to hold (expected one such as "5 concurrent ttl 30s")'
    for verb in ("release", "renew"):
        with pytest.raises(InvalidReceipt) as foreign:
            await getattr(limiter, verb)("alice")
        assert str(foreign.value) == f"{verb} of str: expected a verdict or its receipt"


# Around functions


def test_a_limited_function_holds_its_place_while_it_runs(limiter: Limiter) -> None:
    left: list[int] = []

    @limiter.limit(ONE, key="tenant", name="export")
    def export(*, fail: bool = False) -> str:
        left.append(limiter.peek(("export", "tenant"), ONE, cost=0).remaining)
        if fail:
            raise KeyError
        with pytest.raises(RateLimited):
            export()
        return "done"

    assert export() == "done"
    with pytest.raises(KeyError):
        export(fail=True)
    assert export() == "done"
    assert left == [0, 0, 0]


async def test_a_limited_coroutine_holds_its_place_while_it_runs(clock: ManualClock) -> None:
    limiter = AsyncLimiter(clock=clock)
    running = 0

    @limiter.limit("2 concurrent")
    async def export() -> int:
        nonlocal running
        running += 1
        await asyncio.sleep(0)
        running -= 1
        return running

    outcomes = await asyncio.gather(*(export() for _ in range(5)), return_exceptions=True)
    assert [isinstance(outcome, RateLimited) for outcome in outcomes] == [False, False, True, True, True]
    assert await export() == 0


def test_a_verdict_without_a_receipt_has_nothing_to_release() -> None:
    limiter = Limiter(clock=ManualClock())
    verdict: Verdict = limiter.peek("alice", ONE)
    receipt: Receipt | None = verdict.receipt
    assert receipt is None

"""What the script leaves in Redis, and what it makes of what others left there."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import cast

import pytest
import redis

from penstock.clock import SECOND, ManualClock
from penstock.model import MAX_ASKS, MAX_COST, Acquire, Amend, Ask, Charge, Failed, Op, Outcome, Receipt, Reset, Verdict
from penstock.quota import Quota
from penstock.stores.redis.codec import Codec
from penstock.stores.redis.keys import Keys
from penstock.stores.redis.scatter import spread
from penstock.stores.redis.script import INJECTED_TIME, SCRIPT, SERVER_TIME, script_with_injected_time
from tests.conformance.redis_server import PlannedStore, running_server

TEXTS = (
    "5/10 seconds fixed_window",
    "5/10 seconds",
    "5/10 seconds token_bucket",
    "5/10 seconds gcra",
    "5/10 seconds queue 4",
    "5/day calendar UTC",
)
SETS = ("5/10 seconds rolling_window", "5 concurrent ttl 10s")
ALL = (*TEXTS, *SETS, *(f"{quota} penalty 7s" for quota in (*TEXTS, *SETS)))

TWO = Quota.parse("2/10 seconds")

for_every_quota = pytest.mark.parametrize("quota", ALL)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_server() as port:
        yield port


@pytest.fixture
def store(port: int) -> Iterator[PlannedStore]:
    with closing(PlannedStore(port, ManualClock())) as store:
        store.client.flushall()
        yield store


def acquire(quota: str, key: str = "alice", request_id: bytes | None = None, dry: bool = False) -> Acquire:
    return Acquire((Ask(key, Quota.parse(quota)),), dry=dry, id=request_id)


def one(store: PlannedStore, op: Op) -> Verdict:
    (outcome,) = store.run([op])
    assert isinstance(outcome, Verdict), outcome
    return outcome


def names(client: redis.Redis) -> list[bytes]:
    return cast("list[bytes]", client.keys("*"))


def admitted(store: PlannedStore, quota: str, attempts: int = 12) -> int:
    return sum(bool(one(store, acquire(quota))) for _ in range(attempts))


# Corrupt values: detected, reported, replaced as if empty

GARBAGE = (
    b"",
    b"x",
    b"nan",
    b"-1 -1",
    b"1e9 1e9 1e9 1e9",
    b"9" * 400,
    b"1 2 3 4 5 6",
    b"\x00\xff",
    b"5 5!",
    b"!x",
    b"inf",
)


@for_every_quota
@pytest.mark.parametrize("garbage", GARBAGE)
def test_text_that_means_nothing_is_replaced_and_costs_at_most_one_budget(
    store: PlannedStore, quota: str, garbage: bytes
) -> None:
    assert one(store, acquire(quota))
    (name,) = names(store.client)
    store.client.set(name, garbage)
    assert admitted(store, quota) == 5
    assert store.corrupt == 1


@for_every_quota
def test_a_value_of_another_type_is_replaced(store: PlannedStore, quota: str) -> None:
    assert one(store, acquire(quota))
    (name,) = names(store.client)
    for make in (store.client.rpush, store.client.sadd, store.client.pfadd):
        store.client.delete(name)
        make(name, "x")
        store.corrupt = 0
        assert admitted(store, quota) == 5
        assert store.corrupt == 1


@pytest.mark.parametrize("quota", [quota for quota in ALL if quota.startswith(SETS)])
@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "1.5e15", "-5", "9007199254740993"])
@pytest.mark.parametrize("member", ["x", "1:1", "b10:9999", "a1:1", "1:9007199254740999", "@", "!", ""])
def test_unparsable_entries_refuse_no_request_for_ever(
    store: PlannedStore, quota: str, score: str, member: str
) -> None:
    assert one(store, acquire(quota))
    (name,) = names(store.client)
    store.client.zadd(name, {member: float(score)})
    assert admitted(store, quota) <= 5
    for _ in range(3):
        store.clock.advance(40)
        store.run([acquire(quota)])
    store.clock.advance(40)
    assert admitted(store, quota) == 5


@pytest.mark.parametrize("quota", TEXTS)
def test_numbers_far_in_the_future_refuse_no_request_for_ever(store: PlannedStore, quota: str) -> None:
    assert one(store, acquire(quota))
    (name,) = names(store.client)
    count = len(cast("bytes", store.client.get(name)).split())
    for number in (b"9007199254740991", b"9007199254740992", b"8589934591", b"4294967296"):
        for place in range(count):
            numbers = cast("bytes", store.client.get(name) or b"1 1 1 1").split()[:count]
            numbers[place] = number
            store.client.set(name, b" ".join(numbers))
            assert admitted(store, quota) <= 5
            store.clock.advance(86_400)
            assert one(store, acquire(quota)), (number, place)


@for_every_quota
def test_amends_and_resets_survive_garbage(store: PlannedStore, quota: str) -> None:
    verdict = one(store, acquire(quota))
    assert verdict.receipt
    (name,) = names(store.client)
    store.client.set(name, "garbage")
    assert store.run([Amend(verdict.receipt, "refund"), Reset("alice", Quota.parse(quota))])[0] == ((0,),)
    assert store.corrupt == 1


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"1 2 3", b"1 2 3 4 x" + b" 0" * 9, b"nan " * 14, b"9" * 40 + b" 1" * 13]
)
def test_a_record_that_means_nothing_is_forgotten(store: PlannedStore, garbage: bytes) -> None:
    verdict = one(store, acquire("5/10 seconds", request_id=b"id"))
    assert verdict.receipt
    record = next(name for name in names(store.client) if b"#" in name)
    store.client.set(record, garbage)
    assert store.run([Amend(verdict.receipt, "refund")]) == [((0,),)]
    assert one(store, acquire("5/10 seconds", request_id=b"id")).remaining == 3
    assert store.corrupt == 1


def test_one_corrupt_value_does_not_disturb_the_rest_of_a_batch(store: PlannedStore) -> None:
    store.run([acquire(TEXTS[0], name) for name in "abc"])
    store.client.set(names(store.client)[1], "garbage")
    remaining = [
        cast("Verdict", outcome).remaining for outcome in store.run([acquire(TEXTS[0], name) for name in "abc"])
    ]
    assert sorted(remaining) == [3, 3, 4]


def test_settlements_beyond_all_bounds_do_not_wipe_a_rolling_window(store: PlannedStore) -> None:
    quota = "5/10 seconds rolling_window"
    receipts = [one(store, acquire(quota, request_id=b"%d" % number)).receipt for number in range(4)]
    for receipt in receipts:
        assert receipt
        store.run([Amend(receipt, "settle", MAX_COST)])
        store.clock.advance(1)
    assert not one(store, acquire(quota))
    store.clock.advance(8)  # all but the last have left the window
    assert not one(store, acquire(quota))
    store.clock.advance(1)
    assert one(store, acquire(quota)).remaining == 4
    assert store.corrupt == 0


@pytest.mark.parametrize("used", [2, 5, 2**53 - 1], ids=["fits", "is full", "fits no more"])
def test_the_totals_of_a_rolling_window_begin_anew_when_they_reach_their_bound(store: PlannedStore, used: int) -> None:
    quota, most = "5/10 seconds rolling_window", 2**53 - 1
    first = one(store, acquire(quota, request_id=b"id"))
    (name,) = [name for name in names(store.client) if b"#" not in name]
    at, digits = store.clock.micros, len(str(most))
    store.client.zadd(name, {f"{chr(96 + digits)}{most}:{used}": at})
    store.client.zremrangebyrank(name, 0, 0)
    store.clock.advance(1)
    assert first.receipt
    store.run([Amend(first.receipt, "settle", 2)])  # one unit more, which must be charged
    store.clock.advance(8.5)
    left = one(store, acquire(quota, dry=True)).remaining
    assert left == max(5 - used - 1, 0)
    store.clock.advance(0.5)  # what was there has left the window, unless it could not be kept apart
    assert one(store, acquire(quota, dry=True)).remaining == (4 if used <= 5 else 0)
    store.clock.advance(1)
    assert one(store, acquire(quota, dry=True)).remaining == 5
    assert store.corrupt == 0


def test_the_largest_request_with_an_id_can_be_refunded(store: PlannedStore) -> None:
    quotas = [Quota.parse(f"5/10 seconds name q{number}") for number in range(MAX_ASKS)]
    verdict = one(store, Acquire(tuple(Ask("alice", quota, 2) for quota in quotas), id=b"id"))
    assert verdict.receipt
    assert store.run([Amend(verdict.receipt, "refund")]) == [((2,) * MAX_ASKS,)]


# Requests over several partitions of a cluster


class Spreading:
    """Attempts at one request with an id over two partitions, of which the second refuses while it is spent."""

    def __init__(self, store: PlannedStore) -> None:
        self._store, of = store, store.codec.of_counter
        other = next(name for name in "abcdef" if of(name, TWO) != of("alice", TWO))
        self.keys = "alice", other
        self.op = Acquire((Ask("alice", TWO), Ask(other, TWO)), id=b"id")

    def begin(self) -> Callable[[], Outcome]:
        """Charge all partitions; return what ends the attempt."""
        spreading = spread([self.op], self._store.codec)
        groups = next(spreading)
        answers = [self._store.run(cast("list[Op]", ops)) for _, ops in groups]

        def end() -> Outcome:
            try:
                groups = spreading.send(answers)
                spreading.send([self._store.run(cast("list[Op]", ops)) for _, ops in groups])
            except StopIteration as ended:
                (outcome,) = ended.value
                return cast("Outcome", outcome)
            raise AssertionError("a third round")

        return end

    def spend(self) -> None:
        self._store.run([Acquire((Ask(self.keys[1], TWO, 2),))])

    def free(self) -> None:
        self._store.run([Reset(self.keys[1], TWO)])

    def used(self) -> list[int]:
        asks = [Acquire((Ask(key, TWO, 0),), dry=True) for key in self.keys]
        return [2 - cast("Verdict", verdict).remaining for verdict in self._store.run(asks)]


def test_a_refused_attempt_leaves_the_charge_that_its_repeat_counts_on(store: PlannedStore) -> None:
    spreading = Spreading(store)
    spreading.spend()
    end_first = spreading.begin()
    spreading.free()
    assert spreading.begin()(), "recalled here, charged there"
    assert not end_first()
    assert spreading.used() == [1, 1]


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_the_last_of_several_refused_attempts_gives_the_charge_back(
    store: PlannedStore, first_ends_first: bool
) -> None:
    spreading = Spreading(store)
    spreading.spend()
    ends = [spreading.begin(), spreading.begin(), spreading.begin()]
    for number, end in enumerate(ends if first_ends_first else reversed(ends), start=1):
        assert not end()
        assert spreading.used() == [0 if number == 3 else 1, 2]
    spreading.free()
    assert spreading.begin()()
    assert spreading.used() == [1, 1]


def test_an_admitted_request_stays_charged_whatever_becomes_of_its_repeats(store: PlannedStore) -> None:
    spreading = Spreading(store)
    admitted = spreading.begin()()
    assert isinstance(admitted, Verdict)
    assert admitted.receipt
    mine, other = (admitted.receipt.record or "").split(" ")
    store.client.delete(other.partition("@")[0])  # as if it had expired a little earlier
    spreading.free()
    spreading.spend()
    assert not spreading.begin()()
    assert spreading.used() == [1, 2]
    assert store.run([Amend(Receipt(admitted.receipt.charges[:1], mine), "refund")]) == [((1,),)]
    assert spreading.used() == [0, 2]


# Expiry, and what can be read


class RealTime:
    """The script as it runs in production, on the server's own time."""

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port)
        self.client.flushall()
        self.client.script_load(SCRIPT.text.decode())
        self.codec = Codec(Keys(b"secret"))

    def run(self, *ops: Op) -> list[Outcome]:
        call = self.codec.encode(ops, time.time_ns() // 1_000)
        reply = self.client.evalsha(SCRIPT.sha.decode(), len(call.keys), *call.keys, *call.args)
        return self.codec.decode(ops, call, cast("bytes", reply)).outcomes


@pytest.mark.parametrize("quota", [*ALL, *(f"{quota} count denied" for quota in ALL if "concurrent" not in quota)])
def test_every_key_expires_and_none_long_after_it_matters(port: int, quota: str) -> None:
    real = RealTime(port)
    outcomes = real.run(*[acquire(quota) for _ in range(7)], acquire(quota, "bob", b"id"))
    alice, bob = outcomes[0], outcomes[-1]
    assert isinstance(alice, Verdict)
    assert isinstance(bob, Verdict)
    assert alice.receipt
    assert bob.receipt
    real.run(Amend(alice.receipt, "refund"), Amend(bob.receipt, "settle", 3), Amend(bob.receipt, "renew"))
    horizon = max(60 * SECOND, Quota.parse(quota).horizon_us, 7 * SECOND) / 1_000
    for name in names(real.client):
        assert 0 < real.client.pttl(name) <= horizon + 1


@for_every_quota
@pytest.mark.parametrize("is_known", [False, True], ids=["a new key", "a known key"])
def test_what_is_reported_expires_when_it_counts_no_more(port: int, quota: str, is_known: bool) -> None:
    real = RealTime(port)
    parts = Quota.parse(quota).parts
    if is_known:
        real.run(*[acquire(quota) for _ in range(7)])
    now = time.time_ns() // 1_000
    for ago in (0, SECOND, 4 * SECOND):
        real.run(Amend(Receipt(tuple(Charge("alice", part, 1, now - ago) for part in parts)), "report"))
    horizon = max(Quota.parse(quota).horizon_us, 7 * SECOND) / 1_000
    assert bool(names(real.client)) == (is_known or "concurrent" not in quota)
    for name in names(real.client):
        assert 0 < real.client.pttl(name) <= horizon + 1


@for_every_quota
def test_a_key_outlives_the_answer_it_must_give(store: PlannedStore, quota: str) -> None:
    """The test build keeps keys an hour longer; what is left without that must cover all that was announced."""
    for _ in range(7):
        verdict = one(store, acquire(quota))
        (name,) = names(store.client)
        left = store.client.pttl(name) - 3_600_000 + 1_000  # a second for a slow machine
        assert left >= max(verdict.reset_after_us, verdict.retry_after_us, verdict.more_after_us) / 1_000


def test_nothing_that_is_stored_names_whom_it_is_for(port: int) -> None:
    real = RealTime(port)
    for number, quota in enumerate(ALL):
        real.run(acquire(quota, f"alice-{number}", b"request-of-alice"), acquire(f"{quota} name tenant", "alice"))
    seen = b"".join(names(real.client))
    for name in names(real.client):
        text = real.client.type(name) == b"string"
        seen += (
            cast("bytes", real.client.get(name))
            if text
            else b"".join(cast("list[bytes]", real.client.zrange(name, 0, -1)))
        )
        assert re.fullmatch(rb"pk1\{[\w-]{2}\}[a-z#][A-Za-z0-9+/]{22}", name)
    assert not re.search(rb"alice|request|tenant", seen)


def test_server_time_is_the_time(port: int) -> None:
    real = RealTime(port)
    (verdict,) = real.run(acquire("5/10 seconds"))
    assert isinstance(verdict, Verdict)
    assert abs(verdict.at_us - time.time_ns() // 1_000) < 60 * SECOND


# Calendars, and the script itself


def test_a_caller_with_another_calendar_gets_stale_and_nothing_changes(store: PlannedStore) -> None:
    now, day = store.clock.micros, 86_400 * SECOND
    calendar, plain = acquire("5/day calendar UTC"), acquire("5/10 seconds")
    both = Acquire((*plain.asks, *calendar.asks))
    for away in (-2 * day, 2 * day, 400 * day):
        reply = store.ask([plain, calendar, both, both._replace(id=b"id")], now, now + away)
        assert reply.stale == [1, 2, 3]
        assert reply.now == now
        assert all(isinstance(reply.outcomes[n], Failed) for n in reply.stale)
    assert one(store, calendar).remaining == 4
    assert one(store, plain).remaining == 1
    for away in (-day, day):
        assert not store.ask([calendar], now, now + away).stale


def test_a_stale_amend_changes_nothing(store: PlannedStore) -> None:
    now, verdict = store.clock.micros, one(store, acquire("5/day calendar UTC"))
    assert verdict.receipt
    reply = store.ask([Amend(verdict.receipt, "refund")], now, now + 400 * 86_400 * SECOND)
    assert reply.stale == [0]
    assert store.run([Amend(verdict.receipt, "refund")]) == [((1,),)]


def test_the_test_build_differs_in_the_line_that_reads_the_time_and_no_other() -> None:
    ours, theirs = (script.text.decode().splitlines() for script in (SCRIPT, script_with_injected_time()))
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == [(SERVER_TIME, INJECTED_TIME)]
    assert sum("'TIME'" in line for line in ours) == 1


def test_numbers_become_text_by_a_format_that_is_exact_and_never_by_tostring() -> None:
    code = "\n".join(line.partition("--")[0] for line in SCRIPT.text.decode().splitlines())
    assert "tostring" not in code
    assert set(re.findall(r"%\.?\w+", " ".join(re.findall(r"format\('([^']*)'", code)))) == {"%.0f"}


def test_muldiv_is_exact(store: PlannedStore) -> None:
    """The one place where products pass 2^53: random numbers up to the bounds, against Python's integers."""
    chance = random.Random(4)
    text = SCRIPT.text.decode().replace("#!lua\n", "")
    prelude, muldiv = text.split("-- Forget a value")[0], text.split("-- (a * b + c) / m")[1].split("\n\n")[0]
    code = (
        prelude
        + "--"
        + muldiv
        + "\nlocal q, r = muldiv(ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0) return {text(q), text(r)}"
    )
    sha = store.client.script_load(code)
    for _ in range(500):
        m = chance.choice((1, 2, 3, 2**32, 2**32 - 1, chance.randint(1, 2**32)))
        b = chance.choice((1, 2**32, chance.randint(1, m), chance.randint(1, 2**33)))
        a = chance.choice((m, 315_360_000_000_000, chance.randint(0, 315_360_000_000_000)))
        c = chance.randint(0, m - 1)
        expected = divmod(a * b + c, m)
        quotient, remainder = cast("list[bytes]", store.client.evalsha(sha, 0, a, b, c, m))
        assert int(remainder) == expected[1]
        if expected[0] < 2**53:
            assert int(quotient) == expected[0]

"""Whatever a caller gets wrong: an exact error, nothing admitted, nothing changed. On every way to the store."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import ManualClock, Quota, Receipt, Verdict
from penstock.errors import (
    CostExceedsLimit,
    InvalidCost,
    InvalidInput,
    InvalidKey,
    InvalidQuota,
    InvalidReceipt,
    InvalidRequest,
)
from penstock.model import NOT_CHARGED, Charge
from tests.unit.support import Calls

FIVE = Quota(5, 60)
HOUR = Quota(50, 3600)
KEY = "s3cret"
WATCHED: list[tuple[str, Quota]] = [(KEY, FIVE), (KEY, HOUR), ("good", FIVE), ("also good", FIVE)]

Bad = tuple[type[InvalidInput], str]

COSTS: list[tuple[Any, Bad]] = [
    (-1, (InvalidCost, "cost -1: expected {least} to 9007199254740991")),
    (2**53, (InvalidCost, "cost 9007199254740992: expected {least} to 9007199254740991")),
    (True, (InvalidCost, "cost True: expected a whole number, not bool")),
    (False, (InvalidCost, "cost False: expected a whole number, not bool")),
    (1.0, (InvalidCost, "cost 1.0: expected a whole number, not float")),
    (float("nan"), (InvalidCost, "cost nan: expected a whole number, not float")),
    ("1", (InvalidCost, "cost '1': expected a whole number, not str")),
    (None, (InvalidCost, "cost None: expected a whole number, not NoneType")),
    (6, (CostExceedsLimit, "cost 6: 5/minute admits at most 5 at once, however long one waits")),
    (2**53 - 1, (CostExceedsLimit, f"cost {2**53 - 1}: 5/minute admits at most 5 at once, however long one waits")),
]

KEYS: list[tuple[Any, Bad]] = [
    ("", (InvalidKey, "key: expected text that is not empty")),
    (KEY * 171, (InvalidKey, "key of 1026 bytes: expected at most 1024")),
    ("é" * 513, (InvalidKey, "key of 1026 bytes: expected at most 1024")),
    (f"{KEY}\ud800", (InvalidKey, "key: lone surrogate at index 6 (expected text that UTF-8 can carry)")),
    (KEY.encode(), (InvalidKey, "key: expected text or a tuple of texts, not bytes")),
    ([KEY], (InvalidKey, "key: expected text or a tuple of texts, not list")),
    (None, (InvalidKey, "key: expected text or a tuple of texts, not NoneType")),
    (5, (InvalidKey, "key: expected text or a tuple of texts, not int")),
    ((), (InvalidKey, "key of 0 parts: expected 1 to 32")),
    ((KEY,) * 33, (InvalidKey, "key of 33 parts: expected 1 to 32")),
    ((KEY, ""), (InvalidKey, "key part 1: expected text that is not empty")),
    ((KEY, KEY * 171), (InvalidKey, "key part 1 of 1026 bytes: expected at most 1024")),
    ((f"{KEY}\ud800",), (InvalidKey, "key part 0: lone surrogate at index 6 (expected text that UTF-8 can carry)")),
    ((KEY, 5), (InvalidKey, "key part 1: expected text, not int")),
]

UNITS = "microsecond, millisecond, second, minute, hour, day, week"
QUOTAS: list[tuple[Any, Bad]] = [
    ("0/minute", (InvalidQuota, "limit 0: expected 1 to 4294967296")),
    (
        "5/fortnight",
        (InvalidQuota, f"""quota "5/fortnight": unknown unit 'fortnight' at column 3 (expected {UNITS})"""),
    ),
    ("5/3651 days", (InvalidQuota, "period of 315446400000000 microseconds: expected 1 microsecond to 3650 days")),
    ("1/week burst 522", (InvalidQuota, "burst 522 at 1/week: would take more than 3650 days to refill")),
    (["5/minute", "0/hour"], (InvalidQuota, "limit 0: expected 1 to 4294967296")),
    (5, (InvalidQuota, 'quota 5: expected text such as "100/minute", not int')),
    (None, (InvalidQuota, 'quota None: expected text such as "100/minute", not NoneType')),
    ({}, (InvalidQuota, 'quota {}: expected text such as "100/minute", not dict')),
    ([5], (InvalidQuota, 'quota 5: expected text such as "100/minute", not int')),
    ([{}], (InvalidQuota, 'quota {}: expected text such as "100/minute", not dict')),
    ([], (InvalidRequest, "a request without quotas: expected at least one")),
    ((), (InvalidRequest, "a request without quotas: expected at least one")),
    (
        "5/minute; 6/minute",
        (InvalidRequest, "6/minute: asked twice in one request (give one of them a name to keep them apart)"),
    ),
    (
        [FIVE, FIVE],
        (InvalidRequest, "5/minute: asked twice in one request (give one of them a name to keep them apart)"),
    ),
    (
        ["5/minute min_interval 1s", "50/hour min_interval 1s"],
        (InvalidRequest, "min_interval 1s: asked twice in one request (give one of them a name to keep them apart)"),
    ),
]

REQUESTS: list[Any] = [
    "ab",
    5,
    None,
    (),
    (KEY,),
    (KEY, FIVE, 1, 1),
    [KEY, FIVE],
    {KEY: 1, FIVE: 2},
    {KEY, "5/minute"},
    iter((KEY, FIVE)),
]


@pytest.fixture(params=["on first sight", "once all is remembered"])
def warmed(request: pytest.FixtureRequest, calls: Calls) -> Calls:
    """A limiter that has charged a little; and whether it has met the quotas before must make no difference."""
    if request.param == "once all is remembered":
        for quota in (FIVE, "5/minute", HOUR, [FIVE, HOUR]):
            calls.acquire("remembered", quota)
    calls.acquire(KEY, FIVE)
    calls.acquire("good", FIVE)
    return calls


@pytest.fixture
def unchanged(warmed: Calls) -> Iterator[Callable[[], None]]:
    """Fails the test if any watched counter differs afterwards."""

    def look() -> list[Verdict]:
        return [warmed.peek(key, quota) for key, quota in WATCHED]

    before = look()
    yield lambda: None
    assert look() == before


def expect(bad: Bad, call: Callable[[], object], *, least: int = 1) -> None:
    kind, text = bad
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == text.format(least=least) if "{least}" in text else str(caught.value) == text
    assert KEY not in f"{caught.value!r}"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("cost", "bad"), [*COSTS, (0, (InvalidCost, "cost 0: expected 1 to 9007199254740991"))])
def test_a_bad_cost_is_refused(warmed: Calls, cost: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.acquire(KEY, FIVE, cost))
    expect(bad, lambda: warmed.acquire(KEY, "5/minute", cost=cost))
    expect(bad, lambda: warmed.acquire(KEY, [FIVE, HOUR], cost))
    expect(bad, lambda: warmed.acquire_many([("good", FIVE), ("also good", FIVE), (KEY, FIVE, cost)]))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("cost", "bad"), COSTS)
def test_a_bad_cost_cannot_be_peeked_at(warmed: Calls, cost: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.peek(KEY, FIVE, cost), least=0)
    expect(bad, lambda: warmed.peek(KEY, [FIVE, HOUR], cost), least=0)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("cost", [10**5_000, -(10**5_000)], ids=["huge", "hugely negative"])
def test_a_cost_too_long_to_print_is_refused_too(warmed: Calls, cost: int) -> None:
    with pytest.raises(InvalidCost):
        warmed.acquire(KEY, FIVE, cost)


@pytest.mark.usefixtures("unchanged")
def test_a_cost_that_one_quota_of_several_can_never_admit_is_refused(warmed: Calls) -> None:
    bad = CostExceedsLimit, "cost 6: 5/minute admits at most 5 at once, however long one waits"
    expect(bad, lambda: warmed.acquire(KEY, [HOUR, FIVE], cost=6))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("cost", "bad"), [*COSTS[:8], (0, (InvalidCost, "cost 0: expected 1 to 9007199254740991"))])
def test_a_bad_cost_is_refused_even_where_every_request_counts_as_one(warmed: Calls, cost: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.acquire(KEY, "min_interval 1s", cost))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("key", "bad"), KEYS)
def test_a_bad_key_is_refused_and_never_quoted(warmed: Calls, key: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.acquire(key, FIVE))
    expect(bad, lambda: warmed.acquire(key, "5/minute", cost=2))
    expect(bad, lambda: warmed.acquire(key, [FIVE, HOUR]))
    expect(bad, lambda: warmed.acquire_many([("good", FIVE), ("also good", FIVE), (key, FIVE)]))
    expect(bad, lambda: warmed.acquire_many([("good", FIVE), ("also good", FIVE), (key, FIVE, 2)]))
    expect(bad, lambda: warmed.peek(key, FIVE))
    expect(bad, lambda: warmed.reset(key, FIVE))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("quota", "bad"), QUOTAS)
def test_a_bad_quota_is_refused(warmed: Calls, quota: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.acquire(KEY, quota))
    expect(bad, lambda: warmed.acquire_many([("good", FIVE), ("also good", FIVE), (KEY, quota)]))
    expect(bad, lambda: warmed.peek(KEY, quota))


@pytest.mark.parametrize("quota", [[["5/minute"]], (["5/minute"],), ["5/minute", ["50/hour"]]])
def test_nested_quotas_are_read_or_refused_but_never_break(calls: Calls, quota: Any) -> None:
    try:
        calls.peek(KEY, quota)
    except InvalidInput:
        return


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("quota", "bad"), [row for row in QUOTAS if row[1][0] is InvalidQuota])
def test_a_bad_quota_cannot_be_reset(warmed: Calls, quota: Any, bad: Bad) -> None:
    expect(bad, lambda: warmed.reset(KEY, quota))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda given: type(given).__name__)
def test_a_malformed_request_spoils_the_batch_before_anything_is_charged(warmed: Calls, request_: Any) -> None:
    bad = InvalidRequest, "request 2: expected (key, quota) or (key, quota, cost)"
    expect(bad, lambda: warmed.acquire_many([("good", FIVE), ("also good", FIVE), request_]))


@pytest.mark.parametrize("requests", [None, 5])
def test_a_batch_that_is_no_batch_is_refused(warmed: Calls, requests: Any) -> None:
    bad = InvalidRequest, f"requests: expected an iterable of (key, quota), not {type(requests).__name__}"
    expect(bad, lambda: warmed.acquire_many(requests))


def test_a_request_has_no_more_quotas_than_can_be_refunded(warmed: Calls) -> None:
    quotas = [f"5/minute name q{number}" for number in range(1_025)]
    expect((InvalidRequest, "a request of 1025 quotas: expected at most 1024"), lambda: warmed.acquire(KEY, quotas))


@pytest.mark.parametrize("quota", [FIVE, "5/minute"])
def test_a_batch_from_an_iterator_is_answered_whole_or_refused(warmed: Calls, quota: Any) -> None:
    """An answer to some requests, or to none, would read as if the others had not been asked."""
    batch: Any = iter([("good", quota), ("also good", quota)])
    try:
        verdicts = warmed.acquire_many(batch)
    except InvalidInput:
        return
    assert len(verdicts) == 2


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("given", "kind"),
    [(None, "NoneType"), (True, "bool"), (KEY, "str"), ((), "tuple"), (object(), "object")],
)
def test_only_a_verdict_or_receipt_can_be_refunded(warmed: Calls, given: Any, kind: str) -> None:
    bad = InvalidReceipt, f"refund of {kind}: expected a verdict or its receipt"
    expect(bad, lambda: warmed.refund(given))


NOTHING_CHARGED = InvalidReceipt, "refund of a verdict that charged nothing (expected one that was allowed)"


@pytest.mark.usefixtures("unchanged")
def test_what_was_refused_cannot_be_refunded(warmed: Calls) -> None:
    warmed.acquire("full", FIVE, cost=5)
    refused = warmed.acquire("full", FIVE)
    expect(NOTHING_CHARGED, lambda: warmed.refund(refused))
    assert warmed.peek("full", FIVE, cost=0).remaining == 0


@pytest.mark.usefixtures("unchanged")
def test_what_was_only_peeked_at_cannot_be_refunded(warmed: Calls) -> None:
    expect(NOTHING_CHARGED, lambda: warmed.refund(warmed.peek(KEY, FIVE)))
    expect(NOTHING_CHARGED, lambda: warmed.refund(warmed.peek(KEY, [FIVE, HOUR]), units=1))


@pytest.mark.usefixtures("unchanged")
def test_what_was_refused_and_counted_all_the_same_cannot_be_refunded(warmed: Calls) -> None:
    quota = Quota(1, 60, count_denied=True, name="counted")
    warmed.acquire(KEY, quota)
    expect(NOTHING_CHARGED, lambda: warmed.refund(warmed.acquire(KEY, quota)))


def test_a_verdict_from_another_store_gives_nothing_back(calls: Calls, clock: ManualClock) -> None:
    from penstock import Limiter

    foreign = Limiter(clock=clock).acquire("elsewhere", FIVE, cost=3)
    assert calls.refund(foreign).units == 0
    calls.acquire("elsewhere", FIVE)
    assert calls.refund(foreign).units <= 1
    assert calls.peek("elsewhere", FIVE, cost=0).remaining <= 5


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("units", [None, 1])
def test_an_empty_receipt_is_refused_or_gives_nothing_back(warmed: Calls, units: int | None) -> None:
    try:
        assert warmed.refund(Receipt(()), units).units == 0
    except InvalidInput:
        return


@pytest.mark.usefixtures("unchanged")
def test_a_receipt_that_was_never_given_gives_nothing_back(warmed: Calls) -> None:
    assert warmed.refund(Receipt((Charge(KEY, FIVE, 1, NOT_CHARGED),))).units == 0
    assert warmed.refund(Receipt((Charge("nobody", FIVE, 1, 5),))).units == 0


@pytest.mark.parametrize(
    ("units", "bad"),
    [
        (0, (InvalidCost, "units 0: expected 1 to 9007199254740991")),
        (-1, (InvalidCost, "units -1: expected 1 to 9007199254740991")),
        (True, (InvalidCost, "units True: expected a whole number, not bool")),
        (1.0, (InvalidCost, "units 1.0: expected a whole number, not float")),
        ("1", (InvalidCost, "units '1': expected a whole number, not str")),
        (4, (InvalidCost, "units 4: expected at most 3, which is what was charged")),
        (2**53, (InvalidCost, "units 9007199254740992: expected 1 to 9007199254740991")),
    ],
)
def test_bad_units_are_refused_and_nothing_comes_back(calls: Calls, units: Any, bad: Bad) -> None:
    verdict = calls.acquire(KEY, FIVE, cost=3)
    expect(bad, lambda: calls.refund(verdict, units))
    expect(bad, lambda: calls.refund(verdict.receipt or Receipt(()), units))
    assert calls.peek(KEY, FIVE, cost=0).remaining == 2

import copy
import pickle
from typing import Any

import pytest

from penstock import Decision, Limiter, ManualClock, Quota, Receipt, StoreError, Verdict
from penstock.errors import CostExceedsLimit, InvalidCost, InvalidKey, InvalidReceipt, InvalidRequest
from penstock.model import (
    MAX_COST,
    NOT_CHARGED,
    Acquire,
    Amend,
    Amended,
    Answer,
    Ask,
    Charge,
    Failed,
    Grant,
    Key,
    Reset,
    check_cost,
    check_key,
    check_quotas,
    check_units,
    own_mark,
)

AT = 1_700_000_000_000_000
MINUTE = Quota(10, 60)
HOUR = Quota(100, 3600)
SPACING = Quota(1, 0.25, "min_interval")


def answer(
    *,
    allowed: bool = True,
    remaining: int = 0,
    retry: int = 0,
    reset: int = 0,
    more: int = 0,
    delay: int = 0,
    mark: int = 7,
) -> Answer:
    return allowed, remaining, retry, reset, more, delay, mark


def passed(quota: Quota = MINUTE, cost: int = 1, *, advisory: bool = False, **fields: Any) -> Decision:
    return Decision((answer(**fields), AT, "s3cret", quota, cost, advisory))


def refused(quota: Quota = MINUTE, cost: int = 1, *, advisory: bool = False, **fields: Any) -> Decision:
    fields = {"allowed": False, "mark": NOT_CHARGED, **fields}
    return Decision((answer(**fields), AT, "s3cret", quota, cost, advisory))


def lone(**fields: Any) -> Verdict:
    """A verdict as a store makes it for a single ask: no decisions inside."""
    return Verdict((answer(**fields), AT, "s3cret", MINUTE, 3, ()))


# ---------------------------------------------------------------- decisions and verdicts


@pytest.mark.parametrize("allowed", [True, False])
def test_decisions_and_verdicts_are_true_when_allowed(allowed: bool) -> None:
    assert bool(lone(allowed=allowed)) is allowed
    assert bool(passed(allowed=allowed)) is allowed
    assert bool(Verdict.of((passed(allowed=allowed),))) is allowed


def test_a_decision_speaks_seconds_and_keeps_microseconds() -> None:
    decision = refused(remaining=2, retry=1_500_000, reset=60_000_000, more=1, delay=250_000)
    assert (decision.retry_after, decision.reset_after, decision.more_after, decision.delay) == (
        1.5,
        60,
        0.000_001,
        0.25,
    )
    assert (decision.retry_after_us, decision.reset_after_us, decision.more_after_us, decision.delay_us) == (
        1_500_000,
        60_000_000,
        1,
        250_000,
    )


def test_a_decision_tells_what_was_asked_and_when() -> None:
    decision = passed(HOUR, 3, advisory=True, remaining=97)
    assert (decision.key, decision.quota, decision.cost, decision.limit) == ("s3cret", HOUR, 3, 100)
    assert (decision.remaining, decision.at_us, decision.mark, decision.advisory) == (97, AT, 7, True)


def test_a_lone_verdict_reads_as_its_only_decision() -> None:
    verdict = lone(remaining=7)
    (decision,) = verdict.decisions
    assert type(decision) is Decision
    assert decision == Decision((answer(remaining=7), AT, "s3cret", MINUTE, 3, False))
    assert not verdict.advisory


def test_decisions_stand_in_the_order_asked() -> None:
    decisions = passed(HOUR), refused(MINUTE), passed(SPACING)
    assert Verdict.of(decisions).decisions == decisions


def test_a_verdict_is_allowed_when_all_decisions_allow() -> None:
    assert Verdict.of((passed(MINUTE), passed(HOUR)))
    assert not Verdict.of((passed(MINUTE), refused(HOUR)))


def test_the_tightest_refusal_is_the_one_with_the_longest_wait() -> None:
    verdict = Verdict.of((refused(MINUTE, retry=5, remaining=1), refused(HOUR, retry=9, remaining=4), passed(SPACING)))
    assert (verdict.quota, verdict.retry_after_us, verdict.remaining) == (HOUR, 9, 4)


def test_without_refusal_the_tightest_is_the_smallest_share_left() -> None:
    verdict = Verdict.of((passed(MINUTE, remaining=6), passed(HOUR, remaining=50, reset=8, more=3)))
    assert (verdict.quota, verdict.remaining, verdict.reset_after_us, verdict.more_after_us) == (HOUR, 50, 8, 3)
    assert verdict.retry_after == 0


def test_the_share_is_that_of_the_burst() -> None:
    verdict = Verdict.of((passed(Quota(10, 1, burst=100), remaining=10), passed(MINUTE, remaining=2)))
    assert verdict.limit == 10
    assert verdict.remaining == 10


def test_the_delay_is_the_longest_of_all() -> None:
    assert Verdict.of((passed(MINUTE, delay=5), passed(HOUR, remaining=100, delay=9))).delay_us == 9


def test_an_advisory_refusal_does_not_refuse() -> None:
    verdict = Verdict.of((refused(MINUTE, retry=9, advisory=True), passed(HOUR, remaining=50)))
    assert verdict.allowed
    assert (verdict.quota, verdict.retry_after) == (HOUR, 0)


def test_a_verdict_of_advisory_asks_alone_is_allowed() -> None:
    verdict = Verdict.of((refused(MINUTE, retry=9, advisory=True),))
    assert verdict.allowed
    assert (verdict.quota, verdict.retry_after) == (MINUTE, 0)


def test_verdicts_are_values() -> None:
    assert lone(remaining=1) == lone(remaining=1) != lone(remaining=2)
    assert len({lone(remaining=1), lone(remaining=1)}) == 1


@pytest.mark.parametrize("verdict", [lone(), Verdict.of((passed(MINUTE), refused(HOUR)))], ids=["lone", "several"])
def test_verdicts_survive_copying_and_pickling(verdict: Verdict) -> None:
    copies = [copy.copy(verdict), copy.deepcopy(verdict), pickle.loads(pickle.dumps(verdict))]
    assert copies == [verdict] * 3
    assert {type(made) for made in copies} == {Verdict}
    assert pickle.loads(pickle.dumps(verdict)).quota is verdict.quota


@pytest.mark.parametrize("field", ["remaining", "anything"])
def test_verdicts_do_not_change(field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(lone(), field, 1)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (lone(remaining=9), "<Verdict 10/minute: allowed, 9 left>"),
        (lone(allowed=False, retry=1_500_000), "<Verdict 10/minute: refused, retry after 1.5 s, 0 left>"),
        (Verdict.of((passed(remaining=3), refused(HOUR))), "<Verdict 100/hour: refused, retry after 0 s, 0 left>"),
        (passed(HOUR, remaining=9), "<Decision 100/hour: allowed, 9 left>"),
    ],
)
def test_a_verdict_or_decision_shows_what_was_decided_but_not_on_whom(record: Decision, text: str) -> None:
    assert repr(record) == str(record) == f"{record}" == text


def test_the_decisions_of_a_verdict_show_no_key_either() -> None:
    assert "s3cret" not in repr(Verdict.of((passed(), refused(HOUR))).decisions)


@pytest.mark.parametrize(
    "record",
    [
        Ask("s3cret", MINUTE),
        Acquire((Ask(("s3cret", "x"), MINUTE),)),
        Charge("s3cret", MINUTE, 1, 7),
        Receipt((Charge("s3cret", MINUTE, 1, 7),)),
        Amend(Receipt((Charge("s3cret", MINUTE, 1, 7),)), "refund"),
        Reset("s3cret", MINUTE),
    ],
    ids=lambda record: type(record).__name__,
)
def test_no_record_shows_whom_it_is_about(record: object) -> None:
    """Identities must not end up in logs, and a record is logged by its repr."""
    assert "s3cret" not in f"{record!r} {record!s}"


# ---------------------------------------------------------------- receipts


def test_a_receipt_names_what_was_charged() -> None:
    assert lone(mark=5).receipt == Receipt((Charge("s3cret", MINUTE, 3, 5),))


def test_what_charged_nothing_has_no_receipt() -> None:
    assert lone(allowed=False, mark=NOT_CHARGED).receipt is None
    assert Verdict.of((passed(mark=NOT_CHARGED), refused(HOUR))).receipt is None


def test_a_receipt_leaves_out_the_counters_that_were_not_charged() -> None:
    verdict = Verdict.of((passed(MINUTE, 2, mark=5), refused(HOUR, 2, advisory=True)))
    assert verdict.receipt == Receipt((Charge("s3cret", MINUTE, 2, 5),))


RECEIPT = Receipt((Charge("k", MINUTE, 4, 5), Charge("k", SPACING, 1, 6)))


def test_a_receipts_cost_is_the_requests() -> None:
    assert RECEIPT.cost == 4


@pytest.mark.parametrize(("units", "costs"), [(None, [4, 1]), (4, [4, 1]), (9, [4, 1]), (3, [3, 0]), (1, [1, 0])])
def test_a_portion_leaves_flat_charges_until_all_is_given_back(units: int | None, costs: list[int]) -> None:
    portion = RECEIPT.portion(units)
    assert [charge.cost for charge in portion] == costs
    assert [charge._replace(cost=0) for charge in portion] == [charge._replace(cost=0) for charge in RECEIPT.charges]


@pytest.mark.parametrize(("each", "units"), [((), 0), ((3,), 3), ((3, 1), 3), ((0, 2), 2)])
def test_amended_units_are_the_most_that_came_back_to_a_counter(each: tuple[int, ...], units: int) -> None:
    assert Amended(each).units == units


def test_failed_says_whether_it_may_have_been_charged() -> None:
    error = StoreError("gone", transient=True)
    assert Failed(error, "unknown") == (error, "unknown")


# ---------------------------------------------------------------- checks

BAD_COSTS: list[tuple[Any, str]] = [
    (-1, "-1: expected 1 to 9007199254740991"),
    (0, "0: expected 1 to 9007199254740991"),
    (2**53, "9007199254740992: expected 1 to 9007199254740991"),
    (True, "True: expected a whole number, not bool"),
    (1.0, "1.0: expected a whole number, not float"),
    (float("nan"), "nan: expected a whole number, not float"),
    ("1", "'1': expected a whole number, not str"),
    (None, "None: expected a whole number, not NoneType"),
]


@pytest.mark.parametrize(("cost", "text"), BAD_COSTS)
def test_a_cost_or_amount_must_be_a_whole_number_in_range(cost: Any, text: str) -> None:
    with pytest.raises(InvalidCost) as caught:
        check_units("units", cost, least=1)
    assert str(caught.value) == f"units {text}"
    with pytest.raises(InvalidCost) as caught:
        check_cost(cost, MINUTE)
    assert str(caught.value) == f"cost {text}"


def test_a_cost_too_long_to_print_is_invalid_input_too() -> None:
    with pytest.raises(InvalidCost):
        check_cost(10**5_000, MINUTE)
    within: Any = (10**5_000,)
    with pytest.raises(InvalidCost, match=r"^cost <tuple>: expected a whole number, not tuple$"):
        check_cost(within, MINUTE)


@pytest.mark.parametrize(("cost", "least"), [(0, 0), (1, 0), (1, 1), (10, 1)])
def test_a_sound_cost_is_handed_back(cost: int, least: int) -> None:
    assert check_cost(cost, MINUTE, least=least) == cost
    assert check_units("units", MAX_COST, least=least) == MAX_COST


@pytest.mark.parametrize(
    ("cost", "quota", "text"),
    [
        (11, MINUTE, "cost 11: 10/minute admits at most 10 at once, however long one waits"),
        (21, Quota(10, 1, burst=20), "cost 21: 10/second burst 20 admits at most 20 at once, however long one waits"),
        (3, Quota(10, 1, burst=2), "cost 3: 10/second burst 2 admits at most 2 at once, however long one waits"),
    ],
)
def test_a_cost_that_never_fits_says_so(cost: int, quota: Quota, text: str) -> None:
    with pytest.raises(CostExceedsLimit) as caught:
        check_cost(cost, quota)
    assert str(caught.value) == text


BAD_KEYS: list[tuple[Any, str]] = [
    ("", "key: expected text that is not empty"),
    ("s3cret" * 171, "key of 1026 bytes: expected at most 1024"),
    ("é" * 513, "key of 1026 bytes: expected at most 1024"),
    ("s3cret\ud800", "key: lone surrogate at index 6 (expected text that UTF-8 can carry)"),
    ("\udfff" * 2_000, "key: lone surrogate at index 0 (expected text that UTF-8 can carry)"),
    (b"s3cret", "key: expected text or a tuple of texts, not bytes"),
    (["s3cret"], "key: expected text or a tuple of texts, not list"),
    (None, "key: expected text or a tuple of texts, not NoneType"),
    (5, "key: expected text or a tuple of texts, not int"),
    ((), "key of 0 parts: expected 1 to 32"),
    (("s3cret",) * 33, "key of 33 parts: expected 1 to 32"),
    (("s3cret", ""), "key part 1: expected text that is not empty"),
    (("s3cret", "x" * 1_025), "key part 1 of 1025 bytes: expected at most 1024"),
    (("s3cret\udc00",), "key part 0: lone surrogate at index 6 (expected text that UTF-8 can carry)"),
    (("s3cret", 5), "key part 1: expected text, not int"),
    (("s3cret", None, "x"), "key part 1: expected text, not NoneType"),
    (("s3cret", ("nested",)), "key part 1: expected text, not tuple"),
]


@pytest.mark.parametrize(("key", "text"), BAD_KEYS)
def test_a_bad_key_is_refused_and_never_quoted(key: Any, text: str) -> None:
    with pytest.raises(InvalidKey) as caught:
        check_key(key)
    assert str(caught.value) == text
    assert "s3cret" not in f"{caught.value!r}"


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        ("a", "a"),
        (("a",), "a"),
        (("a", "b"), ("a", "b")),
        ("x" * 1_024, "x" * 1_024),
        ("é" * 512, "é" * 512),
        ("\0", "\0"),
        (("é",) * 32, ("é",) * 32),
    ],
)
def test_a_sound_key_has_one_form(key: Key, canonical: Key) -> None:
    assert check_key(key) == canonical


def test_a_request_asks_for_something() -> None:
    with pytest.raises(InvalidRequest, match=r"^a request without quotas: expected at least one$"):
        check_quotas(())


@pytest.mark.parametrize(
    "other", [MINUTE, Quota(20, 60), Quota(20, 60, count_denied=True)], ids=["the same", "another amount", "an option"]
)
def test_a_request_asks_each_counter_once(other: Quota) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_quotas((MINUTE, other))
    assert str(caught.value) == f"{other}: asked twice in one request (give one of them a name to keep them apart)"


def test_names_and_periods_keep_quotas_apart() -> None:
    quotas = MINUTE, Quota(10, 60, name="x"), HOUR
    assert check_quotas(quotas) == quotas


def test_a_real_verdict_of_several_quotas_has_a_receipt_for_all() -> None:
    limiter = Limiter(clock=ManualClock())
    receipt = limiter.acquire("k", ["10/second", "100/hour"], cost=2).receipt
    assert receipt is not None
    assert [(charge.key, str(charge.quota), charge.cost) for charge in receipt.charges] == [
        ("k", "10/second", 2),
        ("k", "100/hour", 2),
    ]


def test_the_mark_of_a_store_is_told_from_that_of_a_layer() -> None:
    assert own_mark(7) == 7
    with pytest.raises(InvalidReceipt, match="a charge of level 'lease': expected a charge of the store"):
        own_mark(("lease", "block 1", 7))


def test_a_grant_costs_what_is_left_between_its_least_and_its_most() -> None:
    grant = Grant("alice", Quota.parse("10/minute"), 2, 5)
    assert [grant.cost(remaining) for remaining in (0, 1, 2, 3, 5, 6)] == [2, 2, 2, 3, 5, 5]


def test_a_grant_shows_no_key() -> None:
    assert repr(Grant("alice", Quota.parse("10/minute"), 2, 5)) == "<Grant 10/minute: 2 to 5>"

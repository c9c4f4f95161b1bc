"""Planning and reading, without any server."""

import struct
import sys
from typing import cast

import pytest

from penstock import Quota, Verdict
from penstock.clock import SECOND
from penstock.model import NOT_CHARGED, Acquire, Amend, Amended, Ask, Charge, Failed, Grant, Op, Outcome, Receipt, Reset
from penstock.stores.redis import codec as codec_module
from penstock.stores.redis.codec import MARK_BITS, Codec, ScriptCall, ScriptReply
from penstock.stores.redis.keys import LETTERS, Keys

NOW = 1_700_000_000 * SECOND
RATE, PLACES, CALENDAR = (Quota.parse(text) for text in ("100/minute", "3 concurrent ttl 9s", "5/day calendar UTC"))
ANSWER = (1, 99, 0, 60, 60, 0, 7, 0)


@pytest.fixture
def codec() -> Codec:
    return Codec(Keys(b"secret"))


def numbers(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 8}q", packed)


def packed(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def read(codec: Codec, op: Op, call: ScriptCall, *reply: int) -> object:
    (outcome,) = codec.decode([op], call, packed(NOW, 0, *reply)).outcomes
    return outcome


# Planning


def test_a_call_carries_each_quota_once_and_a_key_for_every_ask(codec: Codec) -> None:
    ops = [Acquire((Ask(name, RATE, 2), Ask(name, PLACES))) for name in "abc"]
    call = codec.encode(ops, NOW)
    assert len(call.keys) == len(set(call.keys)) == 6
    assert len(call.args) == 2
    assert [numbers(call.args[1])[n] for n in (0, 10)] == [ord("s"), ord("h")]
    assert numbers(call.args[0])[:7] == (1, 2, 0, 1, 2, 0, 0)


def test_the_counters_of_a_key_share_its_partition_with_its_records(codec: Codec) -> None:
    call = codec.encode([Acquire((Ask("a", RATE), Ask("a", PLACES)), id=b"id"), Reset("a", CALENDAR)], NOW)
    assert len({key[:7] for key in call.keys}) == 1
    assert call.records == [call.keys[0].decode()]


def test_an_operation_is_planned_alike_alone_and_in_a_batch(codec: Codec) -> None:
    ops: list[Op] = [Acquire((Ask("a", RATE),)), Acquire((Ask("b", RATE),), dry=True), Reset("a", RATE)]
    together = codec.encode(ops, NOW)
    alone = [codec.encode([op], NOW) for op in ops]
    assert together.keys == [key for call in alone for key in call.keys]
    assert together.args[0] == b"".join(call.args[0] for call in alone)


def test_every_place_gets_a_mark_of_its_own_and_a_rate_needs_none(codec: Codec) -> None:
    ops = [Acquire((Ask("a", PLACES),)) for _ in range(100)]
    marks = numbers(codec.encode(ops, NOW).args[0])[6::7]
    assert len(set(marks)) == 100
    assert all(0 <= mark < 2**52 for mark in marks)
    assert numbers(codec.encode([Acquire((Ask("a", RATE),), dry=True)], NOW).args[0])[6] == 0


@pytest.mark.parametrize(
    ("quota", "plain"),
    [("7/s", True), ("7/s gcra", True), ("7/day calendar UTC", True)]
    + [(f"7/s {more}", False) for more in ("rolling_window", "count denied", "penalty 1s")],
)
def test_a_lone_ask_of_a_counter_that_is_text_is_sent_as_quota_and_cost(codec: Codec, quota: str, plain: bool) -> None:
    asks = (Ask("a", Quota.parse(quota), 3),)
    assert (numbers(codec.encode([Acquire(asks)], NOW).args[0]) == (0, 1, 3)) is plain
    assert numbers(codec.encode([Acquire(asks, dry=True)], NOW).args[0]) == (1, 1, 1, 1, 3, 0, 0)


def test_a_calendar_sends_the_boundaries_of_three_periods_around_now(codec: Codec) -> None:
    day = 86_400 * SECOND
    start = NOW - NOW % day
    row = numbers(codec.encode([Reset("a", CALENDAR)], NOW).args[1])
    assert row[6:] == (start - day, start, start + day, start + 2 * day)


def test_every_algorithm_has_a_row_of_ten(codec: Codec) -> None:
    quotas = [
        *(
            Quota.parse(f"5/minute {name}")
            for name in LETTERS
            if name not in ("calendar", "concurrency", "min_interval")
        ),
        *(PLACES, CALENDAR, *Quota.parse("5/minute min_interval 1s").parts),
    ]
    for quota in quotas:
        row = numbers(codec.encode([Reset("a", quota)], NOW).args[1])
        assert len(row) == 10
        assert chr(row[0]) == LETTERS[quota.algorithm]


def test_a_receipt_without_an_id_is_portioned_here(codec: Codec) -> None:
    flat = Quota.parse("5/minute min_interval 1s").parts[1]
    receipt = Receipt((Charge("a", RATE, 5, 7), Charge("a", flat, 1, 7)))
    sent = numbers(codec.encode([Amend(receipt, "refund", 2)], NOW).args[0])
    assert sent[:6] == (3, 2, 0, 1, 2, -1)
    assert (sent[8], sent[12]) == (2, 0)


def test_a_receipt_with_an_id_names_its_record_and_serial(codec: Codec) -> None:
    receipt = Receipt((Charge("a", PLACES, 1, (9 << MARK_BITS) + 7),), "pk1{AA}#record@42")
    call = codec.encode([Amend(receipt, "renew")], NOW)
    assert call.keys[0] == b"pk1{AA}#record"
    assert numbers(call.args[0]) == (3, 1, 0, 4, -1, 42, 9 * SECOND, 1, 1, 7, 9)


def test_a_report_says_when_each_charge_happened(codec: Codec) -> None:
    receipt = Receipt((Charge("a", RATE, 5, NOW - 7), Charge("b", RATE, 2, NOW)))
    sent = numbers(codec.encode([Amend(receipt, "report")], NOW).args[0])
    assert sent[:6] == (3, 2, 0, 5, -1, -1)
    assert sent[7:] == (1, 5, NOW - 7, 0, 1, 2, NOW, 0)


def test_a_grant_says_its_least_and_its_most(codec: Codec) -> None:
    call = codec.encode([Grant("a", RATE, 2, 7)], NOW)
    assert len(call.keys) == 1
    assert numbers(call.args[0]) == (5, 2, 7, -1, RATE.horizon_us, 1, 2, 0, 0)


def test_a_grant_with_an_id_has_the_record_of_a_request(codec: Codec) -> None:
    grant = codec.encode([Grant("a", RATE, 2, 7, b"id")], NOW)
    acquire = codec.encode([Acquire((Ask("a", RATE),), id=b"id")], NOW)
    assert grant.keys == acquire.keys
    assert grant.records == acquire.records


def test_quotas_that_vary_without_end_do_not_fill_memory(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_module, "MAX_PREPARED", 3)
    quotas = [Quota(limit, 60) for limit in range(1, 9)]
    call = codec.encode([Acquire((Ask("a", quota),)) for quota in quotas], NOW)
    assert [numbers(call.args[1])[n] for n in range(4, 80, 10)] == list(range(1, 9))
    assert len(codec._prepared) <= 3


# Reading


def test_a_verdict_is_what_the_script_said_of_what_was_asked(codec: Codec) -> None:
    op = Acquire((Ask("a", RATE),))
    verdict = read(codec, op, codec.encode([op], NOW), *ANSWER)
    assert verdict == Verdict(((True, 99, 0, 60, 60, 0, 7), NOW, "a", RATE, 1, ()))
    assert isinstance(verdict, Verdict)
    assert verdict.receipt == Receipt((Charge("a", RATE, 1, 7),))


def test_a_batch_of_plain_asks_is_read_as_they_would_be_alone(codec: Codec) -> None:
    ops = [Acquire((Ask(key, RATE, cost),)) for key, cost in (("a", 1), ("b", 2), ("a", 3))]
    answers = [ANSWER, (0, 1, 5, 60, 5, 0, NOT_CHARGED, 0), (1, 0, 0, 60, 60, 0, 7, 0)]
    reply = codec.decode(ops, codec.encode(ops, NOW), packed(NOW, 2, *(n for answer in answers for n in answer)))
    alone = [read(codec, op, codec.encode([op], NOW), *answer) for op, answer in zip(ops, answers, strict=True)]
    assert [cast("Verdict", outcome).allowed for outcome in reply.outcomes] == [True, False, True]
    assert reply == ScriptReply(cast("list[Outcome]", alone), [], NOW, 2)


@pytest.mark.parametrize("answers", [0, 2, 4])
def test_a_reply_with_more_or_fewer_answers_than_asks_is_no_answer(codec: Codec, answers: int) -> None:
    ops = [Acquire((Ask(key, RATE),)) for key in "abc"]
    with pytest.raises((ValueError, struct.error)):
        codec.decode(ops, codec.encode(ops, NOW), packed(NOW, 0, *ANSWER * answers))


def test_a_refusal_has_no_receipt(codec: Codec) -> None:
    op = Acquire((Ask("a", RATE), Ask("b", RATE, advisory=True)))
    verdict = read(codec, op, codec.encode([op], NOW), 0, 0, 5, 60, 5, 0, NOT_CHARGED, 0, *ANSWER[:6], NOT_CHARGED, 0)
    assert isinstance(verdict, Verdict)
    assert not verdict
    assert verdict.retry_after_us == 5
    assert verdict.receipt is None
    assert [decision.advisory for decision in verdict.decisions] == [False, True]


def test_a_mark_carries_its_part(codec: Codec) -> None:
    op = Acquire((Ask("a", PLACES),))
    verdict = read(codec, op, codec.encode([op], NOW), *ANSWER[:7], 9)
    assert isinstance(verdict, Verdict)
    assert verdict.mark == (9 << MARK_BITS) + 7


def test_a_repeated_request_has_the_instant_and_the_cost_of_the_first(codec: Codec) -> None:
    op = Acquire((Ask("a", RATE, 3),), id=b"id")
    call = codec.encode([op], NOW)
    verdict = read(codec, op, call, NOW - 9, 42, *ANSWER, 5)
    assert isinstance(verdict, Verdict)
    assert (verdict.at_us, verdict.cost) == (NOW - 9, 5)
    assert verdict.receipt == Receipt((Charge("a", RATE, 5, 7),), f"{call.records[0]}@42")


def test_a_grant_costs_what_the_script_charged(codec: Codec) -> None:
    for op in (Grant("a", RATE, 2, 7), Grant("a", RATE, 2, 7, b"id")):
        call = codec.encode([op], NOW)
        verdict = read(codec, op, call, NOW - 9, 42, *ANSWER, 5)
        assert isinstance(verdict, Verdict)
        assert (verdict.at_us, verdict.cost) == (NOW - 9, 5)
        record = f"{call.records[0]}@42" if op.id else None
        assert verdict.receipt == Receipt((Charge("a", RATE, 5, 7),), record)


def test_outcomes_come_in_order_whatever_the_operations(codec: Codec) -> None:
    receipt = Receipt((Charge("a", RATE, 5, 7), Charge("b", RATE, 5, 7)))
    ops: list[Op] = [Reset("a", RATE), Amend(receipt, "refund"), Acquire((Ask("a", RATE),)), Reset("a", RATE)]
    reply = codec.decode(ops, codec.encode(ops, NOW), packed(NOW, 3, 5, -2, *ANSWER))
    assert reply.outcomes[:2] == [Amended(), Amended((5, -2))]
    assert isinstance(reply.outcomes[2], Verdict)
    assert reply.outcomes[3] == Amended()
    assert (reply.now, reply.corrupt, reply.stale) == (NOW, 3, [])


def test_what_is_stale_has_failed_without_a_charge(codec: Codec) -> None:
    receipt = Receipt((Charge("a", CALENDAR, 5, 7),))
    stale = (2, 0, 0, 0, 0, 0, -1, 0)
    one, several = Acquire((Ask("a", CALENDAR),)), Acquire((Ask("a", RATE), Ask("a", CALENDAR)), dry=True)
    ops: list[Op] = [one, several, one._replace(id=b"id"), Amend(receipt, "refund"), Acquire((Ask("a", RATE),))]
    said = (*stale, *stale, *stale, NOW, 42, *stale, 0, -(2**53), *ANSWER)
    reply = codec.decode(ops, codec.encode(ops, NOW), packed(NOW, 0, *said))
    assert reply.stale == [0, 1, 2, 3]
    for failed in reply.outcomes[:4]:
        assert isinstance(failed, Failed)
        assert failed.charged == "no"
        assert failed.error.transient
    assert isinstance(reply.outcomes[4], Verdict)


def test_numbers_are_little_endian_on_any_machine(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    op = Acquire((Ask("a", RATE),))
    here = codec.encode([op], NOW).args
    swapped = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", swapped)
    there = codec.encode([op], NOW).args
    assert there == [b"".join(arg[n : n + 8][::-1] for n in range(0, len(arg), 8)) for arg in here]

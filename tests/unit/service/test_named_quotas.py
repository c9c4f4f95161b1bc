"""Quotas that callers name: there is an end to how many, and a word that says why."""

import pytest

from penstock import Limiter
from penstock.errors import InvalidQuota
from penstock.service.api.quotas import TOGETHER, KnownQuotas


def test_amounts_may_vary_and_the_number_of_names_is_bounded() -> None:
    named = KnownQuotas(Limiter().operations, most=3)
    assert [named.check(f"{limit}/minute") for limit in range(1, 11)] == [f"{n}/minute" for n in range(1, 11)]
    assert named.check(["5/second gcra", "100/hour name a"]) == ["5/second gcra", "100/hour name a"]
    with pytest.raises(InvalidQuota) as caught:
        named.check("100/hour name b")
    assert str(caught.value) == (
        "quota: one more beside 3 others (expected: at most 3 that differ in algorithm, period or name; "
        "what varies belongs into the key)"
    )
    for known in ("1/minute", "7/second gcra", "100/hour name a"):
        assert named.check(known) == known


def test_invalid_quota_takes_no_room() -> None:
    named = KnownQuotas(Limiter().operations, most=1)
    for _ in range(3):
        with pytest.raises(InvalidQuota):
            named.check("100 per fortnight")
    assert named.check("100/minute") == "100/minute"


def test_call_with_too_many_quotas_is_refused() -> None:
    limiter = Limiter()
    named = KnownQuotas(limiter.operations)
    many = [f"{n}/minute name n{n}" for n in range(1, TOGETHER + 2)]
    assert named.check(many[:-1]) == many[:-1]
    with pytest.raises(InvalidQuota) as caught:
        named.check(many)
    assert str(caught.value) == "quota: 33 of them (expected at most 32 in one call)"
    assert tuple(many) not in limiter.operations.bound, "it was read and remembered"
    assert named.check("1/hour") == "1/hour"


def test_call_that_names_too_many_quotas_in_several_requests_takes_little_room() -> None:
    limiter = Limiter()
    named = KnownQuotas(limiter.operations, most=3 * TOGETHER)
    lists = [[f"{n}/minute name n{of}_{n}" for n in range(1, TOGETHER + 1)] for of in range(TOGETHER)]
    texts = [", ".join([f"{n}/minute name t{of}_{n}" for n in range(1, TOGETHER + 1)]) for of in range(TOGETHER)]
    for quotas in (lists, texts):
        with pytest.raises(InvalidQuota):
            named.check_all(quotas)
    assert tuple(lists[0]) not in limiter.operations.bound, "it was read and remembered"
    assert texts[2] not in limiter.operations.bound, "it was read and remembered"
    named.check_all(["1/hour", ["2/hour gcra", "3/second"]])

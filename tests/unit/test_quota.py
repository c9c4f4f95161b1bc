import copy
import gc
import pickle
from typing import Any

import pytest

from penstock import Quota
from penstock.errors import InvalidInput, InvalidQuota
from penstock.quota import MAX_LIMIT, MAX_PERIOD

BAD = [
    ({"limit": 0}, "limit 0: expected 1 to 4294967296"),
    ({"limit": -1}, "limit -1: expected 1 to 4294967296"),
    ({"limit": 2**32 + 1}, "limit 4294967297: expected 1 to 4294967296"),
    ({"limit": True}, "limit True: expected a whole number, not bool"),
    ({"limit": 1.0}, "limit 1.0: expected a whole number, not float"),
    ({"limit": float("nan")}, "limit nan: expected a whole number, not float"),
    ({"limit": "5"}, "limit '5': expected a whole number, not str"),
    ({"limit": None}, "limit None: expected a whole number, not NoneType"),
    (
        {"limit": 10_001, "algorithm": "rolling_window"},
        "limit 10001: expected 1 to 10000; sliding_window, token_bucket and gcra keep no log",
    ),
    ({"period": 0}, "period 0: expected more than 0 and at most 315360000 seconds"),
    ({"period": -60}, "period -60: expected more than 0 and at most 315360000 seconds"),
    ({"period": float("nan")}, "period nan: expected more than 0 and at most 315360000 seconds"),
    ({"period": float("inf")}, "period inf: expected more than 0 and at most 315360000 seconds"),
    ({"period": 315_360_001}, "period 315360001: expected more than 0 and at most 315360000 seconds"),
    ({"period": 1e-7}, "period of 0 microseconds: expected 1 microsecond to 3650 days"),
    ({"period": True}, "period True: expected seconds as a number, not bool"),
    ({"period": "60"}, "period '60': expected seconds as a number, not str"),
    ({"period": None}, "period None: expected seconds as a number, not NoneType"),
    ({"min_interval": 0}, "min_interval 0: expected more than 0 and at most 315360000 seconds"),
    ({"min_interval": "1"}, "min_interval '1': expected seconds as a number, not str"),
    ({"min_interval": 1e-7}, "min_interval of 0 microseconds: expected 1 microsecond to 3650 days"),
    ({"penalty": -1}, "penalty -1: expected more than 0 and at most 315360000 seconds"),
    ({"penalty": 1e-7}, "penalty of 0 microseconds: expected 1 microsecond to 3650 days"),
    (
        {"algorithm": "leaky"},
        "algorithm 'leaky': expected one of fixed_window, sliding_window, rolling_window, token_bucket, gcra, leaky_bucket, concurrency",  # noqa: E501
    ),
    (
        {"algorithm": 5},
        "algorithm 5: expected one of fixed_window, sliding_window, rolling_window, token_bucket, gcra, leaky_bucket, concurrency",  # noqa: E501
    ),
    ({"burst": 0}, "burst 0: expected 1 to 4294967296"),
    ({"burst": True}, "burst True: expected a whole number, not bool"),
    ({"burst": 2.0}, "burst 2.0: expected a whole number, not float"),
    (
        {"burst": 6, "algorithm": "fixed_window"},
        "burst 6: fixed_window has no burst (expected token_bucket or gcra)",
    ),
    (
        {"limit": 1, "period": 604_800, "burst": 522},
        "burst 522 at 1/week: would take more than 3650 days to refill",
    ),
    ({"count_denied": 1}, "count_denied 1: expected True or False"),
    ({"count_denied": "yes"}, "count_denied 'yes': expected True or False"),
    ({"name": "9"}, "name '9': expected a letter, then at most 63 letters, digits, or any of _ . : -"),
    ({"name": "two words"}, "name 'two words': expected a letter, then at most 63 letters, digits, or any of _ . : -"),
    ({"name": "a\n"}, r"name 'a\n': expected a letter, then at most 63 letters, digits, or any of _ . : -"),
    ({"name": None}, "name None: expected a letter, then at most 63 letters, digits, or any of _ . : -"),
]

QUOTAS = [
    Quota(100, 60),
    Quota(10, 1, "fixed_window"),
    Quota(10, 0.000_007, "rolling_window", name="a.b:c-d_e"),
    Quota(10, 1, burst=20),
    Quota(10, 1, "token_bucket"),
    Quota(10, 1, "gcra", burst=5, min_interval=0.05, penalty=900, count_denied=True, name="x"),
    Quota(1, 0.25, "min_interval"),
]


def make(**fields: Any) -> Quota:
    return Quota(**{"limit": 5, "period": 60, **fields})


@pytest.mark.parametrize(("fields", "text"), BAD)
def test_a_quota_that_cannot_be_enforced_is_refused_when_it_is_made(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidQuota) as caught:
        make(**fields)
    assert str(caught.value) == text


@pytest.mark.parametrize("field", ["limit", "period", "burst", "min_interval"])
def test_a_number_too_long_to_print_is_invalid_input_too(field: str) -> None:
    with pytest.raises(InvalidInput):
        make(**{field: 10**5_000})
    with pytest.raises(InvalidInput):
        make(**{field: [10**5_000]})


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": MAX_LIMIT},
        {"period": MAX_PERIOD // 1_000_000},
        {"period": 0.000_001},
        {"limit": 10_000, "algorithm": "rolling_window"},
        {"limit": 1, "period": 604_800, "burst": 521},
        {"name": "x" * 64},
    ],
)
def test_the_edges_of_every_range_are_kept(fields: dict[str, Any]) -> None:
    quota = make(**fields)
    assert {field: getattr(quota, field) for field in fields} == fields


def test_omitted_options_have_defaults() -> None:
    quota = Quota(5, 60)
    assert (quota.algorithm, quota.burst, quota.min_interval, quota.penalty, quota.count_denied, quota.name) == (
        "sliding_window",
        None,
        None,
        None,
        False,
        "",
    )


def test_a_burst_without_an_algorithm_means_a_token_bucket() -> None:
    assert Quota(10, 1, burst=20).algorithm == "token_bucket"
    assert Quota(10, 1, "gcra", burst=20).algorithm == "gcra"


def test_seconds_outside_are_microseconds_inside() -> None:
    quota = Quota(5, 0.3, min_interval=0.1, penalty=1.5)
    assert (quota.period_us, quota.min_interval_us, quota.penalty_us) == (300_000, 100_000, 1_500_000)
    assert (quota.period, quota.min_interval, quota.penalty) == (0.3, 0.1, 1.5)


@pytest.mark.parametrize(
    ("quota", "capacity"), [(Quota(5, 60), 5), (Quota(5, 60, burst=9), 9), (Quota(5, 1, burst=2), 2)]
)
def test_the_capacity_is_the_burst_or_else_the_limit(quota: Quota, capacity: int) -> None:
    assert quota.capacity == capacity


def test_equal_quotas_are_one_object() -> None:
    assert Quota(100, 60) is Quota(100, 60.0) is Quota.parse("100/minute") is Quota.parse("100 per 60 seconds")
    assert hash(Quota(100, 60)) == hash(Quota.parse("100/minute"))


@pytest.mark.parametrize("other", [Quota(101, 60), Quota(100, 61), Quota(100, 60, "gcra"), Quota(100, 60, name="x")])
def test_different_quotas_differ(other: Quota) -> None:
    assert other != Quota(100, 60)
    assert len({other, Quota(100, 60)}) == 2


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_copies_of_a_quota_are_the_quota(quota: Quota) -> None:
    assert copy.copy(quota) is quota
    assert copy.deepcopy([quota])[0] is quota
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(quota, protocol)) is quota


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_the_repr_of_a_quota_makes_it_again(quota: Quota) -> None:
    assert eval(repr(quota), {"Quota": Quota}) is quota


@pytest.mark.parametrize("field", ["limit", "period_us", "algorithm", "parts", "anything"])
def test_a_quota_does_not_change(field: str) -> None:
    quota = Quota(5, 60)
    with pytest.raises(AttributeError, match=f"^a Quota is immutable; make another one instead of setting '{field}'$"):
        setattr(quota, field, 6)
    with pytest.raises(AttributeError, match=f"^a Quota is immutable; cannot delete '{field}'$"):
        delattr(quota, field)
    assert (quota.limit, quota.period) == (5, 60)


@pytest.mark.parametrize(
    "other",
    [Quota(6, 60), Quota(5, 60, min_interval=1), Quota(5, 60, count_denied=True)],
    ids=str,
)
def test_changing_an_amount_keeps_the_counter(other: Quota) -> None:
    assert other.identity == Quota(5, 60).identity


def test_changing_a_burst_keeps_the_counter() -> None:
    assert Quota(5, 60, burst=9).identity == Quota(6, 60, "token_bucket").identity


@pytest.mark.parametrize(
    "other",
    [Quota(5, 61), Quota(5, 60, "gcra"), Quota(5, 60, "token_bucket"), Quota(5, 60, name="x"), Quota(5, 60, penalty=1)],
    ids=str,
)
def test_another_kind_of_counter_is_another_identity(other: Quota) -> None:
    assert other.identity != Quota(5, 60).identity


def test_changing_a_penalty_keeps_the_counter() -> None:
    assert Quota(5, 60, penalty=1).identity == Quota(5, 60, penalty=2).identity


def test_a_quota_is_its_own_only_part() -> None:
    quota = Quota(5, 60, "gcra", burst=9, penalty=3, count_denied=True, name="x")
    assert quota.parts == (quota,)
    assert not quota.flat


def test_min_interval_is_a_part_of_its_own() -> None:
    quota = Quota(5, 60, "gcra", burst=9, min_interval=0.25, penalty=3, count_denied=True, name="x")
    rate, spacing = quota.parts
    assert rate is Quota(5, 60, "gcra", burst=9, penalty=3, count_denied=True, name="x")
    assert spacing is Quota(1, 0.25, "min_interval", name="x")
    assert (rate.flat, spacing.flat) == (False, True)


def test_min_interval_admits_one_and_cannot_mean_another_amount() -> None:
    """As text it has no amount; one that got lost on the way to text and back would be another quota."""
    try:
        quota = Quota(5, 1, "min_interval")
    except InvalidQuota:
        return
    assert Quota.parse(str(quota)) is quota


def test_unreferenced_quotas_are_freed() -> None:
    from penstock import quota as module

    gc.collect()
    before = len(module._all_quotas)
    for limit in range(1_000):
        Quota(limit + 1, 12_345.678, name="forgotten")
    gc.collect()
    assert len(module._all_quotas) <= before + 1

"""Laws of quota texts: what is written can be read, and whatever is read says so if it cannot be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock import Quota
from penstock.clock import SECOND
from penstock.errors import InvalidQuota
from penstock.quota import RATES
from penstock.quota.text import OPTIONS, SPELLINGS
from tests.property.generated import durations, names, quotas

WORDS = (
    *RATES,
    *OPTIONS,
    *SPELLINGS,
    *("count", "denied", "per", "/", ";", ",", "month", "year", "concurrent", "-", "_", ".", "µs", "μs"),
    *(
        "0",
        "1",
        "5",
        "100",
        "4294967296",
        "4294967297",
        "1_000",
        "007",
        "1e3",
        "1.5",
        "-1",
        "٣",
        "²",
        "9" * 19,
        "9" * 21,
    ),
)


@given(quotas(), st.one_of(st.none(), durations), st.one_of(st.just(""), names))
def test_what_a_quota_writes_reads_back_as_the_same_quota(quota: Quota, interval: int | None, name: str) -> None:
    quota = Quota(
        quota.limit,
        quota.period_us / SECOND,
        quota.algorithm,
        burst=quota.burst,
        penalty=quota.penalty,
        count_denied=quota.count_denied,
        min_interval=None if interval is None else interval / SECOND,
        name=name,
    )
    for one in (quota, *quota.parts):
        assert Quota.parse(str(one)) is one


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
def test_a_text_is_a_quota_or_an_invalid_quota(text: str) -> None:
    try:
        several = Quota.parse_all(text)
    except InvalidQuota:
        return
    assert Quota.parse_all("; ".join(map(str, several))) == several


@given(quotas(), st.data())
def test_case_and_spaces_are_free(quota: Quota, data: st.DataObject) -> None:
    words = str(quota).replace("/", " / ").split()
    spaces = data.draw(st.lists(st.sampled_from([" ", "  ", "\t", "\n "]), min_size=len(words), max_size=len(words)))
    shouted = "".join(space + word.upper() for space, word in zip(spaces, words, strict=True))
    assert Quota.parse(shouted) is quota

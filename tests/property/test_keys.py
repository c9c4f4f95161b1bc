"""The memory store keeps all counters apart, whatever keys and quotas they belong to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.model import Acquire, Ask, Key, Verdict, check_key
from penstock.quota import Quota
from penstock.stores import MemoryStore

# Letters of which slots, lengths and prefixes are made: whatever could be mistaken for a boundary.
parts = st.one_of(st.text("a:+1/02", min_size=1, max_size=4), st.text(min_size=1, max_size=3))
keys = st.one_of(parts, st.lists(parts, min_size=1, max_size=3).map(tuple)).map(check_key)
QUOTAS = [Quota.parse(f"100/hour name q{number}") for number in range(12)]
counters = st.lists(st.tuples(keys, st.sampled_from(QUOTAS)), min_size=2, max_size=12, unique=True)


@given(counters)
def test_different_keys_and_quotas_never_share_a_counter(places: list[tuple[Key, Quota]]) -> None:
    store = MemoryStore(clock=ManualClock())
    store.run([Acquire((Ask("a", quota),), dry=True) for quota in QUOTAS])
    store.run([Acquire((Ask(key, quota, cost),)) for cost, (key, quota) in enumerate(places, 1)])
    left = store.run([Acquire((Ask(key, quota),), dry=True) for key, quota in places])
    assert [isinstance(v, Verdict) and v.remaining for v in left] == [100 - cost for cost in range(1, len(places) + 1)]

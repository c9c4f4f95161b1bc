"""Keys of the Redis store: hashed, bounded, one partition per key of the user's."""

from binascii import crc_hqx
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Quota
from penstock.errors import InvalidOption
from penstock.model import Key
from penstock.stores.redis.keys import DEFAULT_PARTITIONS, LETTERS, MAX_PARTITIONS, SLOTS, Keys
from penstock.testing.examples.keys import HOSTILE

SECRET = b"secret"
RATE = Quota.parse("100/minute")
QUOTAS = [
    *(Quota.parse(f"100/minute {name}") for name in ("fixed_window", "rolling_window", "gcra", "token_bucket")),
    RATE,
    Quota.parse("100/hour"),
    Quota.parse("100/minute name a"),
    Quota.parse("100/minute name b"),
    Quota.parse("100/minute penalty 1m"),
    Quota.parse("100/minute queue 3"),
    Quota.parse("100/day calendar UTC"),
    Quota.parse("100/day calendar Europe/Berlin"),
    Quota.parse("100/month calendar UTC"),
    Quota.parse("100/month calendar UTC anchor 15"),
    Quota.parse("3 concurrent"),
    Quota.parse("100/minute min_interval 1s").parts[1],
]

KEYS = Keys(SECRET)
FAMILIES = [KEYS.family(quota) for quota in QUOTAS]

parts = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12),
    st.text("ab{}\x00\n:1", min_size=1, max_size=6),
    st.sampled_from(["x" * 1_024, "x" * 1_023 + "y", "é" * 512]),
)
some_keys = st.one_of(parts, st.lists(parts, min_size=2, max_size=4).map(tuple))


def counter(keys: Keys, key: Key, quota: Quota = RATE) -> bytes:
    return keys.counter(keys.subject(key), keys.family(quota))


def tag(name: bytes) -> bytes:
    """What Redis Cluster hashes: what stands between the first brace and the next closing one."""
    return name.partition(b"{")[2].partition(b"}")[0]


@given(one=some_keys, other=some_keys)
def test_different_keys_never_share_a_counter(one: Key, other: Key) -> None:
    assert (counter(KEYS, one) == counter(KEYS, other)) == (one == other)


@given(key=some_keys, request_id=st.binary(min_size=1, max_size=255))
def test_every_name_is_short_ascii_and_in_the_partition_of_its_key(key: Key, request_id: bytes) -> None:
    subject = KEYS.subject(key)
    names = [KEYS.counter(subject, family) for family in FAMILIES]
    names.append(KEYS.record(subject, request_id, names[:1]))
    for name in names:
        assert len(name) == 30
        assert name.isascii()
        assert name.startswith(b"pk1{")
    assert len({tag(name) for name in names}) == 1
    assert len(tag(names[0])) == 2


def test_hostile_keys_are_told_apart() -> None:
    assert len({counter(KEYS, key) for key in HOSTILE}) == len(HOSTILE)


def test_counters_of_different_identity_are_told_apart() -> None:
    assert len({counter(KEYS, "alice", quota) for quota in QUOTAS}) == len(QUOTAS)


def test_amounts_are_not_in_the_name_so_that_changing_them_keeps_the_count() -> None:
    for one, other in (
        ("100/minute", "200/minute count denied"),
        ("9/s burst 3", "7/s burst 4"),
        ("3 concurrent ttl 1m", "4 concurrent ttl 2m"),
    ):
        assert counter(KEYS, "alice", Quota.parse(one)) == counter(KEYS, "alice", Quota.parse(other))


def test_secret_namespace_and_prefix_each_give_other_names() -> None:
    several = [Keys(SECRET), Keys(b"other"), Keys(SECRET, namespace="shop"), Keys(SECRET, prefix="shop:1")]
    for one, other in combinations(several, 2):
        assert counter(one, "alice") != counter(other, "alice")


def test_records_are_told_apart_by_id_and_by_counters() -> None:
    alice = KEYS.subject("alice")
    asked = [(b"a", [b"x"]), (b"b", [b"x"]), (b"a", [b"y"]), (b"a", [b"x", b"y"]), (b"ax", []), (b"a", [b"xy"])]
    assert len({KEYS.record(alice, *request) for request in asked}) == len(asked)


def test_partitions_are_all_in_use() -> None:
    names = [counter(KEYS, str(number)) for number in range(12 * DEFAULT_PARTITIONS)]
    assert {KEYS.partition(name) for name in names} == set(range(DEFAULT_PARTITIONS))


@pytest.mark.parametrize("partitions", [2**power for power in range(MAX_PARTITIONS.bit_length())])
def test_partitions_lie_evenly_among_the_slots(partitions: int) -> None:
    """So that servers that own equal ranges of slots own equally many partitions."""
    slots = Keys(SECRET, partitions=partitions).slots
    assert [slot * partitions // SLOTS for slot in slots] == list(range(partitions))


def test_a_key_is_in_the_slot_of_its_partition() -> None:
    for number in range(100):
        name = counter(KEYS, str(number))
        tag = name[name.index(b"{") + 1 : name.index(b"}")]
        assert crc_hqx(tag, 0) % SLOTS == KEYS.slots[KEYS.partition(name)]


def test_a_letter_tells_the_algorithm() -> None:
    assert len(set(LETTERS.values())) == len(LETTERS)
    for quota in QUOTAS:
        name = counter(KEYS, "alice", quota)
        assert name.partition(b"}")[2][:1].decode() == LETTERS[quota.algorithm]


def test_names_stay_the_same_for_ever() -> None:
    """Whatever changes them must change the version in the prefix, or a rolling upgrade counts twice."""
    shop = Keys(SECRET, namespace="shop")
    assert counter(shop, "alice") == b"pk1{Qw}shRc0LGnT4cI3xK7NpkrN7A"
    assert counter(shop, ("alice", "bob"), QUOTAS[-1]) == b"pk1{Qw}iyaJcC3URc5sPS5JRDZu8LQ"
    assert shop.record(shop.subject("alice"), b"id", [b"x"]) == b"pk1{Qw}#FtVxpH55zb7W4MTO8Qec4g"


@pytest.mark.parametrize("prefix", ["", "a{b", "a}b", "x" * 14, "a b", "é", "a\n"])
def test_bad_prefixes_are_errors(prefix: str) -> None:
    with pytest.raises(InvalidOption, match="key prefix"):
        Keys(SECRET, prefix=prefix)


def test_the_longest_prefix_keeps_names_within_40_bytes() -> None:
    assert len(counter(Keys(SECRET, prefix="x" * 13), "alice")) == 40


def test_a_secret_is_needed_and_may_be_long() -> None:
    with pytest.raises(InvalidOption, match="hashing secret"):
        Keys(b"")
    assert counter(Keys(b"x" * 1_000), "alice") != counter(Keys(b"x" * 1_001), "alice")

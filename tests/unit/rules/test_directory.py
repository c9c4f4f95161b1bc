"""Who owns a key: from a file or a function, remembered within bounds, and never told from a guess."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock import Limiter
from penstock.clock import SECOND
from penstock.enforcer import Enforcer
from penstock.errors import InvalidOption, InvalidRequest, InvalidRules
from penstock.events import LayerFailed
from penstock.rules.api_keys import AsyncKeyDirectory, KeyDirectory, KeyRecord, KeyTable, hash_key
from tests.unit.rules.support import rule_set

SECRET = b"0123456789abcdef"
NOW = 1_700_000_000 * SECOND
ACME = KeyRecord("acme", "paid")


class Keys:
    """A function to look keys up, how often it was asked, and whether it works."""

    def __init__(self, **records: KeyRecord) -> None:
        self.records = {hash_key(key, SECRET): record for key, record in records.items()}
        self.asked = 0
        self.works = True

    def __call__(self, digest: bytes) -> KeyRecord | None:
        self.asked += 1
        if not self.works:
            raise ConnectionError("no")
        return self.records.get(digest)


# ---------------------------------------------------------------- what a descriptor becomes


def test_a_known_key_brings_its_owner_and_tier() -> None:
    directory = KeyDirectory(Keys(good=ACME), SECRET)
    descriptor = {"api_key": "good", "path": "/v1"}
    assert directory.describe(descriptor, NOW) == {"api_key": "good", "path": "/v1", "owner": "acme", "tier": "paid"}
    assert descriptor == {"api_key": "good", "path": "/v1"}


@pytest.mark.parametrize("key", ["unknown", "revoked", "", None, "\ud800", "x" * 1_000_000])
def test_an_unknown_or_revoked_key_counts_as_absent(key: str | None) -> None:
    directory = KeyDirectory(Keys(revoked=KeyRecord("acme", "paid", "revoked")), SECRET)
    described = directory.describe({"api_key": key, "owner": "acme", "tier": "paid", "path": "/v1"}, NOW)
    assert described == {"path": "/v1"}


def test_a_key_without_tier_drops_the_one_that_is_claimed() -> None:
    directory = KeyDirectory(Keys(good=KeyRecord("acme")), SECRET)
    assert directory.describe({"api_key": "good", "tier": "paid"}, NOW) == {"api_key": "good", "owner": "acme"}


def test_the_key_may_be_in_another_entry() -> None:
    directory = KeyDirectory(Keys(good=ACME), SECRET, entry="token")
    assert directory.describe({"token": "good"}, NOW)["owner"] == "acme"
    assert directory.describe({"api_key": "good"}, NOW) == {"api_key": "good"}


# ---------------------------------------------------------------- remembering


def test_answers_are_remembered_until_they_are_old_unknown_ones_too() -> None:
    keys = Keys(good=ACME)
    directory = KeyDirectory(keys, SECRET, max_age=60)
    for _ in range(3):
        directory.describe({"api_key": "good"}, NOW)
        directory.describe({"api_key": "bad"}, NOW + 59 * SECOND)
    assert keys.asked == 2
    directory.describe({"api_key": "good"}, NOW + 60 * SECOND)
    assert keys.asked == 3


def test_a_key_that_is_revoked_is_good_no_longer_than_answers_are_remembered() -> None:
    keys = Keys(good=ACME)
    directory = KeyDirectory(keys, SECRET, max_age=60)
    assert "owner" in directory.describe({"api_key": "good"}, NOW)
    keys.records.clear()
    assert "owner" in directory.describe({"api_key": "good"}, NOW + 59 * SECOND)
    assert directory.describe({"api_key": "good"}, NOW + 60 * SECOND) == {}
    keys.records = Keys(good=ACME).records
    assert "owner" in directory.describe({"api_key": "good"}, NOW + 120 * SECOND)


def test_invented_keys_are_remembered_within_bounds_and_displace_no_good_ones() -> None:
    keys = Keys(good=ACME)
    directory = KeyDirectory(keys, SECRET, max_keys=100)
    directory.describe({"api_key": "good"}, NOW)
    for number in range(1_000):
        directory.describe({"api_key": f"invented {number}"}, NOW)
    assert directory.remembered <= 101
    asked = keys.asked
    directory.describe({"api_key": "good"}, NOW)
    assert keys.asked == asked


def test_a_key_in_use_outlives_others_that_are_not() -> None:
    keys = Keys(**{f"key{number}": ACME for number in range(1_000)})
    directory = KeyDirectory(keys, SECRET, max_keys=100)
    for number in range(1_000):
        directory.describe({"api_key": f"key{number}"}, NOW)
        directory.describe({"api_key": "key0"}, NOW)
    assert keys.asked == 1_000


# ---------------------------------------------------------------- failing


def test_the_last_answer_stands_while_the_function_fails_and_others_count_as_absent() -> None:
    keys, told = Keys(good=ACME), list[Any]()
    directory = KeyDirectory(keys, SECRET, max_age=60, hook=told.append)
    directory.describe({"api_key": "good"}, NOW)
    keys.works = False
    later = NOW + 61 * SECOND
    assert directory.describe({"api_key": "good"}, later)["owner"] == "acme"
    assert directory.describe({"api_key": "new"}, later) == {}
    assert told == [LayerFailed("key directory", "ConnectionError")] * 2
    asked = keys.asked
    directory.describe({"api_key": "new"}, later + SECOND - 1)
    assert keys.asked == asked  # not asked again at once
    keys.works = True
    keys.records[hash_key("new", SECRET)] = ACME
    assert directory.describe({"api_key": "new"}, later + SECOND)["owner"] == "acme"


async def test_a_coroutine_function_is_awaited_remembered_and_may_fail() -> None:
    keys, told = Keys(good=ACME), list[Any]()

    async def look_up(digest: bytes) -> KeyRecord | None:
        return keys(digest)

    directory = AsyncKeyDirectory(look_up, SECRET, hook=told.append)
    for _ in range(2):
        assert (await directory.describe({"api_key": "good"}, NOW))["owner"] == "acme"
    assert keys.asked == 1
    keys.works = False
    assert await directory.describe({"api_key": "new", "tier": "paid"}, NOW) == {}
    assert len(told) == 1
    assert await directory.describe({"path": "/"}, NOW) == {"path": "/"}


@pytest.mark.parametrize(
    "options",
    [{"max_keys": 1}, {"max_keys": True}, {"max_age": 0}, {"max_age": True}, {"secret": b"short"}, {"secret": "text"}],
)
def test_options_out_of_range_are_refused_and_no_secret_is_shown(options: dict[str, Any]) -> None:
    secret = options.pop("secret", SECRET)
    with pytest.raises(InvalidOption) as caught:
        KeyDirectory(Keys(), secret, **options)
    assert "short" not in str(caught.value)


# ---------------------------------------------------------------- the table


def test_a_table_finds_every_key_and_no_other() -> None:
    records = [KeyRecord(f"owner {number}", ("free", "paid")[number % 2]) for number in range(5_000)]
    table = KeyTable((hash_key(f"key {number}", SECRET), record) for number, record in enumerate(records))
    assert len(table) == 5_000
    assert [table.find(hash_key(f"key {number}", SECRET)) for number in range(5_000)] == records
    assert not any(table.find(hash_key(f"other {number}", SECRET)) for number in range(5_000))
    assert repr(table) == "<KeyTable of 5,000 keys>"


def test_the_end_of_one_hash_and_the_beginning_of_the_next_are_not_a_hash() -> None:
    one, two = bytes([0] * 8 + [0, 0] + [1] * 6), bytes([0, 0] + [1] * 6 + [2] * 8)
    table = KeyTable([(one, KeyRecord("one")), (two, KeyRecord("two"))])
    between = one[8:] + two[:8]
    assert (one + two).find(between) == 8
    assert table.find(between) is None
    assert table.find(two) == KeyRecord("two")


def test_an_empty_table_finds_nothing() -> None:
    assert KeyTable([]).find(hash_key("key", SECRET)) is None


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    directory = KeyDirectory(KeyTable([]), SECRET)
    lines = ["hash,owner,tier,status"]
    lines += [f"{directory.hash('good')},acme,paid,", f'{directory.hash("gone")},"a, b",,revoked']
    path.write_text("\n".join(lines), encoding="utf-8")
    table = KeyTable.load(path)
    assert table.find(hash_key("good", SECRET)) == ACME
    assert table.find(hash_key("gone", SECRET)) == KeyRecord("a, b", "", "revoked")
    assert KeyDirectory(table, SECRET).describe({"api_key": "good"}, NOW)["tier"] == "paid"


def test_all_mistakes_of_a_file_are_reported_at_once_and_no_hash_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    good = hash_key("good", SECRET).hex()
    rows = ["hash,owner,tier,status", f"{good},acme,,", f"{good},acme,,", "abc,acme,,", f"{'z' * 32},acme,,"]
    rows += [f"{'0' * 32},,,", f"{'1' * 32},acme,paid,gone", f"{'2' * 32},acme"]
    path.write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(InvalidRules) as caught:
        KeyTable.load(path)
    assert str(caught.value).splitlines() == [
        "keys.csv:3: hash: repeated (expected each key once)",
        "keys.csv:4: hash: expected 32 hexadecimal digits",
        "keys.csv:5: hash: expected 32 hexadecimal digits",
        "keys.csv:6: owner: 0 characters (expected 1 to 190)",
        "keys.csv:7: status: 'gone': expected active or revoked",
        "keys.csv:8: 2 columns (expected hash, owner, tier, status)",
    ]


@pytest.mark.parametrize("content", [b"", b"key,owner\n", b"\xff\xfe", b"hash,owner,tier,status\n\xff"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidRules, match=re.escape("keys.csv")):
        KeyTable.load(path)
    with pytest.raises(InvalidRules, match="FileNotFoundError"):
        KeyTable.load(tmp_path / "missing.csv")


def test_a_file_of_nothing_but_mistakes_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("hash,owner,tier,status\n" + "x,y,z,w\n" * 10_000, encoding="utf-8")
    with pytest.raises(InvalidRules) as caught:
        KeyTable.load(path)
    assert len(caught.value.faults) == 20


@pytest.mark.parametrize("descriptor", [None, [], "x"])
def test_an_invalid_descriptor_is_an_error_of_the_caller(descriptor: Any) -> None:
    enforcer = Enforcer(rule_set({"id": "a"}), Limiter(), directory=KeyDirectory(KeyTable([]), SECRET))
    with pytest.raises(InvalidRequest):
        enforcer.check(descriptor)


def test_a_table_takes_no_key_twice_and_no_hash_of_another_length() -> None:
    digest = hash_key("k", SECRET)
    with pytest.raises(InvalidOption, match="once"):
        KeyTable([(digest, KeyRecord("acme")), (digest, KeyRecord("acme", status="revoked"))])
    with pytest.raises(InvalidOption, match="16 bytes"):
        KeyTable([(digest[:3], KeyRecord("acme"))])

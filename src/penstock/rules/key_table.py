"""A million API keys in little memory: hashes, owners and tiers in a few flat arrays instead of a million objects.

A key is known by its keyed hash alone (`hash_key`), so neither a file of keys nor this process's memory gives one away.
The file is CSV with a header:

    hash,owner,tier,status
    5f0c…,acme,enterprise,active
    91ab…,globex,free,revoked

`tier` and `status` may be empty; a key without status is active. All that is wrong with a file is said at once, and no
message quotes a hash.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Fault, InvalidOption, InvalidRules, shown

COLUMNS = ("hash", "owner", "tier", "status")
STATUSES = ("active", "revoked")
HASH_BYTES = 16
MAX_SECRET = 64
MAX_OWNER = 190
MAX_TIERS = 65_535
MAX_FAULTS = 20

_BUCKETS = 1 << 16
_ROW = HASH_BYTES + 4


class KeyRecord(NamedTuple):
    """Whose key it is, which tier it has, and whether it is still good."""

    owner: str
    tier: str = ""
    status: str = "active"


def hash_key(key: str, secret: bytes) -> bytes:
    """What an API key is known by. Without the secret nobody can tell whether a guess is right."""
    return blake2b(key.encode("utf-8", "backslashreplace"), key=secret, digest_size=HASH_BYTES).digest()


def check_secret(secret: bytes) -> bytes:
    if not isinstance(secret, bytes) or not 16 <= len(secret) <= MAX_SECRET:
        raise InvalidOption(f"secret: expected 16 to {MAX_SECRET} bytes (it is not shown here)")
    return secret


class KeyTable:
    """Keys by their hash. It never changes; to change it, load another one."""

    def __init__(self, keys: Iterable[tuple[bytes, KeyRecord]]) -> None:
        owners, ends = bytearray(), array("Q", [0])
        kinds: dict[tuple[str, str], int] = {}
        of_key = array("H")
        rows = []
        for number, (digest, record) in enumerate(keys):
            if len(digest) != HASH_BYTES:
                raise InvalidOption(f"key {number}: expected a hash of {HASH_BYTES} bytes")
            owners += record.owner.encode()
            ends.append(len(owners))
            of_key.append(kinds.setdefault((record.tier, record.status), len(kinds)))
            rows.append(digest + number.to_bytes(4))
        rows.sort()
        if any(row[:HASH_BYTES] == after[:HASH_BYTES] for row, after in pairwise(rows)):
            raise InvalidOption("keys: expected each hash once")  # of two answers, one may be that it was revoked
        self._hashes = b"".join([row[:HASH_BYTES] for row in rows])
        self._numbers = array("I", [int.from_bytes(row[HASH_BYTES:]) for row in rows])
        self._owners, self._ends, self._of_key, self._kinds = bytes(owners), ends, of_key, list(kinds)
        self._starts = _starts(rows)

    def __len__(self) -> int:
        return len(self._numbers)

    def __repr__(self) -> str:
        return f"<KeyTable of {len(self):,} keys>"

    @classmethod
    def load(cls, path: str | Path) -> KeyTable:
        """The keys of a CSV file; `InvalidRules` lists what is wrong with it."""
        path = Path(path)
        faults: list[Fault] = []
        try:
            with path.open(encoding="utf-8", newline="") as file:
                table = cls(_read(path.name, file, faults))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidRules([Fault(path.name, 0, "", "", type(error).__name__, "a readable CSV file")]) from None
        if faults:
            raise InvalidRules(faults)
        return table

    def find(self, digest: bytes) -> KeyRecord | None:
        """The record of the key with this hash; None if there is none."""
        bucket = digest[0] << 8 | digest[1]
        start, end = self._starts[bucket] * HASH_BYTES, self._starts[bucket + 1] * HASH_BYTES
        at = self._hashes.find(digest, start, end)
        while at % HASH_BYTES and at >= 0:  # the end of one hash and the beginning of the next
            at = self._hashes.find(digest, at + 1, end)
        if at < 0:
            return None
        number = self._numbers[at // HASH_BYTES]
        owner = self._owners[self._ends[number] : self._ends[number + 1]].decode()
        return KeyRecord(owner, *self._kinds[self._of_key[number]])


def _starts(rows: list[bytes]) -> array[int]:
    """How many hashes come before each bucket; a bucket holds those that begin with the same two bytes."""
    counts = array("I", bytes(4 * (_BUCKETS + 1)))
    for row in rows:
        counts[(row[0] << 8 | row[1]) + 1] += 1
    for bucket in range(_BUCKETS):
        counts[bucket + 1] += counts[bucket]
    return counts


def _read(name: str, lines: Iterable[str], faults: list[Fault]) -> Iterator[tuple[bytes, KeyRecord]]:
    """The keys of a file; what is wrong goes to `faults`, up to a number that somebody will read."""
    rows = csv.reader(lines)
    header = tuple(next(rows, ()))
    if header != COLUMNS:
        faults.append(Fault(name, 1, "", "", "no header", f"the columns {', '.join(COLUMNS)}"))
        return
    seen: set[bytes] = set()
    tiers: set[str] = set()
    for row in rows:
        flaw = _flaw(row, tiers)
        digest = b"" if flaw else bytes.fromhex(row[0])
        if not flaw and digest in seen:
            flaw = ("hash", "", "repeated", "each key once")
        if flaw:
            faults.append(Fault(name, rows.line_num, *flaw))
            if len(faults) == MAX_FAULTS:
                return
            continue
        seen.add(digest)
        tiers.add(row[2])
        yield digest, KeyRecord(row[1], row[2], row[3] or STATUSES[0])


def _flaw(row: list[str], tiers: set[str]) -> tuple[str, str, str, str] | None:
    """What is wrong with a row: the column, its value, the problem, what was expected."""
    if len(row) != len(COLUMNS):
        return "", "", f"{len(row)} columns", ", ".join(COLUMNS)
    digest, owner, tier, status = row
    try:
        sound = len(bytes.fromhex(digest)) == HASH_BYTES and len(digest) == 2 * HASH_BYTES
    except ValueError:
        sound = False
    if not sound:
        return "hash", "", "", f"{2 * HASH_BYTES} hexadecimal digits"
    if not 0 < len(owner) <= MAX_OWNER:
        return "owner", "", f"{len(owner)} characters", f"1 to {MAX_OWNER}"
    if status and status not in STATUSES:
        return "status", shown(status), "", f"{' or '.join(STATUSES)}"
    if tier not in tiers and len(tiers) >= MAX_TIERS // len(STATUSES):
        return "tier", "", "too many different tiers", f"at most {MAX_TIERS // len(STATUSES)}"
    return None

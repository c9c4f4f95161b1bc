"""The key directory: the owner and the tier of an API key.

A descriptor that passes through a directory gets the entries `owner` and `tier` of its key. The caller's own entries of
these names are dropped, so a caller cannot claim them. An unknown or revoked key counts as absent: requests with
invented keys share the counter of requests without a key, instead of opening a new counter each.

    directory = KeyDirectory(KeyTable.load("keys.csv"), secret)       # a file
    directory = KeyDirectory(look_up, secret, max_age=60)             # or a function: hash -> KeyRecord | None

Answers of a function are cached for `max_age` seconds, at most `max_keys` known and `max_keys` unknown keys. So a flood
of invented keys displaces only other unknown ones. If the function raises, its last answer is used if it is cached,
else the key counts as absent; it is called again after a second.

A `KeyTable` keeps a million keys in little memory: hashes, owners and tiers in a few flat arrays instead of a million
objects. A key is stored as its keyed hash alone (`hash_key`), so neither a file of keys nor the memory of this process
reveals one. The file is CSV with a header:

    hash,owner,tier,status
    5f0c…,acme,enterprise,active
    91ab…,globex,free,revoked

`tier` and `status` may be empty; a key without status is active. All mistakes of a file are reported at once, and no
message quotes a hash.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from penstock.clock import SECOND, Micros
from penstock.engine.options import at_least, up_to_a_day
from penstock.errors import Fault, InvalidOption, InvalidRequest, InvalidRules, is_from_signal_handler, shown
from penstock.events import Hook, LayerFailed, nobody, tell
from penstock.rules.entries import reader

COLUMNS = ("hash", "owner", "tier", "status")
STATUSES = ("active", "revoked")
HASH_BYTES = 16
MAX_SECRET = 64
MAX_OWNER = 190
MAX_TIERS = 65_535
MAX_FAULTS = 20

OWNER, TIER = "owner", "tier"
DEFAULT_ENTRY = "api_key"
API_KEY_HEADER = "x-api-key"
DEFAULT_MAX_KEYS = 100_000
DEFAULT_MAX_AGE = 60.0
RETRY: Micros = SECOND

_BUCKETS = 1 << 16


class KeyRecord(NamedTuple):
    """The owner, the tier and the status of a key."""

    owner: str
    tier: str = ""
    status: str = "active"


LookUp: TypeAlias = Callable[[bytes], KeyRecord | None]
AsyncLookUp: TypeAlias = Callable[[bytes], Awaitable[KeyRecord | None]]
Descriptor: TypeAlias = Mapping[str, Any]

S = TypeVar("S")


def hash_key(key: str, secret: bytes) -> bytes:
    """Return the keyed hash of an API key. Without the secret, a guess at the key cannot be checked."""
    return blake2b(key.encode("utf-8", "backslashreplace"), key=secret, digest_size=HASH_BYTES).digest()


def check_secret(secret: bytes) -> bytes:
    """Return a secret of a fit length."""
    if not isinstance(secret, bytes) or not 16 <= len(secret) <= MAX_SECRET:
        raise InvalidOption(f"secret: expected 16 to {MAX_SECRET} bytes (it is not shown here)")
    return secret


class KeyTable:
    """API keys by their hash. A table is immutable; to change it, load another one."""

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
            raise InvalidOption("keys: expected each hash once")  # one of two records may say revoked
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
        """Read the keys of a CSV file; `InvalidRules` lists its mistakes."""
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
        """Return the record of the key with this hash; None if there is none."""
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
    """Return how many hashes come before each bucket; a bucket holds the hashes with the same first two bytes."""
    counts = array("I", bytes(4 * (_BUCKETS + 1)))
    for row in rows:
        counts[(row[0] << 8 | row[1]) + 1] += 1
    for bucket in range(_BUCKETS):
        counts[bucket + 1] += counts[bucket]
    return counts


def _read(name: str, lines: Iterable[str], faults: list[Fault]) -> Iterator[tuple[bytes, KeyRecord]]:
    """Yield the keys of a file, and append its mistakes to `faults`, up to `MAX_FAULTS`."""
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
    """Return what is wrong with a row, if anything: the column, its value, the problem, what was expected."""
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


class _Known(NamedTuple):
    """A cached answer, and until when it is used."""

    record: KeyRecord | None
    until: Micros


class _Cache:
    """Answers by hash in two generations. When the young one is full it becomes the old one, which is dropped."""

    def __init__(self, max_keys: int) -> None:
        self._half = max_keys // 2
        self._young: dict[bytes, _Known] = {}
        self._old: dict[bytes, _Known] = {}

    def get(self, digest: bytes) -> _Known | None:
        known = self._young.get(digest)
        if known is None and (known := self._old.get(digest)) is not None:
            self.put(digest, known)
        return known

    def put(self, digest: bytes, known: _Known) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[digest] = known

    def forget(self, digest: bytes) -> None:
        self._young.pop(digest, None)
        self._old.pop(digest, None)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class Described(dict[str, Any]):
    """A descriptor whose key has been looked up, so that it is not looked up again."""


class _Directory(Generic[S]):
    """What both directories share: hashing, caching, and the change of the descriptor."""

    def __init__(
        self,
        source: S,
        secret: bytes,
        *,
        entry: str = DEFAULT_ENTRY,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_age: float = DEFAULT_MAX_AGE,
        hook: Hook = nobody,
    ) -> None:
        self._source = source
        self._good, self._bad = _Cache(at_least(2, "max_keys", max_keys)), _Cache(max_keys)
        self._max_age = round(up_to_a_day("max_age", max_age) * SECOND)
        self.entry = entry
        self._read = reader(entry)
        self._secret = check_secret(secret)
        self._hook = hook

    @property
    def remembered(self) -> int:
        """How many answers are cached."""
        return len(self._good) + len(self._bad)

    def hash(self, key: str) -> str:
        """Return the hash of `key` as a file states it."""
        return hash_key(key, self._secret).hex()

    def _digest(self, descriptor: Descriptor) -> bytes | None:
        try:
            key = self._read(descriptor.get(self.entry))
        except AttributeError:
            kind = type(descriptor).__name__
            raise InvalidRequest(f"descriptor: expected a mapping of entries to texts, not {kind}") from None
        return hash_key(key, self._secret) if key else None

    def _known(self, digest: bytes) -> _Known | None:
        return self._good.get(digest) or self._bad.get(digest)

    def _learn(self, digest: bytes, record: KeyRecord | None, now: Micros) -> KeyRecord | None:
        good = _is_good(record)
        (self._bad if good else self._good).forget(digest)
        (self._good if good else self._bad).put(digest, _Known(record, now + self._max_age))
        return record

    def _failed(self, digest: bytes, known: _Known | None, error: Exception, now: Micros) -> KeyRecord | None:
        """Return the last answer, or None, after the look-up failed; it is used for `RETRY`."""
        tell(self._hook, LayerFailed("key directory", type(error).__name__))
        record = None if known is None else known.record
        (self._good if _is_good(record) else self._bad).put(digest, _Known(record, now + RETRY))
        return record

    def _described(self, descriptor: Descriptor, record: KeyRecord | None) -> Descriptor:
        """Return the descriptor with the owner and tier of its key, and without those that the caller sent."""
        described = Described(descriptor)
        described.pop(OWNER, None)
        described.pop(TIER, None)
        if record is None or not _is_good(record):
            described.pop(self.entry, None)
            return described
        described[OWNER] = record.owner
        if record.tier:
            described[TIER] = record.tier
        return described


class KeyDirectory(_Directory[KeyTable | LookUp]):
    """The directory for blocking code, and for asyncio if its function does not block.

    - `source`: a `KeyTable`, or a function from a key's hash (16 bytes) to its record.
    - `secret`: the key of the hash, 16 to 64 bytes; the same in every process.
    - `entry`: the descriptor entry that holds the key.
    - `max_keys`, `max_age`: how many answers of a function to cache, and for how many seconds.
    - `hook`: receives a `LayerFailed` when the function raises.
    """

    def describe(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        """Return the descriptor with the owner and tier of its key."""
        digest = self._digest(descriptor)
        return self._described(descriptor, None if digest is None else self._find(digest, now))

    def _find(self, digest: bytes, now: Micros) -> KeyRecord | None:
        source = self._source
        if isinstance(source, KeyTable):  # as fast as a cache
            return source.find(digest)
        known = self._known(digest)
        if known is not None and now < known.until:
            return known.record
        try:
            return self._learn(digest, source(digest), now)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            return self._failed(digest, known, error, now)


class AsyncKeyDirectory(_Directory[AsyncLookUp]):
    """The directory for asyncio, with a coroutine function as its source. See `KeyDirectory`."""

    async def describe(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        """Return the descriptor with the owner and tier of its key."""
        digest = self._digest(descriptor)
        return self._described(descriptor, None if digest is None else await self._find(digest, now))

    async def _find(self, digest: bytes, now: Micros) -> KeyRecord | None:
        known = self._known(digest)
        if known is not None and now < known.until:
            return known.record
        try:
            return self._learn(digest, await self._source(digest), now)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            return self._failed(digest, known, error, now)


def _is_good(record: KeyRecord | None) -> bool:
    return record is not None and record.status == "active"

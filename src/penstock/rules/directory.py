"""The key directory: who owns an API key, and which tier it has.

A descriptor that passes through it gets the entries `owner` and `tier` of its key. What the caller wrote under these
names is dropped, so nobody can claim them. A key that is unknown or revoked counts as absent: whoever invents keys
shares the counter of those who have none, instead of opening a fresh one with each.

    directory = KeyDirectory(KeyTable.load("keys.csv"), secret)       # a file
    directory = KeyDirectory(look_up, secret, max_age=60)             # or a function: hash -> KeyRecord | None

What a function answers is remembered, "unknown" as well, for `max_age` seconds and at most `max_keys` of either kind;
a flood of invented keys displaces only other unknown ones. When it raises, its last answer stands if it is remembered
at all, else the key counts as absent; it is asked again after a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidOption, InvalidRequest, shown
from penstock.events import Hook, LayerFailed, nobody, tell
from penstock.rules.entries import reader
from penstock.rules.key_table import KeyRecord, KeyTable, check_secret, hash_key

OWNER, TIER = "owner", "tier"
DEFAULT_ENTRY = "api_key"
DEFAULT_MAX_KEYS = 100_000
DEFAULT_MAX_AGE = 60.0
RETRY: Micros = SECOND

LookUp: TypeAlias = Callable[[bytes], KeyRecord | None]
AsyncLookUp: TypeAlias = Callable[[bytes], Awaitable[KeyRecord | None]]
Descriptor: TypeAlias = Mapping[str, Any]


class _Known(NamedTuple):
    """An answer, and until when it needs not be asked for again."""

    record: KeyRecord | None
    until: Micros


class _Memory:
    """Answers by hash, in two generations: when the young one is full it becomes the old one, and the old one goes."""

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


class _Directory:
    """What both directories share: hashing, remembering, and what a descriptor becomes."""

    def __init__(self, secret: bytes, entry: str, max_keys: int, max_age: float, hook: Hook) -> None:
        if isinstance(max_keys, bool) or not isinstance(max_keys, int) or max_keys < 2:
            raise InvalidOption(f"max_keys {shown(max_keys)}: expected a whole number, at least 2")
        if isinstance(max_age, bool) or not isinstance(max_age, int | float) or not 0 < max_age <= 86_400:
            raise InvalidOption(f"max_age {shown(max_age)}: expected seconds, more than 0 and at most a day")
        self.entry = entry
        self._read = reader(entry)
        self._secret = check_secret(secret)
        self._max_age = round(max_age * SECOND)
        self._hook = hook
        self._good, self._bad = _Memory(max_keys), _Memory(max_keys)

    @property
    def remembered(self) -> int:
        """How many answers are remembered."""
        return len(self._good) + len(self._bad)

    def hash(self, key: str) -> str:
        """What `key` is known by, as it stands in a file."""
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
        """What to go by when nobody could be asked."""
        tell(self._hook, LayerFailed("key directory", type(error).__name__))
        record = None if known is None else known.record
        (self._good if _is_good(record) else self._bad).put(digest, _Known(record, now + RETRY))
        return record

    def _described(self, descriptor: Descriptor, record: KeyRecord | None) -> Descriptor:
        """The descriptor with the entries of its key, and without any that the caller claimed."""
        described = dict(descriptor)
        described.pop(OWNER, None)
        described.pop(TIER, None)
        if record is None or not _is_good(record):
            described.pop(self.entry, None)
            return described
        described[OWNER] = record.owner
        if record.tier:
            described[TIER] = record.tier
        return described


class KeyDirectory(_Directory):
    """The directory for blocking code, and for asyncio where nobody has to be waited for.

    - `source`: a `KeyTable`, or a function from a key's hash (16 bytes) to its record.
    - `secret`: what the hashes are keyed with, 16 to 64 bytes; the same in every process.
    - `entry`: the descriptor entry that holds the key.
    - `max_keys`, `max_age`: how many answers of a function to remember, and for how many seconds.
    - `hook`: told when the function raises.
    """

    def __init__(
        self,
        source: KeyTable | LookUp,
        secret: bytes,
        *,
        entry: str = DEFAULT_ENTRY,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_age: float = DEFAULT_MAX_AGE,
        hook: Hook = nobody,
    ) -> None:
        super().__init__(secret, entry, max_keys, max_age, hook)
        self._table = source if isinstance(source, KeyTable) else None
        self._look_up = source.find if isinstance(source, KeyTable) else source

    def describe(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        """What is known of a request, its key looked up."""
        digest = self._digest(descriptor)
        return self._described(descriptor, None if digest is None else self._find(digest, now))

    def _find(self, digest: bytes, now: Micros) -> KeyRecord | None:
        if self._table is not None:  # at hand: nothing to remember
            return self._table.find(digest)
        known = self._known(digest)
        if known is not None and now < known.until:
            return known.record
        try:
            return self._learn(digest, self._look_up(digest), now)
        except Exception as error:
            return self._failed(digest, known, error, now)


class AsyncKeyDirectory(_Directory):
    """The directory for asyncio whose function is a coroutine function. See `KeyDirectory`."""

    def __init__(
        self,
        source: AsyncLookUp,
        secret: bytes,
        *,
        entry: str = DEFAULT_ENTRY,
        max_keys: int = DEFAULT_MAX_KEYS,
        max_age: float = DEFAULT_MAX_AGE,
        hook: Hook = nobody,
    ) -> None:
        super().__init__(secret, entry, max_keys, max_age, hook)
        self._look_up = source

    async def describe(self, descriptor: Descriptor, now: Micros) -> Descriptor:
        """What is known of a request, its key looked up."""
        digest = self._digest(descriptor)
        return self._described(descriptor, None if digest is None else await self._find(digest, now))

    async def _find(self, digest: bytes, now: Micros) -> KeyRecord | None:
        known = self._known(digest)
        if known is not None and now < known.until:
            return known.record
        try:
            return self._learn(digest, await self._look_up(digest), now)
        except Exception as error:
            return self._failed(digest, known, error, now)


def _is_good(record: KeyRecord | None) -> bool:
    return record is not None and record.status == "active"

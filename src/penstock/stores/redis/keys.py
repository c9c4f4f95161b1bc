"""Names of what is stored: the only module that makes a Redis key.

    pk1{Bk}sK9c0...22 characters...      prefix with version, {partition}, letter, digest

- **Private**: the key of a counter never leaves the process. The digest is a blake2b, keyed with the operator's secret,
  of the namespace, the identity of the quota and the parts of the key. Without the secret keys cannot be tried out.
- **Injective**: every text that goes into a digest carries its length, so no two counters are spelled alike; that two
  digests of 128 bits meet is beyond chance. A change of the spelling changes the version in the prefix.
- **Bounded**: 30 bytes by default, 40 at most, because every key costs its length in memory.
- **Partition**: two characters in braces, from which Redis Cluster makes the slot. It depends on the key alone, so all
  counters of one key, and the records of its requests, live in one slot and can be charged together. Few partitions
  put many requests into one script call, many spread over more servers; their slots lie evenly among all there are.
"""

from __future__ import annotations

import re
import string
from binascii import b2a_base64, crc_hqx
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from penstock.errors import InvalidOption, shown
from penstock.model import Key, new
from penstock.quota import CALENDAR, CONCURRENCY, MIN_INTERVAL, Quota
from penstock.quota.periods import CalendarPeriod

DEFAULT_PREFIX = "pk1"
MAX_PREFIX = 13
SLOTS = 16_384
DEFAULT_PARTITIONS = 32
MAX_PARTITIONS = 1_024
RECORD = b"#"

LETTERS = {
    "fixed_window": "f",
    "sliding_window": "s",
    "rolling_window": "r",
    "token_bucket": "t",
    "gcra": "g",
    "leaky_bucket": "l",
    CALENDAR: "c",
    CONCURRENCY: "h",
    MIN_INTERVAL: "i",
}
"""The letter of an algorithm in the names of its counters, and in the script."""

_DIGEST = 16
_TEXT_OF_DIGEST = 22  # base64 without its padding
_PREFIX = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_PREFIX}}}")


class KeySubject(NamedTuple):
    """The beginning of all names of one `Key`, and its digest."""

    head: bytes
    digest: bytes


class KeyFamily(NamedTuple):
    """All counters of one identity of quotas: their letter, and the beginning of their hash."""

    letter: bytes
    hash: blake2b


class Keys:
    """The names in one namespace.

    - `secret`: what the hashes are keyed with; the same on every server of the fleet, for ever.
    - `namespace`: keeps applications apart that share a Redis and a secret.
    - `prefix`: what every key begins with; for ACLs, and to find them in the database.
    - `partitions`: over how many slots of a cluster they are spread; the same on every server of the fleet.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        namespace: str = "",
        prefix: str = DEFAULT_PREFIX,
        partitions: int = DEFAULT_PARTITIONS,
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidOption(
                f"key prefix {shown(prefix)}: expected 1 to {MAX_PREFIX} letters, digits, or any of _ . : -"
            )
        if not secret:
            raise InvalidOption("hashing secret of 0 bytes: expected at least one")
        self._hash = blake2b(_spelled([namespace]), digest_size=_DIGEST, key=blake2b(secret).digest())
        self._one = self._derived(b"key of one part")
        self._several = self._derived(b"key of several parts")
        self._record = self._derived(b"record")
        self.slots, tags = _evenly_spread(partitions)
        self._heads = [f"{prefix}{{{tag}}}".encode() for tag in tags]
        self._length = len(self._heads[0])
        self._partitions = {head: number for number, head in enumerate(self._heads)}

    def subject(self, key: Key) -> KeySubject:
        """Return the common part of the names of all counters of `key`, in canonical form."""
        if isinstance(key, str):
            of_key = self._one.copy()
            of_key.update(key.encode())
        else:
            of_key = self._several.copy()
            of_key.update(_spelled(key))
        digest = of_key.digest()
        return new(KeySubject, (self._heads[(digest[0] << 8 | digest[1]) % len(self._heads)], digest))

    def family(self, quota: Quota) -> KeyFamily:
        """Return the common part of the names of all counters with the identity of `quota`; made once per quota."""
        algorithm, span, penalised, name = quota.identity
        spans = [span.unit, span.zone, str(span.first)] if isinstance(span, CalendarPeriod) else [str(span)]
        spelled = _spelled([algorithm, str(penalised), name, *spans])
        return KeyFamily(LETTERS[algorithm].encode(), self._derived(b"counter", spelled))

    def counter(self, subject: KeySubject, family: KeyFamily) -> bytes:
        """Return the name of a counter."""
        of_counter = family.hash.copy()
        of_counter.update(subject.digest)
        return subject.head + family.letter + b2a_base64(of_counter.digest(), newline=False)[:_TEXT_OF_DIGEST]

    def record(self, subject: KeySubject, request_id: bytes, counters: Sequence[bytes]) -> bytes:
        """Return the name of the record of a request with an id on `counters`, the first of which is of `subject`."""
        of_record = self._record.copy()
        of_record.update(_lengthy([request_id, *counters]))
        return subject.head + RECORD + b2a_base64(of_record.digest(), newline=False)[:_TEXT_OF_DIGEST]

    def partition(self, name: bytes) -> int:
        """Return the partition of a name that was made here; its slot is `slots[partition]`."""
        return self._partitions[name[: self._length]]

    def _derived(self, *what: bytes) -> blake2b:
        derived = self._hash.copy()
        derived.update(_lengthy(what))
        return derived


def _spelled(texts: Iterable[str]) -> bytes:
    return _lengthy([text.encode() for text in texts])


def _lengthy(parts: Iterable[bytes]) -> bytes:
    """Return all parts behind their lengths: no two sequences are spelled alike."""
    return b"".join([b"%d:%b" % (len(part), part) for part in parts])


@cache
def _evenly_spread(partitions: int) -> tuple[list[int], list[str]]:
    """Return slots, and for each the tag that means it: two characters without meaning in shells and patterns.

    Servers of a cluster own ranges of slots, so partitions that lie evenly are shared evenly.
    """
    letters = string.ascii_letters + string.digits + "-_"
    slots = {crc_hqx(f"{one}{other}".encode(), 0) % SLOTS: f"{one}{other}" for one in letters for other in letters}
    width = SLOTS // partitions
    chosen = list({slot // width: slot for slot in sorted(slots)}.values())  # the last one of each range
    return chosen, [slots[slot] for slot in chosen]

"""Receipts as opaque tokens, which callers can neither forge nor read.

A receipt names counters, and the names of counters may be identities. So a token is encrypted and authenticated by a
synthetic IV: its first 16 bytes are a keyed hash of the content, and the content is encrypted by a stream derived from
that hash. Opening a token computes the hash again, which differs if a bit was changed or another secret was used. The
construction is deterministic: equal receipts have equal tokens, so a repeated request gets the same token.

    token = base64url( version | hash of content, keyed | content xor stream(hash), keyed )

Servers that share the secret can open each other's tokens. A token expires when its charges no longer matter. A token
that holds places never expires, because the places do.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from typing import TypeAlias

import msgspec

from penstock.clock import SECOND, Micros
from penstock.errors import InvalidInput, InvalidOption, InvalidReceipt, shown
from penstock.model import Charge, Key, Receipt, Source, own_mark
from penstock.quota import CONCURRENCY, Quota

VERSION = b"\x01"
LEAST_SECRET = 16
LEAST_AGE: Micros = 86_400 * SECOND
"""The shortest lifetime of a token."""

MAX_TOKEN = 262_144
"""Characters: more than the largest call (the longest key, the most quotas) can make."""

_TAG = 16
_BLOCK = 64
_HERE = 8
_MOST = 2**63

_Row: TypeAlias = tuple[int, str, int, int | str]
_Content: TypeAlias = tuple[int, list[Key], list[_Row], str | None, Source, bytes]
"""Expiry in seconds (0: never); the keys, once each, because they may be long; per charge the index of its key, quota,
cost and mark; record; source; host."""

_pack: Callable[[_Content], bytes] = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[str | tuple[str, ...]], list[_Row], str | None, Source, bytes]).decode


class Tokens:
    """Seals receipts as tokens, and opens them.

    `secret`: 16 bytes or more, the same on all servers that share a store.
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) < LEAST_SECRET:
            raise InvalidOption(f"secret: expected at least {LEAST_SECRET} bytes")
        self._tagging = blake2b(key=_derived(secret, b"tag"), digest_size=_TAG)
        self._hiding = blake2b(key=_derived(secret, b"hide"), digest_size=_BLOCK)
        self._here = os.urandom(_HERE)

    def __repr__(self) -> str:
        return "<Tokens>"

    def seal(self, receipt: Receipt | None, at: Micros) -> str:
        """Return the token of a receipt of a request decided at `at`. None: nothing was charged."""
        charges, record, source = receipt or ((), None, "store")
        keys: dict[Key, int] = {}
        rows: list[_Row] = [
            (keys.setdefault(key, len(keys)), _text(quota), cost, _packable(own_mark(mark)))
            for key, quota, cost, mark in charges
        ]
        here = b"" if source == "store" else self._here
        content = _pack((_expiry(charges, at), list(keys), rows, record, source, here))
        tag = self._tag(content)
        return urlsafe_b64encode(VERSION + tag + self._crypt(tag, content)).rstrip(b"=").decode()

    def open(self, token: str, now: Micros) -> Receipt:
        """Return the receipt of a token. It has no charges if there were none, or if another host made them locally."""
        expires, keys, rows, record, source, here = self._opened(token)
        if expires and now >= expires * SECOND:
            raise InvalidReceipt("receipt: expired (its charges no longer count)")
        if source != "store" and here != self._here:
            return Receipt(())  # another host charged it in its own memory while the store was unavailable
        charges = tuple([Charge(keys[key], _quota(quota), cost, int(mark)) for key, quota, cost, mark in rows])
        return Receipt(charges, record, source)

    def _opened(self, token: str) -> _Content:
        try:
            sealed = urlsafe_b64decode(token + "=" * (-len(token) % 4)) if len(token) <= MAX_TOKEN else b""
        except ValueError:
            sealed = b""
        if len(sealed) <= 1 + _TAG or urlsafe_b64encode(sealed).rstrip(b"=") != token.encode():
            raise InvalidReceipt("receipt: expected a token exactly as the service returned it")
        if sealed[:1] != VERSION:
            raise InvalidReceipt(f"receipt: a token of version {sealed[0]} (expected version {VERSION[0]})")
        tag = sealed[1 : 1 + _TAG]
        content = self._crypt(tag, sealed[1 + _TAG :])
        if not compare_digest(self._tag(content), tag):
            raise InvalidReceipt(
                "receipt: made with another secret, or changed (do all servers share one token_secret?)"
            )
        return _unpack(content)

    def _tag(self, content: bytes) -> bytes:
        tagging = self._tagging.copy()
        tagging.update(content)
        return tagging.digest()

    def _crypt(self, tag: bytes, content: bytes) -> bytes:
        """Encrypt the content, or decrypt it: the same operation."""
        size = len(content)
        blocks = []
        for block in range(-(-size // _BLOCK)):
            hiding = self._hiding.copy()
            hiding.update(tag + block.to_bytes(4, "big"))
            blocks.append(hiding.digest())
        stream = b"".join(blocks)[:size]
        return (int.from_bytes(content, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    """Derive the key for one purpose, so that no two uses of the secret share a key."""
    return blake2b(secret, digest_size=32, person=b"receipt " + purpose.ljust(8)).digest()


def _expiry(charges: tuple[Charge, ...], at: Micros) -> int:
    """Return when a token expires, in whole seconds; 0 if it holds places, which may be renewed without end."""
    longest = LEAST_AGE
    for _, quota, _, _ in charges:
        if quota.algorithm == CONCURRENCY:
            return 0
        longest = max(longest, quota.horizon_us)
    return -(-(at + longest) // SECOND)


def _packable(mark: int) -> int | str:
    """Return a mark as msgpack can carry it: marks of places exceed 64 bits."""
    return mark if mark < _MOST else str(mark)


@lru_cache(4_096)
def _text(quota: Quota) -> str:
    return str(quota)


@lru_cache(4_096)
def _quota(text: str) -> Quota:
    try:
        return Quota.parse(text)
    except InvalidInput:  # sealed by another version of the server
        raise InvalidReceipt(f"receipt: a quota that is unknown here, {shown(text)}") from None

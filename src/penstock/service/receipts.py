"""Receipts as callers hold them: opaque tokens that nobody else can make, change or read.

A receipt names counters, and counters are named by identities. So a token is sealed: its first 16 bytes are a keyed
hash of the content, and the content is hidden by a stream that follows from that hash (the construction known as
synthetic IV). Who opens it computes the hash again: it differs if a single bit was changed, or if another secret
sealed it. Nothing is drawn at random, so equal receipts make equal tokens, and a request that is answered again gets
the token it had.

    token = base64url( version | hash of content, keyed | content xor stream(hash), keyed )

All servers of a fleet share the secret; then each can open what another has sealed. Tokens expire when nothing they
name can matter any more; one that holds places does not, because the places themselves expire.
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
from penstock.model import Charge, Key, Receipt, Source
from penstock.quota import CONCURRENCY, Quota

VERSION = b"\x01"
LEAST_SECRET = 16
LEAST_AGE: Micros = 86_400 * SECOND
"""For how long a token can be handed in at least."""

MAX_TOKEN = 262_144
"""In characters: more than the longest key and as many quotas as a call may name come to."""

_TAG = 16
_BLOCK = 64
_HERE = 8
_MOST = 2**63

_Row: TypeAlias = tuple[int, str, int, int | str]
_Content: TypeAlias = tuple[int, list[Key], list[_Row], str | None, Source, bytes]
"""When it expires, in seconds (0: never); the keys, once each, because they may be long; which of them, quota, cost and
mark of each charge; record; source; where."""

_pack: Callable[[_Content], bytes] = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[str | tuple[str, ...]], list[_Row], str | None, Source, bytes]).decode


class Tokens:
    """Makes tokens of receipts, and receipts of tokens.

    `secret` is 16 bytes or more, the same on all servers that are to understand each other's tokens.
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
        """The token of a receipt of a request decided `at` that instant; None is of one that was charged nothing."""
        charges, record, source = receipt or ((), None, "store")
        keys: dict[Key, int] = {}
        rows: list[_Row] = [
            (keys.setdefault(key, len(keys)), _text(quota), cost, _packable(mark)) for key, quota, cost, mark in charges
        ]
        here = b"" if source == "store" else self._here
        content = _pack((_expiry(charges, at), list(keys), rows, record, source, here))
        tag = self._tag(content)
        return urlsafe_b64encode(VERSION + tag + self._hidden(tag, content)).rstrip(b"=").decode()

    def open(self, token: str, now: Micros) -> Receipt:
        """The receipt in a token; without charges, if there was none or it was charged by a server that is not here."""
        expires, keys, rows, record, source, here = self._opened(token)
        if expires and now >= expires * SECOND:
            raise InvalidReceipt("receipt: expired (nothing that it names can be given back any more)")
        if source != "store" and here != self._here:
            return Receipt(())  # another host charged it to itself while the store was away: here there is nothing
        charges = tuple([Charge(keys[key], _quota(quota), cost, int(mark)) for key, quota, cost, mark in rows])
        return Receipt(charges, record, source)

    def _opened(self, token: str) -> _Content:
        try:
            sealed = urlsafe_b64decode(token + "=" * (-len(token) % 4)) if len(token) <= MAX_TOKEN else b""
        except ValueError:
            sealed = b""
        if len(sealed) <= 1 + _TAG or urlsafe_b64encode(sealed).rstrip(b"=") != token.encode():
            raise InvalidReceipt("receipt: expected a token as it was handed out")
        if sealed[:1] != VERSION:
            raise InvalidReceipt(f"receipt: a token of version {sealed[0]} (expected version {VERSION[0]})")
        tag = sealed[1 : 1 + _TAG]
        content = self._hidden(tag, sealed[1 + _TAG :])
        if not compare_digest(self._tag(content), tag):
            raise InvalidReceipt("receipt: not sealed here, or changed since (do all servers share one secret?)")
        return _unpack(content)

    def _tag(self, content: bytes) -> bytes:
        tagging = self._tagging.copy()
        tagging.update(content)
        return tagging.digest()

    def _hidden(self, tag: bytes, content: bytes) -> bytes:
        """The content, hidden; or shown, if it was hidden."""
        size = len(content)
        blocks = []
        for block in range(-(-size // _BLOCK)):
            hiding = self._hiding.copy()
            hiding.update(tag + block.to_bytes(4, "big"))
            blocks.append(hiding.digest())
        stream = b"".join(blocks)[:size]
        return (int.from_bytes(content, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, so that no two uses of the secret can be played against each other."""
    return blake2b(secret, digest_size=32, person=b"receipt " + purpose.ljust(8)).digest()


def _expiry(charges: tuple[Charge, ...], at: Micros) -> int:
    """When a token is of no more use, in whole seconds; 0 if it holds places, which may be renewed for ever."""
    longest = LEAST_AGE
    for _, quota, _, _ in charges:
        if quota.algorithm == CONCURRENCY:
            return 0
        longest = max(longest, quota.horizon_us)
    return -(-(at + longest) // SECOND)


def _packable(mark: int) -> int | str:
    """The marks of places are longer than the numbers that can be packed."""
    return mark if mark < _MOST else str(mark)


@lru_cache(4_096)
def _text(quota: Quota) -> str:
    return str(quota)


@lru_cache(4_096)
def _quota(text: str) -> Quota:
    try:
        return Quota.parse(text)
    except InvalidInput:  # sealed by a server that knew other quotas
        raise InvalidReceipt(f"receipt: a quota that is unknown here, {shown(text)}") from None

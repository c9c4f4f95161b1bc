"""Reads the entries of a descriptor into the normal form that is matched and counted.

| the entry is | and counts as |
|---|---|
| missing, None, or empty | absent |
| text | itself; control characters, braces and the like have no meaning |
| a whole number, True, False | its decimal digits, `true`, `false` |
| not an address, where an address is expected | absent, so that invented values cannot each open a counter |
| text that UTF-8 cannot carry (lone surrogates) | itself, with those written as `\\udc80` |
| longer than 190 characters, with its name | itself; in a key, its digest |
| anything else | an error of the caller: `InvalidRequest` |

Only entries that a rule uses are read; others cost nothing. Accents are composed (NFC) within the first 190 characters
alone, because composing takes time in the square of a hostile length.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

from penstock.errors import InvalidRequest, shown
from penstock.rules.networks import address_of, folded

MAX_PART = 190
"""Longest key part that is not replaced by its digest. With the id of a rule it always fits into a key."""

MAX_ADDRESS = 45
MAX_ADDRESSES = 2_048
_MOST_DIGITS = 10**30
_DIGEST_BYTES = 16

ABSENT = ""

Read: TypeAlias = Callable[[object], str]
"""Reads the value of a caller into the text that is matched; the empty text is absent."""


def reader(name: str, *, fold_case: bool = False, nfc: bool = False, address: bool = False) -> Read:
    """Return the function that reads the entry `name`."""

    addresses: dict[object, str] = {}  # a cache, because parsing is slower

    def read_address(value: object) -> str:
        try:
            return addresses[value]
        except (KeyError, TypeError):  # not cached, or not hashable
            address = address_of(_text(name, value)) or ABSENT
        if value.__class__ is str and len(value) <= MAX_ADDRESS:
            if len(addresses) >= MAX_ADDRESSES:
                addresses.clear()
            addresses[value] = address
        return address

    def read(value: object) -> str:
        text = _text(name, value)
        if text.isascii() or not nfc:
            return text.casefold() if fold_case else text
        text = _composed(text)
        return _composed(text.casefold()) if fold_case else text  # folding takes some letters apart again

    return read_address if address else read


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text[:MAX_PART]) + text[MAX_PART:]


def _text(name: str, value: object) -> str:
    if value.__class__ is str and value.isascii():
        return value
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < _MOST_DIGITS:
        return str(int(value))
    if not isinstance(value, str):
        raise InvalidRequest(f"entry {shown(name)}: expected text, not {type(value).__name__}")
    return value.encode("utf-8", "backslashreplace").decode()


def key_part(mark: str, text: str, ipv6_prefix: int | None = None) -> str:
    """Return the part of a key made of the name of an entry (`mark`, e.g. `ip=`) and its value."""
    part = mark + (text if ipv6_prefix is None else folded(text, ipv6_prefix))
    if len(part) > MAX_PART:
        # "#" in place of "=", so that no text reads as a digest.
        return f"{mark[:-1]}#{blake2b(part.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
    return part

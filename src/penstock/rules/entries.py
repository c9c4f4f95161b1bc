"""Reading the entries of a descriptor: what callers wrote, in the one form that is matched and counted.

| the entry is | and counts as |
|---|---|
| missing, None, or empty | absent |
| text | itself; control characters, braces and the like are data |
| a whole number, True, False | its decimal digits, `true`, `false` |
| not an address, where an address is expected | absent, so that invented ones cannot each open a counter |
| text that UTF-8 cannot carry (lone surrogates) | itself, with those written as `\\udc80` |
| longer than 190 characters, with its name | itself; in a key its digest stands for it |
| anything else | an error of the caller: `InvalidRequest` |

Only entries that some rule looks at are read, so what else a descriptor holds costs nothing. Accents are composed (NFC)
within the first 190 characters alone, because composing takes time in the square of a hostile length.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeAlias

from penstock.errors import InvalidRequest, shown
from penstock.rules.networks import address_of, folded

MAX_PART = 190
"""Characters of a key part that stand for themselves: with the id of a rule, never more bytes than a key may have."""

MAX_ADDRESS = 45
MAX_ADDRESSES = 2_048
_MOST_DIGITS = 10**30
_DIGEST_BYTES = 16

ABSENT = ""

Read: TypeAlias = Callable[[object], str]
"""From what a caller wrote to what is matched; the empty text is absent."""


def reader(name: str, *, fold_case: bool = False, nfc: bool = False, address: bool = False) -> Read:
    """How the entry `name` is read."""

    addresses: dict[object, str] = {}  # as they were written lately: looking up is cheaper than reading

    def read_address(value: object) -> str:
        try:
            return addresses[value]
        except (KeyError, TypeError):  # not seen lately, or nothing that has a hash
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
    """The part of a key that says which entry it came from (`mark`, e.g. `ip=`) and what the entry is."""
    part = mark + (text if ipv6_prefix is None else folded(text, ipv6_prefix))
    if len(part) > MAX_PART:
        # "#" in place of "=": no text can be written that reads as a digest.
        return f"{mark[:-1]}#{blake2b(part.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
    return part

"""Stores: whatever can answer. `open_store` turns a URL into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from penstock.clock import Clock
from penstock.errors import InvalidOption
from penstock.stores.base import AsyncStore, DirectAsk, InProcess, Store
from penstock.stores.memory import DEFAULT_MAX_KEYS, AsyncMemoryStore, MemoryStore


def open_store(url: str, clock: Clock | None = None) -> Store:
    """The store that `url` names, for blocking callers."""
    return _OPENERS[_scheme(url)](url, clock)


def open_async_store(url: str, clock: Clock | None = None) -> AsyncStore:
    """The store that `url` names, for asyncio."""
    return AsyncMemoryStore(_OPENERS[_scheme(url)](url, clock))


def _open_memory(url: str, clock: Clock | None) -> MemoryStore:
    parts = urlsplit(url)
    if parts.netloc or parts.path or parts.fragment:
        raise InvalidOption(
            f"store {url!r}: memory:// has neither host nor path (expected e.g. memory://?max_keys=100000)"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    max_keys = options.pop("max_keys", str(DEFAULT_MAX_KEYS))
    if options:
        raise InvalidOption(f"store {url!r}: unknown option {next(iter(options))!r} (expected max_keys)")
    if not (max_keys.isascii() and max_keys.isdecimal()):
        raise InvalidOption(f"max_keys {max_keys!r}: expected a whole number")
    return MemoryStore(max_keys=int(max_keys), clock=clock)


_OPENERS: Mapping[str, Callable[[str, Clock | None], MemoryStore]] = {"memory": _open_memory}


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _OPENERS:  # never quote the rest: it may hold a password
        raise InvalidOption(
            f"store {scheme[:32]!r}: unknown scheme (expected {', '.join(f'{s}://' for s in _OPENERS)})"
        )
    return scheme


__all__ = [
    "AsyncMemoryStore",
    "AsyncStore",
    "DirectAsk",
    "InProcess",
    "MemoryStore",
    "Store",
    "open_async_store",
    "open_store",
]

"""Stores: whatever can answer. `open_store` turns a URL into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from penstock.clock import Clock
from penstock.errors import InvalidOption, shown
from penstock.stores.base import AsyncStore, DirectAsk, InProcess, Store
from penstock.stores.memory import DEFAULT_MAX_KEYS, AsyncMemoryStore, MemoryStore


def open_store(url: str, clock: Clock | None = None) -> Store:
    """The store that `url` names, for blocking callers."""
    return _OPENERS[_scheme(url)](url, clock)


def open_async_store(url: str, clock: Clock | None = None) -> AsyncStore:
    """The store that `url` names, for asyncio."""
    return AsyncMemoryStore(_OPENERS[_scheme(url)](url, clock))


def _open_memory(url: str, clock: Clock | None) -> MemoryStore:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidOption("store memory://...: unreadable (expected e.g. memory://?max_keys=100000)") from None
    if parts.netloc or parts.path or parts.fragment:
        raise InvalidOption("store memory://...: has neither host nor path (expected e.g. memory://?max_keys=100000)")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    max_keys = options.pop("max_keys", str(DEFAULT_MAX_KEYS))
    if options:
        raise InvalidOption(f"store memory://...: unknown option {shown(next(iter(options)))} (expected max_keys)")
    if not (max_keys.isascii() and max_keys.isdecimal() and len(max_keys) < 20):
        raise InvalidOption(f"max_keys {shown(max_keys)}: expected a whole number")
    return MemoryStore(max_keys=int(max_keys), clock=clock)


_OPENERS: Mapping[str, Callable[[str, Clock | None], MemoryStore]] = {"memory": _open_memory}


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _OPENERS:  # never quote the rest of a URL: it may hold a password
        name = "..." if "@" in scheme else scheme[:32]
        raise InvalidOption(f"store {name!r}: unknown scheme (expected {', '.join(f'{s}://' for s in _OPENERS)})")
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

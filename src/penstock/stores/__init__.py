"""Stores keep counters and run operations. `open_store` and `open_async_store` make one from a URL."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from penstock.clock import Clock
from penstock.engine.protocols import AsyncStore, DirectAmends, DirectOnce, InProcess, Local, Store
from penstock.errors import InvalidOption, shown
from penstock.events import Hook, nobody
from penstock.stores.memory.store import DEFAULT_MAX_KEYS, AsyncMemoryStore, MemoryStore

if TYPE_CHECKING:
    from penstock.stores.redis.store import AsyncRedisStore, RedisStore

MEMORY = "memory"
WAYS = ("", "s", "+unix", "+sentinel", "s+sentinel", "+cluster", "s+cluster")
REDIS = tuple(f"redis{way}" for way in WAYS)
VALKEY = tuple(f"valkey{way}" for way in WAYS)


def open_store(url: str, clock: Clock | None = None, hook: Hook = nobody) -> Store:
    """Return the store that `url` names, for blocking callers."""
    if _scheme(url) == MEMORY:
        return _open_memory(url, clock)
    store: Store = _redis().RedisStore(url, clock=clock, hook=hook)
    return store


def open_async_store(url: str, clock: Clock | None = None, hook: Hook = nobody) -> AsyncStore:
    """Return the store that `url` names, for asyncio."""
    if _scheme(url) == MEMORY:
        return AsyncMemoryStore(_open_memory(url, clock))
    store: AsyncStore = _redis().AsyncRedisStore(url, clock=clock, hook=hook)
    return store


def _redis() -> ModuleType:
    """Return the module of the Redis stores. It is imported when first needed, because the core has no dependencies."""
    try:
        from penstock.stores.redis import store
    except ImportError as error:
        raise InvalidOption(f"redis stores need {error.name}, which is missing (pip install penstock[redis])") from None
    return store


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


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in (
        MEMORY,
        *REDIS,
        *VALKEY,
    ):  # never quote the rest of a URL: it may hold a password
        name = scheme[:32] if re.fullmatch(r"[A-Za-z+:]*", scheme) else "..."
        known = ", ".join(f"{scheme}://" for scheme in (MEMORY, *REDIS))
        raise InvalidOption(f"store {name!r}: unknown scheme (expected {known}, or valkey in place of redis)")
    return scheme


def __getattr__(name: str) -> object:
    if name in ("AsyncRedisStore", "RedisStore"):  # imported when first used, because they need penstock[redis]
        return getattr(import_module(f"{__name__}.redis.store"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncMemoryStore",
    "AsyncRedisStore",
    "AsyncStore",
    "DirectAmends",
    "DirectOnce",
    "InProcess",
    "Local",
    "MemoryStore",
    "RedisStore",
    "Store",
    "open_async_store",
    "open_store",
]

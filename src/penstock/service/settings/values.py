"""Readers of the values of settings: from text (flags, environment) or from a TOML file.

A reader converts a written value, or raises `InvalidValue` with what was expected. It never quotes the value, which may
be a secret.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

from penstock.errors import InvalidOption
from penstock.rules.client_ip import TrustedProxies
from penstock.service.sockets import ListenAddress
from penstock.stores import open_store

T = TypeVar("T")

Reader: TypeAlias = Callable[[object], T]
Proxies: TypeAlias = int | tuple[str, ...]

FROM_FILE = "file:"
MIN_SECRET = 16
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+[0-9A-Za-z]*\]|[0-9A-Za-z._-]*|\*):([0-9]{1,5})")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_HARMLESS = re.compile(r"(deadline|connections|waiting|breaker_\w+|prefix|namespace|partitions|db|max_keys)=[^&#]*")
_NAMED = ("password", "secret", "sentinel_password", "sentinel_username", "username")


class InvalidValue(ValueError):
    """An invalid value. The message is what was expected in its place."""


def several(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return a reader of several values: a list, or text with commas between them."""

    def read_all(value: object) -> tuple[T, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            parts = [parts]
        parts = [part.strip() if isinstance(part, str) else part for part in parts]
        return tuple([read(part) for part in parts if part != ""])

    return read_all


def some(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return a reader of one or more values."""
    read_all = several(read)

    def read_some(value: object) -> tuple[T, ...]:
        return read_all(value) or (read(""),)  # raises InvalidValue

    return read_some


def address(value: object) -> ListenAddress:
    if isinstance(value, str):
        if value.startswith("unix:") and 0 < len(path := value.removeprefix("unix:")) <= 100 and "\0" not in path:
            return ListenAddress(path=path)
        found = _HOST_AND_PORT.fullmatch(value)
        if found and int(found[2]) <= 65_535:
            host = found[1].strip("[]")
            return ListenAddress("" if host == "*" else host, int(found[2]))
    raise InvalidValue("host:port, [v6]:port or unix:path (of at most 100 characters)")


def path(value: object) -> Path:
    if isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise InvalidValue("the path of a file")


def existing(value: object) -> Path:
    found = path(value)
    if not found.is_file():
        raise InvalidValue("the path of a file that exists")
    return found


def whole(least: int, most: int) -> Reader[int]:
    def read(value: object) -> int:
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise InvalidValue(f"a whole number, {least} to {most}")

    return read


def number(least: float, most: float, unit: str) -> Reader[float]:
    def read(value: object) -> float:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        raise InvalidValue(f"{unit}, {least:g} to {most:g}")

    return read


def switch(value: object) -> bool:
    known = {"on": True, "true": True, "yes": True, "1": True, "off": False, "false": False, "no": False, "0": False}
    found = value if isinstance(value, bool) else known.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise InvalidValue("on or off")
    return found


def one_of(*known: str) -> Reader[str]:
    def read(value: object) -> str:
        if isinstance(value, str) and value.lower() in known:
            return value.lower()
        raise InvalidValue(f"one of {', '.join(known)}")

    return read


def secret(value: object) -> bytes:
    """Read a secret: text of some length, or `file:PATH` of a file that holds it."""
    expected = f"at least {MIN_SECRET} characters, or {FROM_FILE}PATH of a file that holds them"
    if not isinstance(value, str):
        raise InvalidValue(expected)
    if value.startswith(FROM_FILE):
        try:
            raw = Path(value.removeprefix(FROM_FILE)).read_bytes().strip()
        except OSError as error:
            raise InvalidValue(f"{expected}; it cannot be read: {error.strerror}") from None
    else:
        raw = value.encode("utf-8", "surrogateescape")
    if len(raw) < MIN_SECRET:
        raise InvalidValue(expected)
    return raw


def key_secret(value: object) -> bytes:
    """Read the secret of API key hashes: blake2b takes a key of at most 64 bytes."""
    raw = secret(value)
    if len(raw) > 64:
        raise InvalidValue(f"{MIN_SECRET} to 64 bytes, or {FROM_FILE}PATH of a file that holds them")
    return raw


def token(value: object) -> str:
    """Read a bearer token, as clients send it."""
    try:
        text = secret(value).decode("ascii")
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or " " in text:
        raise InvalidValue("tokens of visible ASCII characters, without spaces or commas")
    return text


def text(value: object) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise InvalidValue("printable text")


def header(value: object) -> str:
    if isinstance(value, str) and _HEADER.fullmatch(value.lower()):
        return value.lower()
    raise InvalidValue("the name of a header, such as x-api-key")


def proxies(value: object) -> Proxies:
    """Read the number of trusted proxies, or their networks."""
    parts = several(lambda part: part)(value)
    count = parts[0] if len(parts) == 1 else None
    if isinstance(count, str) and count.isascii() and count.isdecimal() and len(count) < 4:
        count = int(count)
    trusted: Proxies = count if isinstance(count, int) else tuple([str(part) for part in parts])
    try:
        TrustedProxies(trusted)
    except InvalidOption as error:
        raise InvalidValue(str(error).partition("expected ")[2].rstrip(")") or "networks") from None
    return trusted


def store(value: object) -> str:
    """Read the URL of a store. The error of the store explains what is wrong, without quoting the URL."""
    if not isinstance(value, str):
        raise InvalidValue("a URL, such as memory:// or redis://host:6379/0")
    try:
        if value.startswith("memory:"):
            open_store(value).close()
        elif "://" not in value or not value.startswith(("redis", "valkey")):
            raise InvalidValue("a URL, such as memory:// or redis://host:6379/0")
        else:
            _check_redis(value)
    except InvalidOption as error:
        raise InvalidValue(f"a URL, such as memory:// or redis://host:6379/0; {error}") from None
    return value


def _check_redis(url: str) -> None:
    try:
        from penstock.stores.redis.config import read_url
    except ImportError as error:
        raise InvalidValue(f"memory:// as long as {error.name} is missing (pip install 'penstock[redis]')") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated when the store is opened
        read_url(url)


def hidden_url(url: str) -> str:
    """Return a URL as it may be printed: without credentials, and with the values of harmless options alone."""
    scheme, found, rest = url.partition("://")
    place, has_query, query = rest.partition("#")[0].partition("?")
    if not found or ("@" in query and "@" not in place):  # a password may contain a question mark
        return f"{scheme}://***" if found else "***"
    login, _, host = place.rpartition("@")
    options = "&".join(option if _HARMLESS.fullmatch(option) else _hidden(option) for option in query.split("&"))
    return f"{scheme}://{'***@' if login else ''}{host}{f'?{options}' if has_query else ''}"


def _hidden(option: str) -> str:
    name, found, _ = option.partition("=")
    return f"{name}=***" if found and name in _NAMED else "***"

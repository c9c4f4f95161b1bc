"""Reads the short forms in which rules are written into values.

    quota   100/minute    "100/minute; 1000/hour"    [100/minute, 1000/hour]
    key     api_key | ip    [ip, user, endpoint]    []: one counter for all requests
    match   {entry: test, ..., any: [match, ...], all: [match, ...], not: match}
    test    value    [value, ...]    {equals: value, in: [...], prefix: text, glob: pattern, cidr: network,
                                      present: true, not: test}

Each reader takes the data of a YAML or JSON parser, and returns an immutable value or raises `Flawed`. A value that was
read before is returned as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from ipaddress import IPv6Network, ip_network
from typing import TypeAlias, TypeVar, cast

from penstock.clock import SECOND
from penstock.errors import InvalidInput, InvalidQuota
from penstock.quota import Quota
from penstock.quota import text as quota_text
from penstock.rules.conditions import (
    CONDITIONS,
    All,
    Any,
    Cidr,
    Condition,
    Equals,
    Glob,
    Network,
    Not,
    OneOf,
    Prefix,
    Present,
)
from penstock.rules.faults import HIDDEN, Flaw, Flawed, flawed, unknown
from penstock.rules.globs import check_pattern

KeyPart: TypeAlias = tuple[str, ...]
"""Entries, of which the first that is present becomes part of the key."""

MAX_VALUE = 1_024
MAX_VALUES = 10_000
MAX_QUOTAS = 8
MAX_KEY_PARTS = 8
MAX_FALLBACKS = 4
MAX_DEADLINE = 60

JOINS = ("any", "all", "not")
TESTS = ("equals", "in", "prefix", "glob", "cidr", "present", "not")
ENTRY_EXPECTED = "the name of an entry: a letter, then at most 63 letters, digits, or any of _ . : -"

T = TypeVar("T")


def gather(readings: Iterable[tuple[str | int, Callable[[], T]]]) -> list[T]:
    """Return the results of all readings; if any is flawed, raise the flaws of all."""
    read: list[T] = []
    flaws: list[Flaw] = []
    for step, reading in readings:
        try:
            read.append(reading())
        except Flawed as error:
            flaws += [flaw.under(step) for flaw in error.flaws]
    if flaws:
        raise Flawed(*flaws)
    return read


def each(values: Iterable[object], reader: Callable[[object], T]) -> list[T]:
    """Read each value; if any is flawed, raise the flaws of all."""
    return gather((at, partial(reader, value)) for at, value in enumerate(values))


# ---------------------------------------------------------------- single values


def entry_name(name: object) -> str:
    """Read the name of a descriptor entry."""
    if not isinstance(name, str) or not quota_text.NAME.fullmatch(name):
        raise flawed(name, ENTRY_EXPECTED)
    if name in JOINS:
        raise flawed(name, ENTRY_EXPECTED, "taken: any, all and not join conditions")
    return name


def text_value(value: object) -> str:
    """Read a text to compare with; numbers and booleans are taken as they were written."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str) or not value:
        raise flawed(value, "a text that is not empty")
    if len(value) > MAX_VALUE:
        raise flawed(value, f"at most {MAX_VALUE} characters", f"{len(value)} characters")
    return value


def seconds(value: object) -> float:
    """Read a deadline such as `20ms`; return seconds."""
    expected = f'a duration from 1us to {MAX_DEADLINE}s, such as "20ms"'
    try:
        found = value if isinstance(value, float) else quota_text.read_duration(cast("str", value)) / SECOND
    except InvalidQuota:
        raise flawed(value, expected) from None
    if not 0 < found <= MAX_DEADLINE:  # also refuses NaN
        raise flawed(value, expected)
    return found


def instant(value: object) -> datetime:
    """Read an instant with its offset from UTC."""
    expected = "a date, time and offset from UTC, such as 2026-06-05T18:00:00Z"
    if isinstance(value, datetime):
        moment = value
    elif isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise flawed(value, expected) from None
    else:
        raise flawed(value, expected)
    if moment.tzinfo is None:
        raise flawed(value, expected, "no offset from UTC")
    try:
        return moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise flawed(value, expected) from None


# ---------------------------------------------------------------- quotas and keys


def quotas(value: object) -> tuple[Quota, ...]:
    """Read one or more quotas, each with its own counter."""
    texts = value if isinstance(value, list | tuple) else [value]
    read = each(texts, _quotas) if texts is value else [_quotas(value)]
    found = tuple(quota for some in read for quota in some)
    if not 1 <= len(found) <= MAX_QUOTAS:
        raise flawed(value, f"1 to {MAX_QUOTAS} quotas", "" if found else "no quota")
    counters = [part.identity for quota in found for part in quota.parts]
    if len(set(counters)) < len(counters):
        problem = "two quotas with one counter"
        raise flawed(
            [str(quota) for quota in found], 'other periods or algorithms, or a name: "... name second"', problem
        )
    return found


_parsed = lru_cache(maxsize=4_096)(Quota.parse_all)  # many rules have few different quotas


def _quotas(value: object) -> tuple[Quota, ...]:
    if isinstance(value, Quota):
        return (value,)
    if not isinstance(value, str):
        raise flawed(value, 'text such as "100/minute"')
    try:
        return _parsed(value)
    except InvalidQuota as error:
        problem, expected = _quota_says(str(error))
        raise flawed(value, expected, problem) from None


def _quota_says(message: str) -> tuple[str, str]:
    """Split the message of a quota, which starts by quoting it, into problem and expectation."""
    message = re.sub(r'^quota (".*?"|.*?): (?=\w)', "", message, count=1, flags=re.DOTALL)
    problem, found, expected = message.partition("(expected ")
    if found:
        return problem.strip(), expected.removesuffix(")")
    problem, found, expected = message.rpartition("expected ")
    return (problem.rstrip(": "), expected) if found else (message, 'a quota such as "100/minute"')


def key_parts(value: object) -> tuple[KeyPart, ...]:
    """Read the parts of a key: `"api_key | ip"`, or a list of such."""
    if not isinstance(value, list | tuple):
        return (_key_part(value),)
    if len(value) > MAX_KEY_PARTS:
        raise flawed(value, f"at most {MAX_KEY_PARTS} parts", f"{len(value)} parts")
    parts = tuple(each(value, _key_part))
    if len(set(parts)) < len(parts):
        raise flawed(value, "each part once", "repeated part")
    return parts


def _key_part(value: object) -> KeyPart:
    if not isinstance(value, str | tuple):
        raise flawed(value, 'entries, such as "ip" or "api_key | ip"')
    names = [name.strip() for name in value.split("|")] if isinstance(value, str) else list(value)
    try:
        part = tuple(entry_name(name) for name in names)
    except Flawed as error:
        raise flawed(value, 'entries, such as "ip" or "api_key | ip"', error.flaws[0].problem) from None
    if len(set(part)) < len(part) or len(part) > MAX_FALLBACKS:
        raise flawed(value, f"at most {MAX_FALLBACKS} different entries")
    return part


def who(value: object) -> Mapping[str, tuple[str, ...]]:
    """Read the entries and values that an override is for. They are identities, so no message quotes one."""
    if not isinstance(value, Mapping) or not value:
        raise flawed(HIDDEN, "entries and their values, such as {owner: acme}")
    try:
        pairs = gather((name, partial(_entry_values, name, values)) for name, values in value.items())
    except Flawed as error:
        raise Flawed(*(flaw._replace(value=HIDDEN) for flaw in error.flaws)) from None
    return dict(pairs)


def _entry_values(name: object, values: object) -> tuple[str, tuple[str, ...]]:
    return entry_name(name), tuple(one_or_more(values, text_value))


# ---------------------------------------------------------------- match


def condition(value: object) -> Condition:
    """Read the condition of a `match`."""
    if isinstance(value, CONDITIONS):
        return value
    if not isinstance(value, Mapping) or not value:
        raise flawed(value, "entries and what is asked of them, such as {path: {prefix: /v1}, method: POST}")
    return _join(All, gather((name, partial(_clause, name, one)) for name, one in value.items()))


def _clause(name: object, value: object) -> Condition:
    if name == "not":
        return Not(condition(value))
    if name in ("any", "all"):
        if not isinstance(value, list | tuple) or not value:
            raise flawed(value, f"a list of conditions, such as {name}: [{{method: POST}}, {{method: PUT}}]")
        inner = each(value, condition)
        return _join(All if name == "all" else Any, inner)
    return _test(entry_name(name), value)


def _test(entry: str, value: object) -> Condition:
    if isinstance(value, Mapping):
        if not value:
            raise flawed(value, f"one of {', '.join(TESTS)}")
        return _join(All, gather((name, partial(_named, entry, name, one)) for name, one in value.items()))
    return _one_of(entry, value) if isinstance(value, list | tuple) else Equals(entry, text_value(value))


def _named(entry: str, name: object, value: object) -> Condition:
    match name:
        case "equals":
            return Equals(entry, text_value(value))
        case "in":
            return _one_of(entry, value)
        case "prefix":
            return _join(Any, [Prefix(entry, text) for text in _texts(value)])
        case "glob":
            return _join(Any, [Glob(entry, _pattern(text)) for text in _texts(value)])
        case "cidr":
            return Cidr(entry, tuple(one_or_more(value, _network)))
        case "present":
            if not isinstance(value, bool):
                raise flawed(value, "true or false")
            return Present(entry, value)
        case "not":
            return Not(_test(entry, value))
        case _:
            problem, expected = unknown("test", name, TESTS)
            raise flawed(HIDDEN, expected, problem)


def _one_of(entry: str, value: object) -> Condition:
    if not isinstance(value, list | tuple):
        raise flawed(value, "a list of texts")
    return OneOf(entry, tuple(dict.fromkeys(_texts(value))))


def _texts(value: object) -> list[str]:
    return one_or_more(value, text_value)


def one_or_more(value: object, reader: Callable[[object], T]) -> list[T]:
    """Read a single value, or a list of values."""
    if not isinstance(value, list | tuple):
        return [reader(value)]
    if not 1 <= len(value) <= MAX_VALUES:
        raise flawed(value, f"1 to {MAX_VALUES} values", f"{len(value)} values")
    return each(value, reader)


def _pattern(text: str) -> str:
    try:
        return check_pattern(text)
    except InvalidInput:
        raise flawed(text, "* within a segment, or ** alone between slashes", "** beside something else") from None


def _network(value: object) -> Network:
    expected = "a network such as 10.0.0.0/8 or 2001:db8::/32"
    if not isinstance(value, str) or "%" in value:  # addresses have no zones here
        raise flawed(value, expected)
    try:
        network = ip_network(value, strict=False)
        whole = ip_network(value.partition("/")[0])
    except ValueError:
        raise flawed(value, expected) from None
    if whole.network_address != network.network_address:
        raise flawed(value, str(network), "bits set beyond the prefix")
    return _unmapped(network)


def _unmapped(network: Network) -> Network:
    """Return an IPv4 network written as IPv6 (`::ffff:10.0.0.0/104`) as IPv4."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96 and network.network_address.ipv4_mapped:
        return ip_network((int(network.network_address.ipv4_mapped), network.prefixlen - 96))
    return network


def _join(how: type[All | Any], conditions: list[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else how(tuple(conditions))

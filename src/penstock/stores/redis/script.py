"""The one script that decides everything, assembled from the fragments in `lua/`.

It begins with `#!lua`, so that a server that cannot take writes (out of memory, read-only, too few replicas) refuses
the whole call before anything is charged, not half-way through a batch.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from penstock.quota import BUCKETS, CALENDAR, CONCURRENCY, DEFAULT_ALGORITHM, MIN_INTERVAL
from penstock.stores.redis.keys import LETTERS

TEXTS = {
    "sliding_window": (DEFAULT_ALGORITHM,),
    "fixed_window": ("fixed_window",),
    "bucket": (*BUCKETS, MIN_INTERVAL, "leaky_bucket"),
    "calendar": (CALENDAR,),
}
"""The fragments that decide on a counter which is one string, and the algorithms of each."""

OTHERS = ("texts", "sets", "rolling_window", CONCURRENCY, "options", "records", "requests", "once", "amends")
"""The fragments that are made when one needs another."""

# `now` in microseconds, and `grace`: milliseconds that a key is kept longer than it matters.
SERVER_TIME = (
    "local time = redis.pcall('TIME') if time.err then error({ err = 'UNCHARGED ' .. time.err }) end "
    "local now, grace = time[1] * 1000000 + time[2], 0"
)
INJECTED_TIME = "local now, grace = tonumber(ARGV[3]), 3600000"


class Script(NamedTuple):
    """What `SCRIPT LOAD` takes, and the name by which `EVALSHA` runs it."""

    text: bytes
    sha: bytes


def _assembled(time: str) -> Script:
    """One chunk: time, prelude, main. Lines that begin with an arrow stand for fragments, of which one is chosen."""
    texts = [(" or ".join(f"letter == {ord(LETTERS[name])}" for name in names), of) for of, names in TEXTS.items()]
    others = [(" or ".join(f"name == '{name}'" for name in _names(of)), of) for of in OTHERS]
    operations = _fragment("operations").replace("--> fragments", _choice(others))
    main = _fragment("main").replace("--> texts", _choice(texts)).replace("--> operations", operations)
    text = "\n".join(["#!lua", time, _fragment("prelude"), main]).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


def _choice(fragments: list[tuple[str, str]]) -> str:
    branches = [f"if {condition} then\n{_fragment(name)}" for condition, name in fragments]
    return "\nelse".join(branches) + "\nend"


def _names(fragment: str) -> list[str]:
    """By what a fragment is needed: its own name, and the letter of an algorithm that has one."""
    return [fragment, LETTERS[fragment]] if fragment in LETTERS else [fragment]


def _fragment(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


SCRIPT = _assembled(SERVER_TIME)


def script_with_injected_time() -> Script:
    """The build for tests: its third argument is the instant in microseconds, and keys outlive a clock that stands
    still by an hour. It differs from `SCRIPT` in that one line.
    """
    return _assembled(INJECTED_TIME)

"""The one script that decides everything, assembled from the fragments in `lua/`.

It begins with `#!lua`, so that a server that cannot take writes (out of memory, read-only, too few replicas) refuses
the whole call before anything is charged, not half-way through a batch.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from penstock.quota import BUCKETS, MIN_INTERVAL
from penstock.stores.redis.keys import LETTERS

FRAGMENTS = (
    "texts",
    "sets",
    "bucket",
    "fixed_window",
    "sliding_window",
    "rolling_window",
    "gcra",
    "leaky_bucket",
    "calendar",
    "concurrency",
    "options",
    "records",
    "requests",
    "operations",
    "once",
    "amends",
)

# `now` in microseconds, and `grace`: milliseconds that a key is kept longer than it matters.
SERVER_TIME = "local now, grace = (function(t) return t[1] * 1000000 + t[2], 0 end)(redis.call('TIME'))"
INJECTED_TIME = "local now, grace = tonumber(ARGV[3]), 3600000"


class Script(NamedTuple):
    """What `SCRIPT LOAD` takes, and the name by which `EVALSHA` runs it."""

    text: bytes
    sha: bytes


def _assembled(time: str) -> Script:
    """One chunk: time, prelude, `need(name)`, main. What a call has no use for is not made: making all takes 10 µs."""
    branches = [f"if {_named(name)} then\n{_fragment(name)}" for name in FRAGMENTS]
    parts = ["#!lua", time, _fragment("prelude")]
    parts += ["local function make(name)", "\nelse".join(branches), "end", "end", _fragment("need"), _fragment("main")]
    text = "\n".join(parts).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


def _named(fragment: str) -> str:
    """Whether `name` means `fragment`: its own name, or the letter of an algorithm that it decides for."""
    shared = {**dict.fromkeys(BUCKETS, "gcra"), MIN_INTERVAL: "gcra"}
    letters = [letter for name, letter in LETTERS.items() if shared.get(name, name) == fragment]
    return " or ".join(f"name == '{name}'" for name in (*letters, fragment))


def _fragment(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


SCRIPT = _assembled(SERVER_TIME)


def script_with_injected_time() -> Script:
    """The build for tests: its third argument is the instant in microseconds, and keys outlive a clock that stands
    still by an hour. It differs from `SCRIPT` in that one line.
    """
    return _assembled(INJECTED_TIME)

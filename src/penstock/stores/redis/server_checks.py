"""Checks of a server's version, role and settings, and the warnings that follow.

Each warning says what was found, what follows from it, and what to set. A server whose user may not run the checks is
not warned of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing

from penstock.clock import monotonic
from penstock.model import Failed
from penstock.stores.redis.config import Node, RedisSettings
from penstock.stores.redis.connection import BlockingConnection, packed, refusal
from penstock.stores.redis.topology import Topology, query_all, unexpected_reply

CHECKS: tuple[tuple[bytes, ...], ...] = ((b"INFO",), (b"CONFIG", b"GET", b"min-replicas-*"))

LONGEST_LAG = 2
"""Seconds without a word from its replicas after which a primary should stop granting."""

OLDEST = {"redis": (7, 0), "valkey": (8, 0)}

LUA_MENDED = {
    "redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}
"""The first releases, per series, without CVE-2025-49844: code run by a script can leave the Lua sandbox."""


def findings(answers: Sequence[object]) -> list[str]:
    """Return the warnings about a server, given its replies to `CHECKS`."""
    info, replicas = answers
    if not isinstance(info, bytes):
        return ["the server was not checked: its user may not ask INFO (+info allows it)"]
    facts = dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))
    found = [_age(facts), _hole(facts), _eviction(facts), _role(facts), _replicas(facts, replicas)]
    return [finding for finding in found if finding]


def _version(facts: dict[str, str]) -> tuple[str, tuple[int, ...]]:
    name = "valkey" if "valkey_version" in facts else "redis"
    return name, tuple(map(int, re.findall(r"\d+", facts.get(f"{name}_version", ""))[:3]))


def _age(facts: dict[str, str]) -> str:
    name, version = _version(facts)
    if version >= OLDEST[name]:
        return ""
    oldest = ".".join(map(str, OLDEST[name]))
    return f"{name} {_dotted(version)} is older than what is tested: expected {oldest} or newer"


def _hole(facts: dict[str, str]) -> str:
    name, version = _version(facts)
    mended = [release for release in LUA_MENDED[name] if release[:2] >= version[:2]]
    safe = not mended or (mended[0][:2] == version[:2] and version >= mended[0])
    if safe:
        return ""
    return (
        f"{name} {_dotted(version)}: any client that may run EVAL can escape its Lua sandbox (CVE-2025-49844), unless "
        f"the distribution has patched it; update to {_dotted(mended[0])} or newer, and grant EVAL to no other client"
    )


def _eviction(facts: dict[str, str]) -> str:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or facts.get("maxmemory", "0") == "0":
        return ""
    return (
        f"maxmemory-policy is {policy}: when memory is short, counters vanish and limits start over unnoticed; "
        "set maxmemory-policy noeviction, so that the failure behaviour answers instead"
    )


def _role(facts: dict[str, str]) -> str:
    return "" if facts.get("role", "master") == "master" else "this server is a replica: connect to the primary"


def _replicas(facts: dict[str, str], answer: object) -> str:
    """A stopped and continued primary granted for 10 s beside its successor; with protection it granted once."""
    if not isinstance(answer, list) or int(facts.get("connected_slaves", "0")) == 0:
        return ""
    settings = {name: int(value) for name, value in zip(answer[::2], answer[1::2], strict=False)}
    advice = f"set min-replicas-to-write 1 and min-replicas-max-lag {LONGEST_LAG}"
    if settings.get(b"min-replicas-to-write") == 0:
        return (
            "min-replicas-to-write is 0: a primary that lost touch goes on granting what its successor grants as well "
            f"(10 s when measured; one decision with protection); {advice}"
        )
    lag = settings.get(b"min-replicas-max-lag", LONGEST_LAG)
    if lag > LONGEST_LAG or lag == 0:
        return (
            f"min-replicas-max-lag is {lag}: for {lag or 'any number of'} seconds a primary that lost touch goes on "
            f"granting what its successor grants as well; {advice}"
        )
    return ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# ---------------------------------------------------------------- facts


# What servers say of themselves, over connections of its own: decisions have theirs, and do not wait for this.


_FACTS = (packed(b"INFO"), packed(b"INFO", b"commandstats"))


def inspect(settings: RedisSettings, topology: Topology, within: float) -> dict[str, Mapping[str, str] | None]:
    """By place, what `INFO` says on each server that decides; None if it could not be had."""
    nodes = sorted(topology.nodes)

    def ask(node: Node) -> dict[str, str] | Failed:
        until = monotonic() + within
        try:
            with closing(BlockingConnection(settings.kind, settings.connect, node, within)) as connection:
                answers = [connection.ask(command, until) for command in _FACTS]
        except Exception as error:  # a credential provider may raise anything
            return refusal(error, node.place)
        if not isinstance(answers[0], bytes):
            return unexpected_reply(answers[0], "a server that may be asked INFO", node)
        return _facts(b"\r\n".join(answer for answer in answers if isinstance(answer, bytes)))

    answers = query_all(ask, nodes, within)
    return {node.place: None if isinstance(answer, Failed) else answer for node, answer in answers.items()}


def _facts(info: bytes) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):(.*?)\r?$", info.decode(errors="replace"), re.MULTILINE))

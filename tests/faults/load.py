"""The load of a fleet while its store fails, and the record of every answer.

The counters of one trial share a name, its generation, so that each begins with nothing used. Most have a period that
does not end meanwhile: the bound is about everything admitted of them, by the store or without it. Two have a short
period. The wide ones are never exhausted: they show what is counted, and what is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from penstock.clock import Micros
from penstock.quota import Quota

LONG = "365 days"
WIDE = "wide"

HOT = "hot"

QUOTAS = {
    HOT: f"10/{LONG}",  # asked far more often than it admits
    "spent": f"6/{LONG} fixed_window",  # soon refused: a known refusal must survive the fault
    "fixed": f"20/{LONG} fixed_window",
    "sliding": f"20/{LONG}",
    "rolling": f"16/{LONG} rolling_window",
    "bucket": f"16/{LONG} token_bucket",
    "flow": "20/second gcra burst 5",
    "window": "12/second fixed_window",
    WIDE: f"1000000/{LONG} fixed_window",
}
WEIGHTS = {kind: len(QUOTAS) if kind == HOT else 1 for kind in QUOTAS}
"""How often each kind is asked for, in proportion."""

COPIES = 3
"""How many counters there are of each kind, so that a cluster has some on every shard."""

BEHAVIOURS = {"local": 0.8, "open": 0.1, "closed": 0.1}
"""The limiters of a node, by what they do when the store is gone, and the share of the load that each has."""


def key_of(generation: str, kind: str, copy: int) -> str:
    return f"{generation} {kind} {copy}"


def keys_of(generation: str, kind: str) -> list[str]:
    return [key_of(generation, kind, copy) for copy in range(COPIES)]


def kind_of(key: str) -> str:
    return key.split(" ")[1]


@cache
def quota_of(key: str) -> Quota:
    return Quota.parse(QUOTAS[kind_of(key)])


class Answer(NamedTuple):
    """One call and what came of it; `error` is the name of what was raised instead of an answer."""

    node: str
    behaviour: str
    key: str
    invoked: Micros
    returned: Micros
    allowed: bool
    source: str
    error: str = ""

    @property
    def degraded(self) -> bool:
        return self.source != "store"

    @property
    def took(self) -> Micros:
        return self.returned - self.invoked


def write(path: Path, answers: Iterable[Answer]) -> None:
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")


def read(*paths: Path) -> list[Answer]:
    return [Answer(*json.loads(line)) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]

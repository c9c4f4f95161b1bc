"""How things stand with a key, in words: for people, and for tools that show it to people."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model import Decision, Verdict
from penstock.quota import CONCURRENCY, DEFAULT_ALGORITHM, Quota


class Inspection(NamedTuple):
    """One counter as it is now. Times are in seconds.

    - `used` and `remaining`: units, or places held and free, out of `capacity`.
    - `blocked_for`: how long one more unit would be refused; 0 if it would pass.
    - `reset_after`: until the window ends, the bucket is full, the oldest entry leaves, the first place expires.
    """

    quota: Quota
    used: int
    remaining: int
    capacity: int
    blocked_for: float
    reset_after: float

    @property
    def algorithm(self) -> str:
        return self.quota.algorithm

    def __str__(self) -> str:
        """E.g. `100/minute (sliding_window): 12 of 100 used, 88 left, reset in 41.2 s`."""
        things = "places held" if self.algorithm == CONCURRENCY else "used"
        named = f" ({DEFAULT_ALGORITHM})" if self.algorithm == DEFAULT_ALGORITHM else ""
        text = f"{self.quota}{named}: {self.used} of {self.capacity} {things}, {self.remaining} left"
        if self.blocked_for:
            text += f", refused for {self.blocked_for:.6g} s"
        return f"{text}, reset in {self.reset_after:.6g} s" if self.reset_after else text


class Explained(NamedTuple):
    """One rule: whether it applies to the descriptor, and why or why not.

    - `key`: which entries make the key, and the kind of value of each; `counters`: how each of them stands now.
    """

    rule: str
    applies: bool
    why: str
    mode: str = "enforce"
    action: str = "limit"
    key: str = ""
    quotas: tuple[Quota, ...] = ()
    counters: tuple[Inspection, ...] = ()

    def __str__(self) -> str:
        shadow = ", in shadow mode" if self.applies and self.mode == "shadow" else ""
        lines = [f"{self.rule}: {'applies' if self.applies else 'does not apply'}{shadow}: {self.why}"]
        if self.key:
            lines.append(f"    counted by {self.key}")
        shown = self.counters or self.quotas
        return "\n".join([*lines, *(f"    {one}" for one in shown)])


class Explanation(NamedTuple):
    """What a set of rules makes of a descriptor: the outcome, and every rule in its order."""

    version: str
    outcome: str
    rules: tuple[Explained, ...]

    def __str__(self) -> str:
        return "\n".join([f"rules {self.version}: {self.outcome}", *map(str, self.rules)])


def inspections(peeked: Verdict) -> list[Inspection]:
    """What a dry request of one unit tells about each of its counters."""
    return [_inspection(decision) for decision in peeked.decisions]


def _inspection(decision: Decision) -> Inspection:
    quota, remaining = decision.quota, decision.remaining
    used = quota.capacity - remaining
    return Inspection(quota, used, remaining, quota.capacity, decision.retry_after, decision.reset_after)

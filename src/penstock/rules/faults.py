"""Mistakes in rules, before their lines are known.

A flaw has a path into the data; `penstock.rules.parser` turns it into a `Fault` with a file and a line. Readers collect
flaws instead of stopping at the first, so that all are reported at once.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

MAX_FLAWS = 1_000
"""How many flaws are reported."""

MAX_COMPARED = 200
"""How many names are compared for a suggestion, because comparing is slow."""


class _Hidden:
    """Stands for a value that is missing, or that messages must not quote."""

    def __repr__(self) -> str:
        return "..."


HIDDEN = _Hidden()


class Flaw(NamedTuple):
    """One mistake: its path, the value there, the problem, and what was expected."""

    path: Path
    value: object
    problem: str
    expected: str

    def under(self, *path: str | int) -> Flaw:
        """Return the same flaw with a path from further up."""
        return self._replace(path=(*path, *self.path))


class Flawed(ValueError):
    """The data that was read has `flaws`."""

    def __init__(self, *flaws: Flaw) -> None:
        super().__init__("; ".join(f"{flaw.problem} (expected {flaw.expected})" for flaw in flaws))
        self.flaws = flaws


def flawed(value: object, expected: str, problem: str = "") -> Flawed:
    """Return the error of a single value."""
    return Flawed(Flaw((), value, problem, expected))


def unknown(what: str, name: object, known: tuple[str, ...]) -> tuple[str, str]:
    """Return the problem and the expectation for a `name` that is not `known`, with the closest known one."""
    near = get_close_matches(str(name)[:64], known[:MAX_COMPARED], n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    shown = known if len(known) <= 30 else (*known[:30], f"{len(known) - 30} more")
    return f"unknown {what}{hint}", f"one of {', '.join(shown)}" if known else "none"

"""What is wrong with rules, before it is known where they were written.

A flaw has a path into the data that was read; `penstock.rules.parser` turns it into a `Fault` of a file and a line.
Readers collect flaws rather than stop at the first, so that all of them are reported at once.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

MAX_FLAWS = 1_000
"""So many are told; nobody reads more."""

MAX_COMPARED = 200
"""Among so many names the one that was meant is looked for, because comparing is slow."""


class _Hidden:
    """Stands for a value that is missing, or that messages must not quote."""

    def __repr__(self) -> str:
        return "..."


HIDDEN = _Hidden()


class Flaw(NamedTuple):
    """One thing that is wrong: where, what was found (if it can be said), what about it, and what was expected."""

    path: Path
    value: object
    problem: str
    expected: str

    def under(self, *path: str | int) -> Flaw:
        """The same flaw, seen from further up."""
        return self._replace(path=(*path, *self.path))


class Flawed(ValueError):
    """Something that was read has `flaws`."""

    def __init__(self, *flaws: Flaw) -> None:
        super().__init__("; ".join(f"{flaw.problem} (expected {flaw.expected})" for flaw in flaws))
        self.flaws = flaws


def flawed(value: object, expected: str, problem: str = "") -> Flawed:
    """The error of a single value."""
    return Flawed(Flaw((), value, problem, expected))


def unknown(what: str, name: object, known: tuple[str, ...]) -> tuple[str, str]:
    """The problem and the expectation where `name` is none of those `known`, with the likeliest of them first."""
    near = get_close_matches(str(name)[:64], known[:MAX_COMPARED], n=1)
    hint = f", did you mean {near[0]}?" if near else ""
    shown = known if len(known) <= 30 else (*known[:30], f"{len(known) - 30} more")
    return f"unknown {what}{hint}", f"one of {', '.join(shown)}" if known else "none"

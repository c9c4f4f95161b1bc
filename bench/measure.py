"""How everything here is timed: interleaved rounds, medians, processor time.

In each round every contender runs once, each round in another order, so that a slow spell of the machine meets all of
them. Processor time of the whole process is counted, threads that a contender starts included, because a neighbour on
the machine stretches wall time far more. What stands in the tables is the median over the rounds, with [min..max].

Garbage collection stays on, as in production; but what was built before the rounds is set aside (`gc.freeze`), so that
nobody pays for walking over another one's counters.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeVar


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int
    calls: int  # per contender and round
    seconds: float  # likewise, where a server answers
    many_keys: int
    most_keys: int


FULL = Effort(rounds=5, calls=5_000, seconds=0.15, many_keys=100_000, most_keys=1_000_000)
QUICK = Effort(rounds=3, calls=500, seconds=0.02, many_keys=2_000, most_keys=20_000)

T = TypeVar("T")

Visit = Callable[[Iterable[str]], None]
"""Asks for one unit for each key in turn."""

Run = Callable[[int], float]
"""Takes the number of the round, returns the figure of this round."""


class Spread(NamedTuple):
    """The figures of all rounds in short."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.0f} [{self.low:.0f}..{self.high:.0f}]"


def interleaved(runs: Sequence[Run], rounds: int) -> list[Spread]:
    """The figures of each run: every run once per round."""
    figures: list[list[float]] = [[] for _ in runs]
    gc.collect()
    gc.freeze()
    try:
        for number in range(rounds):
            for place in range(len(runs)):
                turn = (number + place) % len(runs)
                gc.collect()
                figures[turn].append(runs[turn](number))
    finally:
        gc.unfreeze()
    return [Spread(median(of_run), min(of_run), max(of_run)) for of_run in figures]


def cpu_ns(visit: Callable[[Collection[T]], None], turns: Collection[T]) -> float:
    """Nanoseconds of processor time per turn; the loop's own few are in it, for all alike."""
    start = time.process_time_ns()
    visit(turns)
    return (time.process_time_ns() - start) / len(turns)


def cpu_ns_of_each(visit: Callable[[Collection[T]], None], turns: Sequence[Collection[T]], per_turn: int = 1) -> Run:
    """A run that takes the turns of its round; a turn may hold several decisions."""
    return lambda number: cpu_ns(visit, turns[number]) / per_turn

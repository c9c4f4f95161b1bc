"""The keys of all benchmarks, 39 characters each as an API key with a prefix has, and the order of visiting them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import TypeVar

T = TypeVar("T")

_MIX = 0x9E3779B97F4A7C15F39CC0605CEDC835  # odd, so that different numbers stay different
_MASK = 2**128 - 1


def key(number: int) -> str:
    return f"apikey:{(number + 1) * _MIX & _MASK:032x}"


def keys(count: int, start: int = 0) -> list[str]:
    return [key(number) for number in range(start, start + count)]


def shuffled(some: Sequence[str]) -> list[str]:
    """The same keys in an order that has nothing to do with where they lie in memory, but is the same every time."""
    return random.Random(7).sample(some, len(some))


def visits(order: Sequence[str], rounds: int, calls: int) -> list[list[str]]:
    """What to visit in each round: `calls` keys, going on where the last round stopped, from the start when through."""
    endless = cycle(order)
    return [list(islice(endless, calls)) for _ in range(rounds)]


def batches_of(size: int, order: Sequence[T]) -> list[Sequence[T]]:
    return [order[start : start + size] for start in range(0, len(order), size)]

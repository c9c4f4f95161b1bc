"""Sets of rules that nobody uses any more are taken apart a little at a time.

Freeing ten thousand rules at once takes some 30 milliseconds in which no other thread of the process runs, and it is
whoever finishes last with an old set who would pay for it. So a set that is dropped leaves its parts here, and each
later request throws two of them away.
"""

from __future__ import annotations

from typing import Any

retired: list[list[Any]] = []
"""Lists of parts that are only waiting to be thrown away."""

AT_ONCE = 2
MOST = 64
"""So many lists may wait, those of some ten sets; where nobody asks, nobody sweeps, and more are freed at once."""

SMALL = 256
"""So few are freed in less time than a decision takes to be made some dozen times; they are not worth the trouble."""


def retire(*lists: list[Any]) -> None:
    """Let the contents of these lists be freed bit by bit. Nobody else may use them."""
    retired.extend([parts for parts in lists if len(parts) > SMALL])
    del retired[:-MOST]


def sweep() -> None:
    """Free a little of what is there."""
    try:
        parts = retired[-1]
        del parts[-AT_ONCE:]
        if not parts:
            retired.remove(parts)
    except (IndexError, ValueError):  # another thread was quicker
        pass

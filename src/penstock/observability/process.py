"""What the operating system says of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.observability.series import CPU, FILES, MEMORY, Series

_SELF = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def figures() -> dict[Series, float]:
    """As far as the system tells."""
    times = os.times()
    found: dict[Series, float] = {CPU: times.user + times.system}
    with suppress(OSError, ValueError, IndexError):  # only Linux has it
        found[MEMORY] = int((_SELF / "statm").read_bytes().split()[1]) * _PAGE
        # Newer kernels say how many there are; else they are counted, which takes a while if they are many.
        found[FILES] = (_SELF / "fd").stat().st_size or len(os.listdir(_SELF / "fd")) - 1  # noqa: PTH208  ten times faster
    return found

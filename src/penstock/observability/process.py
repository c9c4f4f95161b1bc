"""What the operating system says of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.observability.series import CPU, FILES, MEMORY, Series

SELF = Path("/proc/self")


def figures() -> dict[Series, float]:
    """As far as the system tells."""
    times = os.times()
    found: dict[Series, float] = {CPU: times.user + times.system}
    with suppress(OSError, ValueError, IndexError):  # only Linux has it
        found[MEMORY] = int((SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        found[FILES] = len(list((SELF / "fd").iterdir())) - 1  # without the one that this takes
    return found

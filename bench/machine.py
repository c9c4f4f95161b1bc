"""The machine under the figures: what it is, and whether it was left alone while they were taken."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

MEASURED = ("penstock", "limits", "throttled-py", "pyrate-limiter")
DISTURBED = 0.06
"""The share of a core that others may use before figures count as disturbed."""


def description() -> str:
    """One line: when, on what, which versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in MEASURED)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    system = f"{platform.system()} {platform.release()}"
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{when}; {os.cpu_count()} × {_processor()}, {system}, {interpreter}; {versions}"


class Watch:
    """Watches the processors from its making on, and says how much others used them."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def warning(self) -> str | None:
        """What was wrong with the machine since, or None."""
        busy = _busy_seconds()
        if self._busy is None or busy is None:
            return "whether the machine was disturbed is not known here (no /proc/stat)"
        others = (busy - self._busy) - (_own_seconds() - self._own)
        share = others / max(time.monotonic() - self._wall, 0.01)
        if share <= DISTURBED:
            return None
        return f"DISTURBED: others used {share:.0%} of a core meanwhile; ratios under 1.3 mean nothing."


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _busy_seconds() -> float | None:
    """Seconds that all processors together were not idle, time stolen by the host included."""
    try:
        first = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, *others = map(int, first.split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

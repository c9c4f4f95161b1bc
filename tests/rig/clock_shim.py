"""Step the wall clock of a running server process, as NTP and administrators do.

A small library (`clock_shim.c`) is built where a C compiler is present, and preloaded into the server. It reads the
shift from a file. Works on Linux, for programs that are linked to the C library dynamically.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

from penstock.clock import SECOND, Micros

_SOURCE = Path(__file__).with_suffix(".c")


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def can_step_clocks() -> bool:
    """Return whether the system can build and preload the library."""
    return sys.platform == "linux" and _compiler() is not None


class ClockShim:
    """The shift of one server's clock: zero at first, kept in a file that the server maps."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._shift: Micros = 0
        self._file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(_built(folder)), "PENSTOCK_CLOCK_FILE": str(self._file)}

    def step(self, seconds: float) -> Micros:
        """Move the clock by `seconds` from where it is now; returns how far it is from the machine's."""
        self._shift += round(seconds * SECOND)
        with self._file.open("r+b") as file:  # the same file, in place: it is mapped
            file.write(struct.pack("=q", self._shift))
        return self._shift


def _built(folder: Path) -> Path:
    compiler = _compiler()
    assert compiler is not None
    library = folder / "clock_shim.so"
    subprocess.run((compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"), check=True)
    return library

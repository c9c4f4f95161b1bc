"""A directory in which the workers of a service share their figures, with one file for each worker.

A worker writes its figures to its own file, whole and by renaming, so that no reader sees half of it. The worker that
is scraped reads all files. A worker is alive while it holds a lock on a file of its own, which the kernel releases
however the process ends; a process id would not do, because ids are reused. The totals of a dead worker are added to
the file `gone`, and its own file is removed. `gone` records in the same write which workers it includes, so a crash
before the removal counts nothing twice.

    gone            sums of all workers that have ended
    3-18-f2.figures figures of worker 3, whose lock is 3-18-f2.lock
    lock            held shared by readers, and exclusively while `gone` is written
    lead            held by the one worker that does what only one worker should do
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from penstock.observability.series import BY_NAME
from penstock.observability.tally import Snapshot

MOST = 20_000
"""How many labels of one series are kept of workers that have ended."""

FIGURES, LOCK = ".figures", ".lock"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


def prepare(path: Path) -> Path:
    """Create the directory, or empty it. For the supervisor, before it starts the first worker."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in path.iterdir():
        if left.suffix in (FIGURES, LOCK, ".new") or left.name in ("gone", "lock", "lead"):
            left.unlink(missing_ok=True)
    return path


class Shared:
    """The access of one worker to the directory. Make it in the worker itself, because forks share locks."""

    def __init__(self, path: Path, worker: str) -> None:
        self._path = path
        self._name = f"{worker}-{os.getpid()}-{os.urandom(4).hex()}"  # process ids are used again
        self._alive = _open(path / f"{self._name}{LOCK}")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        self._lead = _open(path / "lead")
        self.leads = False

    def write(self, snapshot: Snapshot) -> None:
        """Publish the figures of this worker."""
        _replace(self._path / f"{self._name}{FIGURES}", snapshot)

    def read(self) -> list[Snapshot]:
        """Return the figures of the other workers; the first are the sums of those that have ended."""
        with self._locked(fcntl.LOCK_SH):
            gone, alive, dead = self._look()
        if not dead:
            return [gone, *alive]
        with self._locked(fcntl.LOCK_EX):
            gone, alive, dead = self._look()
            self._fold(gone, dead)
        return [gone, *alive]

    def lead(self) -> bool:
        """Whether this worker leads: it does what only one worker should do, until it ends."""
        if not self.leads:
            with suppress(BlockingIOError, ValueError):  # another worker leads, or this one is closed
                fcntl.flock(self._lead, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.leads = True
        return self.leads

    def close(self) -> None:
        """Release the locks. Figures that were written stay."""
        self.leads = False
        self._lead.close()
        self._alive.close()

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with _open(self._path / "lock") as lock:
            fcntl.flock(lock, how)
            yield

    def _look(self) -> tuple[Snapshot, list[Snapshot], dict[str, Snapshot]]:
        """Return the figures of workers that have ended, of live ones, and, by name, of dead ones not yet added."""
        gone = _read(self._path / "gone") or Snapshot()
        alive, dead = [], {}
        for file in self._path.glob(f"*{FIGURES}"):
            if file.stem == self._name or file.stem in gone.folded:
                continue
            snapshot = _read(file)
            if _is_held(file.with_suffix(LOCK)):
                alive += [snapshot] if snapshot else []
            else:
                # Read again: the worker may have written once more before it ended.
                dead[file.stem] = _read(file) or Snapshot()
        return gone, alive, dead

    def _fold(self, gone: Snapshot, dead: dict[str, Snapshot]) -> None:
        for snapshot in dead.values():
            add(gone, snapshot)
        gone.folded = [name for name in gone.folded if (self._path / f"{name}{FIGURES}").exists()] + list(dead)
        _replace(self._path / "gone", gone)
        for name in gone.folded:
            for suffix in (FIGURES, LOCK):
                (self._path / f"{name}{suffix}").unlink(missing_ok=True)


def add(to: Snapshot, other: Snapshot) -> None:
    """Add the totals and histograms of `other`; its gauges ended with it."""
    for name, values in other.totals.items():
        into = to.totals.setdefault(name, {})
        for labels, value in values.items():
            at = labels if labels in into or len(into) < MOST or name not in BY_NAME else BY_NAME[name].overflow
            into[at] = into.get(at, 0) + value
    for name, histograms in other.histograms.items():
        known = to.histograms.setdefault(name, {})
        for labels, counts in histograms.items():
            before = known.get(labels)
            fits = before is not None and len(before) == len(counts)
            known[labels] = [a + b for a, b in zip(before, counts, strict=True)] if before and fits else list(counts)


def _open(path: Path) -> IO[bytes]:
    return path.open("ab")


def _read(file: Path) -> Snapshot | None:
    """Return the figures in a file; None if it is gone or unparsable."""
    try:
        return _decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _replace(file: Path, snapshot: Snapshot) -> None:
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    new.write_bytes(_encode(snapshot))
    new.replace(file)


def _is_held(lock: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False

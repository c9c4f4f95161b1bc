"""How the workers of one service pool their figures: a directory with one file for each.

A worker writes what it has counted to its own file, whole and by renaming, so that nobody reads half of it. Whoever is
scraped reads all files. A worker is alive as long as it holds a lock on a file beside it, which the kernel gives up for
it however it ends; a process id would say less, because ids are used again. What a dead worker counted is added to the
figures of all who are gone, and its file is removed. That is noted in the same write, so a crash in between counts
nothing twice.

    gone            figures of all workers that have ended
    3-18-f2.figures those of worker 3, and its lock, 3-18-f2.lock
    lock            held by readers together, and alone by who adds to `gone`
    lead            held by the one worker that does what only one should do
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
"""How many labels of one series are kept of workers that are gone."""

FIGURES, LOCK = ".figures", ".lock"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


def prepare(path: Path) -> Path:
    """Make the directory, empty. For the supervisor, before it starts the first worker."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in path.iterdir():
        if left.suffix in (FIGURES, LOCK, ".new") or left.name in ("gone", "lock", "lead"):
            left.unlink(missing_ok=True)
    return path


class Shared:
    """One worker's access to the directory. Made in the worker itself: a lock is not inherited well by a fork."""

    def __init__(self, path: Path, worker: str) -> None:
        self._path = path
        self._name = f"{worker}-{os.getpid()}-{os.urandom(4).hex()}"  # process ids are used again
        self._alive = _open(path / f"{self._name}{LOCK}")
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        self._lead = _open(path / "lead")
        self.leads = False

    def write(self, snapshot: Snapshot) -> None:
        """Publish one's own figures."""
        _replace(self._path / f"{self._name}{FIGURES}", snapshot)

    def read(self) -> list[Snapshot]:
        """The figures of the other workers; those of all that are gone come first."""
        with self._locked(fcntl.LOCK_SH):
            gone, alive, dead = self._look()
        if not dead:
            return [gone, *alive]
        with self._locked(fcntl.LOCK_EX):
            gone, alive, dead = self._look()
            self._fold(gone, dead)
        return [gone, *alive]

    def lead(self) -> bool:
        """Whether this worker is the one that does what only one should do; it stays so until it ends."""
        if not self.leads:
            with suppress(BlockingIOError, ValueError):  # another does, or this one is gone
                fcntl.flock(self._lead, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.leads = True
        return self.leads

    def close(self) -> None:
        """Be gone. Figures that were written stay."""
        self.leads = False
        self._lead.close()
        self._alive.close()

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with _open(self._path / "lock") as lock:
            fcntl.flock(lock, how)
            yield

    def _look(self) -> tuple[Snapshot, list[Snapshot], dict[str, Snapshot]]:
        """Those who are gone, who is alive, and, by name, who is dead and still to be added."""
        gone = _read(self._path / "gone") or Snapshot()
        alive, dead = [], {}
        for file in self._path.glob(f"*{FIGURES}"):
            if file.stem == self._name or file.stem in gone.folded:
                continue
            snapshot = _read(file)
            if _is_held(file.with_suffix(LOCK)):
                alive += [snapshot] if snapshot else []
            else:
                # Read again: it may have written once more between our reading and its end.
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
    """Add what `other` counted, without what was only so while it lived."""
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
    """None if it is gone, or nothing we have written."""
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

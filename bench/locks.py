"""What guarding a critical section costs: the reason why the memory store takes its locks the way it does."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock, RLock

from bench.measure import Effort, Visit, cpu_ns_of_each, interleaved
from bench.report import Report, Table


def measure(effort: Effort) -> Report:
    turns = [[""] * effort.calls * 20] * effort.rounds
    ways = _ways()
    spreads = interleaved([cpu_ns_of_each(visit, turns) for visit in ways.values()], effort.rounds)
    bare = spreads[0].median
    rows = [[name, str(spread), f"{spread.median - bare:.0f}"] for name, spread in zip(ways, spreads, strict=True)]
    return Report([Table("Locks, uncontended", ["a guard around nothing", "CPU ns", "less the loop"], rows)])


def _ways() -> dict[str, Visit]:
    lock, rlock = Lock(), RLock()

    def none(turns: Iterable[str]) -> None:
        for _ in turns:
            pass

    def with_lock(turns: Iterable[str]) -> None:
        for _ in turns:
            with lock:
                pass

    def with_rlock(turns: Iterable[str]) -> None:
        for _ in turns:
            with rlock:
                pass

    def try_lock(turns: Iterable[str]) -> None:
        for _ in turns:
            try:
                lock.acquire()
            finally:
                lock.release()

    def try_rlock(turns: Iterable[str]) -> None:
        for _ in turns:
            try:
                rlock.acquire()
            finally:
                rlock.release()

    return {
        "none": none,
        "with Lock": with_lock,
        "with RLock": with_rlock,
        "try: Lock.acquire, finally: release": try_lock,
        "try: RLock.acquire, finally: release": try_rlock,
    }

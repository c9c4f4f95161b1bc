"""A simulated server under load: workers, a queue, impatient clients. Deterministic; time is a ManualClock."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Protocol

from penstock.clock import SECOND, ManualClock, Micros
from penstock.shedding import PRIORITIES, Admission

WORKERS = 8
SERVICE: Micros = 40_000
CAPACITY = WORKERS * SECOND / SERVICE  # requests a second
PATIENCE: Micros = SECOND // 4


class Door(Protocol):
    """What decides which requests may begin."""

    def admit(self, priority: str = "normal", /) -> Admission: ...


@dataclass
class Tally:
    """The outcomes of the requests of one class."""

    asked: int = 0
    refused: int = 0
    late: int = 0
    good: int = 0  # answered within the patience of their clients

    @property
    def goodput(self) -> float:
        return self.good / self.asked


@dataclass(order=True)
class Request:
    """A request of one client."""

    number: int
    tally: Tally = field(compare=False)
    came: Micros = field(compare=False)
    admission: Admission = field(compare=False)


class Server:
    """Requests come at random, wait for a worker and keep it for about 40 ms."""

    def __init__(self, door: Door, clock: ManualClock, level: Callable[[], int], seed: int = 1) -> None:
        self.door, self.clock, self.level = door, clock, level
        self.random = random.Random(seed)
        self.numbers = count()
        self.queue: deque[Request] = deque()
        self.busy: list[tuple[Micros, Request]] = []
        self.levels: list[int] = []

    def run(self, seconds: float, load: Mapping[str, float]) -> dict[str, Tally]:
        """Let time pass with `load`, by class in shares of capacity; return the outcomes by class."""
        tallies = {priority: Tally() for priority in PRIORITIES}
        end = self.clock.micros + round(seconds * SECOND)
        arrivals: list[tuple[Micros, str]] = []
        for priority, share in load.items():
            heappush(arrivals, (self.clock.micros + self._pause(share), priority))
        while arrivals[0][0] < end:
            at, priority = heappop(arrivals)
            heappush(arrivals, (at + self._pause(load[priority]), priority))
            self._work_until(at)
            self.clock.micros = at
            self._arrive(priority, tallies[priority])
            self.levels.append(self.level())
        self._work_until(end)
        self.clock.micros = end
        return tallies

    def _pause(self, share: float) -> Micros:
        return round(self.random.expovariate(share * CAPACITY) * SECOND) + 1

    def _arrive(self, priority: str, tally: Tally) -> None:
        tally.asked += 1
        admission = self.door.admit(priority)
        if not admission:
            tally.refused += 1
            return
        request = Request(next(self.numbers), tally, self.clock.micros, admission)
        if len(self.busy) < WORKERS:
            self._start(request, self.clock.micros)
        else:
            self.queue.append(request)

    def _start(self, request: Request, at: Micros) -> None:
        heappush(self.busy, (at + round(SERVICE * self.random.uniform(0.5, 1.5)), request))

    def _work_until(self, end: Micros) -> None:
        while self.busy and self.busy[0][0] <= end:
            at, request = heappop(self.busy)
            self.clock.micros = at
            with request.admission:
                request.tally.good += at - request.came <= PATIENCE
                request.tally.late += at - request.came > PATIENCE
            if self.queue:
                self._start(self.queue.popleft(), at)


def turns(levels: list[int]) -> int:
    """Return how often a level changed its direction."""
    moves = [after - before for before, after in pairwise(levels) if after != before]
    return sum((one > 0) != (other > 0) for one, other in pairwise(moves))

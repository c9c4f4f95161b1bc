"""Shedding among threads, forks and interrupts: never one too many in flight, and nobody stays there."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.shedding import PRIORITIES, InFlight, LoopLag, Shedder, Utilisation
from tests.integration.support import hasty_switching
from tests.integration.test_fork import in_child
from tests.integration.test_interrupts import Hammer, interrupt, interrupted_often

THREADS = 8
ROOM = 3


def test_threads_never_take_more_than_the_room_and_leave_none_taken() -> None:
    in_flight = InFlight(4)
    shedder = Shedder(in_flight, reserve=0.25)
    inside: set[int] = set()
    most: list[int] = []

    def work(number: int) -> int:
        admitted = 0
        for turn in range(1_500):
            with shedder.admit("high") as admission:
                if admission:
                    token = number * 10_000 + turn
                    inside.add(token)
                    most.append(len(inside))
                    inside.discard(token)
                    admitted += 1
        return admitted

    with hasty_switching(), ThreadPoolExecutor(THREADS) as pool:
        admitted = sum(pool.map(work, range(THREADS)))
    assert admitted == len(most) > 1_000
    assert max(most) <= ROOM
    assert in_flight.now == len(shedder._common) == 0


class Swallowing(Hammer):
    """As its base; but an interrupt that comes while an admission is dropped is swallowed by Python, which tells us."""

    swallowed = 0

    def swallow(self, unraisable: object) -> None:
        self.swallowed += 1

    def interrupt(self) -> None:
        before = self.rounds + self.swallowed
        interrupt(self.thread)
        self.wait(lambda: self.rounds + self.swallowed > before)


def test_interrupted_anywhere_it_loses_no_count_and_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight, utilisation = InFlight(100), Utilisation(100)
    shedder = Shedder([in_flight, utilisation], reserve=0.2, rise=0.001)  # looks at every turn, nearly

    def call(number: int) -> None:
        with shedder.admit(PRIORITIES[number % 4]) as admission:
            assert admission

    hammer = Swallowing(call)
    monkeypatch.setattr(sys, "unraisablehook", hammer.swallow)
    assert interrupted_often(hammer) == []
    assert in_flight.now == utilisation.now == len(shedder._common) == 0
    before = shedder._schedule.sampled_at
    shedder._schedule.due = 0
    assert shedder.level == 0
    assert shedder._schedule.sampled_at > before, "no caller can take a sample any more"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_no_requests_of_its_parent_and_can_look() -> None:
    in_flight = InFlight(4)
    shedder = Shedder([in_flight, LoopLag()], reserve=0.5)
    running = [shedder.admit("low"), shedder.admit("low")]
    shedder._schedule._turn.acquire()  # as if a thread of the parent were taking a sample

    def child() -> bool:
        empty = in_flight.now == 0
        with shedder.admit("low") as admission:
            shedder._schedule.due = 0
            looked = shedder.level == 0 and shedder._schedule.due > 0
            for inherited in running:
                inherited.end()
            return empty and looked and bool(admission) and in_flight.now == 1

    assert in_child(child) == 0
    shedder._schedule._turn.release()
    assert in_flight.now == 2

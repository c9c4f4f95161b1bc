"""Runs a fault on its stage, and says what was seen of it."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event

from penstock.clock import Micros, SystemClock
from tests.faults.catalogue import Fault
from tests.faults.checks import Trial
from tests.faults.stages import Stage
from tests.rig.processes import DEADLINE, wait_until


def run(fault: Fault, stage: Stage, *, broken: str | None = None, patience: float = DEADLINE) -> Trial:
    """The fleet asks from before the fault until it is answered by the store again, for `patience` seconds at most.

    With `broken` limiters, which are there to show that the checks find what they should.
    """
    fleet, effort = stage.fleet, stage.effort
    trial = Trial(fault.name, fault.topology, hosts=len(fleet.kinds), budgets=fault.budgets)
    stage.notes, stage.broken = trial.notes, trial.broken
    fleet.wait_until_ready()
    if broken:
        fleet.open(broken)
    fleet.turn()
    Event().wait(effort.before)
    trial.began = _now()
    with contextmanager(fault.story)(stage):
        trial.ended = _now()
        trial.steady = _comes_back(stage, patience)
        Event().wait(effort.after)
        generation = fleet.generation
        told = fleet.turn()
        if trial.steady:
            fleet.wait_until_told()
            trial.used = fleet.used(generation)
    trial.answers, trial.sent, trial.not_sent, trial.hung, trial.faults = told
    if broken:
        fleet.open()
    return trial


def _comes_back(stage: Stage, patience: float) -> bool:
    """Whether every node is answered by the store again, and refuses what is used up."""
    fleet, refusals = stage.fleet, stage.fleet.refusals()
    try:
        wait_until(lambda: fleet.is_steady, "a fleet that is answered by the store", pause=0.05, within=patience)
        wait_until(
            lambda: all(now > before for now, before in zip(fleet.refusals(), refusals, strict=True)),
            "a fleet that refuses",
            pause=0.05,
            within=patience,
        )
    except TimeoutError:
        return False
    return True


def _now() -> Micros:
    return SystemClock().time_ns() // 1_000

"""Run a fault on its stage, and return the trial."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event

from penstock.clock import Micros, SystemClock
from tests.faults.catalogue import Fault
from tests.faults.checks import Trial
from tests.faults.stages import Stage
from tests.rig.processes import DEADLINE, wait_until


def run(fault: Fault, stage: Stage, *, broken: str | None = None, patience: float = DEADLINE) -> Trial:
    """Keep the fleet under load from before the fault until it uses the store again, for at most `patience` seconds.

    `broken`: limiters with a defect that the checks must find.
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
    """Return whether every node uses the store again, and refuses exhausted counters."""
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

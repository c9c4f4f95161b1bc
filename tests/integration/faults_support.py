"""What tests of faults share: which faults, on which stage, and what must be true of all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.apart import TOPOLOGY, run_apart
from tests.faults.catalogue import FAULTS, Fault
from tests.faults.checks import wrong
from tests.faults.report import COLUMNS, NOT_PERMITTED, row
from tests.faults.running import run
from tests.faults.stages import CI, FULL, Stages, is_installed
from tests.integration.redis_support import is_full

EFFORT = FULL if is_full() else CI


def faults_on(*topologies: str) -> pytest.MarkDecorator:
    """Some in the usual run, and all under the profile that takes its time."""
    chosen = [fault for fault in FAULTS if fault.topology in topologies and (fault.ci or is_full())]
    return pytest.mark.parametrize("fault", chosen, ids=[fault.name.replace(" ", "-") for fault in chosen])


@contextmanager
def opened_stages(folders: pytest.TempPathFactory) -> Iterator[Stages]:
    if not is_installed():
        pytest.skip("valkey-server is not installed")
    with Stages(folders.mktemp("faults"), EFFORT) as stages:
        yield stages


def check(fault: Fault, stages: Stages, report: Callable[[str, object], None]) -> None:
    """Raise AssertionError if a promise is broken."""
    if not fault.possible():
        pytest.skip(NOT_PERMITTED)
    trial = run_apart(fault, EFFORT) if fault.topology == TOPOLOGY else run(fault, stages.on(fault.topology))
    report("fault", json.dumps(dict(zip(COLUMNS, row(trial), strict=True))))
    assert trial.answers
    assert wrong(trial) == []

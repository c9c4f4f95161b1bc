"""A fleet on one server to which everything happens: callers are answered, bounds hold, enforcement returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.checks import wrong
from tests.faults.running import run
from tests.faults.stages import Stages
from tests.integration.faults_support import check, faults_on, opened_stages


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with opened_stages(tmp_path_factory) as stages:
        yield stages


@pytest.mark.parametrize(
    ("broken", "findings"),
    [
        ("generous", {"admits_within_bound", "answers_fit"}),
        ("resentful", {"enforces_again"}),
        ("raising", {"no_errors"}),
    ],
)
def test_a_broken_limiter_is_found_out(broken: str, findings: set[str], stages: Stages) -> None:
    """One that admits everything, one that never asks again, one that raises: the checks find something."""
    (fault,) = [fault for fault in FAULTS if fault.name == "connection refused"]
    found = wrong(run(fault, stages.on(fault.topology), broken=broken, patience=1.5))
    assert findings <= {finding.partition(":")[0] for finding in found}


@faults_on("one server", "one server, 8 hosts", "one server, AOF")
def test_callers_are_answered_and_limits_enforced_again(
    fault: Fault, stages: Stages, record_property: Callable[[str, object], None]
) -> None:
    check(fault, stages, record_property)

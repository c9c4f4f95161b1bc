"""A fleet on Sentinel, on Cluster, and in a network of its own, to which everything happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.catalogue import Fault
from tests.faults.stages import Stages
from tests.integration.faults_support import check, faults_on, opened_stages


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with opened_stages(tmp_path_factory) as stages:
        yield stages


@faults_on("Sentinel", "Sentinel, min-replicas 1", "Cluster", "own network")
def test_callers_are_answered_and_limits_enforced_again(
    fault: Fault, stages: Stages, record_property: Callable[[str, object], None]
) -> None:
    check(fault, stages, record_property)

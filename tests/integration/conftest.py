"""Fleets that servers fail under, and the table of what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.integration.failover_fleet import Fleet
from tests.rig.clusters import Cluster
from tests.rig.sentinels import SentinelSet


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, fleets: dict[str, Fleet], record_property: Callable[[str, object], None]
) -> Fleet:
    """The fleet on servers of a flavour; its module says of what kind."""
    fleet = fleets[request.param]
    fleet.report = record_property
    return fleet


@pytest.fixture
def own(fleet: Fleet) -> SentinelSet | Cluster:
    """The servers of the fleet."""
    return fleet.topology


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells what was measured of each fault. None of it is asserted: machines stand still."""
    for kind in ("failover", "fault"):
        rows = [
            json.loads(value)
            for report in terminalreporter.getreports("passed")
            for name, value in report.user_properties
            if name == kind
        ]
        if rows:
            terminalreporter.section(f"{kind}s, as measured")
            terminalreporter.write_line("| " + " | ".join(rows[0]) + " |")
            terminalreporter.write_line("|---" * len(rows[0]) + "|")
            for row in rows:
                terminalreporter.write_line("| " + " | ".join(row.values()) + " |")

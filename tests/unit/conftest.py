"""Fixtures of the unit tests."""

import pytest

from penstock import ManualClock
from tests.unit.support import KINDS, Calls


@pytest.fixture
def clock() -> ManualClock:
    """Stands at the beginning of a minute, so that windows of a minute have just begun."""
    return ManualClock(1_700_000_040)


@pytest.fixture(params=KINDS)
def calls(request: pytest.FixtureRequest, clock: ManualClock) -> Calls:
    """Each way from a caller to the memory store in turn."""
    return KINDS[request.param](clock)

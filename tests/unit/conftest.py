"""Fixtures of the unit tests."""

import pytest

from penstock import ManualClock, events
from tests.unit.support import KINDS, Calls


@pytest.fixture(autouse=True)
def _no_hook_has_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of hooks are logged now and then; here each test hears of its own."""
    monkeypatch.setattr(events, "_logged_at", {})


@pytest.fixture
def clock() -> ManualClock:
    """Stands at the beginning of a minute, so that windows of a minute have just begun."""
    return ManualClock(1_700_000_040)


@pytest.fixture(params=KINDS)
def calls(request: pytest.FixtureRequest, clock: ManualClock) -> Calls:
    """Each way from a caller to the memory store in turn."""
    return KINDS[request.param](clock)

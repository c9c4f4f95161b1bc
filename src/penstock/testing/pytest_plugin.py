"""Fixtures for tests of applications. pytest loads this module wherever Penstock is installed, so it imports little."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock import ManualClock


@pytest.fixture
def penstock_clock() -> ManualClock:
    """A clock that stands still until the test moves it: `Limiter(clock=penstock_clock)`, `penstock_clock.advance(60)`.

    It begins at the start of a day, an hour and a minute in UTC, so that fixed windows have just begun.
    """
    from penstock import ManualClock

    return ManualClock(1_767_225_600)  # 2026-01-01 00:00:00 UTC


@pytest.fixture
def penstock_limits_off() -> Iterator[None]:
    """Limit nothing in this process during the test; see `penstock.testing.limits_off`."""
    from penstock.testing import limits_off

    with limits_off():
        yield

"""The fixtures for applications, in a test run of their own."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

APPLICATION = """
    from penstock import Limiter
    from penstock.testing import assert_allowed, assert_refused

    def test_a_minute_passes(penstock_clock):
        limiter = Limiter(clock=penstock_clock)
        assert_allowed(limiter.acquire("alice", "1/minute fixed_window"))
        assert_refused(limiter.acquire("alice", "1/minute fixed_window"), retry_after=60)
        penstock_clock.advance(60)
        assert_allowed(limiter.acquire("alice", "1/minute fixed_window"))
"""

OFF = """
    import pytest
    from penstock import Limiter

    limiter = Limiter()

    @pytest.mark.usefixtures("penstock_limits_off")
    def test_without_limits():
        assert all([limiter.acquire("alice", "1/day") for _ in range(3)])

    def test_with_limits():
        assert [bool(limiter.acquire("alice", "1/day")) for _ in range(2)] == [True, False]
"""


def _run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    # "no:penstock": an installed package would register the same plugin a second time, by its entry point.
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess(
        "-p", "no:penstock", "-p", "penstock.testing.pytest_plugin", "-p", "no:cacheprovider"
    )


def test_clock_stands_still_until_the_test_moves_it(pytester: pytest.Pytester) -> None:
    _run(pytester, APPLICATION).assert_outcomes(passed=1)


def test_limits_are_off_in_the_tests_that_ask_for_it(pytester: pytest.Pytester) -> None:
    _run(pytester, OFF).assert_outcomes(passed=2)


def test_plugin_is_declared_as_an_entry_point() -> None:
    project = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"penstock": "penstock.testing.pytest_plugin"}

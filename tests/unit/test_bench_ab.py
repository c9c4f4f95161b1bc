"""The comparison of two builds: its interval, its table and its errors."""

from typing import Any

import pytest

from bench import ab


def _round(figures: dict[str, float], **errors: str) -> dict[str, dict[str, Any]]:
    return {"figures": figures, "errors": errors}


def test_interval_of_twenty_rounds_is_from_the_sixth_to_the_fifteenth_value() -> None:
    assert ab.ratio(range(20, 0, -1)) == ab.Ratio(10.5, 6, 15)


def test_interval_of_six_rounds_is_all_of_them() -> None:
    assert ab.ratio([3, 1, 2, 6, 5, 4]) == ab.Ratio(3.5, 1, 6)


def test_interval_needs_six_rounds() -> None:
    with pytest.raises(ValueError, match="5 rounds: expected at least 6"):
        ab.ratio([1.0] * 5)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (ab.Ratio(1.10, 1.05, 1.20), "slower by 10.0%"),
        (ab.Ratio(0.90, 0.85, 0.99), "faster by 10.0%"),
        (ab.Ratio(1.10, 0.99, 1.20), "no difference seen"),
    ],
)
def test_verdict_sees_a_difference_only_outside_the_interval(ratio: ab.Ratio, verdict: str) -> None:
    assert ratio.verdict == verdict


def test_rows_compare_the_builds_round_by_round() -> None:
    base = [_round({"one key": 100.0 * (number + 1)}) for number in range(6)]
    ours = [_round({"one key": 150.0 * (number + 1)}) for number in range(6)]
    assert ab.rows(base, ours) == ["| one key | 350 | 525 | 1.500 [1.500..1.500] | slower by 50.0% |"]


def test_rows_say_which_build_cannot_measure_a_figure() -> None:
    base = [_round({}, rules="ImportError: no rules")] * 6
    ours = [_round({"rules": 1.0})] * 6
    assert ab.rows(base, ours) == ["| rules | | | | base: ImportError: no rules |"]


def test_unknown_revision_is_named() -> None:
    with pytest.raises(SystemExit, match="BASE 'no-such-branch': no such commit"):
        ab.commit_of("no-such-branch")

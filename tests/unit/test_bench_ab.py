"""The comparison of two builds: its interval, its table and its errors."""

import os
import time
from collections.abc import Sequence
from typing import Any

import pytest

from bench import ab, ab_service, ab_worker


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


def test_all_figures_are_chosen_without_a_text() -> None:
    assert ab.chosen([]) == [*ab_worker.FIGURES, *ab_service.FIGURES]


def test_figures_are_chosen_by_parts_of_their_names() -> None:
    assert ab.chosen(["by rules, one key", "Redis, blocking"]) == ["Redis, blocking", "service, gRPC by rules, one key"]


def test_unknown_figure_is_named() -> None:
    with pytest.raises(SystemExit, match="--only 'no such': expected part of a figure's name: in process, one quota"):
        ab.chosen(["in process", "no such"])


@pytest.mark.parametrize(
    ("status", "body", "admitted"),
    [
        (b"HTTP/1.1 200 OK\r\n", b'{"allowed":true,"source":"store"}', True),
        (b"HTTP/1.1 200 OK\r\n", b'{"allowed":true,"source":"open"}', False),
        (b"HTTP/1.1 200 OK\r\n", b'{"allowed":false,"source":"store"}', False),
        (b"HTTP/1.1 503 Busy\r\n", b'{"allowed":true,"source":"store"}', False),
    ],
)
def test_only_an_admission_by_the_store_is_measured(status: bytes, body: bytes, admitted: bool) -> None:
    assert ab_service.is_admission(status, body) is admitted


@pytest.mark.parametrize(
    ("message", "within"),
    [
        (b"\x08\x01\x12\x0c\x08\x01\x12\x06", True),
        (b"\x08\x02\x12\x0c\x08\x02\x12\x06", False),
        (b"\x08\x01\x12\x02\x08\x01", False),
        (b"", False),
    ],
)
def test_only_ok_by_a_limit_is_measured(message: bytes, within: bool) -> None:
    assert ab_service.is_within_limit(b"\0\0\0\0\x10" + message) is within


def test_cpu_time_is_that_of_the_process() -> None:
    before = time.process_time_ns()
    assert before <= ab_service.cpu_time(os.getpid()) <= time.process_time_ns()


class _Recorder:
    """A connection that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def ask(self, some: Sequence[str]) -> None:
        self.calls.append(list(some))

    def take(self, count: int) -> None:
        self.calls.append(count)


def test_load_is_answered_burst_by_burst() -> None:
    links = [_Recorder(), _Recorder()]
    ab_service.visit(links, list("abcdefg"), depth=2)
    assert [link.calls for link in links] == [[["a", "b"], 2, ["e", "f"], 2], [["c", "d"], 2, ["g"], 1]]

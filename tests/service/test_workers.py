"""The supervisor: workers that die are replaced, and workers are replaced without anybody noticing."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.service.supervisor import MAX_PAUSE, pause_after
from tests.rig.processes import DEADLINE, Workplace, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Supervised:
    """A supervisor of plain workers."""

    def __init__(self, place: Workplace, workers: int, drain: float, *flags: str, **environment: str) -> None:
        self.place = place
        command = (sys.executable, str(ROOT / "tests/service/supervised.py"), str(workers), str(drain), *flags)
        place.run(command, {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment})

    @property
    def said(self) -> str:
        return self.place.log.read_text()

    def wait_for(self, pattern: str, times: int = 1) -> None:
        try:
            wait_until(lambda: len(re.findall(pattern, self.said)) >= times, f"{pattern!r}")
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was never said {times} times:\n{self.said}") from None

    @property
    def port(self) -> int:
        self.wait_for(r"port \d+\n")
        return int(re.findall(r"port (\d+)", self.said)[0])

    def ask(self) -> int:
        """Which process answers."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE) as connection:
            return int(connection.recv(64))

    def ready(self) -> list[int]:
        """The workers that have become ready, in that order."""
        return [int(pid) for pid in re.findall(r"worker \d+ \(process (\d+)\) is ready", self.said)]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.place.pid, number)

    def ended(self) -> int:
        return self.place.process.wait(DEADLINE)


@pytest.fixture
def start() -> Iterator[Callable[..., Supervised]]:
    place = Workplace("penstock-supervised-")
    yield lambda workers, drain, *flags, **environment: Supervised(place, workers, drain, *flags, **environment)
    place.close()


def _is_gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or before it was read
        return True


Start = Callable[..., Supervised]


def test_a_worker_that_is_killed_is_replaced_and_the_others_answer_meanwhile(start: Start) -> None:
    service = start(2, 5)
    service.wait_for("is ready", 2)
    first, second = service.ready()
    os.kill(first, signal.SIGKILL)
    assert service.ask() != first
    service.wait_for("is ready", 3)
    assert "was ended by SIGKILL: it is replaced\n" in service.said
    os.kill(second, signal.SIGKILL)
    service.wait_for("is ready", 4)
    assert service.ask() in service.ready()[2:]


def test_connections_wait_while_there_is_no_worker(start: Start) -> None:
    service = start(1, 5)
    service.wait_for("is ready")
    os.kill(service.ready()[0], signal.SIGKILL)
    assert service.ask() != service.ready()[0]


def test_rolling_restart_replaces_every_worker_and_refuses_no_call(start: Start) -> None:
    service = start(2, 5)
    service.wait_for("is ready", 2)
    before = service.ready()
    service.signal(signal.SIGUSR2)
    answered = set()
    while len(service.ready()) < 4 or not all(map(_is_gone, before)):
        answered.add(service.ask())
    assert service.ask() in service.ready()[2:]
    assert "started" not in service.said, "nobody was replaced for having died"


def test_a_reload_reaches_every_worker(start: Start) -> None:
    service = start(2, 5)
    service.wait_for("is ready", 2)
    service.signal(signal.SIGHUP)
    service.wait_for(r"heard 1 \{'reloaded': 1\}")
    service.wait_for(r"heard 2 \{'reloaded': 2\}")


def test_a_reload_does_not_end_a_worker_that_is_starting(start: Start, tmp_path: Path) -> None:
    """Who has no handler yet is ended by SIGHUP. It is told when it is ready: it may have read the old files."""
    service = start(1, 5, "--slow", str(tmp_path / "go on"))
    service.wait_for(r"heard 1 \{'starting': 1\}")
    service.signal(signal.SIGHUP)
    service.signal(signal.SIGUSR2)  # handled after it: a sign that the first one was
    service.wait_for("rolling restart")
    (tmp_path / "go on").touch()
    service.wait_for(r"heard 1 \{'reloaded': 1\}")
    assert "SIGHUP" not in service.said


def test_a_worker_that_cannot_be_started_is_tried_again_while_the_others_answer(start: Start, tmp_path: Path) -> None:
    """As when the program is being replaced, or the system is short of memory."""
    python, away = tmp_path / "python", tmp_path / "away"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    service = start(2, 5, PYTHON_OF_WORKERS=str(python))
    service.wait_for("is ready", 2)
    first, second = service.ready()
    python.rename(away)
    service.signal(signal.SIGUSR2)
    service.wait_for("worker 1 cannot be started: No such file or directory")
    os.kill(first, signal.SIGKILL)
    service.wait_for("cannot be started: No such file or directory", 2)
    assert service.ask() == second
    away.rename(python)
    service.wait_for("is ready", 3)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0


def test_a_command_that_cannot_be_run_at_all_ends_it(start: Start, tmp_path: Path) -> None:
    service = start(2, 5, PYTHON_OF_WORKERS=str(tmp_path / "nothing"))
    assert service.ended() == 1
    assert "worker 1 cannot be started: No such file or directory" in service.said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_ends_the_workers_and_the_supervisor(start: Start, number: signal.Signals) -> None:
    service = start(2, 5)
    service.wait_for("is ready", 2)
    service.signal(number)
    assert service.ended() == 0
    assert all(map(_is_gone, service.ready()))
    assert "killed" not in service.said


def test_a_worker_that_does_not_end_is_killed(start: Start) -> None:
    service = start(1, 0, "--stubborn")
    service.wait_for("is ready")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0
    assert "did not end in time: killed" in service.said
    assert _is_gone(service.ready()[0])


def test_second_sigterm_kills_the_workers(start: Start) -> None:
    service = start(1, 1_000, "--stubborn")
    service.wait_for("is ready")
    service.signal(signal.SIGTERM)
    service.signal(signal.SIGINT)
    assert service.ended() == 0
    assert _is_gone(service.ready()[0])


def test_supervisor_gives_up_if_no_worker_becomes_ready(start: Start) -> None:
    service = start(2, 5, "--never-ready")
    assert service.ended() == 1
    assert "ended with code 3 before it was ready: giving up" in service.said


def test_workers_do_not_outlive_a_supervisor_that_is_killed(start: Start) -> None:
    service = start(2, 5)
    service.wait_for("is ready", 2)
    service.place.kill()
    for pid in service.ready():
        wait_until(lambda pid=pid: _is_gone(pid), "a worker without supervisor to end")  # type: ignore[misc]


def test_repeatedly_failing_worker_is_started_after_growing_pauses() -> None:
    pauses = [pause_after(failures) for failures in range(1, 100)]
    assert pauses[:4] == [0.0, 0.1, 0.2, 0.4]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_PAUSE

"""Several processes count, and any of them answers for all, whoever is killed meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.observability.metrics import Metrics
from penstock.observability.shared import prepare
from tests.rig.processes import DEADLINE, wait_until
from tests.unit.observability.support import Samples

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    def __init__(self, directory: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.service.metrics_worker", str(directory), name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._heard() == "ready"

    def say(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        return "" if line == "stop" else self._heard()

    def _heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, how: str) -> None:
        if how == "killed":
            self.process.kill()
        else:
            self.say("stop")
        self.process.wait(DEADLINE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[[str], Worker]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return prepare(tmp_path)


@pytest.fixture
def start(directory: Path) -> Iterator[Start]:
    started: list[Worker] = []

    def start(name: str) -> Worker:
        started.append(Worker(directory, name))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


@pytest.fixture
def scraped(directory: Path) -> Iterator[Metrics]:
    metrics = Metrics(directory, "scraped")
    yield metrics
    metrics.close()


def decisions(metrics: Metrics) -> float:
    return Samples(metrics.text()).total("penstock_decisions_total")


def test_any_worker_answers_for_all_of_them(start: Start, scraped: Metrics) -> None:
    workers = [start(str(n)) for n in range(3)]
    for n, worker in enumerate(workers, 1):
        worker.say(f"decide {100 * n}")
    wait_until(lambda: decisions(scraped) == 600, "all decisions to be counted")
    seen = Samples(scraped.text())
    assert seen.total("penstock_decisions_total", outcome="allowed") == 15
    assert seen.of("penstock_requests_total", route="check", status="200") == 600
    assert seen.of("penstock_request_duration_seconds_count", route="check") == 600
    assert seen.of("penstock_batch_decisions_count") == 3
    assert seen.of("penstock_workers") == 4
    assert seen.of("penstock_connections") == 6
    assert seen.labels("penstock_process_open_fds", "worker") == {"0", "1", "2", "scraped"}
    assert workers[0].say("scrape") == "600"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_a_dead_worker_counted_is_kept_and_its_gauges_vanish(start: Start, scraped: Metrics, how: str) -> None:
    first, second = start("0"), start("1")
    first.say("decide 40")
    second.say("decide 2")
    if how == "killed":  # its last second may be lost, so it is waited for
        wait_until(lambda: decisions(scraped) == 42, "all decisions to be counted")
    first.end(how)
    wait_until(lambda: decisions(scraped) == 42, "what was counted to be kept")
    seen = Samples(scraped.text())
    assert seen.of("penstock_workers") == 2
    assert seen.labels("penstock_process_open_fds", "worker") == {"1", "scraped"}
    start("0").say("decide 8")
    wait_until(lambda: decisions(scraped) == 50, "its successor to be counted as well")
    assert Samples(scraped.text()).of("penstock_workers") == 3


def test_no_counter_ever_goes_back(start: Start) -> None:
    """Workers come and go while several scrape, each of which adds up the dead for all."""
    scrapers = [start(f"s{n}") for n in range(2)]
    most, said = 0, 0
    for turn in range(4):
        worker = start("w")
        worker.say("decide 5")
        said += 5
        worker.end("killed" if turn % 2 else "stopped")
        for scraper in scrapers * 3:
            counted = int(scraper.say("scrape"))
            assert most <= counted <= said
            most = counted
    assert most >= 10  # those that were stopped have told all

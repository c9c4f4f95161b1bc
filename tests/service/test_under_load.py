"""Workers are killed and replaced while clients ask: nobody fails but who was being answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.processes import wait_until
from tests.rig.servers import Server
from tests.service.serving import PATIENT, Load, Serving

CONNECTIONS = 8


@pytest.fixture
def service() -> Iterator[Serving]:
    with Server("valkey") as store:
        url = f"redis://127.0.0.1:{store.port}/0?secret=of-these-tests"
        with Serving("--store", url, "--workers", "2", *PATIENT) as serving:
            serving.wait_for("is ready", 2)
            yield serving


def test_killed_worker_loses_only_the_calls_it_was_answering(service: Serving) -> None:
    with Load(service.port, CONNECTIONS) as load:
        load.go_on()
        os.kill(service.workers[0], signal.SIGKILL)
        service.wait_for("is ready", 3)
        load.go_on()
        assert 0 <= load.failed <= CONNECTIONS
        failed, before = load.failed, service.workers[1:]

        service.signal(signal.SIGUSR2)  # a rolling restart
        service.wait_for("is ready", 5)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before), "the old workers to leave")
        load.go_on()
    assert load.failed == failed
    assert load.told_to_close >= 1

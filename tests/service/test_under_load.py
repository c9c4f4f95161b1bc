"""Workers are killed and replaced while clients ask: nobody fails but who was being answered."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.processes import DEADLINE
from penstock.testing.servers import Server
from tests.service.serving import PATIENT, Load, Serving

CONNECTIONS = 8


@pytest.fixture
def service() -> Iterator[Serving]:
    with Server("valkey") as store:
        url = f"redis://127.0.0.1:{store.port}/0?secret=of-these-tests"
        with Serving("--store", url, "--workers", "2", *PATIENT) as serving:
            serving.wait_for("is ready", 2)
            yield serving


async def _until(service: Serving, load: Load, ready: int, more: int = 200) -> None:
    """Wait until so many workers have become ready, and so many requests were answered after that."""
    async with asyncio.timeout(DEADLINE):
        while len(service.workers) < ready:
            await asyncio.sleep(0.01)
        enough = load.answered + more
        while load.answered < enough:
            await asyncio.sleep(0.01)


async def test_a_worker_that_is_killed_fails_only_what_it_was_answering(service: Serving) -> None:
    load = Load(service.port, CONNECTIONS)
    asking = asyncio.create_task(load.run())
    await _until(service, load, 2)
    os.kill(service.workers[0], signal.SIGKILL)
    await _until(service, load, 3)
    load.stop()
    await asking
    assert 0 <= load.failed <= CONNECTIONS
    assert load.answered > 400


async def test_a_rolling_restart_fails_nobody(service: Serving) -> None:
    before = list(service.workers)
    load = Load(service.port, CONNECTIONS)
    asking = asyncio.create_task(load.run())
    await _until(service, load, 2)
    service.signal(signal.SIGUSR2)
    await _until(service, load, 4)
    async with asyncio.timeout(DEADLINE):
        while any(Path(f"/proc/{pid}").exists() for pid in before):
            await asyncio.sleep(0.01)
    await _until(service, load, 4)
    load.stop()
    await asking
    assert load.failed == 0
    assert load.told_to_close >= 1

"""How many Python frames a warm, allowed request costs on its way through the package.

Each frame costs 50 to 100 nanoseconds. The numbers are upper bounds; lower them when a path gets shorter.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import hpack
import pytest

import penstock
from penstock import AsyncLimiter, Limiter
from penstock.service.envoy.protocol import SHOULD_RATE_LIMIT
from penstock.service.grpc import pack
from penstock.service.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from penstock.stores.redis.store import AsyncRedisStore
from tests.integration.redis_support import PATIENT
from tests.rig.fixtures import Keyspace
from tests.service.harness import Running
from tests.service.http2 import connected
from tests.service.journeys import WARM, FrameCall, FrameCounter, frames_of, frames_on, serving_all
from tests.unit.envoy.support import request
from tests.unit.service.http2 import POST

pytestmark = pytest.mark.untraced

RULES = """
rules:
  - {id: orders, match: {path: {prefix: /orders}}, key: user, quota: 10000/day}
  - {id: edge, match: {domain: edge}, key: remote_address, quota: 10000/day}
"""
CONFIG = """
domain: edge
descriptors:
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 10000}}
"""
Call: TypeAlias = Callable[[Running], list[FrameCall]]

CHECK = json.dumps({"descriptor": {"path": "/orders/1", "user": "alice"}}).encode()


def check_call(running: Running) -> list[FrameCall]:
    data = b"POST /v1/check HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (len(CHECK), CHECK)
    with running.client() as client:

        def ask() -> None:
            answer = json.loads(client.ask(data).body)
            assert (answer["allowed"], answer["rule"], answer["source"]) == (True, "orders", "store")

        return frames_on(running, ask)


def rate_limit_call(running: Running) -> list[FrameCall]:
    headers = [*(dict(POST) | {b":path": SHOULD_RATE_LIMIT, b"content-type": b"application/grpc"}).items()]
    encoder, ids = hpack.Encoder(), iter(range(1, 1_000, 2))
    message = pack(request("edge", {"remote_address": "192.0.2.1"}))
    with connected(running) as peer:

        def ask() -> None:
            id = next(ids)
            peer.send(frame(HEADERS, END_HEADERS, id, encoder.encode(headers)) + frame(DATA, END_STREAM, id, message))
            answer = peer.answer(id)
            assert (answer.trailers[b"grpc-status"], answer.body[5:7]) == (b"0", b"\x08\x01")

        return frames_on(running, ask)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
SOURCES = Path(penstock.__file__).parent


def modules_on_page(journey: str) -> list[str]:
    """Return the modules that the numbered hops of a journey name with their whole path, in order."""
    section = PAGE.read_text(encoding="utf-8").partition(f"### {journey}\n")[2].partition("\n#")[0]
    hops = "\n".join(re.findall(r"^\d+\. .*", section, re.MULTILINE))
    named = re.findall(r"`([\w/]+)\.py`", hops)
    return list(dict.fromkeys(name for name in named if (SOURCES / f"{name}.py").exists()))


def modules_of(frames: list[FrameCall]) -> list[str]:
    """Return the modules that a request crossed, in order of the first crossing."""
    return list(dict.fromkeys(frame.module for frame in frames))


def shown(frames: list[FrameCall]) -> str:
    return "\n".join([f"{len(frames)} frames", *map(str, frames)])


JOURNEYS: dict[str, tuple[Call, bool, int, int]] = {
    "/v1/check": (check_call, False, 28, 62),
    "ShouldRateLimit by rules": (rate_limit_call, False, 42, 75),
    "ShouldRateLimit by configuration": (rate_limit_call, True, 33, 64),
}
"""By name: the call, whether Envoy's configuration is in force, and the most frames over memory and over Redis."""


def test_acquire_of_one_quota_in_memory() -> None:
    limiter = Limiter()
    frames = frames_of(lambda: limiter.acquire("alice", "10000/day"))
    assert len(frames) <= 3, shown(frames)


def test_the_page_names_the_hops_of_acquire_in_memory() -> None:
    limiter = Limiter()
    frames = frames_of(lambda: limiter.acquire("alice", "10000/day"))
    assert modules_of(frames) == modules_on_page("Limiter.acquire, memory")


@pytest.mark.parametrize(
    ("heading", "journey"),
    [("POST /v1/check", "/v1/check"), ("Envoy's gRPC call", "ShouldRateLimit by configuration")],
)
def test_the_page_names_the_hops_of_a_call(heading: str, journey: str, tmp_path: Path) -> None:
    call, by_config, *_ = JOURNEYS[journey]
    with serving_all(None, RULES, configured(tmp_path) if by_config else None) as running:
        frames = call(running)
    assert modules_of(frames) == modules_on_page(heading)


def test_acquire_of_two_quotas_in_memory() -> None:
    limiter = Limiter()
    frames = frames_of(lambda: limiter.acquire("alice", "10000/day, 1000/hour"))
    assert len(frames) <= 6, shown(frames)


def test_acquire_over_redis(keyspace: Keyspace) -> None:
    async def acquire() -> list[FrameCall]:
        store = AsyncRedisStore(keyspace.server.url, prefix=keyspace.prefix, **PATIENT)
        async with AsyncLimiter(store) as limiter:
            for _ in range(WARM):
                await limiter.acquire("alice", "10000/day")
            counter = FrameCounter()
            counter.start()
            verdict = await limiter.acquire("alice", "10000/day")
            frames = counter.stop()
            assert verdict
        await store.close()
        return frames

    frames = asyncio.run(acquire())
    assert len(frames) <= 32, shown(frames)
    assert modules_of(frames) == modules_on_page("AsyncLimiter.acquire, Redis")


@pytest.mark.parametrize("journey", JOURNEYS)
def test_call_over_memory(journey: str, tmp_path: Path) -> None:
    call, by_config, most, _ = JOURNEYS[journey]
    with serving_all(None, RULES, configured(tmp_path) if by_config else None) as running:
        frames = call(running)
    assert len(frames) <= most, shown(frames)
    assert turns(frames) == 2, shown(frames)  # one reads, one answers


@pytest.mark.parametrize("journey", JOURNEYS)
def test_call_over_redis(journey: str, tmp_path: Path, keyspace: Keyspace) -> None:
    call, by_config, _, most = JOURNEYS[journey]
    with serving_all(keyspace, RULES, configured(tmp_path) if by_config else None) as running:
        frames = call(running)
    assert len(frames) <= most, shown(frames)
    assert turns(sent(frames)) == 2, shown(frames)  # one reads, one sends


def sent(frames: list[FrameCall]) -> list[FrameCall]:
    """Return the frames before the reply of Redis is read."""
    at = next(at for at, one in enumerate(frames) if "stores/redis" in one.module and "data_received" in one.function)
    return frames[:at]


def turns(frames: list[FrameCall]) -> int:
    return len({one.turn for one in frames})


def configured(folder: Path) -> Path:
    (folder / "edge.yaml").write_text(CONFIG, encoding="utf-8")
    return folder

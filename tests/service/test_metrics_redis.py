"""What Redis servers say of themselves, and what becomes of it when they do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import AsyncLimiter
from penstock.observability import redis_info
from penstock.observability.metrics import Metrics
from penstock.observability.redis_info import RedisWatch
from penstock.observability.shared import prepare
from penstock.stores.redis.store import RedisStore
from tests.rig.processes import wait_until
from tests.rig.servers import Server
from tests.unit.observability.support import Samples


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(password="hush") as server:
        yield server


def watched(server: Server) -> tuple[RedisStore, RedisWatch]:
    store = RedisStore(f"{server.url}?secret=s")
    return store, RedisWatch(store, lambda: True)


async def test_a_service_on_redis_exports_what_the_server_says(server: Server) -> None:
    metrics = Metrics()
    async with AsyncLimiter(f"{server.url}?secret=s&deadline=30", hook=metrics) as limiter:
        metrics.decided([await limiter.acquire(f"k{n}", "5/minute") for n in range(20)], 500)
        metrics.watch(store=limiter.store)
        metrics.start()

        async def until_known() -> Samples:
            while True:
                seen = Samples(await asyncio.to_thread(metrics.text))
                if seen.total("penstock_redis_up"):
                    return seen
                await asyncio.sleep(0.01)

        seen = await asyncio.wait_for(until_known(), 60)
        metrics.close()
    place = f"127.0.0.1:{server.port}"
    assert seen.of("penstock_redis_up", server=place) == 1
    assert (seen.of("penstock_redis_memory_bytes", server=place) or 0) > 100_000
    assert (seen.of("penstock_redis_clients", server=place) or 0) >= 1
    assert (seen.of("penstock_redis_commands_total", server=place) or 0) >= 20
    assert (seen.of("penstock_redis_scripts_total", server=place) or 0) >= 20
    assert 0 < (seen.of("penstock_redis_script_seconds_total", server=place) or 0) < 10
    for name in ("evicted_keys_total", "expired_keys_total", "commands_per_second", "max_memory_bytes", "replicas"):
        assert seen.of(f"penstock_redis_{name}", server=place) is not None, name
    assert seen.of("penstock_breaker_workers", server=place, state="closed") == 1


def test_a_server_that_is_gone_is_down_and_says_nothing(server: Server) -> None:
    with Server() as another:
        store, watch = watched(another)
        watch.poll()
        assert watch.values["penstock_redis_up"] == {f'{{server="127.0.0.1:{another.port}"}}': 1}
        another.kill()
        watch.poll()
    assert watch.values == {"penstock_redis_up": {f'{{server="127.0.0.1:{another.port}"}}': 0}}
    store.close()


def test_hanging_server_does_not_block_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_info, "WITHIN", 0.05)
    with Server() as frozen:
        store, watch = watched(frozen)
        frozen._place.freeze()
        watch.poll()
        assert list(watch.values["penstock_redis_up"].values()) == [0]
        frozen._place.thaw()
    store.close()


def test_user_without_info_permission_exports_no_figures(server: Server) -> None:
    server.ask("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "-info")
    store = RedisStore(f"redis://narrow:pw@127.0.0.1:{server.port}?secret=s")
    assert list(store.inspect(5).values()) == [None]
    store.close()


def test_one_worker_of_several_asks(server: Server, tmp_path: Path) -> None:
    directory = prepare(tmp_path)
    first, second = (Metrics(directory, name) for name in "01")
    asked: list[str] = []

    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def inspect(self, within: float) -> dict[str, dict[str, str] | None]:
            asked.append(self.name)
            return {"h:1": {"used_memory": "5"}}

    watches = [RedisWatch(Counted(name), one._leads, 0.01) for name, one in (("0", first), ("1", second))]
    watches[0].start()
    wait_until(lambda: len(asked) > 2, "the first to have asked")
    watches[1].start()
    wait_until(lambda: len(asked) > 10, "some more to have asked")
    assert set(asked) == {"0"}
    watches[0].stop()
    first.close()
    wait_until(lambda: "1" in asked, "the second to take over")
    watches[1].stop()
    second.close()

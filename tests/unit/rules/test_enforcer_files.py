"""Enforcers made of files: rules, keys, the store, and what is closed at the end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncLimiter, Limiter, ManualClock, StoreError
from penstock.enforcer import AsyncEnforcer, Enforcer
from penstock.errors import InvalidOption, InvalidRules
from penstock.events import RulesLoaded
from penstock.rules import hash_key
from penstock.stores import MemoryStore

ONE = "rules: [{id: api, key: owner | ip, quota: 1/minute}]"
TWO = "rules: [{id: api, key: owner | ip, quota: 2/minute}]"
SECRET = b"sixteen bytes or more"
REQUEST = {"ip": "192.0.2.7"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(ONE)
    return path


def _watchers() -> int:
    return sum(thread.name == "penstock-rules" for thread in threading.enumerate())


def test_rules_of_a_file_are_enforced_in_this_process(file: Path) -> None:
    with Enforcer.from_file(file) as enforcer:
        assert [bool(enforcer.check(REQUEST)) for _ in range(2)] == [True, False]
        assert enforcer.check(REQUEST).rule == "api"


async def test_asyncio_enforcer_reads_the_same_file(file: Path) -> None:
    async with AsyncEnforcer.from_file(str(file)) as enforcer:
        assert [bool(await enforcer.check(REQUEST)) for _ in range(2)] == [True, False]


def test_store_may_be_a_url_or_a_store(file: Path, clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    assert Enforcer.from_file(file, store=store).check(REQUEST)
    assert not Enforcer.from_file(file, store=store).check(REQUEST)
    assert Enforcer.from_file(file, store="memory://?max_keys=5000").check(REQUEST)


def test_enforcer_closes_the_limiter_that_it_opened(file: Path) -> None:
    enforcer = Enforcer.from_file(file)
    enforcer.close()
    with pytest.raises(StoreError, match="the limiter is closed"):
        enforcer.check(REQUEST, id="one")


def test_enforcer_leaves_the_limiter_open_that_it_was_given(file: Path) -> None:
    limiter = Limiter()
    Enforcer.from_file(file, limiter=limiter).close()
    assert limiter.acquire("alice", "1/minute")


async def test_asyncio_enforcer_closes_only_what_it_opened(file: Path) -> None:
    limiter = AsyncLimiter()
    await AsyncEnforcer.from_file(file, limiter=limiter).close()
    assert await limiter.acquire("alice", "1/minute")
    enforcer = AsyncEnforcer.from_file(file, follow=True)
    await enforcer.close()
    assert _watchers() == 0
    with pytest.raises(StoreError, match="the limiter is closed"):
        await enforcer.check(REQUEST, id="one")


def test_an_enforcer_that_was_not_made_of_a_file_has_nothing_to_close(file: Path) -> None:
    limiter = Limiter()
    Enforcer(Enforcer.from_file(file).rules, limiter).close()
    assert limiter.acquire("alice", "1/minute")


def test_file_is_followed_if_asked_for(file: Path) -> None:
    loaded = threading.Semaphore(0)

    def hook(event: Any) -> None:
        if isinstance(event, RulesLoaded):
            loaded.release()

    with Enforcer.from_file(file, follow=True, hook=hook) as enforcer:
        assert loaded.acquire(timeout=30)
        assert _watchers() == 1
        file.write_text(TWO)
        assert loaded.acquire(timeout=30)
        assert [bool(enforcer.check(REQUEST)) for _ in range(3)] == [True, True, False]
    assert _watchers() == 0


def test_file_is_read_once_by_default(file: Path) -> None:
    enforcer = Enforcer.from_file(file)
    assert _watchers() == 0
    file.write_text(TWO)
    assert [bool(enforcer.check(REQUEST)) for _ in range(2)] == [True, False]


def test_keys_of_a_file_are_known(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.csv"
    keys.write_text(f"hash,owner,tier,status\n{hash_key('sk-1', SECRET).hex()},acme,,\n")
    enforcer = Enforcer.from_file(file, keys=keys, keys_secret=SECRET)
    assert enforcer.check({"api_key": "sk-1", "ip": "192.0.2.1"})
    assert not enforcer.check({"api_key": "sk-1", "ip": "192.0.2.2"})


def test_mistakes_in_a_file_are_raised_and_nothing_is_left_running(file: Path) -> None:
    file.write_text("rules: [{id: api}]")
    for make in (Enforcer.from_file, AsyncEnforcer.from_file):
        for follow in (False, True):
            with pytest.raises(InvalidRules, match=r"penstock\.yaml:1"):
                make(file, follow=follow)
    with pytest.raises(InvalidRules, match="nonesuch"):
        Enforcer.from_file("nonesuch.yaml")
    assert _watchers() == 0


@pytest.mark.parametrize("wrong", [{"keys": "keys.csv"}, {"keys_secret": SECRET}])
def test_keys_need_a_secret_and_a_secret_keys(file: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="keys, keys_secret: expected both or neither"):
        Enforcer.from_file(file, **wrong)


def test_a_store_beside_a_limiter_is_refused(file: Path) -> None:
    with pytest.raises(InvalidOption, match="store, limiter: expected one of them"):
        Enforcer.from_file(file, store="memory://", limiter=Limiter())
    with pytest.raises(InvalidOption, match="store, limiter: expected one of them"):
        asyncio.run(_make(file))


async def _make(file: Path) -> AsyncEnforcer:
    return AsyncEnforcer.from_file(file, store="memory://", limiter=AsyncLimiter())

"""How `INFO` is read."""

from __future__ import annotations

import logging

import pytest

from penstock.observability import redis_info, series
from penstock.observability.redis_info import RedisWatch, figures


def test_the_lag_is_that_of_the_slowest_replica() -> None:
    facts = {
        "connected_slaves": "2",
        "master_repl_offset": "1000",
        "slave0": "ip=10.0.0.2,port=6379,state=online,offset=990,lag=0",
        "slave1": "ip=10.0.0.3,port=6379,state=online,offset=400,lag=3",
    }
    assert figures(facts) == {series.REDIS_REPLICAS: 2, series.REDIS_LAG: 600, series.REDIS_SILENCE: 3}
    assert series.REDIS_LAG not in figures({"master_repl_offset": "1000"})


def test_scripts_are_added_up_however_they_are_called() -> None:
    facts = {
        "cmdstat_evalsha": "calls=10,usec=500,usec_per_call=50.00,rejected_calls=0,failed_calls=1",
        "cmdstat_eval": "calls=2,usec=100,usec_per_call=50.00",
    }
    assert figures(facts) == {series.REDIS_SCRIPTS: 12, series.REDIS_SCRIPT_SECONDS: pytest.approx(600e-6)}


def test_facts_that_are_no_numbers_are_left_out() -> None:
    assert figures({"used_memory": "much", "maxmemory": "", "evicted_keys": "7"}) == {series.REDIS_EVICTED: 7}


def test_a_failed_poll_leaves_no_old_figures(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def inspect(self, within: float) -> dict[str, dict[str, str] | None]:
            raise RuntimeError("redis://user:password@host")

    watch = RedisWatch(Broken(), lambda: True)
    watch.values = {"penstock_redis_up": {"": 1}}
    watch.stop()
    with caplog.at_level(logging.WARNING):
        watch._run()
    assert watch.values == {}
    assert "RuntimeError" in caplog.text
    assert "password" not in caplog.text


def test_a_worker_that_takes_over_does_not_wait_for_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies takes its figures with it; the next one used to leave a hole of ten seconds."""

    class Store:
        def inspect(self, within: float) -> dict[str, dict[str, str] | None]:
            watch.stop()
            return {"a:1": {}}

    monkeypatch.setattr(redis_info, "TURN", 0.001)
    turns = iter([False, False, True])
    watch = RedisWatch(Store(), lambda: next(turns), every=3_600)
    watch._run()
    assert watch.values == {"penstock_redis_up": {'{server="a:1"}': 1.0}}

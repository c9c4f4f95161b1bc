"""A fleet on a primary that Sentinels watch: whatever becomes of it, limits are enforced again, and bounds hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from penstock.clock import SECOND, Micros
from penstock.model import Ask, Failed, Verdict
from penstock.stores.redis.config import Node
from penstock.stores.redis.sentinel import SentinelTopology
from penstock.stores.redis.store import TOPOLOGIES, RedisStore
from penstock.testing.history import CallHistory
from tests.integration.failover_fleet import Fleet, Spending, evalshas
from tests.integration.failover_load import SHARES, ask
from tests.integration.failover_support import Running, on, spend
from tests.integration.redis_support import acquire, decided, one, opened
from tests.rig.processes import wait_until
from tests.rig.sentinels import SentinelSet
from tests.rig.servers import Server


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Fleet]]:
    with ExitStack() as closing:
        yield Running(SentinelSet, closing, tmp_path_factory)


def one_budget(key: str) -> int:
    """For every key, because one server has them all."""
    return 1


# ---------------------------------------------------------------- nothing is lost


@on("redis")
def test_a_primary_hands_over_and_nothing_is_lost(fleet: Fleet, own: SentinelSet) -> None:
    """The primary pauses writes until the replica has all of them; who asks it later is refused, not counted."""
    with fleet.trial("FAILOVER") as trial, patient(own):
        old = own.primary
        own.failover()
        trial.redis_is_back()
        with trial.leaving_alone(old):
            trial.go_on()
    trial.check()


# ---------------------------------------------------------------- at most one budget is lost


@on("redis")
def test_sentinels_promote_another_while_the_old_primary_goes_on(fleet: Fleet, own: SentinelSet) -> None:
    """The old one takes itself for the primary for ten seconds, and all who follow the Sentinels leave it alone."""
    with fleet.trial("SENTINEL FAILOVER") as trial:
        old = own.sentinel_failover()
        trial.redis_is_back()
        with trial.leaving_alone(old):
            trial.go_on()
    trial.check(one_budget)


@on("redis")
def test_acknowledged_writes_are_lost(fleet: Fleet, own: SentinelSet) -> None:
    """The bound is reached: what was spent of a counter is spent again, once."""
    with fleet.trial("acknowledged writes lost") as trial:
        with own.losing_writes() as dead:
            fleet.spend(trial.generation, "lost").check()
        trial.redis_is_back()
        fleet.spend(trial.generation, "lost").check()
        own.restart(dead)
        trial.go_on()
        assert evalshas(dead) == 0
    trial.check(one_budget)
    assert any(excess > 0 for key, excess in trial.excess.items() if " lost " in key)


@on("valkey")
def test_a_primary_is_killed_and_comes_back(fleet: Fleet, own: SentinelSet) -> None:
    with fleet.trial("kill -9 of the primary") as trial:
        dead = own.kill_primary()
        trial.redis_is_back()
        own.restart(dead)
        trial.go_on()
        assert evalshas(dead) == 0
    trial.check(one_budget)


@on("valkey")
def test_a_primary_is_restarted_empty(fleet: Fleet, own: SentinelSet) -> None:
    """So soon that nobody takes its place: its replicas forget what it has forgotten."""
    with fleet.trial("primary restarted empty") as trial, patient(own):
        fleet.spend(trial.generation, "lost").check()
        own.primary.restart()
        trial.redis_is_back()
        fleet.spend(trial.generation, "lost").check()
    trial.check(one_budget)
    assert any(excess > 0 for key, excess in trial.excess.items() if " lost " in key)


@contextmanager
def patient(own: SentinelSet) -> Iterator[None]:
    """Sentinels that do not fail over because a primary is away for a moment."""
    try:
        set_down_after(own, 60_000)
        yield
    finally:
        set_down_after(own, own.down_after)


def set_down_after(own: SentinelSet, millis: int) -> None:
    for sentinel in own.sentinels:
        sentinel.ask("SENTINEL", "SET", own.service, "down-after-milliseconds", millis)


# ---------------------------------------------------------------- primaries that do not know that they were replaced


@on("valkey")
def test_a_primary_is_stopped_replaced_and_continued(fleet: Fleet, own: SentinelSet) -> None:
    with fleet.trial("stop, promote, continue") as trial:
        zombie = own.freeze_and_promote()
        trial.redis_is_back()
        zombie.thaw()
        with trial.leaving_alone(zombie):
            trial.go_on()
    trial.check(one_budget)


class LooksOnce(SentinelTopology):
    """Finds the primary, and clings to it."""

    def look(self) -> Failed | None:
        return None if self._primary is not None else super().look()

    def _listen(self, sentinels: Sequence[Node]) -> None:
        """To nobody."""


@pytest.fixture
def clinging(own: SentinelSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisStore]:
    """A store that clings to whoever is the primary now."""
    own.wait_until_ok()
    monkeypatch.setitem(TOPOLOGIES, "sentinel", LooksOnce)
    with opened(own.url) as store:
        wait_until(lambda: isinstance(one(store, acquire("1000/day")), Verdict), "a decision")
        yield store


@on("valkey")
def test_with_min_replicas_a_continued_primary_soon_stops_granting(
    fleet: Fleet, own: SentinelSet, clinging: RedisStore
) -> None:
    """Even to those who cling to it: for at most max-lag and a second, which is measured and not asserted."""
    with protected(own, max_lag=2), fleet.trial("stop, promote, continue; min-replicas") as trial:
        zombie = own.freeze_and_promote()
        trial.redis_is_back()
        with frozen(own.sentinels):  # they would end it, too, but after ten seconds
            zombie.thaw()
            trial.notes = cling(clinging, CallHistory().now())
            with trial.leaving_alone(zombie):
                trial.go_on()
    trial.check(one_budget)


@on("redis")
def test_with_min_replicas_a_primary_that_does_not_know_of_its_successor_soon_stops_granting(
    fleet: Fleet, own: SentinelSet, clinging: RedisStore
) -> None:
    with protected(own, max_lag=2), fleet.trial("SENTINEL FAILOVER; min-replicas") as trial:
        old = own.sentinel_failover()
        trial.redis_is_back()
        trial.notes = cling(clinging, trial.back)
        with trial.leaving_alone(old):
            trial.go_on()
    trial.check(one_budget)


def cling(store: RedisStore, since: Micros) -> str:
    """Ask a server that was replaced until it refuses to decide; how long it granted."""
    last, granted = since, 0
    while not isinstance(outcome := one(store, acquire("1000000/day")), Failed):
        last, granted = decided(outcome).at_us, granted + 1
    assert "NOREPLICAS" in str(outcome.error)
    return f"whoever clings to it is granted {granted}, for {(last - since) / SECOND:.2f} s"


@contextmanager
def protected(own: SentinelSet, max_lag: int) -> Iterator[None]:
    """Primaries that want to hear from a replica."""
    try:
        configure(own, 1, max_lag)
        yield
    finally:
        configure(own, 0, 10)


def configure(own: SentinelSet, min_replicas: int, max_lag: int) -> None:
    for server in own.servers:
        server.ask("CONFIG", "SET", "min-replicas-to-write", min_replicas, "min-replicas-max-lag", max_lag)


@on("valkey")
def test_a_client_that_clings_to_the_old_primary_is_caught(
    fleet: Fleet, own: SentinelSet, clinging: RedisStore
) -> None:
    """By both checks: more is admitted of a fresh limit, and the old primary is asked for decisions."""
    with fleet.trial("") as trial:
        zombie = own.freeze_and_promote()
        trial.redis_is_back()
        with frozen(own.sentinels):
            zombie.thaw()
            theirs = fleet.tell(f"spend {trial.generation} proof-caught")
            Spending.of(theirs).check()
            more = {str(asked.key): (spend(clinging, asked), 0) for asked in fresh(trial.generation, "proof-caught")}
            with pytest.raises(AssertionError, match=r" units admitted, expected exactly 4$"):
                Spending.of([*theirs, more]).check()
            with (
                pytest.raises(AssertionError, match=r"^1 decisions were asked of a server that no longer decides"),
                trial.leaving_alone(zombie),
            ):
                one(clinging, acquire("1000/day"))


@contextmanager
def frozen(servers: Sequence[Server]) -> Iterator[None]:
    for server in servers:
        server.freeze()
    try:
        yield
    finally:
        for server in servers:
            server.thaw()


def fresh(generation: str, kind: str) -> list[Ask]:
    return [ask(generation, kind, share) for share in range(SHARES)]

"""A fleet on a cluster: whatever becomes of nodes and slots, limits are enforced again, and bounds hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.integration.failover_fleet import KINDS, Fleet, Trial, evalshas
from tests.integration.failover_load import SHARES, ask, key_of, quota_of, slot_of
from tests.integration.failover_support import Running, on, spend
from tests.integration.redis_support import count, opened
from tests.rig.clusters import Cluster
from tests.rig.servers import Server


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Fleet]]:
    with ExitStack() as closing:
        yield Running(Cluster, closing, tmp_path_factory)


def shards(own: Cluster) -> dict[int, Server]:
    """Who owns each slot."""
    return {slot: primary for primary in own.primaries for slot in own.slots_of(primary)}


def one_budget(before: dict[int, Server], own: Cluster, *forgetful: Server) -> Callable[[str], int]:
    """For each key whose owner was replaced since, or is among those that forgot it; the others lose nothing.

    Beside those that a test wants replaced, others may be, because the machine stood still.
    """
    after = shards(own)
    lost = {slot for slot, owner in before.items() if owner is not after[slot] or owner in forgetful}
    return lambda key: int(slot_of(key) in lost)


def owner(trial: Trial, own: Cluster, share: int) -> Server:
    """Who decides on some of the counters that are asked for."""
    return own.owner(slot_of(key_of(trial.generation, "lost", share)))


def check_spent_again(trial: Trial) -> None:
    """What was lost was spent again: a proof of a bound that nothing comes near would prove little."""
    assert any(excess > 0 for key, excess in trial.excess.items() if " lost " in key)


# ---------------------------------------------------------------- nothing is lost


@on("valkey")
def test_limits_by_user_address_and_for_everyone_hold_together(fleet: Fleet, own: Cluster) -> None:
    """A request of three keys, on up to three servers, is charged everywhere or nowhere: no unit is lost or gained."""
    with fleet.trial("none", deadline=30) as trial, patient(own):
        trial.redis_is_back()
        trial.go_on(count(400, 5_000))
    trial.check()
    keys = [key_of(trial.generation, kind, share) for kind in ("user", "ip") for share in range(SHARES)]
    keys.append(key_of(trial.generation, "everyone", 0))
    assert len({own.owner(slot_of(key)) for key in keys}) == SHARES
    asked = [call for call in trial.history.calls if call.key in keys]
    assert {call.outcome for call in asked} == {"admitted", "refused"}
    with opened(
        own.url
    ) as store:  # what is left is taken, so that the total must be the limit, whatever was given back
        for kind, share in (key.split(" ")[1:3] for key in keys):
            key = key_of(trial.generation, kind, int(share))
            left = spend(store, ask(trial.generation, kind, int(share)))
            assert trial.admitted(key) + left == quota_of(key).limit, key


@on("valkey")
def test_slots_move_and_nothing_is_lost(fleet: Fleet, own: Cluster) -> None:
    """A key is in one place at any time, and whoever asks in the other one is sent there."""
    with fleet.trial(f"{count(100, 1_000)} slots moved") as trial, patient(own):
        source, target = owner(trial, own, 0), owner(trial, own, 1)
        moved = [key_of(trial.generation, kind, 0) for kind in ("spent", "slow", "flow", "user", "everyone")]
        slots = sorted(own.slots_of(source), key=lambda slot: (slot not in map(slot_of, moved), slot))
        slots = slots[: count(100, 1_000)]
        own.reshard(slots, target)
        trial.redis_is_back()
        assert {own.owner(slot_of(key)) for key in moved} == {target}
        assert source in own.primaries
    trial.check()


@on("redis")
def test_a_replica_takes_over_when_asked_and_nothing_is_lost(fleet: Fleet, own: Cluster) -> None:
    """The primary pauses writes until the replica has all of them; who asks it later is sent on."""
    with fleet.trial("CLUSTER FAILOVER") as trial, patient(own):
        old = owner(trial, own, 0)
        own.cluster_failover(own.replicas_of(old)[0])
        trial.redis_is_back()
        with trial.leaving_alone(old):
            trial.go_on()
    trial.check()


# ---------------------------------------------------------------- at most one budget is lost


@on("redis")
def test_a_primary_is_killed_and_comes_back(fleet: Fleet, own: Cluster) -> None:
    with fleet.trial("kill -9 of a primary") as trial:
        dead = owner(trial, own, 1)
        before = shards(own)
        own.kill_primary(dead)
        trial.redis_is_back()
        own.restart(dead)
        trial.go_on()
        assert evalshas(dead) == 0
    trial.check(one_budget(before, own))


@on("redis")
def test_a_primary_is_stopped_replaced_and_continued(fleet: Fleet, own: Cluster) -> None:
    with fleet.trial("stop, promote, continue") as trial:
        zombie = owner(trial, own, 2)
        before = shards(own)
        own.freeze_and_promote(zombie)
        trial.redis_is_back()
        zombie.thaw()
        with trial.leaving_alone(zombie):
            trial.go_on()
    trial.check(one_budget(before, own))


@on("redis")
def test_acknowledged_writes_are_lost(fleet: Fleet, own: Cluster) -> None:
    """The bound is reached: what was spent of a counter is spent again, once."""
    with fleet.trial("acknowledged writes lost") as trial:
        dead = owner(trial, own, 0)
        before = shards(own)
        with own.losing_writes(dead):
            fleet.spend(trial.generation, "lost").check()
        trial.redis_is_back()
        fleet.spend(trial.generation, "lost")
        own.restart(dead)
        trial.go_on()
        assert evalshas(dead) == 0
    trial.check(one_budget(before, own))
    check_spent_again(trial)


@on("valkey")
def test_a_primary_is_restarted_empty(fleet: Fleet, own: Cluster) -> None:
    """So soon that nobody takes its place: its replica forgets what it has forgotten."""
    with fleet.trial("primary restarted empty") as trial, patient(own):
        fleet.spend(trial.generation, "lost").check()
        forgetful = owner(trial, own, 1)
        before = shards(own)
        own.restart(forgetful)
        trial.redis_is_back()
        assert shards(own) == before
        fleet.spend(trial.generation, "lost")
    trial.check(one_budget(before, own, forgetful))
    check_spent_again(trial)


@contextmanager
def patient(own: Cluster) -> Iterator[None]:
    """Nodes that promote nobody because a primary is away for a moment."""
    try:
        set_node_timeout(own, 60_000)
        yield
    finally:
        set_node_timeout(own, 1_000)


def set_node_timeout(own: Cluster, millis: int) -> None:
    for node in own.nodes:
        node.ask("CONFIG", "SET", "cluster-node-timeout", millis)


@on("valkey")
def test_a_shard_is_lost_and_restored_while_the_others_go_on(fleet: Fleet, own: Cluster) -> None:
    with fleet.trial("shard lost and restored") as trial:
        fleet.spend(trial.generation, "lost").check()
        primary = owner(trial, own, 2)
        before, slots = shards(own), set(own.slots_of(primary))
        lost = own.lose_shard(primary)
        gone = trial.history.now()
        trial.go_on(100)
        still = trial.history.now()
        own.restart(*lost)
        trial.redis_is_back()
        fleet.spend(trial.generation, "lost")
    trial.check(one_budget(before, own, *lost))
    check_spent_again(trial)
    for number in range(len(KINDS)):
        meanwhile = [
            call
            for call in trial.history.calls
            if call.node == f"node{number}" and gone < call.invoked and call.returned < still
        ]
        of_the_lost = {call.outcome for call in meanwhile if slot_of(str(call.key)) in slots}
        assert of_the_lost <= {"failed", "unknown"}
        assert {call.outcome for call in meanwhile if slot_of(str(call.key)) not in slots} >= {"admitted", "refused"}
